"""Configuration: where it is found, what it may say, and that a typing error never switches the gate off."""

from __future__ import annotations

from pathlib import Path

import pytest

from servelint.config import Config, check_names, find_root, load, structure, with_overrides
from servelint.errors import ConfigError
from servelint.manager import Plugins
from servelint.rule import Severity


def made(plugins: Plugins, text: str, tmp_path: Path) -> Config:
    path = tmp_path / "servelint.toml"
    path.write_text(text, encoding="utf-8")
    return structure(load(path), plugins, "servelint.toml", tmp_path)


def test_everything_together(plugins: Plugins, tmp_path: Path) -> None:
    config = made(
        plugins,
        """\
select = ["SPEC", "MEM", "throughput-past-slo"]
extend-select = ["HW001"]
ignore = ["MEM002"]
fail-on = "warning"
exclude = ["old/*"]
[per-file-ignores]
"lab/*.toml" = ["MEM"]
[severity]
weights-do-not-fit = "warning"
LINT001 = "error"
""",
        tmp_path,
    )
    chosen = {rule.code for rule in plugins.rules if config.selects(rule)}
    assert {"SPEC001", "MEM001", "SLO001", "HW001"} <= chosen
    assert not chosen & {"MEM002", "CTX001"}
    assert config.fail_on is Severity.WARNING
    assert config.severity == {"MEM001": Severity.WARNING, "LINT001": Severity.ERROR}
    mem001 = plugins.rule("MEM001")
    assert config.ignores(mem001, str(tmp_path / "lab" / "a.toml"))
    assert not config.ignores(mem001, str(tmp_path / "prod" / "a.toml"))
    assert config.excludes(str(tmp_path / "old" / "a.toml"))
    assert not config.excludes(str(tmp_path / "a.toml"))


def test_patterns_name_files_folders_and_paths(tmp_path: Path) -> None:
    config = Config(root=tmp_path)
    file = str(tmp_path / "deploy" / "chat.toml")
    for pattern in ("chat.toml", "*.toml", "deploy/*", "deploy", "deploy/", "deploy/chat.toml"):
        assert config.matches(file, pattern), pattern
    for pattern in ("deploy/old/*", "hat.toml", "eploy"):
        assert not config.matches(file, pattern), pattern


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('selekt = ["MEM"]', "unknown key 'selekt'; did you mean 'select'"),
        ("zzz = 1", "unknown key 'zzz'; the keys are select"),
        ('select = ["MEMM"]', "no rule or family is called 'MEMM'; did you mean 'MEM'"),
        ('ignore = ["weights-dont-fit"]', "did you mean 'weights-do-not-fit'"),
        ('select = "MEM"', "expected a list of texts"),
        ('fail-on = "errors"', "expected one of info, warning, error; did you mean 'error'"),
        ("fail-on = 3", "expected one of info, warning, error"),
        ('[severity]\nMEM01 = "error"', "no rule is called 'MEM01'; did you mean 'MEM001'"),
        ('[severity]\nMEM001 = "fatal"', "severity.MEM001 is 'fatal'"),
        ('severity = "error"', "expected a table"),
        ('[per-file-ignores]\n"*" = ["XYZ001"]', "no rule or family is called 'XYZ001'"),
        ("[rule.MEM001]\nthreshold = 1", "rule MEM001 has no option 'threshold'"),
        ("[rule.mem]\nthreshold = 1", "no rule is called 'mem'"),
        ("preview = 1", "expected true or false"),
        ("select = [", "this is not valid TOML"),
    ],
)
def test_what_is_wrong_is_said_with_what_was_meant(plugins: Plugins, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        made(plugins, text, tmp_path)
    assert said in str(caught.value)
    assert "servelint.toml" in str(caught.value)


def test_options_are_checked_and_reach_the_rule(plugins: Plugins, tmp_path: Path) -> None:
    rule = next(r for r in plugins.rules if r.options)
    option = rule.options[0]
    config = made(plugins, f"[rule.{rule.name}]\n{option.name} = {option.default}\n", tmp_path)
    assert rule(dict(config.options[rule.code])).option(option.name) == option.default
    for value, said in (("true", "expected a number"), ("-1e9", "expected"), ("nan", "expected")):
        with pytest.raises(ConfigError, match=said):
            made(plugins, f"[rule.{rule.code}]\n{option.name} = {value}\n", tmp_path)
    with pytest.raises(ConfigError, match=f"did you mean '{option.name}'"):
        made(plugins, f"[rule.{rule.code}]\n{option.name}s = 1\n", tmp_path)


def test_the_nearest_configuration_makes_the_root(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    inner = tmp_path / "deploy" / "eu"
    inner.mkdir(parents=True)
    assert find_root(inner) == (tmp_path.resolve(), None)
    (tmp_path / "pyproject.toml").write_text('[tool.servelint]\nselect = ["MEM"]\n')
    assert find_root(inner) == (tmp_path.resolve(), tmp_path.resolve() / "pyproject.toml")
    assert load(tmp_path / "pyproject.toml") == {"select": ["MEM"]}
    (tmp_path / "deploy" / "servelint.toml").write_text("")
    assert find_root(inner)[0] == (tmp_path / "deploy").resolve()


def test_a_pyproject_of_others_is_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\n")
    assert find_root(tmp_path)[1] is None
    (tmp_path / "pyproject.toml").write_text("tool = 3 # [tool.servelint]\n")
    with pytest.raises(ConfigError, match="expected a table"):
        load(tmp_path / "pyproject.toml")


def test_an_explicit_file_has_to_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml", explicit=True)


def test_the_command_line_overrides_and_may_not_leave_nothing(plugins: Plugins) -> None:
    config = with_overrides(Config(select=("MEM",)), plugins, ("SPEC",), (), "info", suppressions=False)
    assert config.select == ("SPEC",)
    assert config.fail_on is Severity.INFO
    assert not config.suppressions
    with pytest.raises(ConfigError, match="no rule is selected"):
        with_overrides(Config(), plugins, ("MEM001",), ("MEM",), None)
    with pytest.raises(ConfigError, match="no rule is selected"):
        with_overrides(Config(), plugins, (), (), None)


def test_names_are_codes_families_and_names(plugins: Plugins) -> None:
    names = ("ALL", "LINT", "LINT002", "SPEC", "SPEC001", "invalid-toml", "unused-suppression")
    assert check_names(names, plugins, "x") == names
