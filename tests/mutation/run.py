"""Mutation testing: small faults are put into copies of the code, and the tests meant to notice are run on each.

It lives apart from the tests because it runs them: nothing here is collected. Cosmic Ray supplies most of the
operators; a few that this code base needs (``min`` for ``max``, ``<`` for ``<=`` only, a return of None) stand below.
Mutants are drawn at random by module with a fixed seed, so that two runs on one tree try the same ones. Results are one
JSON object a line, and a run goes on from the file it finds: with more tiers it tries again only what survived.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

# Neither is typed, and neither is there where only the tests run.
parso: Any = importlib.import_module("parso")
mutating: Any = importlib.import_module("cosmic_ray.mutating")
provider: Any = importlib.import_module("cosmic_ray.operators.provider")

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("core", "plugins", "rules", "specs")
COPIED = (*SOURCES, "tests", "docs", "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
PRELOADED = ("attrs", "cattrs", "hypothesis", "networkx", "numpy", "pluggy", "tomli", "yaml")
"""Imported once in a worker; every test run is a fork of it."""

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
WIDER = (
    *(f"tests/rules/test_findings.py::test_findings_say_what_they_said[{code}]" for code in SPREAD.split()),
    "tests/snapshots",
    "tests/docs/test_spec_page.py",
    "tests/unit/test_review.py",
)
TIERS = 4
CPU_SECONDS = (15, 60, 180, 180)
"""What a tier may take; one that takes longer has met a loop without end."""

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


def sample(paths: Iterable[str], seed: int, sizes: dict[str, int]) -> Iterator[Mutant]:
    """Draw mutants of each module: as many as its package's size, the same for the same seed and text."""
    for path in paths:
        source = (ROOT / path).read_text(encoding="utf-8")
        every = mutants_of(path, source)
        random.Random(f"{seed}:{path}").shuffle(every)
        left = sizes[package_of(path)]
        for mutant in every:
            if left == 0:
                break
            if mutated(mutant, source) is not None:
                left -= 1
                yield mutant


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


def naming(words: Iterable[str], *folders: str) -> list[str]:
    """List the test modules of some folders that name one of the words."""
    found = []
    pattern = re.compile("|".join(rf"\b{word}\b" for word in words) or r"(?!)")
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("test_*.py")):
            if pattern.search(file.read_text(encoding="utf-8")):
                found.append(file.relative_to(ROOT).as_posix())
    return found


