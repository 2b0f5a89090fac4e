"""docs/cli.md names every command, option, configuration key and JSON key that there is."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from servelint.__main__ import COMMANDS, MODULES, main
from servelint.commands.common import Parser
from servelint.config import KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "Qwen/Qwen3-Next-80B-A3B-Thinking"
[workload]
prompt_tokens = { p50 = 900, p99 = 7000 }
output_tokens = { p50 = 250, p99 = 1200 }
rate = "1 req/s"
[slo]
ttft = { p99 = "2 s" }
itl = { p99 = "60 ms" }
"""
BROKEN = "servelint = 1\n[hardware]\ndevices = 0\nreplicas = 0 # servelint: ignore[SPEC003] known\n"
FREE = {
    "bound_by_resource_s",
    "dense_flops",
    "documentation",
    "files",
    "keys",
    "kv_bytes_per_token",
    "layers",
    "limits_sequences",
    "machine_balance_flops_per_byte",
    "params_by_role",
    "sources",
    "sparse_flops",
    "sustained_fractions",
    "windows_tokens",
}
"""Objects whose keys are names of things."""


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_and_options(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"`{command}" in PAGE
    options: list[str] = []

    def listed(self: Parser, arguments: list[str]) -> Any:
        options.extend(o for o in self._option_string_actions if o.startswith("--"))
        raise KeyboardInterrupt

    monkeypatch.setattr(Parser, "parse", listed)
    with pytest.raises(KeyboardInterrupt):
        import_module(f"servelint.commands.{MODULES.get(command, command)}").run([])
    missing = [o for o in options if o not in ("--help",) and f"`{o}" not in PAGE and f" {o}`" not in PAGE]
    assert missing == []


@pytest.mark.parametrize("key", KEYS)
def test_configuration_keys(key: str) -> None:
    assert re.search(rf"^(\[{key}[\].]|{key} = )", PAGE, re.M), key


def keys(value: Any, name: str = "") -> set[str]:
    """Every key in a JSON value that the contract fixes."""
    if isinstance(value, list):
        return {k for item in value for k in keys(item)}
    if not isinstance(value, dict):
        return set()
    own = set() if name in FREE else set(value)
    return own | {k for key, item in value.items() for k in keys(item, key)}


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "spec.toml", "broken.toml", "gone.toml", "--verbose"),
        ("cost", "spec.toml"),
        ("cost", "spec.toml", "--graph", "json"),
        ("explain", "spec.toml"),
        ("explain", "spec.toml", "ttft.p99"),
        ("rule", "--all"),
        *(("catalog", kind) for kind in ("hardware", "instances", "models", "policies", "engines", "formats", "rules")),
        ("model", "zai-org/GLM-4.5"),
    ],
    ids=" ".join,
)
def test_json_keys(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "broken.toml").write_text(BROKEN)
    main([*arguments, "--format", "json"])
    found = keys(json.loads(capsys.readouterr().out))
    assert len(found) > 3
    missing = sorted(k for k in found if not re.search(rf"\b{re.escape(k)}\b", PAGE))
    assert missing == []
