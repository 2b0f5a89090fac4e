"""Prints how recorded cases come out of a check, and writes them as specs.

``python tests/accuracy/cases.py [KIND ...]`` prints a line for each; ``--write`` writes ``tests/cases``. A case says
what went wrong with a deployment (or that nothing did) and what a check should say of it. Each becomes a spec in the
one way of `recorded` and is checked with every rule. Cases of low confidence are left out of the counts.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import recorded
from published import UnmappedError, plugins
from recorded import Record

from servelint.config import Config
from servelint.lint import Linter
from servelint.rule import Finding, Severity

FOLDER = Path(__file__).resolve().parents[1] / "cases"
KINDS = ("startup", "memory", "behaviour")

RIGHT = {
    "activation": ("MEM",),
    "backend_capability": ("ENG", "KRN", "HW", "QNT"),
    "capacity": ("MEM",),
    "chunked_prefill": ("SLO005", "SLO006", "SLO007", "SLO008", "SLO010"),
    "ctx_gt_model": ("CTX", "ENG"),
    "disagg": ("DIS",),
    "fp8_block_mod_tp": ("PAR", "QNT", "ENG"),
    "gpu_capability": ("HW", "ENG", "QNT"),
    "graphs": ("MEM", "KRN"),
    "guided": ("CND",),
    "heads_mod_tp": ("PAR", "ENG"),
    "hybrid": ("MEM",),
    "kv_dtype_backend": ("QNT", "ENG", "KRN", "HW"),
    "kv_dtype_gain": ("QNT", "MEM"),
    "kv_lt_max_len": ("MEM",),
    "kv_overcommit": ("MEM",),
    "long_context": ("CTX",),
    "margin": ("MEM",),
    "moe_balance": ("MOE",),
    "no_kv": ("MEM",),
    "overload": ("SLO004", "SLO005", "SLO006", "SLO007"),
    "parallelism": ("PAR", "DEC", "MOE"),
    "pp_unsupported": ("PAR", "ENG"),
    "preemption": ("MEM", "SLO007"),
    "quant_group_mod_tp": ("PAR", "QNT", "ENG"),
    "quant_slow": ("QNT",),
    "roofline": ("SLO005", "SLO006", "SLO007", "SLO009", "CLM001"),
    "slow_link": ("PAR",),
    "spec_incompat": ("SPD", "ENG"),
    "spec_ok": ("SPD",),
    "spec_slow": ("SPD",),
    "tp_gt_kv_heads": ("PAR",),
    "tp_overscale": ("PAR", "DEC"),
    "vocab_mod_tp": ("PAR", "ENG"),
}
"""Families, or rules, that speak of what a category of cases is about."""

LEVELS = {"error": Severity.ERROR, "warning": Severity.WARNING}
ASIDE = ("QNT001", "SPEC005", "SPEC007")
"""Rules that ask for what a record never has: evaluations, inputs of other rules."""

WHY: Mapping[str, str] = {
    "awq-first-token-slow": "neither model nor device is stated: the stand-in's profile of 131,072 tokens does not fit",
    "codellama34b-trtllm-long": "four loads of one deployment; that the longer is the slower is an estimate, no fault",
    "deepseek-coder-33b-2l40": "the record has no length, and the profile run of 16K tokens is what does not fit",
    "deepseek-v3-pp2-0.6.6": "the error is that of releases up to 0.6.2; the class of 0.6.6 can be cut into stages",
    "deepseekv3-h200-sglang-graph-bs256": "the reserve is no flag in the record, and the graphs left 5.6 GB of it",
    "dflash-mtp-strixhalo-np": "the record states no drafted tokens, and the estimate gains; see the comparisons",
    "dscoderv2-236b-8h100-16k": "weights and cache fit; what tips it over are reserves, an estimate: a warning",
    "dsr1-zigzag-h20": "where experts are placed is no key of a spec",
    "dsv4-flash-2h20-tp2": "the deployment ran; what the record warns of is how its log is read",
    "dsv4-pro-fp8-tp8-ok": "it passed the check of its shape; 1.6T parameters do not fit eight devices of 80 GB",
    "dsv41-h200-prefill-interval": "no objective says for how long prompts may keep others from decoding",
    "dynamo-disagg-8000-200": "neither model nor device is stated, and the pools of the stand-ins hold the rate",
    "eagle-qwq-tp4-no-gain": "the record states no acceptance",
    "first-itl-chunk-2k": "neither model nor device is stated: a chunk of the stand-in is quick",
    "gemma4-26b-awq-3090-256k": "weights that the checkpoint keeps in 16 bits are not recorded: 3.6 GiB by the log",
    "gemma4-26b-metal-uniform-vs-grouped": "the fault is in what the engine charges; a spec has what the layers need",
    "gemma4-31b-metal-uniform-vs-grouped": "the fault is in what the engine charges; a spec has what the layers need",
    "gemma4-31b-tt-tp-unsharded-kv": "the fault is in what the engine charges; the ledger has room for four times that",
    "glm53-flash-gb10-mixed": "the model is not in the catalogue, and a chunk of the stand-in is quick",
    "gptoss120b-a100-tp1-vs-tp2": "the estimate is faster with two devices; see the comparisons of arms",
    "gptoss120b-trtllm-h100-bs720": "what the engine sets aside for 720 slots of 131K tokens was found in no source",
    "internvl2-26b-vision-heads-tp4": "no release refuses it: 0.5.5 splits no tower, and 0.6.0 leaves this one whole",
    "kimi-linear-48b-awq-2x3090": "the ledger leaves the cache 5.5 GiB beside steps of 64,000 tokens, the log 2.3",
    "lemonade-llamacpp-4slots-131k": "no load says that its slots are full at once, which sharing counts on: a warning",
    "llama2-7b-trtllm-a100-40g-batch192": "what does not fit are static buffers, whose size is an estimate: a warning",
    "llama3-70b-fp8-tp8-vs-2xtp4": "no objective is stated, so more devices a replica are no fault",
    "llama31-8b-3090-29k": "weights and cache fit; what tips it over is the profile run, an estimate: a warning",
    "llama33-70b-exl2-2x3090-tp-prefill": "the engine is in no plugin, and its time of a prompt has no objective",
    "ngram-batch10-slower": "the target is not stated, and host time of its steps is no figure of the estimate",
    "qwq32b-8a100-tp8-vs-tp4": "the estimate gains from eight devices; see the comparisons of arms",
}
"""Why a case does not come out as it should."""


class Written(NamedTuple):
    """A case as a spec: its text, the model config beside it where it has one, and the file that holds that."""

    text: str
    config: Mapping[str, object] | None
    config_name: str


class Outcome(NamedTuple):
    """How one case came out.

    ``right``: the right family of rules says it at the expected level; ``weaker``: at a lower one; ``elsewhere``: only
    other families speak (of a negative case: they alone do); ``missed``; ``silent``; ``false alarm``; ``unmapped``.
    """

    case: Record
    verdict: str
    findings: tuple[Finding, ...]
    reason: str = ""

    @property
    def held(self) -> bool:
        """Whether the check said what the case expects."""
        return self.verdict in ("right", "silent")

    @property
    def loud(self) -> tuple[Finding, ...]:
        """Errors and warnings."""
        return tuple(f for f in self.findings if _level(f) >= Severity.WARNING)


def written(case: Record) -> Written:
    """Write a case as a spec; UnmappedError says why that is impossible."""
    if case.kind == "behaviour":
        from behaviour import subject

        case = subject(case)
    made = recorded.deployed(case, stand_ins=case.kind != "memory")
    name = f"{case.id}.config.json"
    return Written(made.text.replace('config = "config.json"', f'config = "{name}"'), made.config, name)


def lint(path: Path, text: str) -> tuple[Finding, ...]:
    """Return what the check says of a spec, the rules of `ASIDE` left out."""
    result = Linter(plugins(), Config(preview=True), path.parent).check(str(path), text)
    assert not plugins().faults, plugins().faults
    return tuple(located.finding for located in result.findings if located.finding.code not in ASIDE)


def check(case: Record) -> Outcome:
    """Check one case and judge what was found."""
    try:
        made = written(case)
    except UnmappedError as error:
        return Outcome(case, "unmapped", (), str(error))
    folder = recorded.ROOT / case.kind
    folder.mkdir(exist_ok=True)
    if made.config is not None:
        (folder / made.config_name).write_text(json.dumps(made.config), encoding="utf-8")
    return judged(case, lint(folder / f"{case.id}.toml", made.text))


def judged(case: Record, found: tuple[Finding, ...]) -> Outcome:
    """Judge what was found of a case."""
    loud = [f for f in found if _level(f) >= Severity.WARNING]

    def about(finding: Finding) -> bool:
        return finding.code.startswith(RIGHT[case.category])

    if case.negative:
        # A record that grants a warning of a tight margin is content with one.
        granted = Severity.ERROR if "warning" in case.message and "acceptable" in case.message else None
        alarms = [f for f in loud if granted is None or _level(f) >= granted]
        verdict = "false alarm" if any(map(about, alarms)) else "elsewhere" if alarms else "silent"
        return Outcome(case, verdict, found)
    wanted = LEVELS[case.level]
    right = [f for f in found if about(f)]
    if any(_level(f) >= wanted for f in right):
        return Outcome(case, "right", found)
    if any(_level(f) >= Severity.WARNING for f in right):
        return Outcome(case, "weaker", found)
    return Outcome(case, "elsewhere" if any(_level(f) >= wanted for f in loud) else "missed", found)


def _level(finding: Finding) -> Severity:
    return finding.severity or Severity.INFO


def outcomes(kinds: Iterable[str] = ("startup", "memory"), *, low: bool = False) -> Iterator[Outcome]:
    """Check every case of the kinds; those of low confidence only with ``low``."""
    for kind in kinds:
        yield from (check(case) for case in recorded.cases(kind) if low or case.confidence != "low")


def said(findings: Iterable[Finding]) -> list[str]:
    """Return a line for each error and warning: code, level and the key that it points at."""
    return [
        f"{f.code} {_level(f).name.lower()} at {'.'.join(map(str, f.path))}"
        for f in findings
        if _level(f) >= Severity.WARNING
    ]


def header(outcome: Outcome) -> str:
    """Return the comments at the head of a case's file: its source, what was seen, expected and found."""
    case = outcome.case
    expected = f"nothing ({case.message})" if case.negative else f"{case.level}: {case.message}"
    run = f"{case.model} on {case.count or 'some'} x {case.gpu}; {case.engine}, release: {case.version}"
    lines = [
        f"Recorded case of {case.kind}: {case.category}. Written by `python tests/accuracy/cases.py --write`.",
        f"Source: {case.source}. Confidence: {case.confidence}.",
        f"Ran: {run}",
        f"Observed: {json.dumps(case.observed, ensure_ascii=False)}",
        f"Expected: {expected}",
        f"Verdict: {outcome.verdict}" + (f" ({WHY[case.id]})" if not outcome.held and case.id in WHY else ""),
    ]
    lines += [f"Found: {line}" for line in said(outcome.findings)] or ["Found: nothing"]
    folded = (textwrap.wrap(line, 117, subsequent_indent="  ", break_long_words=False) for line in lines)
    return "".join(f"# {line}\n" for part in folded for line in part)


