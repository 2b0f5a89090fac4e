"""The one module that plugin authors import: the marker, the descriptors, and the helpers to make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servelint.architecture import (
    Architecture,
    Attention,
    Block,
    Experts,
    Indexer,
    LatentAttention,
    LinearState,
    ModelFamily,
    Quantization,
    RopeScaling,
    Tensor,
)
from servelint.composition import Composition, Context, Setup
from servelint.datasheet import datasheets, read_datasheet
from servelint.descriptors import Default, Engine, Entry, LengthModel, Policy, Reporter, TraceFormat, TraceRow
from servelint.errors import CatalogueError, InfeasibleError
from servelint.formats import Format
from servelint.graph import Op, StepGraph
from servelint.hardware import Accelerator, Instance, LabelMatch, Labels, Link
from servelint.hookspecs import API_VERSION, hookimpl
from servelint.lineage import Input, Lineage, Source
from servelint.memory import MemoryLedger, Reserve
from servelint.resources import (
    ActivationIO,
    CacheIO,
    Collective,
    Demand,
    HostWork,
    Launch,
    Matmul,
    StateIO,
    WeightRead,
)
from servelint.review import Review
from servelint.rule import Case, Edit, Finding, Fix, Lacks, Option, Related, Rule, RuleEntry, Severity
from servelint.scheduler import Disaggregation, Pool, Scheduler
from servelint.shapes import ONCE, OUTPUTS, SEQUENCES, TOKENS, Feature, StepShape
from servelint.spec.schema import Boolean, Integer, Many, Named, Number, Quantity, Table, Tables, Text, key
from servelint.units import Dimension

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def instance_sheets(folder: Path) -> Iterator[Entry[Instance]]:
    """Yield an entry for every ``<cloud>/<name>.toml`` below a folder: `servelint.instances` says what is in them."""
    # Imported when a spec names an instance; most name none.
    from servelint import instances

    return instances.instance_sheets(folder)


def label_tables(folder: Path) -> Iterator[Labels]:
    """Yield a label for every TOML file below a folder: `servelint.instances` says what is in them."""
    from servelint import instances

    return instances.label_tables(folder)


__all__ = [
    "API_VERSION",
    "ONCE",
    "OUTPUTS",
    "SEQUENCES",
    "TOKENS",
    "Accelerator",
    "ActivationIO",
    "Architecture",
    "Attention",
    "Block",
    "Boolean",
    "CacheIO",
    "Case",
    "CatalogueError",
    "Collective",
    "Composition",
    "Context",
    "Default",
    "Demand",
    "Dimension",
    "Disaggregation",
    "Edit",
    "Engine",
    "Entry",
    "Experts",
    "Feature",
    "Finding",
    "Fix",
    "Format",
    "HostWork",
    "Indexer",
    "InfeasibleError",
    "Input",
    "Instance",
    "Integer",
    "LabelMatch",
    "Labels",
    "Lacks",
    "LatentAttention",
    "Launch",
    "LengthModel",
    "Lineage",
    "LinearState",
    "Link",
    "Many",
    "Matmul",
    "MemoryLedger",
    "ModelFamily",
    "Named",
    "Number",
    "Op",
    "Option",
    "Policy",
    "Pool",
    "Quantity",
    "Quantization",
    "Related",
    "Reporter",
    "Reserve",
    "Review",
    "RopeScaling",
    "Rule",
    "RuleEntry",
    "Scheduler",
    "Setup",
    "Severity",
    "Source",
    "StateIO",
    "StepGraph",
    "StepShape",
    "Table",
    "Tables",
    "Tensor",
    "Text",
    "TraceFormat",
    "TraceRow",
    "WeightRead",
    "datasheets",
    "hookimpl",
    "instance_sheets",
    "key",
    "label_tables",
    "read_datasheet",
]
