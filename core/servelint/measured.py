"""The evidence of a claim: its file read, the run that the claim is about, how that differs from the deployment.

A run is bound to a claim by the load that the claim states; a file of one run needs no statement. What differs is
told only where both sides say something.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from servelint.errors import PluginError
from servelint.evidence import Measurement
from servelint.files import read_project_file
from servelint.lineage import KeyPath

if TYPE_CHECKING:
    from servelint.manager import Plugins
    from servelint.review import Review
    from servelint.spec.model import Claim

EVIDENCE_BYTES = 20_000_000
"""The largest result file that is read."""

MOST_RUNS = 1_000
SAME_LOAD = 0.02
"""Relative difference below which two loads are the same."""


class UnknownKindError(ValueError):
    """A file that no reader knows; it may be evidence of another kind."""


class Evidence(NamedTuple):
    """The file behind a claim: its runs, the one that the claim is about, and why none is when None."""

    file: str
    runs: tuple[Measurement, ...]
    run: Measurement | None = None
    why: str = ""


class Difference(NamedTuple):
    """Something in which a run and the deployment differ: what it is, both sides, the key of the spec."""

    what: str
    measured: str
    deployed: str
    path: KeyPath


def is_file(name: str) -> bool:
    """Whether a text names a file of the project: not the address of a page."""
    return "://" not in name


def runs_of(name: str, plugins: Plugins, root: Path, folder: Path) -> tuple[Measurement, ...]:
    """Read a result file of the project by the first format that knows it.

    Raises ValueError when it cannot be read, UnknownKindError when no format knows it.
    """
    text = read_project_file(root, folder, name, EVIDENCE_BYTES)
    for format_ in plugins.evidence_formats:
        try:
            with plugins.blamed(
                plugins.reader_provider(format_.name), f"reading {name} as {format_.name}", expected=(ValueError,)
            ):
                found = []
                for run in format_.read(text):
                    found.append(run)
                    if len(found) >= MOST_RUNS:
                        break
        except PluginError:
            continue
        if found:
            return tuple(found)
    raise UnknownKindError("no benchmark that any reader knows writes such a file")


def bind(claim: Claim, name: str, runs: tuple[Measurement, ...]) -> Evidence:
    """Choose the run that a claim is about."""
    at = claim.at
    wanted = [
        ("concurrency", float(at.concurrency or at.batch or 0)) if at and (at.concurrency or at.batch) else None,
        ("rate", at.rate) if at and at.rate is not None else None,
    ]
    stated = [w for w in wanted if w is not None]
    if stated:
        matching = [r for r in runs if all(_at(r, kind, value) for kind, value in stated)]
        matching = matching or [r for r in runs if at and at.rate and _near(r.request_throughput, at.rate)]
        known = [r for r in runs if any(_load(r, kind) is not None for kind, _ in stated)]
        said = " and ".join(f"{kind} {value:g}" for kind, value in stated)
        if len(matching) == 1:
            return Evidence(name, runs, matching[0])
        if matching:
            found = _by_value(claim, matching)
            why = f"{len(matching)} of its runs are at {said}"
            return Evidence(name, runs, found, "" if found is not None else why)
        if known:
            loads = sorted({v for r in known for kind, _ in stated if (v := _load(r, kind)) is not None})
            shown = ", ".join(f"{v:g}" for v in loads[:8]) + (" ..." if len(loads) > 8 else "")
            return Evidence(name, runs, None, f"none of its runs is at {said}: they are at {shown}")
    if len(runs) == 1:
        return Evidence(name, runs, runs[0])
    found = _by_value(claim, runs)
    return Evidence(name, runs, found, "" if found is not None else f"which of its {len(runs)} runs it is, is not said")


def _load(run: Measurement, kind: str) -> float | None:
    if kind == "concurrency":
        return run.concurrency
    return run.requested_rate if run.requested_rate is not None else run.achieved_rate


def _at(run: Measurement, kind: str, value: float) -> bool:
    return _near(_load(run, kind), value)


def _near(found: float | None, value: float) -> bool:
    return found is not None and abs(found - value) <= SAME_LOAD * value


def _by_value(claim: Claim, runs: Iterable[Measurement]) -> Measurement | None:
    """The only run whose own figure is the claimed one."""
    near = [r for r in runs if any(_near(v, claim.value) for v in figures(r, claim.metric))]
    return near[0] if len(near) == 1 else None


RATES: Mapping[str, str] = {
    "throughput": "output_throughput",
    "output_throughput": "output_throughput",
    "total_throughput": "total_throughput",
    "request_rate": "request_throughput",
}


def figures(run: Measurement, metric: str) -> tuple[float, ...]:
    """What a run says of a claim's metric: a rate, or a latency at every percentile; nothing where it says none."""
    if metric in RATES:
        value = getattr(run, RATES[metric])
        return () if value is None else (value,)
    if metric in ("ttft", "itl", "tpot", "e2e"):
        found: Mapping[str, float] = getattr(run, f"{metric}_s")
        if metric == "tpot" and (derived := derived_tpot(run)) is not None:
            return (*found.values(), derived)
        return tuple(found.values())
    return ()


