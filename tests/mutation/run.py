"""Mutation testing: small faults are put into the code, one at a time, and the tests meant to notice are run on each.

It lives apart from the tests because it runs them: nothing here is collected. Cosmic Ray supplies most of the
operators; a few that this code base needs (``min`` for ``max``, ``<`` for ``<=`` only, a return of None) stand below.
Tests are collected once. Every mutant gets a fork of the process that did, where the changed functions take the place
of the imported ones; no file is written, and the tree must not change meanwhile. Mutants are drawn at random by module
with a fixed seed, so that two runs on one tree try the same ones. Results are one JSON object a line, and a run goes on
from the file it finds: with more tiers it tries again only what survived. Of what the tests leave, ``--types`` asks the
type checker, which every commit has to pass as well: what it refuses is counted apart.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import importlib
import inspect
import json
import math
import os
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

# Neither is typed, and neither is there where only the tests run.
parso: Any = importlib.import_module("parso")
mutating: Any = importlib.import_module("cosmic_ray.mutating")
provider: Any = importlib.import_module("cosmic_ray.operators.provider")

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("core", "plugins", "rules", "specs")

CORE: dict[str, tuple[str, ...]] = {
    "composition": ("test_topology.py", "test_review.py", "test_parallelism.py", "test_service.py"),
    "cost": ("test_cost.py", "test_review.py"),
    "distribution": ("test_distribution.py", "test_service.py", "plugins/test_workloads.py"),
    "graph": ("test_graph.py", "test_cost.py"),
    "hardware": (
        "test_topology.py",
        "test_datasheet.py",
        "test_cost.py",
        "plugins/test_datasheets.py",
        "plugins/test_instances.py",
    ),
    "layout": ("test_graph.py", "test_memory.py", "test_parallelism.py", "plugins/test_models.py"),
    "memory": ("test_memory.py", "engines/test_vllm_caches.py", "plugins/test_engines.py"),
    "resources": ("test_cost.py", "test_graph.py", "test_parallelism.py", "plugins/test_models.py"),
    "scheduler": ("test_service.py", "plugins/test_policies_disaggregation.py"),
    "service": (
        "test_service.py",
        "test_prompt_pieces.py",
        "plugins/test_policies_disaggregation.py",
        "plugins/test_policies_constrained_decoding.py",
    ),
    "shapes": ("test_shapes.py", "test_cost.py"),
}
"""Core modules of cost, graph, capacity and operating point, with the tests below tests/unit that are about them."""

POLICIES: dict[str, tuple[str, ...]] = {
    "attention": ("plugins/test_policies_attention.py",),
    "batching": ("plugins/test_policies_batching.py", "test_service.py"),
    "constrained_decoding": ("plugins/test_policies_constrained_decoding.py",),
    "disaggregation": ("plugins/test_policies_disaggregation.py",),
    "formats": ("plugins/test_policies_formats.py", "plugins/test_models.py"),
    "kv_cache": ("plugins/test_policies_formats.py", "test_memory.py", "engines/test_vllm_caches.py"),
    "moe": ("plugins/test_policies_moe.py", "test_parallelism.py"),
    "parallelism": ("test_parallelism.py",),
    "quantization": ("plugins/test_policies_formats.py", "plugins/test_models.py"),
    "speculation": ("plugins/test_policies_speculation.py",),
}
"""The same for the policies; one without tests of its own has those of the review."""

SPREAD = "CLM001 CND001 CTX004 DEC002 DIS002 HW009 KRN002 MEM001 MEM003 MOE001 PAR001 QNT003 SLO001 SLO007 SPD001"
"""Rules whose findings show most of what core and policies compute."""
TESTED = tuple(f"tests/{name}" for name in ("rules", "unit", "specs", "snapshots", "properties", "docs"))
NAMING = "names: "
"""Before an expression of what a test's own text or the imports of its module name, in place of its id."""
TIERS = 4
SLACK, SLACK_SECONDS = 3, 4
"""A mutant may take so many times what its tests take without it, and so many seconds more; then it has no end."""

Position = tuple[tuple[int, int], tuple[int, int]]


