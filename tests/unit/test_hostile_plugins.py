"""Plugins that raise, print, or return wrong things: each its own fault, and the check goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from servelint.__main__ import main
from servelint.blame import LONGEST, described, ends_run, origin, shown

HEAD = """
import asyncio, itertools, os, sys
from attrs import evolve, frozen
from servelint.plugin import *
servelint_api = API_VERSION
@frozen
class C: a: int | None = key(Integer())
class E(Exception):
    def __str__(self): raise ValueError("no")
"""
RULE = """
class R(Rule):
    "Doc."
    code = "ACME001"; name = "acme"; {attributes}
    def check(self, review): {check}
@hookimpl
def servelint_rules(): return [R]
"""

SPEC = """\
servelint = 1 # servelint: ignore[SPEC002]
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-70B"
[workload]
prompt_tokens = { p50 = 900, p99 = 7000 }
output_tokens = { p50 = 200, p99 = 1500 }
"""


def hooked(name: str, body: str) -> str:
    return f"{HEAD}\n@hookimpl\ndef {name}():\n    {body}\n"


def policy(arguments: str, before: str = "pass") -> str:
    return hooked("servelint_policies", f"{before}\n    yield Policy('acme', C, {arguments})")


def ruled(check: str, attributes: str = "severity = Severity.INFO") -> str:
    return HEAD + RULE.format(check=check, attributes=attributes)


class Hostile(NamedTuple):
    """A plugin's source, a part of its fault, lines added to the spec, and what of the rest is still found."""

    source: str
    fault: str
    spec: str = ""
    options: tuple[str, ...] = ()
    composes: bool = True


ACME = "[policy.acme]\n"
ENGINE = "[engine]\nname = 'acme-e'\n"

