"""Prefill and decode in one file are one deployment: two pools of one spec."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from servelint.launch.invocation import Setting
from servelint.launch.reading import Launched
from servelint.lineage import KeyPath

SHAPE: tuple[tuple[str, KeyPath], ...] = (
    ("accelerator", ("hardware", "accelerator")),
    ("devices", ("hardware", "devices")),
    ("tensor", ("policy", "parallelism", "tensor")),
    ("pipeline", ("policy", "parallelism", "pipeline")),
    ("replicas", ("hardware", "replicas")),
)
"""Keys of a pool, and the keys of a deployment that they stand for."""


def pair(found: Sequence[Launched]) -> tuple[Launched, Launched] | None:
    """Return the prefill and the decode side when these are all that is started, of one engine; else None."""
    sides = {launched.invocation.role: launched for launched in found}
    if len(found) != 2 or set(sides) != {"prefill", "decode"}:
        return None
    prefill, decode = sides["prefill"], sides["decode"]
    return (prefill, decode) if prefill.engine == decode.engine else None


def joined(prefill: Launched, decode: Launched) -> Launched:
    """Return both sides as one start: pools with their own shapes, everything else as the decode side has it."""
    alone = {path for _, path in SHAPE if path[0] == "hardware"} - {("hardware", "accelerator")}
    alone |= {("hardware", "devices_per_node")}
    settings = {path: s for path, s in decode.settings.items() if path not in alone}
    for side, launched in (("prefill", prefill), ("decode", decode)):
        for key, path in SHAPE:
            setting = launched.settings.get(path)
            if setting is None or (key == "accelerator" and setting.value == decode.value(*path)):
                continue
            pool: KeyPath = ("policy", "disaggregation", side, key)
            settings[pool] = Setting(pool, setting.value, setting.place, setting.spelling, setting.note)
    invocation = evolve(
        decode.invocation,
        name=f"{prefill.invocation.name} and {decode.invocation.name}",
        part=decode.invocation.part[:1],
        role=None,
    )
    return Launched(
        invocation,
        decode.engine,
        decode.version,
        settings,
        (*prefill.troubles, *decode.troubles),
        tuple(dict.fromkeys((*prefill.unused, *decode.unused))),
        decode.read,
    )


def differing(prefill: Launched, decode: Launched) -> list[Setting]:
    """The settings of the prefill side that a spec of both cannot hold: those of the decode side stand in it."""
    shape = {path for _, path in SHAPE}
    return [
        s
        for path, s in prefill.settings.items()
        if path not in shape and path[0] == "policy" and s.value != decode.value(*path)
    ]