class Swap:
    """Replaces one leaf by another: the names of calls, and the operators that differ at a boundary."""

    swaps: ClassVar[dict[str, str]] = {}
    kinds: ClassVar[tuple[str, ...]] = ()

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Yield the leaf's place if it is one that is swapped."""
        if node.type in self.kinds and getattr(node, "value", "") in self.swaps and self.fits(node):
            yield node.start_pos, node.end_pos

    def fits(self, node: Any) -> bool:
        """Say whether the leaf stands where it means what is swapped."""
        return True

    def mutate(self, node: Any, index: int) -> Any:
        """Return the leaf with the other value."""
        node.value = self.swaps[node.value]
        return node


class SwapCall(Swap):
    """``min`` for ``max``, ``any`` for ``all``, ``floor`` for ``ceil``, and back."""

    swaps: ClassVar = {
        a: b for x, y in (("min", "max"), ("any", "all"), ("floor", "ceil")) for a, b in ((x, y), (y, x))
    }
    kinds = ("name",)

    def fits(self, node: Any) -> bool:
        """Hold it to calls."""
        after = node.get_next_leaf()
        return after is not None and after.value == "("


class SwapBoundary(Swap):
    """A comparison that takes in its boundary for one that does not, and back."""

    swaps: ClassVar = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
    kinds = ("operator",)

    def fits(self, node: Any) -> bool:
        """Hold it to comparisons."""
        return bool(node.parent.type == "comparison")


class SwapDirection(SwapBoundary):
    """A comparison for its opposite."""

    swaps: ClassVar = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


class SwapMembership(Swap):
    """``in`` for ``not in``."""

    swaps: ClassVar = {"in": "not in"}
    kinds = ("keyword",)

    def fits(self, node: Any) -> bool:
        """Hold it to comparisons: a loop has the same word."""
        return bool(node.parent.type == "comparison")


class DoubleNumber:
    """Twice a number that is too large for one more or one less to matter."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Yield the place of a large number."""
        if node.type == "number" and is_large(node.value):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the number doubled."""
        node.value = repr(2 * ast.literal_eval(node.value))
        return node


class ShiftNumber:
    """One more and one less than a number, unless it is large."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Yield the place of a small number, twice."""
        if node.type == "number" and not is_large(node.value):
            yield node.start_pos, node.end_pos
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the number and one, then less one."""
        node.value = repr(ast.literal_eval(node.value) + (1, -1)[index])
        return node


class ReturnNone:
    """``return None`` for a return of something."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Yield the place of what is returned."""
        if node.type == "return_stmt" and node.children[1].get_code().strip() != "None":
            yield node.children[1].start_pos, node.children[-1].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the statement without its value."""
        node.children[1:] = [parso.parse(" None")]
        return node


FROM_COSMIC_RAY = (
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add",
    "ReplaceBinaryOperator_Mul_Div",
    "ReplaceBinaryOperator_Div_Mul",
    "ReplaceBinaryOperator_FloorDiv_Mul",
    "ReplaceBinaryOperator_Mod_Mul",
    "ReplaceBinaryOperator_Pow_Mul",
    "ReplaceComparisonOperator_Eq_NotEq",
    "ReplaceComparisonOperator_NotEq_Eq",
    "ReplaceComparisonOperator_Is_IsNot",
    "ReplaceComparisonOperator_IsNot_Is",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_USub_UAdd",
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ZeroIterationForLoop",
)
OWN: tuple[type[Any], ...] = (
    SwapCall,
    SwapBoundary,
    SwapDirection,
    SwapMembership,
    ShiftNumber,
    DoubleNumber,
    ReturnNone,
)
OPERATORS: dict[str, type[Any]] = {
    **{name.replace("Replace", "", 1): provider.OperatorProvider()[name] for name in FROM_COSMIC_RAY},
    **{kind.__name__: kind for kind in OWN},
}

CASE_DATA = frozenset({"failing", "passing", "questions", "code", "name"})
"""What a rule says of itself: its specs are the tests, and the rest is held by its page."""


class Mutant(NamedTuple):
    """One fault: the operator, which of its places in the module, and the line it changes."""

    path: str
    operator: str
    occurrence: int
    line: int

    @property
    def key(self) -> str:
        """Return what names it in the results."""
        return f"{self.path}:{self.line}:{self.operator}:{self.occurrence}"


def is_large(literal: str) -> bool:
    """Say whether one more or less would drown in a number."""
    value = ast.literal_eval(literal)
    return not isinstance(value, complex) and abs(value) > 1000


def is_left_out(node: Any) -> bool:
    """Say whether a node is no behavior: text, an annotation, a decorator, a raised message, data of a case."""
    if node.type in ("fstring", "string", "strings", "decorator", "raise_stmt", "import_from", "import_name"):
        return True
    parent = node.parent
    if parent is None:
        return False
    if node.type == "operator" and parent.type == "parameters":
        # The mark before arguments that have to be named.
        return True
    if parent.type in ("tfpdef", "annassign") and node is parent.children[-1 if parent.type == "tfpdef" else 1]:
        return True
    if parent.type == "funcdef" and node.start_pos > parent.children[2].end_pos and node.type != "suite":
        return True
    if node.type == "if_stmt" and node.children[1].get_code().strip() == "TYPE_CHECKING":
        return True
    if node.type == "argument" and node.children[0].get_code().strip() == "strict":
        return True
    if node.type == "arith_expr" and any(c.type in ("string", "strings", "fstring") for c in node.children):
        return True
    if node.type == "expr_stmt":
        target = node.children[0]
        return getattr(target, "value", "") in CASE_DATA or getattr(node.children[1], "type", "") == "type"
    return False


def mutants_of(path: str, source: str) -> list[Mutant]:
    """List every mutant of a module, in the order of its text."""
    found: list[Mutant] = []
    operators = {name: kind() for name, kind in OPERATORS.items()}
    seen: Counter[str] = Counter()

    def walk(node: Any, behavior: bool) -> None:
        behavior = behavior and not is_left_out(node)
        for name, operator in operators.items():
            for place in operator.mutation_positions(node):
                if behavior:
                    found.append(Mutant(path, name, seen[name], place[0][0]))
                seen[name] += 1
        for child in getattr(node, "children", ()):
            walk(child, behavior)

    walk(parso.parse(source), True)
    return sorted(found, key=lambda m: (m.line, m.operator, m.occurrence))


def mutated(mutant: Mutant, source: str) -> str | None:
    """Return a module with a mutant's fault in it; None when it means the same or is no Python."""
    code = mutating.mutate_code(source, OPERATORS[mutant.operator](), mutant.occurrence)
    if code is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same = ast.dump(ast.parse(code)) == ast.dump(ast.parse(source))
    except SyntaxError:
        return None
    return None if same else str(code)


