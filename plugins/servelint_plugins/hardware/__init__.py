"""Built-in accelerators, a folder of datasheets with provenance; instance types of clouds; labels of manifests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from servelint.plugin import (
    API_VERSION,
    Accelerator,
    Entry,
    Instance,
    Labels,
    datasheets,
    hookimpl,
    instance_sheets,
    label_tables,
)

servelint_api = API_VERSION


@hookimpl
def servelint_accelerators() -> Iterable[Entry[Accelerator]]:
    """Yield every datasheet below ``data``."""
    return datasheets(Path(__file__).parent / "data")


@hookimpl
def servelint_instances() -> Iterable[Entry[Instance] | Labels]:
    """Yield every instance type below ``instances/data``, and what reads the labels of manifests."""
    folder = Path(__file__).parent.parent / "instances"
    yield from instance_sheets(folder / "data")
    yield from label_tables(folder / "labels")
    yield Labels("node.kubernetes.io/instance-type")
    yield Labels("beta.kubernetes.io/instance-type")
    yield Labels("kaito/instanceType", cloud="azure")
    yield Labels("oci/recipe_node_shape", cloud="oci")
