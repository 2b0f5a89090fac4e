"""Names of checkpoints that were made of a model of the catalogue: which model, and in which format.

Publishers add the format to the model's name (``Qwen3-32B-AWQ``), under any owner. There are more such checkpoints than
any catalogue lists, and their shapes are those of the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from servelint.catalogue import Catalogue
from servelint.formats import Format

CONTAINER = "gguf"
"""Files that hold weights in formats of their own: a repository of them says that, each file says the format."""

BY_NAME = "by the checkpoint's name"
"""How a setting says that a name has it."""

MOST_CHARACTERS = 200
MOST_CUTS = 8
"""Separators, from the end of a name, before which a model's name may end."""

_SEPARATOR = r"[-_.]"
_PART = r"-[0-9]{5}-of-[0-9]{5}$"


class Checkpoint(NamedTuple):
    """What a name says: the model's id, and the weights' format; None where only their files say it."""

    base: str
    format: str | None


def contained(name: str) -> bool:
    """Whether a name is one of files that hold weights in formats of their own, whatever the model is published in."""
    return CONTAINER in name.lower()


def checkpoint(name: str, models: Catalogue[Any], formats: Mapping[str, Format]) -> Checkpoint | None:
    """Return the model of the catalogue that a checkpoint was made of, by its name; None where it says none.

    A path counts only where it names a file of weights: what a folder is called is its owner's choice.
    """
    last = name.rpartition("/")[2][:MOST_CHARACTERS]
    file = last.lower().endswith(f".{CONTAINER}")
    if not file and (name.count("/") > 1 or name.startswith(("/", ".", "~", "$"))):
        return None
    if file:
        last = re.sub(_PART, "", last[: -len(CONTAINER) - 1])
    endings = {ending: found.name for found in formats.values() for ending in found.endings}
    # The longest name of a model first: "-dynamic" may end a model's name as well as a format's.
    for cut in reversed([m.start() for m in re.finditer(_SEPARATOR, last)]):
        ending = re.sub(_SEPARATOR, "", last[cut:]).lower()
        if ending != CONTAINER and ending not in endings:
            continue
        owner = "" if file else name.rpartition("/")[0]
        base = (models.resolve(f"{owner}/{last[:cut]}") if owner else None) or models.resolve(last[:cut])
        if base is not None:
            return Checkpoint(base, endings.get(ending))
    return None


def beginning(name: str, models: Catalogue[Any]) -> str | None:
    """Return the model whose name a longer name begins with, None where there is none."""
    last = name.rpartition("/")[2][:MOST_CHARACTERS]
    cuts = [m.start() for m in re.finditer(_SEPARATOR, last)][-MOST_CUTS:]
    return next((base for cut in reversed(cuts) if (base := models.resolve(last[:cut])) is not None), None)
