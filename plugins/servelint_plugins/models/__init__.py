"""Built-in models: a catalogue of published architectures, and readers of their ``config.json`` files.

Listing the catalogue opens no file, and a family's reader is imported only when a config of that family is
read: start-up must not pay for models that a deployment does not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import tomli
from attrs import evolve

from servelint.architecture import Architecture, ModelFamily
from servelint_plugins.models.fields import Fields

__all__ = ["aliases", "catalogue", "config", "families", "load", "published", "read_config"]

DATA = Path(__file__).with_name("data")

FAMILIES: dict[str, tuple[str, ...]] = {
    "classic": ("opt", "gpt2", "gptj", "gpt_neox", "gpt_bigcode", "starcoder2", "falcon", "mpt", "phi"),
    "cohere": ("cohere", "cohere2"),
    "deepseek": (
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "kimi_k2",
        "kimi_k25",
        "kimi_linear",
        "glm4_moe_lite",
        "glm_moe_dsa",
    ),
    "deepseek_v4": ("deepseek_v4",),
    "gemma": ("gemma", "gemma2", "gemma3", "gemma3_text"),
    "gemma4": ("gemma4", "gemma4_text"),
    "gpt_oss": ("gpt_oss",),
    "hybrid": (
        "jamba",
        "nemotron_h",
        "granitemoehybrid",
        "qwen3_next",
        "qwen3_5",
        "qwen3_5_text",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "minimax_m1",
        "minimax_text_01",
    ),
    "llama": (
        "llama",
        "mistral",
        "ministral3",
        "qwen2",
        "qwen3",
        "phi3",
        "granite",
        "olmo2",
        "seed_oss",
        "smollm3",
    ),
    "llama4": ("llama4", "llama4_text"),
    "minimax_m3": ("minimax_m3", "minimax_m3_vl"),
    "moe": (
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
        "minimax_m2",
        "glm4_moe",
        "phimoe",
        "granitemoe",
        "dbrx",
    ),
    "multimodal": ("mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"),
}
"""Model types by the module of `servelint_plugins.models.readers` that reads them."""

_MODULES = {model_type: module for module, types in FAMILIES.items() for model_type in types}


def catalogue() -> list[tuple[str, Path]]:
    """List the ids of the catalogue with their files, sorted; reads the directory only."""
    found = (path for path in DATA.iterdir() if path.suffix == ".toml")
    return sorted((path.stem.replace("--", "/", 1), path) for path in found)


def aliases(path: Path) -> tuple[str, ...]:
    """Read the other names of one catalogue file; its config is not parsed."""
    head, _, _ = path.read_text("utf-8").partition("\n[")
    return _texts(tomli.loads(head), "aliases")


def load(path: Path) -> Architecture:
    """Load one catalogue file.

    ``base`` names the model whose config a variant shares but for the fields in its own ``config`` table;
    ``checkpoint`` holds what the weights have and the published config does not say.
    """
    document = tomli.loads(path.read_text("utf-8"))
    model_id = str(document["id"])
    architecture = read_config(model_id, _config(document))
    return evolve(
        architecture,
        aliases=_texts(document, "aliases"),
        sources=_texts(document, "sources"),
        notes=(*_texts(document, "notes"), *architecture.notes),
        conflicts=_texts(document, "conflicts"),
    )


def config(path: Path) -> dict[str, object]:
    """Read the config of one catalogue file as a model's ``config.json`` has it, its base's fields included."""
    return _config(tomli.loads(path.read_text("utf-8")))


def published(path: Path) -> dict[str, int]:
    """Read the totals that a catalogue file quotes beside its config; empty where it quotes none."""
    totals: dict[str, int] = tomli.loads(path.read_text("utf-8")).get("published", {})
    return totals


def _config(document: Mapping[str, Any]) -> dict[str, object]:
    config: dict[str, object] = {}
    if "base" in document:
        path = DATA / (str(document["base"]).replace("/", "--", 1) + ".toml")
        config.update(_config(tomli.loads(path.read_text("utf-8"))))
    config.update(document.get("config", {}))
    config.update(document.get("checkpoint", {}))
    return config


def read_config(model_id: str, config: Mapping[str, object]) -> Architecture:
    """Read a parsed ``config.json`` as the architecture of model ``model_id``.

    Raises ValueError naming the field that is missing, absurd or unsupported, and what is supported.
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"{model_id}: a config is an object")
    fields = Fields(model_id, config)
    model_type = fields.text("model_type", allowed=sorted(_MODULES))
    module = import_module(f"servelint_plugins.models.readers.{_MODULES[model_type]}")
    architecture: Architecture = module.read(model_id, fields)
    return architecture


def families() -> tuple[ModelFamily, ...]:
    """The families whose published configs are read."""
    return tuple(ModelFamily(name, types, read_config) for name, types in FAMILIES.items())


def _texts(document: Mapping[str, object], key: str) -> tuple[str, ...]:
    value = document.get(key, ())
    if not isinstance(value, list | tuple):
        raise ValueError(f"{key}: an array of strings is expected")
    return tuple(str(item) for item in value)