def derived_tpot(run: Measurement) -> float | None:
    """Mean seconds of a token after the first, from the means of the end-to-end latency, TTFT and output length."""
    total, first, output = run.e2e_s.get("mean"), run.ttft_s.get("mean"), run.output_tokens.get("mean")
    if total is None or first is None or output is None or not output > 1.5:
        return None
    return (total - first) / (output - 1)


def flight(run: Measurement) -> float | None:
    """Mean requests in flight by Little's law: completed a second times mean end-to-end latency."""
    rate, total = run.request_throughput, run.e2e_s.get("mean")
    return None if rate is None or total is None else rate * total


# Run against deployment


def differences(review: Review, run: Measurement) -> Iterator[Difference]:
    """In which of model, hardware, engine and settings a run and the deployment differ."""
    deployment = review.deployment
    if run.model is not None and deployment.model.id is not None:
        models = review.plugins.models
        own, other = models.resolve(deployment.model.id), models.resolve(run.model)
        # A name that no catalogue knows may be anybody's for the same weights.
        if own is not None and other is not None and own != other:
            yield Difference("model", run.model, deployment.model.id, ("model", "id"))
    yield from _hardware(review, run)
    engine = review.engine
    if run.engine is not None and engine is not None and review.declared("engine", "name"):
        known = review.plugins.engines.get(run.engine.lower())
        if known is not None and known is not engine:
            yield Difference("engine", run.engine, engine.name, ("engine", "name"))
    yield from _settings(review, run)


def _hardware(review: Review, run: Measurement) -> Iterator[Difference]:
    accelerator, hardware = review.accelerator, review.deployment.hardware
    key = next((k for k in ("accelerator", "instance", "datasheet") if review.declared("hardware", k)), "accelerator")
    if run.accelerator is not None and accelerator is not None and hardware.datasheet is None:
        # A family name (H100) leaves the form factor open; one that nothing here knows says nothing.
        found = review.plugins.accelerators.related(run.accelerator)
        if found and accelerator.id not in found:
            yield Difference("accelerator", run.accelerator, accelerator.id, ("hardware", key))
    if run.devices is not None and review.composition is not None and review.replicas == 1:
        pools = review.composition.scheduler.disaggregation
        if pools is None and run.devices != review.devices:
            counted = "devices" if review.declared("hardware", "devices") else key
            yield Difference("devices", str(run.devices), str(review.devices), ("hardware", counted))


def _settings(review: Review, run: Measurement) -> Iterator[Difference]:
    for name, value in run.settings.items():
        path: KeyPath = tuple(name.split("."))
        deployed = _deployed(review, path)
        if deployed is None or deployed == value:
            continue
        if path[1:2] == ("quantization",):
            formats = review.plugins.formats
            own, other = formats.get(str(deployed).lower()), formats.get(str(value).lower())
            if own is None or other is None or own is other:
                continue
        elif not isinstance(value, int | float) or not isinstance(deployed, int | float):
            continue
        yield Difference(".".join(map(str, path[-2:])), str(value), str(deployed), path)


def _deployed(review: Review, path: KeyPath) -> object:
    """What the spec declares at a key; a degree of parallelism that it leaves out is that of the composition."""
    declared = review.document.value(path)
    if declared is not None or path[:2] != ("policy", "parallelism"):
        return declared
    config = review.policy("parallelism")
    return getattr(config, str(path[2]), None) if config is not None else None
