"""What ``servelint import`` writes for a file with several engines can be checked as it is."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from servelint.__main__ import main

ROLES = """\
kind: StormService
metadata: {name: s}
spec:
  template:
    spec:
      roles:
      - name: prefill
        template: {spec: {containers: [{name: engine, command: [vllm, serve, a/b, --tensor-parallel-size, "2"]}]}}
      - name: decode
        template: {spec: {containers: [{name: engine, command: [vllm, serve, a/b, --tensor-parallel-size, "4"]}]}}
"""


def test_containers_of_one_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(ROLES, encoding="utf-8")
    (tmp_path / ".git").mkdir()
    (tmp_path / "specs").mkdir()
    given = ["--hardware", "nvidia/l40s", "--model", "Qwen/Qwen3-8B", "--output", "specs"]
    for part in ("prefill", "decode"):
        # Together they would be one deployment with two pools.
        assert main(["import", "m.yaml", *given, "--part", part]) == 0
    written = sorted((tmp_path / "specs").glob("*.toml"))
    assert [p.stem for p in written] == ["s-decode", "s-prefill"]
    capsys.readouterr()
    main(["check", "specs", "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    assert not [f for f in report["findings"] if f["code"] == "SPEC004"], report["findings"]


def test_a_template_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text("kind: Pod\nspec: {{ toYaml .Values.spec }}\n", encoding="utf-8")
    assert main(["import", "m.yaml"]) != 0
    said = capsys.readouterr().err
    assert "m.yaml:2:7" in said
    assert "render it first" in said
    assert "Traceback" not in said


def test_a_spec_that_was_written_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serve.sh").write_text("vllm serve Qwen/Qwen3-8B\n", encoding="utf-8")
    given = ["import", "serve.sh", "--output", "chat.toml"]
    assert main(given) == 0
    spec = tmp_path / "chat.toml"
    spec.write_text(spec.read_text(encoding="utf-8") + "# by hand\n", encoding="utf-8")
    assert main(given) == 2
    assert "--force" in capsys.readouterr().err
    assert "# by hand" in spec.read_text(encoding="utf-8")
    assert main([*given, "--force"]) == 0
    assert "# by hand" not in spec.read_text(encoding="utf-8")
    (tmp_path / "other.toml").write_text("a = 1\n", encoding="utf-8")
    assert main(["import", "serve.sh", "--output", "other.toml", "--force"]) == 2


def test_a_script_may_move_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve Qwen/Qwen3-8B\n", encoding="utf-8")
    assert main(["import", "serve.sh", "--output", "chat.toml"]) == 0
    written = (tmp_path / "chat.toml").read_text(encoding="utf-8")
    assert 'args_from = { file = "serve.sh" }' in written
    assert 'name = "serve"' in written
    script.write_text("#!/bin/sh\n# one more line\nvllm serve Qwen/Qwen3-8B\n", encoding="utf-8")
    assert main(["check", "chat.toml"]) == 0
    # What the comment asks for is a key of its table.
    filled = written.replace('# accelerator = "..."', 'accelerator = "nvidia/l40s"')
    (tmp_path / "chat.toml").write_text(filled, encoding="utf-8")
    capsys.readouterr()
    main(["check", "chat.toml", "--format", "json"])
    assert not [f for f in json.loads(capsys.readouterr().out)["findings"] if f["code"].startswith("SPEC")]


@pytest.mark.parametrize("command", ["import", "check"])
@pytest.mark.parametrize("text", ["vllm serve Qwen/Qwen3-8B\n", "#!/bin/sh\nvllm serve Qwen/Qwen3-8B\n", None])
def test_piped_text_may_be_any_kind(
    command: str, text: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (text or ROLES).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert main([command, "-"]) in (0, 1)
    captured = capsys.readouterr()
    assert "SPEC001" not in captured.out
    assert ("[engine]" in captured.out) is (command == "import")


def test_input_that_is_closed_or_too_large_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["import", "-"]) == 2
    assert "<stdin>: standard input is closed" in capsys.readouterr().err
    # Nothing is cut: the part that was read would be another deployment.
    text = "vllm serve Qwen/Qwen3-8B" + " " * 1_000_000 + "--tensor-parallel-size 4\n"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    assert main(["import", "-"]) == 2
    assert "<stdin>: it has more than 1,000,000 characters" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--rate", "abc"), ("--slo", "itl.p98=5 ms"), ("--slo", "itl.p99=xyz")])
def test_a_value_that_no_spec_could_have_is_refused(
    option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serve.sh").write_text("vllm serve Qwen/Qwen3-8B\n", encoding="utf-8")
    assert main(["import", "serve.sh", option, value]) == 2
    assert option in capsys.readouterr().err
