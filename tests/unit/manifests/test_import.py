"""What ``servelint import`` writes for a file with several engines can be checked as it is."""

from __future__ import annotations

import json
from pathlib import Path

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
