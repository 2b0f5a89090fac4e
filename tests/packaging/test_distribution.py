"""The built distribution: what is in it, and that a wheel built from the sdist works outside the tree."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def environment() -> dict[str, str]:
    dropped = ("PYTHONPATH", "VIRTUAL_ENV")
    return {k: v for k, v in os.environ.items() if k not in dropped}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    # Without --sdist or --wheel the wheel is built from the unpacked sdist.
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
        env=environment(),
    )
    return out


def test_contents(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {n.split("/")[0] for n in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {
        "servelint",
        "servelint_plugins",
        "servelint_rules",
        "servelint_specs",
    }
    for package in ("servelint", "servelint_plugins", "servelint_rules", "servelint_specs"):
        assert f"{package}/py.typed" in names
    assert "servelint_plugins/hardware/data/nvidia/h100-sxm5-80gb.toml" in names
    assert "servelint_plugins/models/data/meta-llama--Llama-3.1-70B.toml" in names
    assert any(n.startswith("servelint_specs/") and n.endswith(".toml") for n in names)
    assert any(n.endswith("/licenses/LICENSE") for n in names)
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        files = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".ci/run", "tests/conftest.py"} <= files
    assert not any(n.startswith((".git/", ".venv/")) or "__pycache__" in n for n in files)


def test_the_wheel_works_outside_the_tree(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    place = tmp_path / "env"
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    run = {"capture_output": True, "text": True, "env": environment(), "cwd": tmp_path, "check": False}
    installed = subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], **run)  # type: ignore[call-overload]
    assert installed.returncode == 0, installed.stderr
    spec = tmp_path / "deploy.toml"
    spec.write_text(
        'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n[model]\nid = "meta-llama/Llama-3.1-70B"\n'
    )
    checked = subprocess.run([place / "bin" / "servelint", "check", "deploy.toml"], **run)  # type: ignore[call-overload]
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert "MEM001" in checked.stdout
    code = "import servelint_specs, pathlib; print(pathlib.Path(servelint_specs.__file__).parent)"
    shipped = subprocess.run([python, "-c", code], **run)  # type: ignore[call-overload]
    folder = shipped.stdout.strip()
    assert str(tmp_path) in folder
    done = subprocess.run([python, "-m", "servelint", "check", folder, "--exit-zero"], **run)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
