"""Built-in rules, one module a rule, one folder a family, found by walking this package.

A module's name says code and name; the class in it is imported when a spec has what the rule is about.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

from servelint.lineage import KeyPath
from servelint.plugin import API_VERSION, Rule, RuleEntry, hookimpl

servelint_api = API_VERSION

Paths = tuple[KeyPath, ...]
CLAIM: Paths = (("claim",),)
SLO: Paths = (("slo",),)
WORKLOAD: Paths = (("workload",),)
ARGUMENTS: Paths = (("engine", "args"), ("engine", "args_from"), ("engine", "env"))
FIGURES: Paths = (("hardware", "override"), ("hardware", "datasheet"))
ENGINE: Paths = (("engine",),)
FORMATS: Paths = (("policy", "quantization"),)
SPLIT: Paths = (
    ("policy", "parallelism"),
    ("policy", "disaggregation"),
    ("hardware", "devices"),
    ("hardware", "nodes"),
    ("hardware", "instance"),
)

WHEN: dict[str, Paths] = {
    # A family first, then what differs in it.
    "CLM": CLAIM,
    "CLM005": (("workload", "prefix_hit"), ("workload", "growth")),
    "CLM008": (*CLAIM, ("evidence",)),
    "CLM009": (*CLAIM, ("evidence",)),
    "CND": (("policy", "constrained_decoding"),),
    "CTX001": WORKLOAD,
    "CTX002": WORKLOAD,
    "CTX004": WORKLOAD,
    "CTX005": WORKLOAD,
    "CTX006": ENGINE,
    "CTX007": WORKLOAD,
    "DEC": (("deployment", "goal"),),
    "DIS": (("policy", "disaggregation"),),
    "DIS004": (("policy", "kv_cache"), ("policy", "disaggregation")),
    "ENG001": ARGUMENTS,
    "ENG002": ARGUMENTS,
    "ENG003": ARGUMENTS,
    "ENG004": ENGINE,
    "ENG005": ARGUMENTS,
    "ENG006": ENGINE,
    "ENG007": ARGUMENTS,
    "HW001": (*FIGURES, *CLAIM),
    "HW002": (*FIGURES, *CLAIM),
    "HW003": (("hardware", "efficiency"), *CLAIM),
    "HW004": (*FIGURES, ("hardware", "efficiency")),
    "HW005": (*FIGURES, *CLAIM),
    "HW007": (("hardware", "datasheet"), ("hardware", "network"), ("policy", "disaggregation")),
    "HW008": (*FIGURES, ("policy", "kv_cache")),
    "HW009": (("hardware", "power"),),
    "HW010": (*FIGURES, *CLAIM, *ARGUMENTS),
    "KRN001": (("policy", "attention"),),
    "KRN002": ENGINE,
    "KRN003": (("evidence",),),
    "MEM004": (("policy", "kv_cache", "page_size"),),
    "MEM005": SLO,
    "MEM006": ENGINE,
    "MEM007": SLO,
    "MEM008": (("policy", "batching"), *ENGINE),
    "MOE001": (("policy", "moe"), *SPLIT),
    "MOE004": SPLIT,
    "PAR": SPLIT,
    "MOE002": (("model", "weights_bytes"),),
    "PAR007": CLAIM,
    # The name of a checkpoint may say its format.
    "QNT001": (*FORMATS, ("model", "id")),
    "QNT002": CLAIM,
    "QNT003": FORMATS,
    "QNT004": SPLIT,
    "QNT005": (("model", "weights_bytes"),),
    "QNT006": FORMATS,
    "SLO001": SLO,
    "SLO002": CLAIM,
    "SLO003": (*SLO, *CLAIM),
    "SLO004": SLO,
    "SLO005": SLO,
    "SLO006": SLO,
    "SLO007": WORKLOAD,
    "SLO009": WORKLOAD,
    "SLO008": SLO,
    "SLO010": SLO,
    "SPD": (("policy", "speculation"),),
    "SPEC006": ARGUMENTS,
}
"""Keys of which a spec has to have one for a rule to have anything to say, by code or family."""

PREVIEW = frozenset({"KRN003", "MEM005", "MOE003"})
"""Codes of rules that run only when they are asked for."""


def modules() -> Iterator[str]:
    """Yield the import name of every rule module: ``<family>/<code>_<name>.py``."""
    here = Path(__file__).parent
    for family in sorted(p for p in here.iterdir() if p.is_dir() and not p.name.startswith("_")):
        for name in sorted(os.listdir(family)):
            code, underline, _ = name.partition("_")
            if underline and name.endswith(".py") and code[:-3] == family.name and code[-3:].isdecimal():
                yield f"{__name__}.{family.name}.{name[:-3]}"


def load(module: str, code: str) -> type[Rule]:
    """Import a rule's module and return its class. LookupError when it defines no rule of that code."""
    for value in vars(import_module(module)).values():
        if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module and value.code == code:
            return value
    raise LookupError(f"{module} defines no rule {code}")


@hookimpl
def servelint_rules() -> Iterator[RuleEntry]:
    """Yield an entry for every rule module."""
    for module in modules():
        stem = module.rpartition(".")[2]
        code, _, name = stem.partition("_")
        code = code.upper()
        when = WHEN.get(code) or WHEN.get(code[:-3], ())
        found: Callable[[], type[Rule]] = partial(load, module, code)
        yield RuleEntry(code, name.replace("_", "-"), found, when, code in PREVIEW)