def sample(paths: Iterable[str], seed: int, sizes: dict[str, int], share: float) -> Iterator[Mutant]:
    """Draw mutants of each module: a share of all, or its package's size if that is less.

    The same for the same seed and text, and a larger share has those of a smaller one.
    """
    for path in paths:
        every = mutants_of(path, (ROOT / path).read_text(encoding="utf-8"))
        random.Random(f"{seed}:{path}").shuffle(every)
        yield from every[: min(sizes[package_of(path)], math.ceil(share * len(every)))]


def package_of(path: str) -> str:
    """Return the package that a module counts to: core, policies or rules."""
    return "core" if path.startswith("core/") else "policies" if path.startswith("plugins/") else "rules"


def modules() -> list[str]:
    """List the modules that are tried, as paths from the root."""
    core = [f"core/servelint/{name}.py" for name in CORE]
    policies = sorted((ROOT / "plugins/servelint_plugins/policies").glob("*.py"))
    rules = sorted((ROOT / "rules/servelint_rules").rglob("*.py"))
    named = [p.relative_to(ROOT).as_posix() for p in (*policies, *rules) if p.name != "__init__.py"]
    return [*core, *named]


def codes_for(path: str) -> list[str]:
    """Return the codes of the rules that a module of the rules is, or is used by, directly or through another."""
    sources = {
        p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8")
        for p in (ROOT / "rules/servelint_rules").rglob("*.py")
    }
    users, todo = {path}, [path]
    while todo:
        name = todo.pop().removeprefix("rules/").removesuffix(".py").replace("/", ".")
        for other, text in sources.items():
            if other not in users and f"from {name} import" in text:
                users.add(other)
                todo.append(other)
    found = (re.match(r"[a-z]+\d{3}(?=_)", Path(user).name) for user in users)
    return sorted(match[0].upper() for match in found if match)


