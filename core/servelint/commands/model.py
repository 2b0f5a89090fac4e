"""``servelint model``: the ledger of one model, from the catalogue or from a published config on disk."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servelint.architecture import Architecture, Attention, LatentAttention, LinearState
from servelint.commands.catalog import KV_DTYPE, cache_format, layer_bytes, model_object
from servelint.commands.common import choice, parser, positive, settled, use_color, workspace, write, write_json
from servelint.errors import CatalogueError
from servelint.formats import Format
from servelint.manager import Plugins

MAX_CONFIG_BYTES = 5_000_000
LONGEST_PATTERN = 12
"""Runs of layers that a window pattern is written out in; a longer one is counted."""


def run(argv: list[str]) -> int:
    """Run the command."""
    made = parser("model", "Show a model's parameters, KV cache and state, from the catalogue or a config.json.")
    made.add_argument("model", metavar="ID_OR_CONFIG", help="a name or alias, or a config.json or its folder")
    made.add_argument("--context", type=positive, metavar="N", help="tokens of a sequence (default: position limit)")
    made.add_argument("--kv-dtype", default=KV_DTYPE, metavar="FORMAT", help=f"of the KV cache (default {KV_DTYPE})")
    made.add_argument("--format", default="text", metavar="FORMAT", help="text or json")
    arguments = made.parse(argv)
    choice("--format", arguments.format, ("text", "json"))
    plugins = workspace(arguments).plugins
    cache = cache_format(plugins, arguments.kv_dtype)
    model, provider = find(plugins, arguments.model)
    context = model.max_position if arguments.context is None else int(arguments.context)
    about = {**model_object(model, cache, context), **_details(model), "provider": provider}
    if arguments.format == "json":
        from servelint.report.json import head

        write_json({**head(), **about})
    else:
        write("\n".join(_lines(model, about, cache, context, use_color(sys.stdout))) + "\n")
    return settled(plugins)


def find(plugins: Plugins, name: str) -> tuple[Architecture, dict[str, str] | None]:
    """Return a model by name, else from a config on disk, and who provides it (None for a config).

    A name that the catalogue has is the catalogue's, whatever the current folder holds; ``./NAME`` is a path.
    CatalogueError says what was found and what was expected.
    """
    found = plugins.models.resolve(name)
    if found is not None:
        provider = plugins.models.provider(found)
        told = {"plugin": provider.plugin, "distribution": provider.distribution, "version": provider.version}
        return plugins.models.get(found), told
    path = _path(name)
    if path is None:
        raise CatalogueError(plugins.models.unknown(name, "give the path of a config.json"))
    return _from_config(plugins, name, path), None


def _path(name: str) -> Path | None:
    """Return the path that a name is, None where it is not meant as one."""
    if "\0" in name or len(name) > 4000:
        return None
    path = Path(name)
    try:
        path = path.expanduser()
        if path.is_dir():
            return path / "config.json"
        exists = path.exists()
    except (OSError, RuntimeError):
        return path if name.endswith(".json") else None
    return path if exists or name.endswith(".json") or name.startswith(("./", "../", "/", "~/")) else None


def _from_config(plugins: Plugins, name: str, path: Path) -> Architecture:
    import json

    from servelint.files import read_project_file

    try:
        # Resolved first: caches of published files are folders of links to elsewhere.
        place = path.resolve()
        config = json.loads(read_project_file(place.parent, place.parent, place.name, MAX_CONFIG_BYTES))
        if not isinstance(config, dict):
            raise ValueError("it is not a JSON object")
        nested = config.get("text_config")
        model_type = config.get("model_type") or (nested.get("model_type") if isinstance(nested, dict) else None)
        if not isinstance(model_type, str):
            raise ValueError('it has no "model_type"')
        return plugins.read_config(name, model_type, config)
    except (OSError, RuntimeError, ValueError, CatalogueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise CatalogueError(f"{path}: the model config cannot be used: {reason}") from None


def _details(m: Architecture) -> dict[str, Any]:
    """What the ledger shows beside the catalogue's object."""
    rope, stored = m.rope_scaling, m.quantization
    experts = next((b.experts for b in m.blocks if b.experts is not None), None)
    return {
        "windows_tokens": {
            b.name: b.mixer.window or b.mixer.chunk
            for b in m.blocks
            if isinstance(b.mixer, Attention) and (b.mixer.window or b.mixer.chunk)
        },
        "experts": None if experts is None else {"count": experts.count, "top_k": experts.top_k},
        "rope_scaling": None
        if rope is None
        else {
            "kind": rope.kind,
            "factor": rope.factor,
            "original_max_position_tokens": rope.original_max_position,
        },
        "quantization": None
        if stored is None
        else {
            "format": stored.format,
            "covers": list(stored.covers),
            "group": stored.group,
            "kv_cache": stored.kv_cache,
        },
    }


