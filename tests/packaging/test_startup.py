"""Start-up: what a check of one small spec imports, and what it must not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[workload]
prompt_tokens = { p50 = 900, p99 = 4000 }
output_tokens = 200
rate = "1 req/s"
[slo]
itl = { p99 = "100 ms" }
"""

HEAVY = {
    "asyncio", "ctypes", "difflib", "hypothesis", "json", "logging", "multiprocessing", "networkx",
    "numpy", "pytest", "rich", "sqlite3", "ssl", "unittest", "urllib.request", "xml", "yaml",
}  # fmt: skip
"""Modules that a clean check has no use for."""

PROGRAM = """
import json, sys
from servelint.__main__ import main
status = main(["check", sys.argv[1], "--concise"])
sys.stderr.write(json.dumps([status, sorted(sys.modules)]))
"""


def imported(spec: Path) -> tuple[int, set[str]]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(spec)], capture_output=True, text=True, check=True)
    status, modules = json.loads(done.stderr)
    return status, set(modules)


def test_a_clean_check_imports_nothing_heavy(tmp_path: Path) -> None:
    spec = tmp_path / "small.toml"
    spec.write_text(SPEC)
    status, modules = imported(spec)
    assert status == 0
    # json is imported by the program above, before the check.
    assert (HEAVY - {"json"}) & modules == set()


def test_a_check_opens_only_the_catalogue_files_it_names(tmp_path: Path) -> None:
    spec = tmp_path / "small.toml"
    spec.write_text(SPEC)
    program = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from servelint.__main__ import main
main(["check", sys.argv[1], "--concise"])
sys.stderr.write("\\n".join(o for o in opened if o.endswith(".toml") and "data" in o))
"""
    done = subprocess.run([sys.executable, "-c", program, str(spec)], capture_output=True, text=True, check=True)
    names = {Path(line).name for line in done.stderr.splitlines()}
    assert names == {"h100-sxm5-80gb.toml", "meta-llama--Llama-3.1-8B.toml"}


def test_the_public_surface_is_sorted_and_complete() -> None:
    import servelint.plugin as surface

    names = surface.__all__
    assert list(names) == sorted(names, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert all(hasattr(surface, name) for name in names)