CASES = {
    # At import
    "import raises": Hostile("raise RuntimeError('licence')", "cannot be imported: RuntimeError: licence"),
    "import exits": Hostile("import sys; sys.exit(0)", "cannot be imported: SystemExit: 0"),
    "import raises an interrupt": Hostile("raise KeyboardInterrupt", "cannot be imported: KeyboardInterrupt"),
    "import raises GeneratorExit": Hostile("raise GeneratorExit", "cannot be imported: GeneratorExit"),
    "import raises CancelledError": Hostile(
        "import asyncio\nraise asyncio.CancelledError('late')", "cannot be imported: CancelledError: late"
    ),
    "import raises a class of its own": Hostile(
        "class B(BaseException): pass\nraise B('boom')", "cannot be imported: B: boom"
    ),
    "import raises a group of interrupts": Hostile(
        "raise BaseExceptionGroup('a', [KeyboardInterrupt()])", "cannot be imported: BaseExceptionGroup: a"
    ),
    "import is no Python": Hostile("def (", "cannot be imported: SyntaxError"),
    "import recurses": Hostile("def f(): f()\nf()", "cannot be imported: RecursionError"),
    "message raises": Hostile(HEAD + "raise E", "an exception: whose message cannot be shown"),
    "message is long": Hostile("raise ValueError('x' * 10**6)", "... (1,000,000 characters)"),
    # As a module
    "no contract": Hostile("x = 1", "states no servelint_api"),
    "contract is no text": Hostile("servelint_api = 1", "needs plugin API 1;"),
    "contract cannot be compared": Hostile(
        "class A:\n    def __eq__(s, o): raise RuntimeError('eq')\nservelint_api = A()", "needs plugin API <"
    ),
    "module raises for names": Hostile(
        "def __getattr__(n): raise RuntimeError('no ' + n)", "cannot be registered: RuntimeError: no servelint_api"
    ),
    "module has junk for names": Hostile("def __getattr__(n): return object", "needs plugin API <class 'object'>"),
    "hook takes arguments": Hostile(
        HEAD + "@hookimpl\ndef servelint_formats(): return [5]\n@hookimpl\ndef servelint_rules(a): return []",
        "cannot be registered: PluginValidationError",
    ),
    "hook is unknown": Hostile(hooked("servelint_rulez", "return []"), "did you mean 'servelint_rules'"),
    # Hooks
    "hook raises a class of its own": Hostile(
        hooked("servelint_rules", "raise BaseException('b')"), "servelint_rules failed: BaseException: b"
    ),
    "hook returns a number": Hostile(hooked("servelint_rules", "return 5"), "returned int, expected a series of Rule"),
    "hook returns text": Hostile(hooked("servelint_formats", "return 'abc'"), "returned str, expected a series of F"),
    "hook returns a table": Hostile(hooked("servelint_policies", "return {1: 2}"), "returned dict, expected"),
    "hook never ends": Hostile(hooked("servelint_rules", "yield from itertools.repeat(Rule)"), "more than 100,000"),
    "hook is a coroutine": Hostile(
        HEAD + "class Awaited:\n    def __await__(self): yield\n@hookimpl\ndef servelint_rules(): return Awaited()",
        "returned Awaited, expected a series",
    ),
    "hook yields junk": Hostile(hooked("servelint_engines", "yield None\n    yield 'x'"), "yielded NoneType, expected"),
    # Descriptors
    "entry without an id": Hostile(hooked("servelint_accelerators", "yield Entry(None, int)"), "has the id None"),
    "entry of a number": Hostile(hooked("servelint_models", "yield Entry(5, int)"), "has the id 5"),
    "entry with escapes": Hostile(
        hooked("servelint_accelerators", "yield Entry('a/\\x1b[31m', int)"), "expected printable text"
    ),
    "family of a text": Hostile(
        hooked("servelint_models", "yield ModelFamily('a', 'abc', print)"), "has model_types 'abc', expected a tuple"
    ),
    "format without bits": Hostile(
        hooked("servelint_formats", "yield Format('a0', bits=0)"), "has bits 0, expected a finite number above 0"
    ),
    "format of undefined bits": Hostile(hooked("servelint_formats", "yield Format('a0', float('nan'))"), "bits nan"),
    "format of negative bits": Hostile(hooked("servelint_formats", "yield Format('a0', -5)"), "has bits -5"),
    "format with a wrong alias": Hostile(
        hooked("servelint_formats", "yield Format('a0', 4, aliases=(None,))"), "has aliases (None,)"
    ),
    "policy of no table": Hostile(
        hooked("servelint_policies", "yield Policy('acme', int)"), "has the config <class 'int'>, expected an attrs"
    ),
    "policy after a number": Hostile(policy("after=5"), "has after 5, expected a tuple of texts"),
    "policy whose table cannot be made": Hostile(
        hooked(
            "servelint_policies",
            "@frozen\n    class K:\n        def __attrs_post_init__(self): 1 / 0\n    yield Policy('acme', K)",
        ),
        "has a config that cannot be made without keys: ZeroDivisionError",
    ),
    "policy with a required key": Hostile(
        hooked(
            "servelint_policies",
            "K = frozen(type('K', (), {'__annotations__': {'a': int}, 'a': key(Integer(), required=True)}))\n"
            "    yield Policy('acme', K)",
        ),
        "requires the key 'a', expected a default",
    ),
    "engine without functions": Hostile(
        hooked("servelint_engines", "yield Engine('acme-e', None, None)"), "has defaults None, expected a function"
    ),
    "engine whose formats are no function": Hostile(
        hooked("servelint_engines", "yield Engine('acme-e', print, print, dequantizes=3)"),
        "has dequantizes 3, expected a function",
    ),
    "engine whose first releases are no function": Hostile(
        hooked("servelint_engines", "yield Engine('acme-e', print, print, first_release='1')"),
        "has first_release '1', expected a function",
    ),
    "engine of no kind of budget": Hostile(
        hooked("servelint_engines", "yield Engine('acme-e', print, print, budget_kind='some')"), "budget_kind 'some'"
    ),
    "engine of no way with a full cache": Hostile(
        hooked("servelint_engines", "yield Engine('acme-e', print, print, when_full='hopes')"), "when_full 'hopes'"
    ),
    "length model without keys": Hostile(
        hooked("servelint_workloads", "yield LengthModel('aaa', None, None, print)"), "has keys None, expected a tuple"
    ),
    "trace format of a wrong ending": Hostile(
        hooked("servelint_workloads", "yield TraceFormat('t', print, 5)"), "has extensions 5, expected a tuple of texts"
    ),
    "reporter without a name": Hostile(hooked("servelint_reporters", "yield Reporter(None, print)"), "the name None"),
    # Rules
    "rule without a check": Hostile(
        HEAD + "class R(Rule): code = 'ACME001'; name = 'x'\n@hookimpl\ndef servelint_rules(): return [R]",
        "rule R does not define check",
    ),
    "rule of a numeric code": Hostile(ruled("return []", "code = 5"), "rule R has the code 5, expected text"),
    "rule of no severity": Hostile(ruled("return []", "severity = 'error'"), "has the severity 'error'"),
    "rule of no options": Hostile(ruled("return []", "options = (1,)"), "expected a tuple of Option"),
    "rule of no questions": Hostile(ruled("return []", "questions = 5"), "has questions 5, expected a tuple"),
    "rule of no cases": Hostile(ruled("return []", "failing = (1,)"), "has failing (1,), expected a tuple of Case"),
    "rule whose metadata raises": Hostile(
        ruled("return []", "problem = classmethod(lambda cls: 1 / 0)"), "cannot be read: ZeroDivisionError"
    ),
    "rule that cannot be made": Hostile(
        ruled("return []", "__init__ = lambda self, options: 1 / 0"), "making the rule ACME001 failed: ZeroDivision"
    ),
    "rule raises": Hostile(ruled("raise E"), "rule ACME001 failed on <stdin>: an exception: whose message"),
    "rule exits": Hostile(ruled("raise SystemExit(0)"), "rule ACME001 failed on <stdin>: SystemExit"),
    "rule raises GeneratorExit": Hostile(ruled("raise GeneratorExit"), "failed on <stdin>: GeneratorExit"),
    "rule raises an interrupt": Hostile(ruled("raise KeyboardInterrupt"), "failed on <stdin>: KeyboardInterrupt"),
    "rule yields text": Hostile(ruled("yield 'x'"), "rule ACME001 yielded str, expected Finding or Lacks"),
    "rule never ends": Hostile(ruled("yield from itertools.repeat(Lacks('x'))"), "yields more than 100,000 findings"),
    "rule yields a wrong path": Hostile(ruled("yield Finding([5], 'm')"), "yielded a Finding at [5]"),
    "rule yields a wrong severity": Hostile(ruled("yield Finding((), 'm', severity=3)"), "of severity 3"),
    "rule yields a wrong confidence": Hostile(ruled("yield Finding((), 'm', confidence='\\n::x')"), "confidence '"),
    "rule yields wrong inputs": Hostile(ruled("yield Finding((), 'm', inputs=(1,))"), "with the input 1, expected an"),
    "rule yields a huge input": Hostile(
        ruled("yield Finding((), 'm', inputs=(Input('a', 10**5000, 'B', Source('x', 'y')),))"), "too large to show"
    ),
    "rule yields a wrong place": Hostile(ruled("yield Finding((), 'm', related=(1,))"), "with the related place 1"),
    "rule yields a wrong fix": Hostile(ruled("yield Finding((), 'm', fix='x')"), "with the fix 'x'"),
    "rule lacks a number": Hostile(ruled("yield Lacks(5)"), "yielded Lacks(5), expected text"),
    "rule reports junk": Hostile(
        ruled("yield Finding((), 'm')", "report = lambda self, finding: 5"), "yielded int, expected Finding"
    ),
    # What functions return
    "entry loads nothing": Hostile(
        hooked("servelint_accelerators", "yield Entry('acme/x', lambda: None)"),
        "loading accelerator 'acme/x' gave NoneType, expected Accelerator",
        SPEC.replace("nvidia/l4", "acme/x"),
        composes=False,
    ),
    "capability is one number": Hostile(
        hooked(
            "servelint_accelerators",
            "from servelint.testing import samples\n"
            "    yield Entry('acme/x', lambda: evolve(samples.accelerator(), id='acme/x', compute_capability='9'))",
        ),
        "has compute_capability '9', expected major and minor such as \"9.0\"",
        SPEC.replace("nvidia/l4", "acme/x"),
        composes=False,
    ),
    "aliases are numbers": Hostile(
        hooked("servelint_accelerators", "yield Entry('acme/x', print, lambda: (1,))"),
        "reading the aliases of accelerator 'acme/x' has the alias 1",
        SPEC.replace("nvidia/l4", "an unknown part"),
        composes=False,
    ),
    "knots fall": Hostile(
        hooked(
            "servelint_workloads", "yield LengthModel('aaa', ('p50', 'p99'), (), lambda v: [(0.0, 5.0), (1.0, 2.0)])"
        ),
        "length model 'aaa' returned (1, 2) after (0, 5), expected them to rise",
    ),
    "knots are undefined": Hostile(
        hooked("servelint_workloads", "yield LengthModel('aaa', ('p50', 'p99'), (), lambda v: [(0.5, float('nan'))])"),
        "length model 'aaa' returned the point (0.5, nan)",
    ),
    "policy raises": Hostile(policy("graph=lambda c, g, x: 1 / 0"), "policy 'acme' failed: ZeroDivisionError"),
    "policy raises, and the spec sets it": Hostile(
        policy("graph=lambda c, g, x: 1 / 0"), "policy 'acme' failed: ZeroDivisionError", SPEC + ACME, composes=False
    ),
    "policy exits by a generator": Hostile(
        policy("memory=f", "def f(c, m, x): raise GeneratorExit"), "policy 'acme' failed: GeneratorExit"
    ),
    "policy raises an error of core": Hostile(
        policy("memory=lambda c, m, x: x.format('nosuch')"), "policy 'acme' failed: CatalogueError"
    ),
    "policy returns nothing": Hostile(
        policy("scheduler=lambda c, s, x: None"), "policy 'acme' returned NoneType, expected Scheduler"
    ),
    "policy keeps no token": Hostile(
        policy("scheduler=lambda c, s, x: evolve(s, verify_tokens=0)"), "policy 'acme' has verify_tokens 0"
    ),
    "policy undoes the budget": Hostile(
        policy("memory=lambda c, m, x: evolve(m, budget=float('nan'))"), "policy 'acme' has budget nan"
    ),
    "policy assumes junk": Hostile(
        policy("graph=lambda c, g, x: x.assume(5, 1, None, None)"), "policy 'acme' assumes a value at 5"
    ),
    "policy defaults are nothing": Hostile(
        policy("defaults=lambda c, x: None"), "defaults of policy 'acme' returned NoneType", composes=False
    ),
    "policy defaults of other fields": Hostile(
        policy("defaults=lambda c, x: {'zz': Default(1, 'r', Source('default', 'x'))}"),
        "returned a default for 'zz', which is no field of its table",
        composes=False,
    ),
    "policy defaults of a wrong kind": Hostile(
        policy("defaults=lambda c, x: {'a': Default('many', 'r', Source('default', 'x'))}"),
        'returned a wrong default for acme.a: found the string "many", expected a whole number',
        composes=False,
    ),
    "policy needs text of devices": Hostile(
        policy("devices=lambda c: 'x'"), "devices of policy 'acme' returned 'x'", SPEC + ACME, composes=False
    ),
    "table raises for the spec's value": Hostile(
        hooked(
            "servelint_policies",
            "@frozen\n    class K:\n        a: int | None = key(Integer())\n"
            "        def __attrs_post_init__(self): 1 / (self.a is None)\n    yield Policy('acme', K)",
        ),
        "reading the table of policy 'acme' failed: ZeroDivisionError",
        SPEC + ACME + "a = 1\n",
        composes=False,
    ),
    "engine gives nothing": Hostile(
        hooked("servelint_engines", "yield Engine('acme-e', lambda v, c: None, lambda v, c: {})"),
        "defaults of engine 'acme-e' returned NoneType",
        SPEC + ENGINE,
        composes=False,
    ),
    "engine gives a wrong default": Hostile(
        hooked(
            "servelint_engines",
            "yield Engine('acme-e', lambda v, c: {('kv_cache', 'memory_utilization'): "
            "Default(-5, 'r', Source('default', 'x'))}, lambda v, c: {})",
        ),
        "defaults of engine 'acme-e' returned a wrong default for kv_cache.memory_utilization",
        SPEC + ENGINE,
        composes=False,
    ),
    "engine dequantizes perhaps": Hostile(
        hooked(
            "servelint_engines",
            "yield Engine('acme-e', lambda v, c: {}, lambda v, c: {}, dequantizes=lambda v, f, a: 'perhaps')",
        ),
        "formats of engine 'acme-e' returned 'perhaps'",
        SPEC + ENGINE + "[policy.quantization]\nweights = 'nvfp4'\n",
    ),
    "engine loads from a number on": Hostile(
        hooked(
            "servelint_engines",
            "yield Engine('acme-e', lambda v, c: {('kv_cache', 'page_size'): "
            "Default(32 if v == '2' else 16, 'r', Source('default', 'x'))}, lambda v, c: {}, moved=('1', '2', '3'), "
            "first_release=lambda t: 3)",
        ),
        "first release of engine 'acme-e' returned 3",
        SPEC.replace("70B", "8B") + ENGINE,
        composes=False,
    ),
    "engine reserves text": Hostile(
        hooked(
            "servelint_engines",
            "yield Engine('acme-e', lambda v, c: {}, lambda v, c: {'x': Default('s', 'r', Source('default', 'x'))})",
        ),
        "reserve of engine 'acme-e' returned 's' bytes for x",
        SPEC + ENGINE,
        composes=False,
    ),
}