def _lines(m: Architecture, about: dict[str, Any], cache: Format, context: int, color: bool) -> Iterator[str]:
    from servelint.report.cost_text import Rows, table
    from servelint.report.safe import printable
    from servelint.report.show import Style

    style = Style(color)
    kind = f" ({printable(m.model_type)})" if m.model_type else ""
    yield (
        f"{style.paint(printable(m.id), '1')}{kind}: {m.num_layers:,} layers, hidden size {m.hidden_size:,}, "
        f"vocabulary {m.vocab_size:,}"
    )
    yield ""
    yield style.paint("Parameters", "1")
    total = m.params_total
    rows: Rows = [("", "parameters", "share")]
    rows += [
        (role.replace("_", " "), f"{n:,}", f"{n / total:.1%}")
        for role, n in sorted(m.params_by_role.items(), key=lambda item: -item[1])
    ]
    rows.append(("= all", f"{total:,}", ""))
    if about["params_mtp"]:
        rows.append(
            ("without multi-token prediction", f"{about['params_total']:,}", f"{about['params_total'] / total:.1%}")
        )
    if about["params_vision"]:
        rows.append(("language model", f"{m.params_serving:,}", f"{m.params_serving / total:.1%}"))
    rows.append(("active a token", f"{m.params_active:,}", f"{m.params_active / total:.1%}"))
    yield from table(rows)
    yield f"  LM head: {'tied to the embedding' if m.lm_head_tied else 'a matrix of its own'}"
    if about["experts"] is not None:
        yield f"  experts: {about['experts']['top_k']} of {about['experts']['count']:,} a token"
    yield ""
    yield from _cache_lines(m, about, cache, context, style.paint("KV cache and state", "1"))
    yield ""
    yield style.paint("Positions", "1")
    yield f"  limit: {m.max_position:,} tokens"
    if m.rope_scaling is not None:
        rope = m.rope_scaling
        kind = printable(rope.kind)
        trained = f", trained at {rope.original_max_position:,} tokens" if rope.original_max_position else ""
        yield f"  rope scaling: {kind}, factor {rope.factor:g}{trained}"
    if len(set(_mixers(m))) > 1:
        yield f"  layers: {_pattern(m)}"
    yield ""
    yield style.paint("Checkpoint", "1")
    yield f"  stored in {printable(m.stored)}"
    if m.quantization is not None:
        stored = m.quantization
        group = f", groups of {stored.group}" if stored.group else ""
        kept = f"; KV cache {printable(stored.kv_cache)}" if stored.kv_cache else ""
        yield f"  quantization: {printable(stored.format)} of {', '.join(map(printable, stored.covers))}{group}{kept}"
    for title, texts in (("Conflicts", m.conflicts), ("Notes", m.notes), ("Sources", m.sources)):
        if texts:
            yield ""
            yield style.paint(title, "1")
            yield from (f"  {printable(text)}" for text in texts)


def _cache_lines(m: Architecture, about: dict[str, Any], cache: Format, context: int, title: str) -> Iterator[str]:
    from servelint.report.cost_text import Rows, table
    from servelint.report.safe import printable
    from servelint.report.show import quantity

    yield f"{title}, {cache.name}, all layers; a sequence has {context:,} tokens"
    rows: Rows = [("", "layers", "shape", "a token", "a sequence")]
    token = each = 0.0
    for block in m.blocks:
        mixer = block.mixer
        if isinstance(mixer, LinearState):
            size = block.count * mixer.bytes_per_sequence
            rows.append((printable(block.name), f"{block.count:,}", "fixed state", "-", quantity(size, "B")))
            each += size
        elif isinstance(mixer, Attention | LatentAttention):
            grown = block.count * mixer.cache_elements * cache.bytes_per_element
            kept = block.count * layer_bytes(mixer, context, cache)
            shape = _shape(mixer)
            name = printable(block.name)
            rows.append((name, f"{block.count:,}", shape, quantity(grown, "B"), quantity(kept, "B")))
            token, each = token + grown, each + kept
    index = float(about["kv_bytes_per_token"]["indexer"])
    if index:
        rows.append(("index keys", "", "", quantity(index, "B"), quantity(index * context, "B")))
        token, each = token + index, each + index * context
    rows.append(("= all", "", "", quantity(token, "B"), quantity(each, "B")))
    yield from table(rows)
    deployed = m.indexer_bytes_per_token()
    if deployed != index:
        yield f"  index keys as engines keep them, with scales: {quantity(deployed, 'B')} a token"


def _shape(mixer: Attention | LatentAttention) -> str:
    if isinstance(mixer, LatentAttention):
        return f"latent of {mixer.kv_lora_rank:,} + {mixer.rope_dim:,}"
    width = str(mixer.head_dim) if mixer.head_dim == mixer.v_head_dim else f"{mixer.head_dim}+{mixer.v_head_dim}"
    limit = f", window {mixer.window:,}" if mixer.window else f", chunk {mixer.chunk:,}" if mixer.chunk else ""
    return f"{mixer.q_heads}:{mixer.kv_heads} heads of {width}{limit}"


def _mixers(m: Architecture) -> list[str]:
    """Name the token mixer of every layer, ``none`` where a layer has none."""
    names = ["none"] * m.num_layers
    for block in m.blocks:
        if block.mixer is not None:
            for layer in block.layers:
                if layer < len(names):
                    names[layer] = block.name
    return names


def _pattern(m: Architecture) -> str:
    """Say in which order kinds of layers follow each other: the shortest period, else the counts."""
    names = _mixers(m)
    period = next(
        (p for p in range(1, len(names) // 2 + 1) if all(n == names[i % p] for i, n in enumerate(names))), len(names)
    )
    runs: list[tuple[str, int]] = []
    for name in names[:period]:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    if len(runs) > LONGEST_PATTERN:
        counts = {name: names.count(name) for name in dict.fromkeys(names)}
        return ", ".join(f"{count} {name}" for name, count in counts.items()) + ", in no short period"
    return ", ".join(f"{count} {name}" for name, count in runs) + (", repeated" if period < len(names) else "")
