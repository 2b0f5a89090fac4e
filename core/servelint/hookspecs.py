"""The plugin contract, version 1: the hooks that a plugin module may implement.

A plugin is a module, registered in the entry-point group ``servelint`` of its distribution, that states
``servelint_api = "1"`` and implements some of these hooks with ``servelint.plugin.hookimpl``. Hooks take no
argument and return (or yield) descriptors. None receives mutable state of core.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from servelint.architecture import Architecture, ModelFamily
    from servelint.descriptors import Engine, Entry, LengthModel, Policy, Reporter, TraceFormat
    from servelint.evidence import EvidenceFormat
    from servelint.formats import Format
    from servelint.hardware import Accelerator, Instance, Labels
    from servelint.launch.manifest import ManifestFormat
    from servelint.rule import Rule, RuleEntry

PROJECT = "servelint"
API_VERSION = "1"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def servelint_accelerators() -> Iterable[Entry[Accelerator]]:
    """Yield accelerators, one entry a SKU and form factor.

    The usual plugin is a folder of TOML datasheets; `servelint.plugin.datasheets` turns it into entries::

        @hookimpl
        def servelint_accelerators():
            return datasheets(Path(__file__).parent / "data")

    An entry whose id or alias another plugin has already is an error that names both distributions. A
    datasheet with an unknown key, or a figure without sources, is refused when it is loaded.
    """
    return ()


@hookspec
def servelint_instances() -> Iterable[Entry[Instance] | Labels]:
    """Yield instance types of clouds, and readers of the labels by which manifests name hardware.

    The usual plugin is a folder of TOML files::

        @hookimpl
        def servelint_instances():
            yield from instance_sheets(Path(__file__).parent / "instances")
            yield from label_tables(Path(__file__).parent / "labels")

    It is called when a spec names an instance or a manifest is read, never otherwise. An id is
    ``cloud/name``; its accelerator is an id of ``servelint_accelerators``.
    """
    return ()


@hookspec
def servelint_models() -> Iterable[Entry[Architecture] | ModelFamily]:
    """Yield models by name, and families that read published ``config.json`` files.

    ::

        @hookimpl
        def servelint_models():
            yield Entry("acme/Nimbus-7B", load_nimbus)
            yield ModelFamily("nimbus", ("nimbus",), read_nimbus_config)

    Two families that claim one ``model_type`` are an error.
    """
    return ()


@hookspec
def servelint_workloads() -> Iterable[LengthModel | TraceFormat]:
    """Yield length distributions and trace formats.

    ::

        @hookimpl
        def servelint_workloads():
            yield TraceFormat("acme", read_rows, extensions=(".acme",))
    """
    return ()


@hookspec
def servelint_formats() -> Iterable[Format]:
    """Yield number formats for weights and KV caches.

    ::

        @hookimpl
        def servelint_formats():
            yield Format("fp6", bits=6, compute="fp6", sources=("OCP Microscaling 1.0",))
    """
    return ()


@hookspec
def servelint_policies() -> Iterable[Policy]:
    """Yield policies; each owns the spec table ``[policy.<name>]``.

    ::

        @hookimpl
        def servelint_policies():
            yield Policy("offload", OffloadConfig, graph=add_copies, after=("parallelism",))

    Policies that do not name each other in ``after`` or ``before`` must commute. A cycle, or a requirement
    that no plugin provides, is an error that names the policies and their distributions.
    """
    return ()


@hookspec
def servelint_engines() -> Iterable[Engine]:
    """Yield serving engines.

    ::

        @hookimpl
        def servelint_engines():
            yield Engine("acme-serve", defaults, reserve_bytes)
    """
    return ()


@hookspec
def servelint_readers() -> Iterable[ManifestFormat | EvidenceFormat]:
    """Yield readers of files beside a spec: what starts engines, and what benchmarks of them measured.

    ::

        @hookimpl
        def servelint_readers():
            from acme.files import read_bench, read_nimbus

            yield ManifestFormat("acme-nimbus", read_nimbus)
            yield EvidenceFormat("acme-bench", read_bench)

    It is called when a spec names such a file (or a manifest is checked), never otherwise; import what it needs
    inside.
    """
    return ()


@hookspec
def servelint_rules() -> Iterable[type[Rule] | RuleEntry]:
    """Yield rule classes, or entries that name a rule and import it only for specs that have what it is about.

    ::

        @hookimpl
        def servelint_rules():
            yield NoSpotInstances

    A code or name that another plugin has already is an error. Codes of third parties carry letters of
    their own, not those of the built-in families.
    """
    return ()


@hookspec
def servelint_reporters() -> Iterable[Reporter]:
    """Yield output formats of ``check``.

    ::

        @hookimpl
        def servelint_reporters():
            yield Reporter("csv", render_csv, "one line a finding")
    """
    return ()


HOOKS = (
    "servelint_accelerators",
    "servelint_instances",
    "servelint_models",
    "servelint_workloads",
    "servelint_formats",
    "servelint_policies",
    "servelint_engines",
    "servelint_readers",
    "servelint_rules",
    "servelint_reporters",
)
