"""How a latency percentile of an operating point comes about, in the numbers that add up to it."""

from __future__ import annotations

import math

from servelint.distribution import percentile_share
from servelint.service import MixedStep, Objective, Point
from servelint_rules.show import counted, duration, tokens


def named(objective: Objective) -> str:
    """An objective as messages call it: ITL p99."""
    return f"{objective.metric.upper()} {objective.percentile}"


def latency_equation(point: Point, objective: Objective) -> str:
    """Derive the latency of an objective's metric and percentile at a point."""
    derive = {"itl": _itl, "tpot": _tpot, "ttft": _ttft, "e2e": _e2e}[objective.metric]
    return f"{named(objective)} = {derive(point, objective.percentile)}"


def _itl(point: Point, percentile: str) -> str:
    shown, plain = duration(point.itl(percentile)), duration(point.plain_s)
    share = f"{point.delayed_share:.1%} of decoded tokens wait" if point.delayed_share else "no decoded token waits"
    mixed = point.service.mixed
    waiting = f"{share} for {'a step that also prefills' if mixed else 'prompts, which go first'}"
    if percentile == "mean":
        return f"{_average(point, point.delayed_share)} = {shown}: {waiting}"
    step = point.mixed_step(percentile)
    if step is None:
        return f"{shown}: a step without prefill, of {_decoding(point)}; {waiting}"
    slower = 100 * (1 - percentile_share(percentile))
    prefilled, decoding = _prefilled(step, point.service.prompts_first), _decoding(point)
    what = f"a step with {prefilled}, beside {decoding}" if mixed else f"{prefilled} first, then a step of {decoding}"
    return (
        f"{shown}: {what}; {waiting}, {slower:.3g}% for {'one ' if mixed else ''}as long or longer; without prefill it "
        f"takes {plain}"
    )


def _decoding(point: Point) -> str:
    context = tokens(point.service.mix.mean_context)
    return f"{counted(max(point.batch, 1.0), 'decoding sequence')} of {context} tokens"


def _prefilled(step: MixedStep, whole: bool = False) -> str:
    past = f" after {tokens(step.past)} earlier ones" if step.past >= 1 else ""
    if step.full:
        return f"a full chunk of {tokens(step.tokens)} prompt tokens{past}"
    if step.prompts >= 1.05:
        return f"{'' if whole else 'the last '}{tokens(step.tokens)} tokens of {step.prompts:.1f} prompts{past}"
    return (
        f"the last {tokens(step.tokens)} tokens of a prompt{past}"
        if past
        else f"a prompt of {tokens(step.tokens)} tokens"
    )


def _average(point: Point, share: float) -> str:
    return f"{1 - share:.1%} x {duration(point.plain_s)} + {share:.1%} x {duration(point.average_mixed_s)}"


def _tpot(point: Point, percentile: str) -> str:
    kept = point.service.scheduler.yield_per_step
    share = point.delayed_share_of_request(percentile)
    each, decoding = f" / {kept:.3g} tokens a step" if kept > 1 else "", _decoding(point)
    shown = duration(point.tpot(percentile))
    if round(share, 3) in (0.0, 1.0):
        step, which = (point.average_mixed_s, "with") if share > 0.5 else (point.plain_s, "without")
        return f"{f'{duration(step)}{each} = ' if each else ''}{shown}: every step of {decoding} is {which} prefill"
    average = f"({_average(point, share)})" if each else _average(point, share)
    usual = "" if percentile == "mean" else f" ({point.delayed_share:.1%} on average)"
    return (
        f"{average}{each} = {shown}: a step of {decoding} without and with prefill; {share:.1%} of the "
        f"{tokens(point.service.mix.output.mean / kept)} steps of such a request{usual} also prefill prompts"
    )


def _busy(point: Point) -> str:
    if point.slots_busy > point.prefill_utilization:
        taken = min(point.slots_busy, 9.99)
        return f"{taken:.0%} of the {point.service.batch_limit:,} sequence slots are taken"
    return f"prefill is busy {min(point.prefill_utilization, 9.99):.0%} of the time"


def _unbounded(point: Point) -> str:
    return f"without limit: {_busy(point)}, so the queue never empties"


def _ttft(point: Point, percentile: str) -> str:
    service, total, wait = point.service, point.ttft(percentile), point.wait[1]
    busy = _busy(point)
    if math.isinf(total):
        return _unbounded(point)
    scheduler, mix = service.scheduler, service.mix
    if percentile == "mean":
        compiled = scheduler.first_token_s * scheduler.first_token_share
        own, which = total - wait - compiled, "prompts of every length"
    else:
        prompt = mix.prompt.quantile(percentile_share(percentile))
        # Cold compiles of a larger share than lies beyond the percentile are in it.
        cold = scheduler.first_token_share > 1 - percentile_share(percentile)
        compiled = min(scheduler.first_token_s, total) if cold else 0.0
        own = min(point.prefill_s(prompt), total - compiled)
        steps = math.ceil(mix.computed(prompt) / point.piece) if point.piece else 1
        which = f"a prompt of {tokens(prompt)} tokens ({percentile})"
        if compiled:
            which = "the prompt"
        elif service.separate:
            which += ", its KV transfer included"
        elif steps > 1:
            which += f", in {steps} steps of up to {tokens(point.piece)} tokens"
            if not service.prompts_first:
                which += f" {'beside' if service.scheduler.mixed else 'and between them those of'} {_decoding(point)}"
    parts = [f"{duration(own)} to prefill {which}"]
    if compiled > 0:
        parts.append(f"{duration(compiled)} of cold grammar compiles")
    queued = total - own - compiled
    if queued > total * 0.0005:
        parts.append(f"{duration(queued)} of queue")
    waiting = f"; {busy}, the mean wait is {duration(wait)}" if service.open_loop else ""
    return f"{' + '.join(parts)} = {duration(total)}{waiting}"


def _e2e(point: Point, percentile: str) -> str:
    if math.isinf(point.e2e(percentile)):
        return _unbounded(point)
    output = point.service.mix.output
    length = output.mean if percentile == "mean" else output.quantile(percentile_share(percentile))
    return (
        f"{duration(point.ttft('mean'))} to the first token on average + {tokens(max(length - 1, 0.0))} tokens x "
        f"{duration(point.tpot('mean'))} = {duration(point.e2e(percentile))}"
    )