def files() -> dict[str, str]:
    """Return every file of ``tests/cases`` by its path below: specs, model configs, the page about the rest."""
    found: dict[str, str] = {}
    left: list[Outcome] = []
    for outcome in outcomes(KINDS, low=True):
        case = outcome.case
        if outcome.verdict == "unmapped":
            left.append(outcome)
            continue
        made = written(case)
        found[f"{case.kind}/{case.id}.toml"] = f"{header(outcome)}{made.text}"
        if made.config is not None:
            found[f"{case.kind}/{made.config_name}"] = json.dumps(made.config, indent=2) + "\n"
    found["README.md"] = page(left)
    return found


def page(left: Iterable[Outcome]) -> str:
    """Return the page of ``tests/cases``."""
    rows = "\n".join(f"| `{o.case.id}` | {o.case.kind} | {o.case.source} | {o.reason} |" for o in left)
    return f"""# Recorded cases

One spec for each recorded deployment that did or did not start, ran out of memory, or ran otherwise than planned. They
are written by `python tests/accuracy/cases.py --write` from `tests/data/cases`, all in one way
(`tests/accuracy/recorded.py`), and never by hand; the head of each says where the case is from, what was seen, what a
check should say and what it says. How many hold is in docs/accuracy.md.

These cannot be written as a spec:

| case | kind | source | why |
|---|---|---|---|
{rows}
"""