def tiers_for(path: str) -> list[list[str]]:
    """Return the pytest arguments of each tier for a module, cheapest first."""
    stem, package = Path(path).stem, package_of(path)
    if package == "rules":
        codes = codes_for(path)
        # A helper that most rules use is tried on a spread of them first; the third tier has all.
        chosen = codes[:: max(1, len(codes) // 8)]
        own = ["tests/rules/test_findings.py", "tests/rules/test_cases.py"]
        about = [*naming(codes, "tests/rules"), "tests/specs", "tests/snapshots"]
        return [
            [*own, "-k", " or ".join(chosen)],
            [own[0], *(name for name in about if name not in own)],
            ["tests/rules"],
            ["tests/unit", "tests/docs"],
        ]
    tests = CORE[stem] if package == "core" else POLICIES.get(stem, ("test_review.py",))
    unit = [*(f"tests/unit/{name}" for name in tests), "tests/unit/test_worked_examples.py"]
    wider = [*WIDER, *(["tests/unit/test_percentiles.py"] if stem in ("service", "distribution") else [])]
    return [
        unit,
        [name for name in wider if name not in unit],
        ["tests/rules/test_findings.py", "tests/specs", "tests/properties/test_invariants.py"],
        ["tests/rules", "tests/docs", "tests/unit"],
    ]


class Failures:
    """Pytest plugin: the names of what failed, in order."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failed test."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module that cannot be collected."""
        if report.failed:
            self.failed.append(f"collection of {report.nodeid}")


def run_tests(tree: Path, arguments: list[str], cpu_seconds: int) -> tuple[int, list[str]]:
    """Run tests in a fork of this process on a tree; return pytest's status (-1: out of time) and what failed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.close(reader)
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            os.chdir(tree)
            roots = [str(tree / name) for name in SOURCES]
            sys.path[:0] = roots
            os.environ |= {"PYTHONPATH": os.pathsep.join(roots), "CI": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            failures = Failures()
            status = int(pytest.main(["-q", "--tb=no", *arguments], plugins=[failures]))
            os.write(writer, "\n".join(failures.failed).encode()[:60000])
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        failed = pipe.read().decode().splitlines()
    _, ended = os.waitpid(child, 0)
    return (-1 if os.WIFSIGNALED(ended) else os.WEXITSTATUS(ended)), failed


def copy_tree(target: Path) -> None:
    """Copy what the tests need of the project."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
        elif source.exists():
            shutil.copy2(source, target / name)


def attempt(mutant: Mutant, tree: Path, first: int, tiers: int, broken: list[str]) -> dict[str, Any]:
    """Run the tiers on one mutant until one of them notices it."""
    file = tree / mutant.path
    source = file.read_text(encoding="utf-8")
    code = mutated(mutant, source) or source
    before, after = source.splitlines(), code.splitlines()
    changed = next((i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), 0)
    result: dict[str, Any] = {
        "key": mutant.key,
        **mutant._asdict(),
        "package": package_of(mutant.path),
        "before": before[changed].strip(),
        "after": after[changed].strip(),
        "outcome": "survived",
        "tier": 0,
    }
    started = time.monotonic()
    # A compiled copy is told from its source by size and second: it could outlive the change.
    for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        stale.unlink()
    file.write_text(code, encoding="utf-8")
    try:
        for number, arguments in enumerate(tiers_for(mutant.path)[:tiers], 1):
            if number <= first:
                continue
            result["tier"] = number
            skipped = [word for test in broken for word in ("--deselect", test)]
            status, failed = run_tests(tree, ["-x", *arguments, *skipped], CPU_SECONDS[number - 1])
            # Also without any tests left (5): the rule that they are of is no longer loaded.
            if status != 0:
                result |= {"outcome": "timeout" if status == -1 else "killed", "by": failed[:1]}
                break
    finally:
        file.write_text(source, encoding="utf-8")
    return result | {"seconds": round(time.monotonic() - started, 2)}


def work(tree: Path, jobs: Any, results: Any, tiers: int, broken: list[str]) -> None:
    """Try mutants from a queue in one tree until None comes."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    while (job := jobs.get()) is not None:
        mutant, first = job
        results.put(attempt(mutant, tree, first, tiers, broken))


def broken_tests(tree: Path, chosen: list[Mutant], tiers: int, trusted: bool) -> list[str]:
    """Return the tests that fail without any fault, none if they are trusted; this also compiles everything once."""
    todo: dict[str, list[str]] = {}
    for mutant in chosen:
        for arguments in tiers_for(mutant.path)[:tiers]:
            if "-k" not in arguments:
                todo |= {name: [name] for name in arguments}
    if any(package_of(m.path) == "rules" for m in chosen):
        todo["tests/rules/test_cases.py"] = ["tests/rules/test_cases.py"]
    failed: list[str] = []
    for arguments in todo.values():
        failed += run_tests(tree, [*arguments, *(["--collect-only"] if trusted else [])], 300)[1]
    return failed


def table(results: Iterable[dict[str, Any]]) -> str:
    """Return mutants, killed, survived and score by package and over all, as a Markdown table."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        for name in (result["package"], "all"):
            counts[name]["survived" if result["outcome"] == "survived" else "killed"] += 1
    lines = ["| Package | Mutants | Killed | Survived | Score |", "|---|---:|---:|---:|---:|"]
    for name in ("core", "policies", "rules", "all"):
        killed, survived = counts[name]["killed"], counts[name]["survived"]
        if killed + survived:
            score = killed / (killed + survived)
            lines.append(f"| {name} | {killed + survived} | {killed} | {survived} | {score:.1%} |")
    return "\n".join(lines)


def main() -> int:
    """Sample, try and tell. Returns 0 unless the score is below what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--core", type=int, default=60, help="mutants a core module (default 60)")
    parser.add_argument("--policies", type=int, default=25, help="mutants a policy module (default 25)")
    parser.add_argument("--rules", type=int, default=5, help="mutants a rule module (default 5)")
    parser.add_argument("--tiers", type=int, default=3, choices=range(1, TIERS + 1), help="tiers of tests (default 3)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="try again what survived, from the first tier on")
    parser.add_argument("--trust", action="store_true", help="do not look first for tests that fail anyway")
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
    if options.again:
        matching = (r for r in known.values() if re.search(options.only, r["path"]))
        chosen = [Mutant(*(r[name] for name in Mutant._fields)) for r in matching]
        todo = [(m, 0) for m in chosen if known[m.key]["outcome"] == "survived"]
    else:
        chosen = list(sample((m for m in modules() if re.search(options.only, m)), options.seed, sizes))
        todo = [
            (m, known[m.key]["tier"] if m.key in known else 0)
            for m in chosen
            if m.key not in known or (known[m.key]["outcome"] == "survived" and known[m.key]["tier"] < options.tiers)
        ]
    random.Random(options.seed).shuffle(todo)
    print(f"{len(chosen)} mutants, {len(todo)} to try", flush=True)

    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        trees = [Path(folder) / str(i) for i in range(options.workers)]
        for tree in trees:
            copy_tree(tree)
        broken = broken_tests(trees[0], [m for m, _ in todo], options.tiers, options.trust)
        print(f"left out, because they fail without a fault: {broken or 'none'}", flush=True)
        for tree in trees[1:]:
            shutil.rmtree(tree)
            shutil.copytree(trees[0], tree)
        context = multiprocessing.get_context("fork")
        jobs, results = context.Queue(), context.Queue()
        arguments = [(tree, jobs, results, options.tiers, broken) for tree in trees]
        workers = [context.Process(target=work, args=given) for given in arguments]
        for worker in workers:
            worker.start()
        started, waiting = time.monotonic(), iter(todo)
        open_jobs = 0
        with options.results.open("a", encoding="utf-8") as log:
            while True:
                late = options.minutes and time.monotonic() - started > 60 * options.minutes
                while open_jobs < 2 * options.workers and not late:
                    job = next(waiting, None)
                    if job is None:
                        break
                    jobs.put(job)
                    open_jobs += 1
                if open_jobs == 0:
                    break
                result = results.get()
                open_jobs -= 1
                known[result["key"]] = result
                log.write(json.dumps(result) + "\n")
                log.flush()
        for _ in workers:
            jobs.put(None)
        for worker in workers:
            worker.join()

    tried = [known[m.key] for m in chosen if m.key in known]
    for result in tried:
        if result["outcome"] == "survived":
            print(f"{result['path']}:{result['line']} {result['operator']}\n- {result['before']}\n+ {result['after']}")
    print(table(tried))
    score = sum(r["outcome"] != "survived" for r in tried) / max(1, len(tried))
    return int(100 * score < options.fail_under)


if __name__ == "__main__":
    sys.exit(main())
