"""TOML that would keep the parser busy for seconds is refused before it is parsed."""

from __future__ import annotations

import pytest
import tomli

from servelint import toml

DEEP = "[" + "a." * 900 + "a]\n"


@pytest.mark.parametrize(
    "text",
    [
        DEEP + "".join(f"x{i} = 1\n" for i in range(50_000)),
        "".join("b." * 480 + f"x{i} = 1\n" for i in range(1000)),
        "".join("'b'." * 480 + f"x{i} = 1\n" for i in range(500)),
        "".join('"=" . ' * 480 + f"x{i} = 1\n" for i in range(500)),
        DEEP + "".join("b." * 50 + f"x{i} = 1\n" for i in range(2000)),
    ],
)
def test_deep_keys_are_refused_unparsed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tomli, "loads", lambda text: pytest.fail("it was parsed"))
    with pytest.raises(ValueError, match="too many parts"):
        toml.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "a.b.c = 1\n",
        "x = [" + "0.125, " * 50_000 + "]\n",
        "x = [\n" + "  [" + "0.5, " * 500 + "],\n" * 1 + "]\n",
        "".join(f"[a.b.c.d{i}]\nx = 1.5\ny.z = 2.5\n" for i in range(20_000)),
        "# " + "." * 100_000 + "\n" + "".join(f"x{i} = 1\n" for i in range(10_000)),
    ],
)
def test_large_files_that_are_not_deep_are_read(text: str) -> None:
    assert toml.loads(text) == tomli.loads(text)
