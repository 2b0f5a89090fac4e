"""Hostile input: mutated specs and random valid ones end in findings, never in a traceback, and soon.

The normal run takes some hundreds of each; ``--hostile N`` takes N. Mutation number i of a run is made with
the seed that a failure prints, so that it can be made again; texts that once failed are kept under
tests/data/hostile and are checked first.
"""

from __future__ import annotations

import gc
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tomli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servelint.config import Config
from servelint.lint import PROBLEM_NAMES, FileResult, Linter, Report
from servelint.manager import Plugins
from servelint.rule import Finding
from servelint.spec.spans import scan
from servelint.testing.strategies import specs, toml

ROOT = Path(__file__).parents[2]
SEED = 20_260_917
MOST_SECONDS = 3.0
LEAST_PARSED = 0.3

PLUGINS = Plugins()
assert PLUGINS.rules  # loaded before anything is timed
REPORTERS = [PLUGINS.reporters[name] for name in sorted(PLUGINS.reporters)]
LINTER = Linter(PLUGINS, Config(), ROOT / "specs" / "servelint_specs")


def corpus() -> list[tuple[str, str]]:
    """Shipped specs and the cases of every rule, by name."""
    shipped = sorted((ROOT / "specs" / "servelint_specs").rglob("*.toml"))
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in shipped]
    for rule in PLUGINS.rules:
        for i, case in enumerate((*rule.failing, *rule.passing)):
            texts.append((f"{rule.code}-{i}", case.spec))
    return [(name, text) for name, text in texts if parses(text)]


def parses(text: str) -> bool:
    try:
        tomli.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


CORPUS = corpus()


def values_by_key() -> dict[str | int, list[str]]:
    found: dict[str | int, list[str]] = {}
    for _, text in CORPUS:
        spans = scan(text)
        for path in spans.paths():
            span = spans.value(path)
            if span is not None:
                found.setdefault(path[-1], []).append(text[span.start : span.end])
    return found


KIN = values_by_key()

HOSTILE_VALUES = [
    "0", "-1", "1", "1e308", "-1e308", "1e-308", "5e-324", "9" * 60, "9" * 5000, "nan", "-nan", "inf", "-inf", "-0.0",
    "true", "false", '""', '"x"', '"' + "a" * 20_000 + '"', '"\\u202e\\u0000\\u001b[31m"', '"../../../etc/passwd"',
    '"/dev/zero"', '"file:///etc/passwd"', '"1e400 GB"', '"-5 ms"', '"nan s"', '"inf tok"', '"1 PB/s"', '"0 req/s"',
    '"1e-300 s"', '"100 %"', '"1,5 GB"', '"${HOME}"', '"::error::x"', '"</script>"', "[]", "[[]]", "[1, 2, 3]",
    "[" * 200 + "]" * 200, "{}", "{ value = 1 }", "{ p50 = 1, p99 = 0 }", "{ p50 = 9, p99 = 99 }", "{ mean = 0 }",
    "{ mean = 1, std = 1e9 }", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "1000000", "100000000", "4096", "0.5",
    "0.999999999", "1.0000001", '"100000000 tok"', '"1e18 B/s"', '"fp8"', '"bf16"', '"auto"', '"mtp"', '"vllm"',
]  # fmt: skip
ODD = [
    "\x00",
    "\x1b",
    "\x7f",
    "\ufeff",
    "\u2028",
    "\u202e",
    "\U0001f600",
    "\r",
    "\t",
    '"',
    "'",
    "\\",
    "[",
    "]",
    "{",
    "}",
    "=",
]


def byte_level(random: Random, text: str) -> str:
    data = bytearray(text.encode("utf-8"))
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(data) + 1)
        kind = random.randrange(4)
        if kind == 0:
            data[at:at] = bytes([random.randrange(256)])
        elif kind == 1:
            del data[at : at + random.choice((1, 1, 8, 100))]
        elif kind == 2 and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        else:
            data[at:at] = data[random.randrange(len(data) + 1) :][:50]
    return data.decode("utf-8", errors="replace")


def character_level(random: Random, text: str) -> str:
    at = random.randrange(len(text) + 1)
    return text[:at] + random.choice(ODD) * random.choice((1, 1, 1, 50)) + text[at + random.choice((0, 1)) :]


