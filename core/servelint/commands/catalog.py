"""``servelint catalog``: accelerators, instance types, models, policies, engines, formats and rules installed.

The object of a model is the one of ``servelint model``, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from servelint.architecture import Architecture, Attention, LatentAttention
from servelint.commands.common import choice, parser, positive, settled, use_color, workspace, write, write_json
from servelint.errors import ConfigError
from servelint.formats import Format
from servelint.hardware import Conflict
from servelint.manager import Plugins
from servelint.report.safe import printable
from servelint.suggest import did_you_mean

KINDS = ("hardware", "instances", "models", "policies", "engines", "formats", "readers", "rules")
KV_DTYPE = "bf16"
"""Width of the KV cache where ``--kv-dtype`` says nothing: what published figures assume."""


def run(argv: list[str]) -> int:
    """Run the command."""
    made = parser("catalog", "List what the installed plugins provide, or show one entry.")
    made.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    made.add_argument("name", nargs="?", metavar="NAME", help="one entry, by id or alias")
    made.add_argument("--format", default="text", metavar="FORMAT", help="text or json")
    made.add_argument("--kv-dtype", metavar="FORMAT", help=f"models: format of the KV cache (default {KV_DTYPE})")
    made.add_argument("--context", type=positive, metavar="N", help="models: also the KV cache of N tokens")
    arguments = made.parse(argv)
    kind = choice("catalog", arguments.kind, KINDS)
    choice("--format", arguments.format, ("text", "json"))
    if kind != "models" and (arguments.kv_dtype is not None or arguments.context is not None):
        raise ConfigError(f"--kv-dtype and --context are about models; catalog {kind} takes neither")
    plugins = workspace(arguments).plugins
    cache = cache_format(plugins, arguments.kv_dtype or KV_DTYPE)
    context = None if arguments.context is None else int(arguments.context)
    name: str | None = arguments.name

    def objects() -> Iterable[dict[str, Any]]:
        return _models(plugins, name, cache, context) if kind == "models" else _OBJECTS[kind](plugins, name)

    if arguments.format == "json":
        from servelint.report.json import head

        write_json({**head(), kind: list(objects())})
    elif name is None:
        write("".join(f"{printable(line)}\n" for line in _lines(kind, plugins)))
    elif kind == "rules":
        from servelint.report.rule_docs import plain
        from servelint.report.show import Style

        write(plain(_rule(plugins, name), Style(use_color(sys.stdout))))
    else:
        write("".join(f"{line}\n" for line in _shown(next(iter(objects())))))
    return settled(plugins)


def _lines(kind: str, plugins: Plugins) -> Iterable[str]:
    """One line an entry; models are named without being loaded."""
    from servelint.report.cost_text import Rows, table
    from servelint.report.show import quantity

    if kind == "models":
        return [printable(name) for name in plugins.models.ids()]
    if kind == "hardware":
        rows: Rows = [("id", "memory", "bandwidth", "dense bf16", "dense fp8", "link, one way", "domain")]
        for found in _hardware(plugins, None):
            flops, link = found["dense_flops"], found["link_bytes_per_s_per_direction"]
            rates = [quantity(flops[p], "FLOP/s") if p in flops else "-" for p in ("bf16", "fp8")]
            bandwidth = quantity(found["memory_bandwidth_bytes_per_s"], "B/s")
            reach = quantity(link, "B/s") if link else "-"
            memory = quantity(float(found["memory_bytes"]), "B")
            rows.append((printable(found["id"]), memory, bandwidth, *rates, reach, str(found["scale_up_domain"])))
        return table(rows)
    if kind == "instances":
        rows = [("id", "accelerator", "devices", "network, one way", "RDMA", "host memory")]
        for i in _instances(plugins, None):
            network, host = i["network_bytes_per_s"], i["host_memory_bytes"]
            speed = quantity(network, "B/s") if network else "-"
            memory = quantity(float(host), "B") if host else "-"
            rdma = {True: "yes", False: "no", None: "-"}[i["rdma"]]
            rows.append((printable(i["id"]), printable(i["accelerator"]), str(i["devices"]), speed, rdma, memory))
        return table(rows)
    if kind == "formats":
        rows = [("name", "bits", "with metadata", "computes in", "group", "KV cache")]
        for f in _formats(plugins, None):
            bits = (f"{f['bits']:g}", f"{f['bits_per_element']:.6g}")
            rows.append(
                (f["name"], *bits, f["compute"] or "16 bit", str(f["group"] or "-"), "yes" if f["kv_cache"] else "-")
            )
        return table(rows)
    if kind == "policies":
        return [f"policy.{p['name']}: {', '.join(p['keys'])}" for p in _policies(plugins, None)]
    if kind == "readers":
        width = max((len(r["name"]) for r in _readers(plugins, None)), default=0)
        return [f"{r['name']:<{width}}  {r['reads']:<8}  {', '.join(r['endings'])}" for r in _readers(plugins, None)]
    if kind == "engines":
        aliases = [(e["name"], ", ".join(e["aliases"])) for e in _engines(plugins, None)]
        return [f"{name} (also {also})" if also else name for name, also in aliases]
    return [
        f"{r['code']}  {r['severity']:<7}  {r['name']}: {' '.join(r['summary'].split())}" for r in _rules(plugins, None)
    ]


_MEASURES = (
    ("_bytes_per_s", "", "B/s"),
    ("_bytes", "", "B"),
    ("_flops", "_rate", "FLOP/s"),
    ("_tokens", "", "tok"),
    ("_w", "", "W"),
)
"""What names of fields call a unit, what they are called without it, and the unit; the longer first."""


def _shown(value: Mapping[str, Any]) -> Iterable[str]:
    """An object as lines: its fields in words, what is under them indented."""
    for key, item in value.items():
        # A name may go on: link_bytes_per_s_per_direction.
        found = (m for m in _MEASURES if f"{m[0]}_" in f"{key}_")
        part, rest, unit = next(found, ("", "", ""))
        label = f"{key}_".replace(f"{part}_", f"{rest}_", 1).strip("_").replace("_", " ")
        if isinstance(item, Mapping):
            lines = []
            for name, inner in item.items():
                if isinstance(inner, list | tuple):
                    lines += [f"{name}:", *(f"  {_words(i)}" for i in inner)]
                elif inner not in (None, ""):
                    lines.append(f"{name}: {_words(inner, unit)}")
        elif isinstance(item, list):
            lines = [_words(i) for i in item]
        else:
            if item not in (None, ""):
                yield f"{printable(label)}: {printable(_words(item, unit))}"
            continue
        if lines:
            yield f"{printable(label)}:"
            yield from (f"  {printable(line)}" for line in lines)


def _words(item: Any, unit: str = "") -> str:
    """A value for people: yes and no, figures with their unit, another published figure as a sentence."""
    from servelint.units import Dimension, format_quantity

    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, Mapping):
        note = f": {item['note']}" if item["note"] else ""
        return f"{item['field']} is {_words(item['value'])} in {item['source']}{note}"
    if not isinstance(item, int | float):
        return str(item)
    if unit == "B":
        # Sizes are compared to the byte; their prefix is for the eye.
        rounded = f" ({format_quantity(float(item), Dimension.BYTES)})" if item >= 1e6 else ""
        return f"{item:,.15g} B{rounded}"
    if unit in ("B/s", "FLOP/s"):
        rate = Dimension.BYTES_PER_SECOND if unit == "B/s" else Dimension.FLOPS_PER_SECOND
        return format_quantity(float(item), rate, 5)
    number = f"{item:,}" if isinstance(item, int) else f"{item:,.0f}" if item >= 1e6 else f"{item:,.6g}"
    return f"{number} {unit}".rstrip()


# Objects


def _provider(plugins: Plugins, catalogue: Any, name: str) -> dict[str, str]:
    provider = catalogue.provider(name)
    return {"plugin": provider.plugin, "distribution": provider.distribution, "version": provider.version}


def _conflicts(conflicts: Iterable[Conflict]) -> list[dict[str, Any]]:
    return [{"field": c.field, "value": c.value, "source": c.source, "note": c.note} for c in conflicts]


def _hardware(plugins: Plugins, name: str | None) -> Iterable[dict[str, Any]]:
    for a in plugins.accelerators.each(name):
        usable, which = a.usable_memory
        link = a.link
        yield {
            "id": a.id,
            "name": a.name,
            "vendor": a.vendor,
            "form_factor": a.form_factor,
            "family": a.family,
            "architecture": a.architecture,
            "compute_capability": a.compute_capability,
            "memory_bytes": a.memory_bytes,
            "usable_memory_bytes": usable,
            "usable_memory_basis": which,
            "driver_total_bytes": a.driver_total_bytes,
            "memory_bandwidth_bytes_per_s": a.memory_bandwidth_bytes_per_s,
            "l2_bytes": a.l2_bytes or None,
            "sram_per_sm_bytes": a.sram_per_sm_bytes,
            "sms": a.sms,
            "dense_flops": dict(a.dense_flops),
            "sparse_flops": dict(a.sparse_flops),
            "native_formats": list(a.native_formats),
            "link_kind": link.kind if link else None,
            "link_pattern": link.pattern if link else None,
            "link_bytes_per_s_aggregate": link.aggregate_bytes_per_s if link else None,
            "link_bytes_per_s_per_direction": link.per_direction_bytes_per_s if link else None,
            "scale_up_domain": link.domain if link else 1,
            "pcie_generation": a.pcie_generation,
            "pcie_bytes_per_s_per_direction": a.pcie_bytes_per_s,
            "power_w": a.power_w,
            "sustained_fractions": dict(a.measured),
            "sustained_basis": a.measured_basis,
            "aliases": list(a.aliases),
            "conflicts": _conflicts(a.conflicts),
            "gaps": list(a.gaps),
            "notes": list(a.notes),
            "sources": {group: list(documents) for group, documents in a.sources.items()},
            "provider": _provider(plugins, plugins.accelerators, a.id),
        }


def _instances(plugins: Plugins, name: str | None) -> Iterable[dict[str, Any]]:
    for i in plugins.instances.each(name):
        yield {
            "id": i.id,
            "accelerator": i.accelerator,
            "devices": i.devices,
            "network_bytes_per_s": i.network_bytes_per_s,
            "network_bytes_per_s_per_device": i.network_bytes_per_s_per_device,
            "rdma": i.rdma,
            "host_memory_bytes": i.host_memory_bytes,
            "link": i.link,
            "aliases": list(i.aliases),
            "conflicts": _conflicts(i.conflicts),
            "gaps": list(i.gaps),
            "notes": list(i.notes),
            "sources": {field: list(documents) for field, documents in i.sources.items()},
            "provider": _provider(plugins, plugins.instances, i.id),
        }


def _models(plugins: Plugins, name: str | None, cache: Format, context: int | None) -> Iterable[dict[str, Any]]:
    for m in plugins.models.each(name):
        yield {**model_object(m, cache, context), "provider": _provider(plugins, plugins.models, m.id)}


def cache_format(plugins: Plugins, name: str) -> Format:
    """Return the format of a KV cache; ConfigError when caches are not kept in it."""
    found = plugins.format(name)
    if not found.kv_cache:
        known = sorted({f.name for f in plugins.formats.values() if f.kv_cache})
        raise ConfigError(f"--kv-dtype: no KV cache is kept in {found.name!r}; expected one of {', '.join(known)}")
    return found


def model_object(m: Architecture, cache: Format, context: int | None) -> dict[str, Any]:
    """Return what JSON says of a model: KV sizes in bytes over all layers, the cache in a format.

    ``params_total`` is without multi-token-prediction layers, as model cards count; these are in ``params_mtp``.
    ``kv_bytes_per_sequence`` is of ``context`` tokens with windows and chunks applied, without index keys, which
    stand apart; both are None without a context.
    """
    layers: dict[str, int] = {}
    for block in m.blocks:
        layers[block.name] = layers.get(block.name, 0) + block.count
    params = m.params_by_role
    mtp = params.get("mtp", 0)
    elements = m.kv_elements_per_token()
    tables = sum(t.params for t in (m.positions, None if m.lm_head_tied else m.embedding) if t is not None)
    index = indexer_bytes_per_token(m, cache)
    return {
        "id": m.id,
        "model_type": m.model_type,
        "params_total": m.params_total - mtp,
        "params_language_model": m.params_serving,
        "params_mtp": mtp,
        "params_vision": params.get("vision", 0),
        "params_active": m.params_active,
        "params_active_without_input_table": m.params_active - tables,
        "params_embedding": m.embedding.params,
        "params_lm_head": params.get("lm_head", 0),
        "params_by_role": params,
        "lm_head_tied": m.lm_head_tied,
        "stored_format": m.quantization.format if m.quantization is not None else m.stored,
        "kv_dtype": cache.name,
        "kv_bytes_per_token": {
            **{
                kind: _exact(count * cache.bytes_per_element)
                for kind, count in elements.items()
                if count or kind in ("full", "sliding")
            },
            "indexer": _exact(index),
        },
        "context_tokens": context,
        "kv_bytes_per_sequence": None if context is None else _exact(kv_bytes_per_sequence(m, context, cache)),
        "indexer_bytes_per_sequence": None if context is None else _exact(context * index),
        "indexer_bytes_per_token_as_deployed": _exact(m.indexer_bytes_per_token()),
        "state_bytes_per_sequence": _exact(m.state_bytes_per_sequence()),
        "layers": layers,
        "num_layers": m.num_layers,
        "hidden_size": m.hidden_size,
        "vocab_size": m.vocab_size,
        "max_position_tokens": m.max_position,
        "aliases": list(m.aliases),
        "notes": list(m.notes),
        "conflicts": list(m.conflicts),
        "sources": list(m.sources),
    }


def _exact(size: float) -> float:
    """Write whole bytes as a whole number."""
    return int(size) if size == int(size) else size


def indexer_bytes_per_token(m: Architecture, cache: Format) -> float:
    """Index-key bytes that one more token adds, all layers, in a format.

    At 8 bits and below they are in the index's own format, with the scales that it has.
    """
    if cache.bits <= 8:
        return m.indexer_bytes_per_token()
    return sum(
        b.count * b.mixer.indexer.elements_per_token * cache.bytes_per_element
        for b in m.blocks
        if isinstance(b.mixer, Attention | LatentAttention)
        and b.mixer.indexer is not None
        and b.mixer.indexer.bytes_per_token
    )


def kv_bytes_per_sequence(m: Architecture, context: int, cache: Format) -> float:
    """KV bytes of one sequence, windows and chunks applied, without index keys."""
    return sum(b.count * layer_bytes(b.mixer, context, cache) for b in m.blocks)


def layer_bytes(mixer: object, context: int, cache: Format) -> float:
    """KV bytes of one sequence in one layer, without index keys; 0 for layers that keep no KV."""
    if isinstance(mixer, Attention):
        kept = min(context, mixer.window or mixer.chunk or context)
        return kept * mixer.cache_elements * cache.bytes_per_element
    if isinstance(mixer, LatentAttention):
        return mixer.kept_elements(context) * cache.bytes_per_element
    return 0.0


def _one(what: str, items: Mapping[str, Any], name: str | None) -> list[Any]:
    """The distinct values of a look-up by name and alias, or the one of a name."""
    if name is None:
        return list(dict.fromkeys(items[key] for key in sorted(items)))
    found = items.get(name.lower())
    if found is None:
        raise ConfigError(f"no plugin provides the {what} {name!r}{did_you_mean(name, items)}")
    return [found]


def _policies(plugins: Plugins, name: str | None) -> Iterable[dict[str, Any]]:
    from servelint.spec.schema import kinds

    wanted = _one("policy", {p.name: p for p in plugins.policies}, name)
    # In the order of composition, which is that of their effects.
    for policy in (p for p in plugins.policies if p in wanted):
        yield {
            "name": policy.name,
            "summary": " ".join((policy.config.__doc__ or "").split()),
            "keys": {key: kind.expected for key, (_, kind, _) in kinds(policy.config).items()},
            "after": list(policy.after),
            "before": list(policy.before),
            "requires": list(policy.requires),
            "changes": [part for part in ("graph", "memory", "scheduler") if getattr(policy, part) is not None],
        }


def _engines(plugins: Plugins, name: str | None) -> Iterable[dict[str, Any]]:
    for engine in _one("engine", plugins.engines, name):
        yield {"name": engine.name, "aliases": list(engine.aliases), "sources": list(engine.sources)}


def _formats(plugins: Plugins, name: str | None) -> Iterable[dict[str, Any]]:
    for f in _one("format", plugins.formats, name):
        yield {
            "name": f.name,
            "bits": f.bits,
            "metadata_bits": f.metadata_bits,
            "bits_per_element": f.bits_per_element,
            "bytes_per_element": f.bytes_per_element,
            "compute": f.compute,
            "group": f.group,
            "covers": list(f.covers),
            "kv_cache": f.kv_cache,
            "aliases": list(f.aliases),
            "sources": list(f.sources),
        }


def _rule(plugins: Plugins, name: str) -> Any:
    from servelint.suppress import every_rule

    known = {n.lower(): rule for rule in every_rule(plugins) for n in (rule.code, rule.name)}
    return _one("rule", known, name)[0]


def _rules(plugins: Plugins, name: str | None) -> Iterable[dict[str, Any]]:
    from servelint.report.rule_docs import as_object, provider_of
    from servelint.suppress import every_rule

    for rule in every_rule(plugins) if name is None else (_rule(plugins, name),):
        yield as_object(rule, provider_of(plugins, rule))


def _readers(plugins: Plugins, name: str | None) -> Iterable[dict[str, Any]]:
    """Kinds of files beside a spec that are read: what starts engines, and results of benchmarks."""
    found: dict[str, dict[str, Any]] = {}
    for what, readers in (("manifest", plugins.manifest_formats), ("evidence", plugins.evidence_formats)):
        for reader in readers:
            endings = list(getattr(reader, "endings", ()))
            found[reader.name] = {
                "name": reader.name, "reads": what, "endings": endings, "sources": list(reader.sources)
            }  # fmt: skip
    if name is not None and name.lower() not in found:
        raise ConfigError(f"no plugin provides the reader {name!r}{did_you_mean(name, found)}")
    yield from found.values() if name is None else (found[name.lower()],)


_OBJECTS: Mapping[str, Callable[[Plugins, str | None], Iterable[dict[str, Any]]]] = {
    "hardware": _hardware,
    "instances": _instances,
    "policies": _policies,
    "readers": _readers,
    "engines": _engines,
    "formats": _formats,
    "rules": _rules,
}
