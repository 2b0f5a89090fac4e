"""Counts the parameters of the reference implementation's module trees, for the tests of the model catalogue.

Every catalogue config is built with transformers on torch's meta device, which allocates nothing, and the totals
go to ``tests/data/facts/module_trees.json`` with the versions that built them. The tests compare the readers'
totals with that file; neither package is a dependency of the project, and nothing runs this script but a
person who adds a model or moves the pins. In a virtual environment of its own::

    python -m venv trees
    trees/bin/pip install torch==2.14.1 transformers==5.24.0 attrs tomli
    PYTHONPATH=core:plugins trees/bin/python tests/accuracy/module_trees.py

It takes some minutes and a few GB of memory. With names of models it counts only those and keeps the others'
figures. What transformers has no class for, or cannot build from the published fields, is listed with the reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servelint_plugins import models

FACTS = Path(__file__).parents[1] / "data" / "facts" / "module_trees.json"

CLASSES = {"kimi_k2": "deepseek_v3", "minimax_m3": "minimax_m3_vl_text"}
"""Model types that transformers knows by another name, with the same module tree."""

NOT_OF_THE_TREE = ("quantization_config", "torch_dtype", "dtype", "expert_dtype", "auto_map", "rope_scaling")


def count(config: Mapping[str, Any]) -> int:
    """Parameters of the module tree of a config, vision tower included, tied matrices once."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    fields = {name: value for name, value in config.items() if name not in NOT_OF_THE_TREE}
    if fields.get("q_lora_rank") == 0:
        fields["q_lora_rank"] = None  # TOML has no null.
    kind = CLASSES.get(fields["model_type"], fields["model_type"])
    if kind not in CONFIG_MAPPING:
        raise LookupError(f"transformers has no class for {kind}")
    built = CONFIG_MAPPING[kind].from_dict({**fields, "model_type": kind})
    if "tie_word_embeddings" not in fields:
        # Where neither object says so, the text model's own default holds, as in the checkpoints.
        built.tie_word_embeddings = built.get_text_config().tie_word_embeddings
    auto = AutoModelForImageTextToText if "vision_config" in fields else AutoModelForCausalLM
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in auto.from_config(built).parameters())


def main(names: list[str]) -> None:
    """Count the named models, or all, and write the facts."""
    import torch
    import transformers

    old = json.loads(FACTS.read_text("utf-8"))
    params: dict[str, int] = dict(old["params"]) if names else {}
    without: dict[str, str] = dict(old.get("without", {})) if names else {}
    for name, path in models.catalogue():
        if names and name not in names:
            continue
        params.pop(name, None)
        without.pop(name, None)
        try:
            params[name] = count(models.config(path))
        except Exception as error:
            without[name] = " ".join(str(error).split())[:160]
        print(name, params.get(name, without.get(name)), flush=True)
    facts = {
        "source": f"transformers {transformers.__version__}: parameters of the module tree built from each catalogue "
        "config on a meta device, vision tower included, multi-token-prediction modules not",
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__.partition("+")[0]},
        "params": dict(sorted(params.items())),
        "without": dict(sorted(without.items())),
    }
    FACTS.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