class Check(NamedTuple):
    """What a check said."""

    status: int
    out: str
    err: str


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a check with a plugin that is installed for the test."""

    def run(source: str, spec: str = SPEC, *options: str, command: tuple[str, ...] = ()) -> Check:
        info = tmp_path / "path" / "hostile_dist-6.6.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile-dist\nVersion: 6.6\n", encoding="utf-8")
        (info / "entry_points.txt").write_text("[servelint]\nhostile = hostile_plugin\n", encoding="utf-8")
        (info.parent / "hostile_plugin.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(str(info.parent))
        monkeypatch.delitem(sys.modules, "hostile_plugin", raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=SimpleNamespace(read=lambda n: spec.encode())))
        monkeypatch.chdir(tmp_path)
        stdout = sys.stdout
        try:
            status = main(list(command or ("check", "-", *(options or ("--format", "json")))))
        finally:
            sys.modules.pop("hostile_plugin", None)
        assert sys.stdout is stdout
        return Check(status, *capsys.readouterr())

    return run


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_plugin_is_named_and_the_check_goes_on(name: str, check: Any) -> None:
    case = CASES[name]
    done = check(case.source, case.spec or SPEC)
    assert done.status == 2, done
    assert "Traceback" not in done.out + done.err
    assert "internal fault" not in done.err
    report = json.loads(done.out)
    told = [fault for fault in report["plugin_faults"] if case.fault in fault["message"]]
    assert told, [f["message"] for f in report["plugin_faults"]]
    for fault in report["plugin_faults"]:
        named = (fault["plugin"], fault["distribution"], fault["version"], Path(fault["file"]).name)
        assert named == ("hostile", "hostile-dist", "6.6", "hostile_plugin.py")
    codes = {finding["code"] for finding in report["findings"]}
    assert "LINT001" in codes
    assert ("MEM001" in codes) == case.composes, codes


PRINTING = {
    "at import": HEAD + "print('::error::x')",
    "in a hook": hooked("servelint_rules", "print('::error::x')"),
    "in a rule": ruled("print('::error::x'); return []"),
    "in a policy": policy("graph=lambda c, g, x: print('::error::x') or g"),
    "closing it": HEAD + "print('::error::x'); sys.stdout.close()",
    "putting it away": HEAD + "print('::error::x'); sys.stdout = None",
}


@pytest.mark.parametrize("where", PRINTING)
def test_what_a_plugin_prints_is_no_part_of_the_report(where: str, check: Any) -> None:
    done = check(PRINTING[where])
    report = json.loads(done.out)
    assert report["plugin_faults"] == []
    assert {"LINT001", "MEM001"} <= {finding["code"] for finding in report["findings"]}
    assert "error::x" in done.err
    assert not done.err.startswith("::")


REPORTERS = {
    "raises": "def f(r): raise GeneratorExit",
    "exits": "def f(r): raise SystemExit(0)",
    "returns nothing": "def f(r): return None",
    "returns bytes": "def f(r): return b'x'",
}


@pytest.mark.parametrize("what", REPORTERS)
def test_where_a_reporter_fails_the_findings_still_come_out(what: str, check: Any) -> None:
    source = hooked("servelint_reporters", f"{REPORTERS[what]}\n    yield Reporter('acme', f)")
    done = check(source, SPEC, "--format", "acme")
    assert (done.status, done.out) == (2, "")
    assert "plugin fault: plugin 'hostile' of hostile-dist 6.6" in done.err
    assert "report 'acme'" in done.err
    assert "MEM001" in done.err
    assert "Traceback" not in done.err


def test_where_one_of_several_reporters_fails_the_others_tell_it(check: Any, tmp_path: Path) -> None:
    source = hooked("servelint_reporters", "yield Reporter('acme', lambda r: 5)")
    done = check(source, SPEC, "--output", "acme=own.txt", "--format", "json")
    assert done.status == 2
    (fault,) = json.loads(done.out)["plugin_faults"]
    assert fault["message"] == "report 'acme' returned int, expected text"
    assert not (tmp_path / "own.txt").exists()


def test_a_reporter_may_write_what_no_encoding_has(check: Any) -> None:
    source = hooked("servelint_reporters", "yield Reporter('acme', lambda r: 'a\\ud800b')")
    done = check(source, SPEC, "--output", "acme=own.txt", "--format", "acme")
    assert "\\ud800" in done.out
    assert done.status in (0, 1)


@pytest.mark.parametrize(
    "rows", ["[5]", "[TraceRow(0.0, float('nan'), 1)]", "(TraceRow(0.0, 1, 1) for _ in itertools.count())", "5"]
)
def test_a_trace_format_that_yields_junk_or_never_ends_is_its_plugins_fault(
    rows: str, check: Any, tmp_path: Path
) -> None:
    (tmp_path / "t.acme").write_text("one\ntwo\n", encoding="utf-8")
    spec = SPEC.split("[workload]")[0] + '[workload]\ntrace = "t.acme"\n'
    source = hooked("servelint_workloads", f"yield TraceFormat('acme', lambda lines: {rows}, ('.acme',))")
    done = check(source, spec)
    (fault,) = json.loads(done.out)["plugin_faults"]
    assert fault["message"].startswith("trace format 'acme' ")
    assert done.status == 2


def test_a_rule_is_not_blamed_for_what_failed_elsewhere(check: Any) -> None:
    source = hooked("servelint_accelerators", "yield Entry('acme/x', lambda: 1 / 0)")
    report = json.loads(check(source, SPEC.replace("nvidia/l4", "acme/x")).out)
    (fault,) = report["plugin_faults"]
    assert fault["message"].startswith("loading accelerator 'acme/x' failed: ZeroDivisionError: division by zero at ")
    (finding,) = [f for f in report["findings"] if f["code"] == "SPEC004"]
    assert finding["line"] == 3
    assert "failed in plugin 'hostile' of hostile-dist 6.6" in finding["message"]


def test_a_real_interrupt_ends_the_run_quietly(tmp_path: Path) -> None:
    module = tmp_path / "interrupted.py"
    module.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nfor _ in range(10**9): pass\n")
    info = tmp_path / "interrupted-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: interrupted\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[servelint]\ninterrupted = interrupted\n")
    done = subprocess.run(
        [sys.executable, "-m", "servelint", "check", "-"],
        input=SPEC,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "servelint: interrupted\n")


def test_debugging_shows_the_traceback_of_a_plugin(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVELINT_DEBUG", "1")
    done = check(ruled("raise LookupError('here')"))
    assert "Traceback" in done.err
    assert "LookupError: here" in done.err
    assert done.status == 2
    json.loads(done.out)


# What exceptions are taken for


def raised(source: str) -> BaseException:
    try:
        exec(compile(source, "some/plugin.py", "exec"), {})
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_only_an_interrupt_that_no_code_raised_ends_a_run() -> None:
    import signal

    assert not ends_run(raised("raise KeyboardInterrupt"))
    assert not ends_run(raised("raise SystemExit"))
    assert not ends_run(raised("raise GeneratorExit"))
    kill = f"import os\nos.kill(os.getpid(), {int(signal.SIGINT)})\nfor _ in range(10**7): pass\n"
    again = "\n".join(["try:", *(f"    {line}" for line in kill.splitlines()), "except KeyboardInterrupt:", "    "])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert ends_run(raised(kill))
        assert ends_run(raised(f"{again}raise"))
        assert ends_run(raised(f"{again}raise KeyboardInterrupt"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert ends_run(KeyboardInterrupt())


def test_exceptions_are_described_by_name_message_and_place() -> None:
    assert described(raised("\n1 / 0")) == "ZeroDivisionError: division by zero at some/plugin.py:2"
    assert described(ValueError()) == "ValueError"
    assert len(described(ValueError("x" * 5000))) < LONGEST + 60
    assert origin(raised("1 / 0")) == __file__
    assert origin(SyntaxError("bad", ("a/b.py", 1, 1, "def ("))) == "a/b.py"
    assert origin(ValueError()) == ""


def test_values_are_shown_shortly_whatever_they_are() -> None:
    class Mute:
        def __repr__(self) -> str:
            raise ValueError

    assert shown(Mute()) == "a Mute"
    assert shown(10**5000) == "a int"
    assert shown("x" * 100) == "'" + "x" * 56 + "..."


def test_one_entry_that_cannot_load_leaves_the_catalogue_of_the_others(check: Any) -> None:
    source = hooked("servelint_accelerators", "yield Entry('acme/x', lambda: None)")
    done = check(source, SPEC, command=("catalog", "hardware", "--format", "json"))
    assert done.status == 2
    assert len(json.loads(done.out)["hardware"]) > 40
    assert "plugin fault: plugin 'hostile' of hostile-dist 6.6" in done.err