def write() -> None:
    """Write ``tests/cases``; what is no case any more goes."""
    wanted = files()
    for path in FOLDER.rglob("*.*"):
        if path.is_file() and path.relative_to(FOLDER).as_posix() not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text, encoding="utf-8")


def summary_rows() -> list[tuple[str, ...]]:
    """Return how many cases hold, by kind and what they expect; all that are recorded count."""
    rows = []
    for kind in KINDS:
        found = list(outcomes((kind,)))
        for name in ("error", "warning", "none"):
            some = [o for o in found if (o.case.level if not o.case.negative else "none") == name]
            counts = Counter(o.verdict for o in some)
            good = counts["right"] + counts["silent"]
            rest = ", ".join(f"{n} {v}" for v, n in sorted(counts.items()) if v not in ("right", "silent"))
            share = f"{good / len(some):.0%}" if some else ""
            rows.append((kind, "nothing" if name == "none" else name, str(len(some)), str(good), share, rest))
    return rows


def case_rows() -> list[tuple[str, ...]]:
    """Return a row for every case: what is expected, what is found, the verdict and why it does not hold."""
    return [
        (
            f"`{o.case.id}`",
            o.case.category,
            "nothing" if o.case.negative else o.case.level,
            ", ".join(f"{f.code} {_level(f).name.lower()}" for f in o.loud) or "nothing",
            o.verdict,
            "" if o.held else WHY.get(o.case.id) or o.reason,
        )
        for o in outcomes(KINDS)
    ]


def main(arguments: list[str]) -> None:
    """Print a line for every case, and the counts; or write the files."""
    if "--write" in arguments:
        write()
        return
    counts: Counter[tuple[str, str]] = Counter()
    for outcome in outcomes(tuple(arguments) or ("startup", "memory")):
        case = outcome.case
        expected = "nothing" if case.negative else case.level
        counts[("negative" if case.negative else "positive"), outcome.verdict] += 1
        shown = outcome.reason or ", ".join(f"{f.code} {_level(f).name.lower()}" for f in outcome.loud)
        print(f"{outcome.verdict:12} {case.id:38} {case.category:18} expects {expected:8} {shown}")
    for (kind, verdict), number in sorted(counts.items()):
        print(f"{kind} {verdict}: {number}")


if __name__ == "__main__":
    main(sys.argv[1:])