def digit_level(random: Random, text: str) -> str:
    """Change digits only: most of these stay specs."""
    places = [i for i, c in enumerate(text) if c.isdigit()]
    letters = list(text)
    for at in random.sample(places, min(len(places), random.choice((1, 2, 6)))):
        letters[at] = random.choice(("0", "9", "7", "00000", "1.5", "5e5", "-", "_"))
    return "".join(letters)


def line_level(random: Random, text: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(4)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(other, lines[at])
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        foreign = random.choice(CORPUS)[1].splitlines(keepends=True)
        lines.insert(at, random.choice(foreign))
    return "".join(lines)


def _spans(text: str, of: str) -> list[tuple[int, int]]:
    spans = scan(text)
    found = [(spans.value(p) if of == "value" else spans.key(p)) for p in spans.paths()]
    return [(s.start, s.end) for s in found if s is not None]


def value_level(random: Random, text: str) -> str:
    """Replace values by hostile ones, by values of other keys, or by those of other specs."""
    for _ in range(random.choice((1, 1, 2, 4))):
        places = _spans(text, "value")
        if not places:
            return text
        start, end = random.choice(places)
        kind = random.randrange(3)
        if kind == 0:
            new = random.choice(HOSTILE_VALUES)
        else:
            donor = text if kind == 1 else random.choice(CORPUS)[1]
            low, high = random.choice(_spans(donor, "value") or [(0, 0)])
            new = donor[low:high] or "1"
        changed = text[:start] + new + text[end:]
        if not parses(changed):
            return changed
        text = changed
    return text


def kin_level(random: Random, text: str) -> str:
    """Give keys the values that the same keys have elsewhere: most of these stay specs."""
    spans = scan(text)
    for _ in range(random.choice((1, 2, 4, 8))):
        path = random.choice(list(spans.paths()) or [()])
        name = path[-1] if path else None
        kin = KIN.get(name, [])
        place = spans.value(path) if path else None
        if not kin or place is None:
            continue
        text = text[: place.start] + random.choice(kin) + text[place.end :]
        if not parses(text):
            break
        spans = scan(text)
    return text


def key_level(random: Random, text: str) -> str:
    start, end = random.choice(_spans(text, "key") or [(0, 0)])
    donor = random.choice(CORPUS)[1]
    low, high = random.choice(_spans(donor, "key") or [(0, 0)])
    new = random.choice((donor[low:high], text[start:end][:-1], text[start:end] + "s", '""', '"\\u202e"', "p50", "a.b"))
    return text[:start] + new + text[end:]


def table_level(random: Random, text: str) -> str:
    """Take tables out, or add those of another spec."""
    data = tomli.loads(text)
    other = tomli.loads(random.choice(CORPUS)[1])
    for name in random.sample(sorted(data), min(len(data), random.choice((1, 2)))):
        if name != "servelint":
            del data[name]
    for name in random.sample(sorted(other), min(len(other), random.choice((0, 1, 3)))):
        mine, theirs = data.get(name), other[name]
        data[name] = {**mine, **theirs} if isinstance(mine, dict) and isinstance(theirs, dict) else theirs
    return toml(data)


MUTATIONS: list[Callable[[Random, str], str]] = [
    byte_level, character_level, digit_level, line_level, value_level, value_level, kin_level, kin_level, kin_level,
    key_level, table_level,
]  # fmt: skip


def mutant(seed: str) -> tuple[str, str]:
    """The mutation that a seed stands for: where it came from, and its text."""
    random = Random(seed)
    name, text = random.choice(CORPUS)
    kinds = [random.choice(MUTATIONS)]
    text = kinds[0](random, text)
    # Structure-keeping mutations add up.
    while random.random() < 0.3 and parses(text):
        kinds.append(random.choice(MUTATIONS))
        text = kinds[-1](random, text)
    return f"{name}, {' then '.join(k.__name__ for k in kinds)}, seed {seed!r}", text


def numbers_of(finding: Finding) -> Iterator[float]:
    for value in finding.inputs:
        if isinstance(value.value, int | float):
            yield float(value.value) if abs(value.value) < 1e300 else 1e300


def check(what: str, text: str) -> FileResult:
    """Check one text: no fault, no NaN, not over a second of CPU; one of the reporters renders the result."""
    # Collecting the garbage of a long test run is not the check's time.
    gc.disable()
    began = time.process_time()
    try:
        result = LINTER.check("spec.toml", text)
        seconds = time.process_time() - began
        REPORTERS[len(text) % len(REPORTERS)].render(Report((result,), (), Config(), PLUGINS))
    except Exception as error:  # whatever escapes is the failure that is looked for
        raise AssertionError(f"{what}: {type(error).__name__}: {error}\n{text[:3000]}") from error
    finally:
        gc.enable()
    if PLUGINS.faults:
        fault = str(PLUGINS.faults.pop())
        PLUGINS.faults.clear()
        raise AssertionError(f"{what}: {fault}\n{text[:3000]}")
    if seconds > MOST_SECONDS:
        raise AssertionError(f"{what}: {seconds:.2f} s\n{text[:3000]}")
    for located in result.findings:
        finding = located.finding
        words = f"{finding.message} {finding.equation} {finding.help} {' '.join(r.message for r in finding.related)}"
        # A problem of the spec quotes the value that it found there.
        quoted = finding.code in PROBLEM_NAMES
        if (not quoted and re.search(r"\bnan\b", words, re.IGNORECASE)) or any(map(math.isnan, numbers_of(finding))):
            raise AssertionError(f"{what}: NaN in {finding}\n{text[:3000]}")
    return result


def failures(runs: Iterator[tuple[str, str]]) -> tuple[Counter[str], list[str]]:
    """Count what the checks of many texts came to, and keep what failed."""
    seen: Counter[str] = Counter()
    failed = []
    for what, text in runs:
        try:
            result = check(what, text)
        except AssertionError as error:
            failed.append(str(error))
            continue
        finally:
            seen["all"] += 1
        seen["parsed"] += result.document.syntax_place is None
        seen["structured"] += result.document.deployment is not None
        seen["composed"] += result.review is not None and result.review.composition is not None
        seen["findings"] += len(result.findings)
    return seen, failed


def report(seen: Counter[str], failed: list[str]) -> None:
    if failed:
        pytest.fail(f"{len(failed)} of {seen['all']} failed, the first:\n" + "\n".join(failed[:5]), pytrace=False)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--hostile"))


def test_kept_texts() -> None:
    for path in sorted((ROOT / "tests" / "data" / "hostile").glob("*.toml")):
        check(path.name, path.read_bytes().decode("utf-8"))


def test_mutated_specs(runs: int) -> None:
    seen, failed = failures(mutant(f"{SEED}:{i}") for i in range(runs))
    print(f"\nmutated specs: {dict(seen)}, {len(failed)} failed")
    report(seen, failed)
    assert seen["parsed"] >= LEAST_PARSED * seen["all"], f"too few mutations are TOML: {seen}"


def random_specs(count: int, *, extreme: bool) -> list[str]:
    """Draw specs with a fixed seed."""
    drawn: list[str] = []

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(specs(PLUGINS, extreme=extreme))
    def draw(text: str) -> None:
        drawn.append(text)

    draw()
    return drawn


@pytest.mark.parametrize("extreme", [False, True], ids=["usual", "extreme"])
def test_random_valid_specs(runs: int, extreme: bool) -> None:
    texts = random_specs(max(runs // 2, 1), extreme=extreme)
    seen, failed = failures((f"random spec {i}", text) for i, text in enumerate(texts))
    print(f"\nrandom specs: {dict(seen)}, {len(failed)} failed")
    report(seen, failed)
    assert seen["structured"] >= 0.9 * seen["all"], f"too few random specs are valid: {seen}"


@given(st.text(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_text(text: str) -> None:
    check("text", text)


def test_mutations_are_made_again_from_their_seed() -> None:
    assert mutant(f"{SEED}:7") == mutant(f"{SEED}:7")
    assert len({mutant(f"{SEED}:{i}")[1] for i in range(50)}) > 40


def _deep(levels: int) -> dict[str, Any]:
    return {"a": _deep(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    "text",
    [
        "", "\ufeff", "servelint = 1\n" * 2, "servelint = 1\n[" + "a." * 5000 + "a]\n", "x = " + "[" * 100_000,
        "x = " + "{a=" * 2000, "servelint = 1\n" + "[[claim]]\n" * 5000, "servelint = 1\n" + "#" * 900_000,
        "servelint = 1\nx = '''" + "a\n" * 100_000 + "'''\n",
        "servelint = 1\n" + "\n".join(f"k{i} = 1" for i in range(5000)),
    ],
    ids=range(10),
)  # fmt: skip
def test_bombs(text: str) -> None:
    check("bomb", text)
