"""Which models a name that nobody provides may mean: those of its size and family, however other names are spelled."""

from __future__ import annotations

import pytest

from servelint.errors import CatalogueError
from servelint.manager import Plugins


def message(name: str, plugins: Plugins) -> str:
    with pytest.raises(CatalogueError) as caught:
        plugins.models.get(name)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("/models/llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("/srv/Qwen2.5-32B-Instruct-Q4_K_M.gguf", "Qwen/Qwen2.5-32B-Instruct"),
        ("acme/my-mixtral-8x7b-finetune", "mistralai/Mixtral-8x7B-v0.1"),
    ],
)
def test_the_same_family_and_size_come_first(name: str, first: str, plugins: Plugins) -> None:
    assert f"did you mean {first!r}" in message(name, plugins)


def test_another_size_is_not_suggested(plugins: Plugins) -> None:
    said = message("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", plugins)
    assert "meta-llama/Llama-3.3-70B-Instruct" in said
    assert "'deepseek-ai/DeepSeek-R1'" not in said
    assert "8B" not in said


def test_a_size_alone_is_no_likeness(plugins: Plugins) -> None:
    assert "did you mean" not in message("acme/private-7b", plugins)


def test_typing_errors_are_still_found(plugins: Plugins) -> None:
    assert "did you mean 'meta-llama/Llama-3.1-8B'" in message("meta-llama/Llama-3.1-8C", plugins)