def tiers_for(path: str) -> list[list[str]]:
    """Return, for each tier of a module's tests, regular expressions of their ids: cheapest tier first."""
    stem, package = Path(path).stem, package_of(path)
    if package == "rules":
        codes = codes_for(path)
        # A helper that most rules use is tried on a spread of them first; the second tier has all.
        return [
            [*own_tests(codes[:: max(1, len(codes) // 8)]), NAMING + re.escape(import_name(path))],
            [*own_tests(codes), "tests/specs", "tests/snapshots"],
            ["tests/rules"],
            ["tests/unit", "tests/docs", "tests/properties"],
        ]
    tests = CORE[stem] if package == "core" else POLICIES.get(stem, ("test_review.py",))
    unit = [f"tests/unit/{name}" for name in tests]
    if package == "policies":
        unit.append("tests/unit/plugins/test_policy_tables.py")
    return [
        [*unit, "tests/unit/test_worked_examples.py"],
        [
            *own_tests(SPREAD.split())[:1],
            "tests/snapshots",
            "tests/docs/test_spec_page.py",
            "tests/unit/test_review.py",
            "tests/unit/test_percentiles.py",
        ],
        ["tests/rules/test_findings.py", "tests/specs", "tests/properties/test_invariants.py"],
        ["tests/rules", "tests/docs", "tests/unit"],
    ]


def own_tests(codes: list[str]) -> list[str]:
    """Return the expressions of rules' findings and cases, what they say first: it notices most."""
    each = "|".join(codes) or "(?!)"
    return [
        rf"tests/rules/test_findings\.py::test_findings_say_what_they_said\[({each})\]",
        rf"tests/rules/test_cases\.py::\w+\[({each})-",
        rf"tests/rules/test_findings\.py::\w+\[({each})\]",
        rf"tests/rules/test_neighbours\.py::\w+\[({each})\]",
        rf"tests/rules/test_help_applied\.py::\w+\[({each})-",
        rf"{NAMING}({each})",
    ]


class Graft:
    """Puts mutants into modules that are imported already, so that nothing has to be imported or collected again.

    A function's code is exchanged in place. What a module computes when it is imported, its constants, defaults and
    fields, is taken over from a second execution where that differs; what other modules had derived from it stays.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        for path in paths:
            importlib.import_module(import_name(path))
        self.functions: dict[tuple[str, str, int], list[types.FunctionType]] = defaultdict(list)
        for thing in gc.get_objects():
            if isinstance(thing, types.FunctionType):
                self.functions[place_of(thing.__code__)].append(thing)
        self.caches = [thing for thing in gc.get_objects() if isinstance(thing, functools._lru_cache_wrapper)]

    def apply(self, path: str, source: str, code: str) -> bool:
        """Put a module's changed text in place of the imported one; say whether it changed no function.

        What functions remembered, and the kinds of a table's keys, are forgotten.
        """
        module = sys.modules[import_name(path)]
        file = str(module.__file__)
        old, new = (compile(text, file, "exec", dont_inherit=True) for text in (source, code))
        at_import = True
        for before, after in differing(old, new):
            for function in self.functions[place_of(before)]:
                function.__code__ = after
                at_import = False
        fresh = types.ModuleType(module.__name__)
        fresh.__file__ = file
        exec(new, fresh.__dict__)
        take_over(module, fresh)
        for cache in self.caches:
            cache.cache_clear()
        importlib.import_module("servelint.spec.schema")._KINDS.clear()
        return at_import


def import_name(path: str) -> str:
    """Return the import name of a module by its path from the root."""
    return ".".join(Path(path).with_suffix("").parts[1:])


def place_of(code: types.CodeType) -> tuple[str, str, int]:
    """Return what tells one function's code from another's."""
    return os.path.realpath(code.co_filename), code.co_qualname, code.co_firstlineno


def differing(old: types.CodeType, new: types.CodeType) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    """Yield the pairs of codes, outer before inner, that are not the same."""
    if old != new:
        yield old, new
        inner = ([c for c in code.co_consts if isinstance(c, types.CodeType)] for code in (old, new))
        for pair in zip(*inner, strict=False):
            yield from differing(*pair)


def take_over(module: types.ModuleType, fresh: types.ModuleType) -> None:
    """Give a module the data, defaults and fields that differ in another execution of it."""
    for name, value in vars(fresh).items():
        old = getattr(module, name, None)
        if isinstance(value, types.FunctionType) and isinstance(old, types.FunctionType):
            old.__defaults__, old.__kwdefaults__ = value.__defaults__, value.__kwdefaults__
        elif isinstance(value, type) and value.__module__ == module.__name__ and isinstance(old, type):
            take_over_class(old, value)
        elif is_data(value) and repr(value) != repr(old):
            for user in list(sys.modules.values()):
                if getattr(user, "__dict__", {}).get(name) is old:
                    setattr(user, name, value)


def take_over_class(old: type, fresh: type) -> None:
    """Give a class the defaults of methods, the fields and the plain attributes of its other execution."""
    fields = repr(getattr(old, "__attrs_attrs__", None)) != repr(getattr(fresh, "__attrs_attrs__", None))
    for name, value in vars(fresh).items():
        was = vars(old).get(name)
        plain, was_plain = getattr(value, "__func__", value), getattr(was, "__func__", was)
        if isinstance(plain, types.FunctionType) and isinstance(was_plain, types.FunctionType):
            if name == "__init__" and fields:
                setattr(old, name, value)
            else:
                was_plain.__defaults__, was_plain.__kwdefaults__ = plain.__defaults__, plain.__kwdefaults__
        elif (name == "__attrs_attrs__" and fields) or (
            not name.startswith("__") and is_data(value) and repr(value) != repr(was)
        ):
            setattr(old, name, value)


def is_data(value: object) -> bool:
    """Say whether a value is told by its text: neither code nor a type."""
    return not isinstance(value, type | types.ModuleType | types.FunctionType) and " at 0x" not in repr(value)


Result = dict[str, Any]


class Baseline(NamedTuple):
    """What a tier does without any fault: its seconds of computing, and the tests that fail."""

    seconds: float
    failed: frozenset[str]


class Run:
    """Pytest plugin: in place of the tests it runs mutants, each in a fork of the process that collected them."""

    def __init__(self, options: argparse.Namespace, todo: list[tuple[Mutant, int]], known: dict[str, Result]) -> None:
        self.options = options
        self.todo = deque(todo)
        self.known = known
        self.items: list[pytest.Item] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants, each in a process of its own; one that survives a tier waits for the next."""
        self.items = session.items
        self.graft = Graft(sorted({mutant.path for mutant, _ in self.todo}))
        gc.collect()
        gc.freeze()
        started = time.monotonic()
        running: dict[int, tuple[int, Mutant, int, float]] = {}
        with self.options.results.open("a", encoding="utf-8") as log:
            while True:
                late = self.options.minutes and time.monotonic() - started > 60 * self.options.minutes
                while self.todo and len(running) < self.options.workers and not late:
                    mutant, tier = self.todo.popleft()
                    baseline = self.baseline(mutant.path, tier)
                    pid, pipe = self.fork(partial(self.attempt, mutant, tier, baseline))
                    running[pipe] = (pid, mutant, tier, time.monotonic())
                if not running:
                    break
                for pipe in select.select(list(running), [], [])[0]:
                    pid, mutant, tier, since = running.pop(pipe)
                    result = described(mutant) | {"tier": tier} | self.answer(pid, pipe)
                    result["seconds"] = round(time.monotonic() - since, 2)
                    self.known[mutant.key] = result
                    if result["outcome"] == "survived" and tier < self.options.tiers:
                        self.todo.append((mutant, tier + 1))
                    log.write(json.dumps(result) + "\n")
                    log.flush()
        return True

    @functools.cache  # noqa: B019  one run lives as long as the process
    def tiers(self, path: str) -> list[list[pytest.Item]]:
        """Return the tests of each tier for a module, cheapest first, each test once."""
        seen: set[str] = set()
        found = []
        for patterns in tiers_for(path)[: self.options.tiers]:
            tier = []
            for pattern in patterns:
                fits = fitting(pattern)
                for item in self.items:
                    if item.nodeid not in seen and fits(item):
                        seen.add(item.nodeid)
                        tier.append(item)
            found.append(tier)
        return found

    @functools.cache  # noqa: B019
    def baseline(self, path: str, tier: int) -> Baseline:
        """Run a tier of a module once without any fault: what it takes, and which tests fail anyway."""
        items = self.tiers(path)[tier - 1]

        def task(tell: Callable[..., None]) -> None:
            failed = [item.nodeid for item, after in zip(items, [*items[1:], None], strict=True) if fails(item, after)]
            usage = resource.getrusage(resource.RUSAGE_SELF)
            tell(failed=failed, seconds=usage.ru_utime + usage.ru_stime)

        told = self.answer(*self.fork(task))
        if told["failed"]:
            print(f"left out for {path}, because they fail without a fault: {told['failed']}", flush=True)
        return Baseline(told["seconds"], frozenset(told["failed"]))

    def fork(self, task: Callable[[Callable[..., None]], None]) -> tuple[int, int]:
        """Start a task in a fork; return its process and the pipe on which it tells a result, a JSON object a line."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            status = 1
            try:
                task(lambda **result: os.write(writer, json.dumps(result).encode() + b"\n"))
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        return child, reader

    def answer(self, pid: int, pipe: int) -> Result:
        """Return all that a fork told, as one result; it ran out of time if a signal ended it."""
        with os.fdopen(pipe, "rb") as told:
            results = [json.loads(line) for line in told]
        _, ended = os.waitpid(pid, 0)
        result = {name: value for told_once in results for name, value in told_once.items()}
        if os.WIFSIGNALED(ended):
            result |= {"outcome": "timeout"}
        elif os.WEXITSTATUS(ended):
            # What ends the tests themselves, while a module is executed anew or before a test begins, is noticed.
            result |= {"outcome": "killed", "by": ["the run itself"]}
        return result

    def attempt(self, mutant: Mutant, tier: int, baseline: Baseline, tell: Callable[..., None]) -> None:
        """Run a tier on one mutant until a test notices it."""
        source = (ROOT / mutant.path).read_text(encoding="utf-8")
        code = mutated(mutant, source)
        if code is None:
            tell(outcome="no fault")
            return
        before, after = source.splitlines(), code.splitlines()
        line = next((i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), 0)
        tell(outcome="survived", before=before[line].strip(), after=after[line].strip())
        limit_time(math.ceil(SLACK_SECONDS + SLACK * baseline.seconds))
        tell(at_import=self.graft.apply(mutant.path, source, code))
        items = [item for item in self.tiers(mutant.path)[tier - 1] if item.nodeid not in baseline.failed]
        for item, following in zip(items, [*items[1:], None], strict=True):
            if fails(item, following):
                tell(outcome="killed", by=[item.nodeid])
                return


def fitting(pattern: str) -> Callable[[pytest.Item], object]:
    """Return what says whether a test is meant: by its id, or where it is one of the rules' by what it names."""
    if not pattern.startswith(NAMING):
        return lambda item: re.match(pattern, item.nodeid)
    names = re.compile(rf"\b{pattern.removeprefix(NAMING)}\b")
    return lambda item: item.nodeid.startswith("tests/rules/") and names.search(text_of(item.function, item.path))


@functools.cache
def text_of(function: Any, path: Path) -> str:
    """Return the text of a test's function, and of what its module imports from the rules."""
    imports = re.findall(r"^from servelint_rules.*", path.read_text(encoding="utf-8"), re.M)
    return "\n".join([inspect.getsource(function), *imports])


def fails(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run one test; say whether it or what prepares it fails."""
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def limit_time(seconds: int) -> None:
    """End this process by a signal once it has computed so long from now, or has waited four times that."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    end = int(usage.ru_utime + usage.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))
    signal.alarm(4 * seconds)


def refuse(mutants: Iterable[Mutant], known: dict[str, Result], results: Path) -> None:
    """Ask the type checker of each mutant, in a copy of the sources; what it refuses is written down as such."""
    with tempfile.TemporaryDirectory() as name, results.open("a", encoding="utf-8") as log:
        copy = Path(name)
        for source in SOURCES:
            shutil.copytree(ROOT / source, copy / source, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        daemon = [str(Path(sys.executable).with_name("dmypy")), "--status-file", str(copy / "status.json")]

        def complaint() -> str:
            told = subprocess.run([*daemon, "run", "--"], cwd=copy, capture_output=True, text=True, check=False)
            wrong = [line for line in told.stdout.splitlines() if ": error: " in line]
            if told.returncode and not (told.returncode == 1 and wrong):
                raise SystemExit(f"the type checker itself fails: {told.stdout}{told.stderr}")
            return wrong[0] if wrong else ""

        try:
            if wrong := complaint():
                raise SystemExit(f"the type checker refuses the sources themselves: {wrong}")
            for mutant in mutants:
                file = copy / mutant.path
                source = file.read_text(encoding="utf-8")
                code = mutated(mutant, source)
                if code is None:
                    continue
                file.write_text(code, encoding="utf-8")
                told = complaint()
                file.write_text(source, encoding="utf-8")
                if told:
                    known[mutant.key] |= {"outcome": "refused", "by": [told]}
                    log.write(json.dumps(known[mutant.key]) + "\n")
        finally:
            subprocess.run([*daemon, "stop"], cwd=copy, capture_output=True, check=False)


def described(mutant: Mutant) -> Result:
    """Return what names a mutant in the results."""
    return {"key": mutant.key, **mutant._asdict(), "package": package_of(mutant.path)}


def table(results: Iterable[dict[str, Any]]) -> str:
    """Return mutants, what became of them and the score by package and over all, as a Markdown table.

    The first score is of the tests alone, the second counts what the type checker refuses as noticed.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        for name in (result["package"], "all"):
            outcome = result["outcome"] if result["outcome"] in ("survived", "refused") else "killed"
            counts[name][outcome] += 1
    lines = [
        "| Package | Mutants | Killed | Refused by types | Survived | Score of tests | with types |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in ("core", "policies", "rules", "all"):
        killed, refused, survived = (counts[name][outcome] for outcome in ("killed", "refused", "survived"))
        if total := killed + refused + survived:
            tests, both = killed / total, (killed + refused) / total
            lines.append(f"| {name} | {total} | {killed} | {refused} | {survived} | {tests:.1%} | {both:.1%} |")
    return "\n".join(lines)


def main() -> int:
    """Sample, try and tell. Returns 0 unless the score is below what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--core", type=int, default=60, help="mutants a core module (default 60)")
    parser.add_argument("--policies", type=int, default=25, help="mutants a policy module (default 25)")
    parser.add_argument("--rules", type=int, default=5, help="mutants a rule module (default 5)")
    parser.add_argument("--share", type=float, default=1.0, help="share of a module's mutants, at most (default 1)")
    parser.add_argument("--tiers", type=int, default=3, choices=range(1, TIERS + 1), help="tiers of tests (default 3)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="try again what survived, from the first tier on")
    parser.add_argument("--types", action="store_true", help="ask the type checker of what survived, and run no test")
    parser.add_argument("--only", default="", help="modules whose path has this regular expression")
    parser.add_argument("--minutes", type=float, default=0, help="start no mutant after so long (default: no limit)")
    parser.add_argument("--results", type=Path, default=Path("mutation.jsonl"), help="file to go on from")
    parser.add_argument("--fail-under", type=float, default=0, help="score in percent below which this fails")
    options = parser.parse_args()

    known: dict[str, dict[str, Any]] = {}
    if options.results.exists():
        for line in options.results.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            known[record["key"]] = record
    sizes = {"core": options.core, "policies": options.policies, "rules": options.rules}
    if options.again or options.types:
        matching = (r for r in known.values() if re.search(options.only, r["path"]))
        chosen = [Mutant(*(r[name] for name in Mutant._fields)) for r in matching]
        todo = [(m, 1) for m in chosen if known[m.key]["outcome"] == "survived"]
    else:
        chosen = list(sample((m for m in modules() if re.search(options.only, m)), options.seed, sizes, options.share))
        todo = [
            (m, known[m.key]["tier"] + 1 if m.key in known else 1)
            for m in chosen
            if m.key not in known or (known[m.key]["outcome"] == "survived" and known[m.key]["tier"] < options.tiers)
        ]
    random.Random(options.seed).shuffle(todo)
    print(f"{len(chosen)} mutants, {len(todo)} to try", flush=True)
    if options.types:
        refuse((mutant for mutant, _ in todo), known, options.results)
    elif todo:
        os.chdir(ROOT)
        roots = [str(ROOT / name) for name in SOURCES]
        sys.path[:0] = roots
        os.environ |= {"PYTHONPATH": os.pathsep.join(roots), "CI": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        pytest.main(["-q", "-s", "--tb=no", "--no-summary", *TESTED], plugins=[Run(options, todo, known)])

    tried = [known[m.key] for m in chosen if m.key in known and known[m.key]["outcome"] != "no fault"]
    for result in tried:
        if result["outcome"] == "survived":
            print(f"{result['path']}:{result['line']} {result['operator']}\n- {result['before']}\n+ {result['after']}")
    print(table(tried))
    score = sum(r["outcome"] not in ("survived", "refused") for r in tried) / max(1, len(tried))
    return int(100 * score < options.fail_under)


if __name__ == "__main__":
    sys.exit(main())
