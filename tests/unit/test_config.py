"""Configuration: where it is found, what it may say, and that a typing error never switches the gate off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from servelint import config as module
from servelint.config import (
    LONGEST_PATTERN,
    MAX_BYTES,
    MOST_PATTERNS,
    Config,
    check_names,
    confined,
    find_root,
    load,
    project_folder,
    structure,
    with_overrides,
)
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


@pytest.mark.parametrize(
    "text",
    [
        "[tool.servelint]\nselect = ['MEM']\n",
        "[ tool . servelint ]\nselect = ['MEM']\n",
        "[tool]\nservelint = { select = ['MEM'] }\n",
        '["tool"."servelint"]\nselect = ["MEM"]\n',
        "['tool'.servelint]\nselect = ['MEM']\n",
        "tool.servelint.select = ['MEM']\n",
        "[tool]\nservelint.select = ['MEM']\n",
        "\ufeff[tool.servelint]\r\nselect = ['MEM']\r\n",
    ],
)
def test_every_way_to_write_the_table_of_a_pyproject(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(text.encode())
    assert find_root(tmp_path) == (tmp_path, tmp_path / "pyproject.toml")
    assert load(tmp_path / "pyproject.toml") == {"select": ["MEM"]}


@pytest.mark.parametrize(
    "text",
    [
        "# [tool.servelint]\n",
        "x = '''\n[tool.servelint]\n'''\n",
        "[project]\ndependencies = ['servelint']\n",
        "[other.tool.servelint]\n",
    ],
)
def test_what_only_mentions_servelint_is_no_configuration(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert find_root(tmp_path)[1] is None


def test_a_byte_order_mark_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "servelint.toml").write_bytes(b"\xef\xbb\xbfselect = ['MEM']\n")
    assert load(find_root(tmp_path)[1]) == {"select": ["MEM"]}


@pytest.mark.parametrize("name", ["servelint.toml", ".servelint.toml", "pyproject.toml"])
def test_a_configuration_that_cannot_be_read_is_never_passed_over(name: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside.toml"
    outside.write_text("")
    folder = tmp_path / "project"
    folder.mkdir()
    path = folder / name

    def said() -> str:
        with pytest.raises(ConfigError) as caught:
            load(find_root(folder)[1])
        assert str(path) in str(caught.value)
        return str(caught.value)

    path.symlink_to(folder / "gone")
    assert "it is a link to nothing" in said()
    path.unlink()
    path.symlink_to(path)
    assert "it is a link to nothing" in said()
    path.unlink()
    path.symlink_to(outside)
    assert "it is a link that leads out of the project" in said()
    path.unlink()
    path.mkdir()
    assert "it is not a regular file" in said()
    path.rmdir()
    os.mkfifo(path)
    assert "it is not a regular file" in said()
    path.unlink()
    path.write_text("#" * MAX_BYTES + "\n[tool.servelint]\n")
    assert "more than 1,000,000 bytes" in said()
    path.write_bytes(b"# servelint \xff")
    assert "it is not UTF-8 text (byte 12)" in said()
    path.write_text("servelint" + ".a" * 1000 + " = 1\n" + "a" + ".b" * 900 + ".c = 1\n" * 500)
    assert "TOML" in said()


def test_a_configuration_shared_within_the_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "common.toml").write_text("select = ['MEM']")
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "servelint.toml").symlink_to("../common.toml")
    assert load(find_root(tmp_path / "team")[1]) == {"select": ["MEM"]}


def test_reading_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "servelint.toml"
    with path.open("wb") as stream:
        stream.truncate(10**12)
    with pytest.raises(ConfigError, match="more than 1,000,000 bytes"):
        load(path)


@pytest.mark.parametrize("value", ["0x" + "f" * 5000, "[" * 300 + "]" * 300])
@pytest.mark.parametrize("key", ["select", "fail-on", "preview", "rule", "severity.MEM001", "exclude"])
def test_a_value_that_cannot_be_shown_is_still_refused(key: str, value: str, plugins: Plugins, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected"):
        made(plugins, f"{key} = {value}", tmp_path)


def test_options_are_finite(plugins: Plugins, tmp_path: Path) -> None:
    rule = next(r for r in plugins.rules if r.options)
    for value in ("inf", "0x" + "f" * 5000):
        with pytest.raises(ConfigError, match="expected"):
            made(plugins, f"[rule.{rule.code}]\n{rule.options[0].name} = {value}\n", tmp_path)


def test_patterns_are_few_and_short(plugins: Plugins, tmp_path: Path) -> None:
    many = [f"a{i}" for i in range(MOST_PATTERNS + 1)]
    long = "a" * (LONGEST_PATTERN + 1)
    for text, said in (
        (f"exclude = {many}", "exclude has 1,001 patterns, expected at most 1,000"),
        ("[per-file-ignores]\n" + "".join(f"{m} = []\n" for m in many), "per-file-ignores has 1,001 patterns"),
        (f"exclude = ['{long}']", "exclude has a pattern of 201 characters"),
    ):
        with pytest.raises(ConfigError, match=said):
            made(plugins, text, tmp_path)
    assert len(made(plugins, f"exclude = {many[1:]}", tmp_path).exclude) == MOST_PATTERNS


def test_a_file_is_looked_up_once_for_all_rules_and_patterns(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignores = {f"a{i}/*": ("MEM",) for i in range(500)} | {"lab/*": ("MEM", "SLO001")}
    config = Config(per_file_ignores=ignores, exclude=tuple(ignores), root=tmp_path)
    asked: list[object] = []
    real, matched = os.path.realpath, module._any
    monkeypatch.setattr(module.os.path, "realpath", lambda path: asked.append(path) or real(path))
    monkeypatch.setattr(module, "_any", lambda *given: asked.append("pattern") or matched(*given))
    for file in (str(tmp_path / "lab" / "a.toml"), str(tmp_path / "prod" / "a.toml")):
        asked.clear()
        off = {rule.code for rule in plugins.rules if config.ignores(rule, file)}
        assert asked.count("pattern") == len(ignores)
        assert asked.count(file) == 1
        assert ({"MEM001", "SLO001"} <= off) == ("lab" in file)
        asked.clear()
        config.excludes(file)
        assert asked == [file, "pattern"]


def test_links_do_not_lead_to_another_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    for folder in (project / "sub", other):
        folder.mkdir(parents=True)
        (folder / "a.toml").write_text("")
    (project / "servelint.toml").write_text("")
    (other / "servelint.toml").write_text("")
    (project / "out").symlink_to(other)
    (project / "inner").symlink_to(project / "sub")
    (project / "file.toml").symlink_to(other / "a.toml")
    (project / "near.toml").symlink_to(project / "sub" / "a.toml")
    for here, prefix in ((project, ""), (project, f"{project}/"), (tmp_path, "project/"), (Path("/"), f"{project}/")):
        monkeypatch.chdir(here)
        for name in ("out", "out/a.toml", "file.toml", "inner/a.toml", "near.toml", "inner", "sub/../file.toml"):
            assert find_root(project_folder(prefix + name))[0] == project, (here, name)
        for name in ("out", "out/a.toml", "file.toml", "out/../other/a.toml"):
            with pytest.raises(ValueError, match="leads out of the project"):
                confined(prefix + name)
        for name in ("sub/a.toml", "inner/a.toml", "near.toml", "sub", "inner"):
            assert confined(prefix + name) == str(project / "sub" / "a.toml" if "toml" in name else project / "sub")


def test_links_of_the_system_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk" / "project").mkdir(parents=True)
    (tmp_path / "disk" / "project" / "a.toml").write_text("")
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    monkeypatch.chdir(tmp_path / "disk")
    assert confined(str(tmp_path / "home" / "project" / "a.toml")) == str(tmp_path / "disk" / "project" / "a.toml")
    assert project_folder(str(tmp_path / "home" / "project" / "a.toml")) == tmp_path / "disk" / "project"


def test_an_explicit_file_of_a_pull_request_is_no_link_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "outside.toml").write_text("")
    (tmp_path / "project" / "ci.toml").symlink_to(tmp_path / "outside.toml")
    monkeypatch.chdir(tmp_path / "project")
    with pytest.raises(ConfigError, match="leads out of the project"):
        load(Path("ci.toml"), explicit=True)
    assert load(tmp_path / "outside.toml", explicit=True) == {}
