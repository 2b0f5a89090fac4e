"""Writes a spec from what launch files set: every key with where it was taken from, the rest as comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from servelint.launch.invocation import Setting
from servelint.launch.reading import Launched
from servelint.lineage import KeyPath, dotted
from servelint.report.safe import printable

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_TABLES = ("deployment", "hardware", "model", "engine", "policy", "workload", "slo")
_WIDTH = 40
WRITTEN = "# Written by servelint import"
"""How every spec that is made here begins."""


def spec(
    launched: Launched,
    *,
    name: str,
    args_from: Mapping[str, str] | None = None,
    given: Mapping[KeyPath, object] | None = None,
    notes: Sequence[str] = (),
    assumed: Iterable[str] = (),
) -> str:
    """Return the TOML text of a spec.

    With ``args_from`` the spec points at the launch file, and what that sets is a comment; without it the
    settings are written as keys. ``given`` are values from the command line; ``notes`` and ``assumed`` become
    comments.
    """
    given = given or {}
    invocation = launched.invocation
    lines = [f"{WRITTEN} from {printable(name)}: {printable(invocation.name)}."]
    lines += [f"# {printable(note)}" for note in notes]
    lines += ["servelint = 1", ""]
    keys: dict[KeyPath, tuple[object, str]] = {("deployment", "name"): (short(launched, name), "")}
    for path, setting in launched.settings.items():
        if args_from is None or not _from_arguments(path, setting):
            keys[path] = (setting.value, _origin(setting))
    for path, value in given.items():
        keys[path] = (value, "given on the command line")
    if args_from is not None:
        keys["engine", "args_from"] = (dict(args_from), "")
    missing = []
    if not any(key in keys for key in (("hardware", "accelerator"), ("hardware", "instance"))):
        missing = ["# The file does not say which accelerator; `servelint catalog hardware` lists their ids:"]
        missing += [*(f"#   {line}" for line in _named_hardware(launched)), '# accelerator = "..."']
    lines += _tables(keys, {("hardware",): missing} if missing else {})
    if args_from is not None:
        comments = [
            (f"{dotted(s.path)} = {toml(s.value)}", _origin(s))
            for s in launched.settings.values()
            if _from_arguments(s.path, s)
        ]
        if comments:
            lines += [
                "# What the launch file sets; it is read again at every check, and a key here that differs is SPEC006:"
            ]
            lines += [f"#   {key:<{_WIDTH}}  {origin}" for key, origin in comments]
            lines.append("")
    lines += _asked(keys)
    if launched.unused:
        shown = ", ".join(dict.fromkeys(launched.unused))
        lines += [f"# Flags that change no figure here: {printable(shown, 600)}", ""]
    listed = list(assumed)
    if listed:
        lines += [
            "# Assumed, because neither the file nor this spec says:",
            *(f"#   {printable(a, 300)}" for a in listed),
            "",
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _named_hardware(launched: Launched) -> list[str]:
    """What the file says of its hardware, where that is not one accelerator."""
    hints = launched.invocation.hints
    return [printable(f"it says {h.label} = {h.value.text}, line {h.value.place.line}", 200) for h in hints]


def _from_arguments(path: KeyPath, setting: Setting) -> bool:
    """Whether a setting comes with the launch file whenever that is read (what the spec then need not repeat)."""
    return path[0] in ("policy", "model", "engine") and path != ("engine", "name") and setting.spelling != ""


def only(keys: Mapping[KeyPath, object]) -> str:
    """The text of a spec with nothing but these keys."""
    return "\n".join(["servelint = 1", "", *_tables({path: (value, "") for path, value in keys.items()}, {})])


def short(launched: Launched, file: str) -> str:
    """What the deployment is called: as its object, or for a script as its file."""
    if launched.invocation.format == "shell":
        return printable(file.replace("\\", "/").rpartition("/")[2].partition(".")[0].strip("<>") or "script", 80)
    name = launched.invocation.part[0] if launched.invocation.part else launched.invocation.name
    return printable(name, 80)


def _origin(setting: Setting) -> str:
    where = f"{setting.place.file}:{setting.place.line}" if setting.place.file else f"line {setting.place.line}"
    note = f" ({setting.note})" if setting.note else ""
    return printable(f"{setting.spelling}, {where}{note}", 200) if setting.spelling else ""


def _tables(keys: Mapping[KeyPath, tuple[object, str]], below: Mapping[KeyPath, list[str]]) -> list[str]:
    """The tables in the usual order; ``below`` are comments that follow the header of a table."""
    tables: dict[KeyPath, list[tuple[str, object, str]]] = {head: [] for head in below}
    for path, (value, origin) in keys.items():
        head = path[:2] if path[0] == "policy" and len(path) > 2 else path[:1]
        tables.setdefault(head, []).append((".".join(_key(str(p)) for p in path[len(head) :]), value, origin))
    lines: list[str] = []
    order = {name: i for i, name in enumerate(_TABLES)}
    for head in sorted(tables, key=lambda t: (order.get(str(t[0]), 99), str(t))):
        lines.append(f"[{'.'.join(_key(str(p)) for p in head)}]")
        lines += below.get(head, [])
        for key, value, origin in tables[head]:
            text = f"{key} = {toml(value)}"
            lines.append(f"{text:<{_WIDTH}}  # {origin}" if origin else text)
        lines.append("")
    return lines


def _asked(keys: Mapping[KeyPath, object]) -> list[str]:
    """What no manifest says and findings need, to be filled in."""
    lines: list[str] = []
    if not any(path[0] == "workload" for path in keys):
        lines += [
            "# What is asked of it; with these two tables latency, throughput and long contexts are judged, too:",
            "# [workload]",
            "# prompt_tokens = { p50 = 1000, p99 = 8000 }",
            "# output_tokens = { p50 = 300, p99 = 1200 }",
            '# rate = "5 req/s"',
            "",
        ]
    if not any(path[0] == "slo" for path in keys):
        lines += ["# [slo]", '# ttft = { p99 = "2 s" }', '# itl = { p99 = "50 ms" }', ""]
    return lines


def _key(part: str) -> str:
    return part if _BARE.match(part) else toml(part)


def toml(value: object) -> str:
    """Write a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(str(k))} = {toml(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def as_object(launched: Launched, text: str, assumptions: list[Any]) -> dict[str, Any]:
    """One invocation as JSON: what was taken from where, what is wrong, the spec."""
    invocation = launched.invocation

    def place(p: Any) -> dict[str, Any]:
        return {"file": p.file or None, "line": p.line, "column": p.column}

    return {
        "name": printable(invocation.name, 400),
        "format": invocation.format,
        "parts": [printable(p) for p in invocation.part],
        "role": invocation.role,
        "engine": launched.engine,
        "engine_version": launched.version,
        "settings": [
            {
                "key_path": dotted(s.path),
                "value": s.value,
                "spelling": s.spelling,
                "note": s.note,
                **place(s.place),
            }
            for s in launched.settings.values()
        ],
        "troubles": [
            {"kind": t.kind, "message": printable(t.message, 600), "help": printable(t.help, 400), **place(t.place)}
            for t in launched.troubles
        ],
        "hints": [
            {"label": printable(h.label), "value": printable(h.value.text), **place(h.value.place)}
            for h in invocation.hints
        ],
        "unused": list(launched.unused),
        "assumptions": assumptions,
        "spec": text,
    }
