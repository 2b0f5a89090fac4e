"""``servelint catalog``: accelerators, models, policies, engines, formats and rules that are installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from servelint.commands.common import choice, parser, settled, use_color, workspace, write, write_json
from servelint.errors import CatalogueError, ConfigError
from servelint.manager import Plugins
from servelint.report.safe import printable
from servelint.suggest import did_you_mean

KINDS = ("hardware", "models", "policies", "engines", "formats", "rules")


def run(argv: list[str]) -> int:
    """Run the command."""
    made = parser("catalog", "List what the installed plugins provide, or show one entry.")
    made.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    made.add_argument("name", nargs="?", metavar="NAME", help="one entry, by id or alias")
    made.add_argument("--format", default="text", metavar="FORMAT", help="text or json")
    arguments = made.parse(argv)
    kind = choice("catalog", arguments.kind, KINDS)
    choice("--format", arguments.format, ("text", "json"))
    plugins = workspace(arguments).plugins
    name: str | None = arguments.name
    if arguments.format == "json":
        from servelint.report.json import head

        write_json({**head(), kind: list(_OBJECTS[kind](plugins, name))})
    elif name is None:
        write("".join(f"{line}\n" for line in _lines(kind, plugins)))
    elif kind == "rules":
        from servelint.report.rule_docs import plain
        from servelint.report.show import Style

        write(plain(_rule(plugins, name), Style(use_color(sys.stdout))))
    else:
        write("".join(f"{line}\n" for line in _shown(next(iter(_OBJECTS[kind](plugins, name))))))
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
    if kind == "engines":
        aliases = [(e["name"], ", ".join(e["aliases"])) for e in _engines(plugins, None)]
        return [f"{name} (also {also})" if also else name for name, also in aliases]
    return [f"{r['code']}  {r['severity']:<7}  {r['name']}: {r['summary']}" for r in _rules(plugins, None)]


def _shown(value: Any, indent: str = "") -> Iterable[str]:
    """An object as indented lines."""
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            yield f"{indent}{printable(str(key))}:"
            yield from _shown(item, indent + "  ")
        elif isinstance(item, list) and item:
            yield f"{indent}{printable(str(key))}:"
            yield from (f"{indent}  {printable(str(i))}" for i in item)
        elif item not in (None, [], {}, ""):
            shown = f"{item:,}" if isinstance(item, int | float) and not isinstance(item, bool) else str(item)
            yield f"{indent}{printable(str(key))}: {printable(shown)}"


# Objects


def _provider(plugins: Plugins, catalogue: Any, name: str) -> dict[str, str]:
    provider = catalogue.provider(name)
    return {"plugin": provider.plugin, "distribution": provider.distribution, "version": provider.version}


def _names(catalogue: Any, name: str | None) -> list[str]:
    if name is None:
        return list(catalogue.ids())
    found = catalogue.resolve(name)
    if found is None:
        raise CatalogueError(catalogue.unknown(name))
    return [found]


def _hardware(plugins: Plugins, name: str | None) -> Iterable[dict[str, Any]]:
    for id_ in _names(plugins.accelerators, name):
        a = plugins.accelerators.get(id_)
        usable, which = a.usable_memory
        link = a.link
        yield {
            "id": a.id,
            "name": a.name,
            "vendor": a.vendor,
            "form_factor": a.form_factor,
            "architecture": a.architecture,
            "compute_capability": a.compute_capability,
            "memory_bytes": a.memory_bytes,
            "usable_memory_bytes": usable,
            "usable_memory_basis": which,
            "memory_bandwidth_bytes_per_s": a.memory_bandwidth_bytes_per_s,
            "l2_bytes": a.l2_bytes or None,
            "dense_flops": dict(a.dense_flops),
            "sparse_flops": dict(a.sparse_flops),
            "native_formats": list(a.native_formats),
            "link_kind": link.kind if link else None,
            "link_pattern": link.pattern if link else None,
            "link_bytes_per_s_per_direction": link.per_direction_bytes_per_s if link else None,
            "scale_up_domain": link.domain if link else 1,
            "pcie_bytes_per_s_per_direction": a.pcie_bytes_per_s,
            "power_w": a.power_w,
            "sustained_fractions": dict(a.measured),
            "sustained_basis": a.measured_basis,
            "aliases": list(a.aliases),
            "conflicts": [
                {"field": c.field, "value": c.value, "source": c.source, "note": c.note} for c in a.conflicts
            ],
            "gaps": list(a.gaps),
            "notes": list(a.notes),
            "sources": {group: list(documents) for group, documents in a.sources.items()},
            "provider": _provider(plugins, plugins.accelerators, a.id),
        }


def _models(plugins: Plugins, name: str | None) -> Iterable[dict[str, Any]]:
    for id_ in _names(plugins.models, name):
        m = plugins.models.get(id_)
        layers: dict[str, int] = {}
        for block in m.blocks:
            layers[block.name] = layers.get(block.name, 0) + block.count
        params = m.params_by_role
        width = plugins.format(m.stored).bytes_per_element
        cache = m.quantization.kv_cache if m.quantization is not None else None
        kv = plugins.format(cache).bytes_per_element if cache else width
        yield {
            "id": m.id,
            "model_type": m.model_type,
            "params_total": m.params_total,
            "params_extras": m.params_total - m.params_serving,
            "params_active": m.params_active,
            "params_embedding": params.get("embedding", 0),
            "params_lm_head": params.get("lm_head", 0),
            "params_by_role": params,
            "lm_head_tied": m.lm_head_tied,
            "stored_format": m.quantization.format if m.quantization is not None else m.stored,
            "kv_bytes_per_token": {
                **{kind: elements * kv for kind, elements in m.kv_elements_per_token().items()},
                "indexer": m.indexer_bytes_per_token(),
            },
            "state_bytes_per_sequence": m.state_bytes_per_sequence(),
            "layers": layers,
            "num_layers": m.num_layers,
            "hidden_size": m.hidden_size,
            "vocab_size": m.vocab_size,
            "max_position_tokens": m.max_position,
            "aliases": list(m.aliases),
            "notes": list(m.notes),
            "conflicts": list(m.conflicts),
            "sources": list(m.sources),
            "provider": _provider(plugins, plugins.models, m.id),
        }


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


_OBJECTS: Mapping[str, Callable[[Plugins, str | None], Iterable[dict[str, Any]]]] = {
    "hardware": _hardware,
    "models": _models,
    "policies": _policies,
    "engines": _engines,
    "formats": _formats,
    "rules": _rules,
}
