"""What the readers share: text to values within bounds, typed look-ups that name their key, and a collector."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from servelint.evidence import Measurement

YAML_CHARACTERS = 4_000_000
MOST_NODES = 300_000
"""Values of a YAML file, aliases counted each time. YAML takes fifty times as long to read as JSON."""

MOST_SIGNS = 400_000
"""Signs that separate values of a YAML file, which the parser makes before any can be counted."""

MOST_LINES = 100_000
HEAD = 100_000
"""Characters in which a YAML file's first key stands."""

MOST_RUNS = 1_000
_STATISTICS = {
    "mean": "mean", "avg": "mean", "average": "mean", "min": "min", "max": "max", "median": "p50",
    "p50": "p50", "p75": "p75", "p90": "p90", "p95": "p95", "p99": "p99",
    "p999": "p999", "p99.9": "p999", "p99p9": "p999", "p99_9": "p999",
}  # fmt: skip


@lru_cache(maxsize=1)
def documents(text: str) -> tuple[Any, ...]:
    """Return the values of a JSON, JSON Lines or YAML file; none for a text that is neither.

    Raises ValueError for one that looks like them and is broken.
    """
    start = text.lstrip()[:1]
    if start in ("{", "["):
        return _json(text)
    if re.match(r"\s*(?:#.*\n\s*|---\s*\n)*[A-Za-z_\"'][\w .\"'-]*:(?:\s|$)", text[:HEAD]):
        return _yaml(text)
    return ()


def _json(text: str) -> tuple[Any, ...]:
    try:
        return (json.loads(text),)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        whole = error
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        if number > MOST_LINES:
            raise ValueError(f"it has more than {MOST_LINES:,} lines")
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as error:
            if not found:
                raise ValueError(f"it is not valid JSON: {whole.msg} (line {whole.lineno})") from None
            raise ValueError(f"it is not valid JSON: {error.msg} (line {number})") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    return tuple(found)


def _yaml(text: str) -> tuple[Any, ...]:
    import yaml

    if len(text) > YAML_CHARACTERS:
        raise ValueError(f"as YAML it may have {YAML_CHARACTERS:,} characters, it has {len(text):,}: write it as JSON")
    if sum(map(text.count, ",:\n")) > MOST_SIGNS:
        raise ValueError(f"it has more than {MOST_NODES:,} values")
    # Composed and walked with a count: an alias that multiplies itself ends here, and no tag runs anything.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    left = [MOST_NODES]
    maker = yaml.SafeLoader("")
    try:
        return tuple(_plain(node, maker, left, 60) for node in yaml.compose_all(text, Loader=loader) if node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f" (line {mark.line + 1})" if mark else ""
        raise ValueError(f"it is not valid YAML: {error.problem or error.context}{at}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"it is not valid YAML: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _plain(node: Any, maker: Any, left: list[int], depth: int) -> Any:
    left[0] -= 1
    if left[0] < 0:
        raise ValueError(f"it has more than {MOST_NODES:,} values")
    if depth == 0:
        raise ValueError("it is nested too deeply")
    if node.id == "mapping":
        return {k.value: _plain(v, maker, left, depth - 1) for k, v in node.value if k.id == "scalar"}
    if node.id == "sequence":
        return [_plain(item, maker, left, depth - 1) for item in node.value]
    if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
        # Python reads an exponent without a point that YAML 1.1 takes for a word.
        return maker.construct_object(node)
    if node.tag == "tag:yaml.org,2002:null":
        return None
    if node.tag == "tag:yaml.org,2002:bool":
        return node.value.lower() in ("true", "yes", "on")
    try:
        return float(node.value) if node.style is None and re.match(r"[-+]?\d", node.value) else node.value
    except ValueError:
        return node.value


class Fields:
    """A table of a result file, with the path to it: look-ups raise ValueError with the key that is wrong."""

    __slots__ = ("data", "path")

    def __init__(self, data: Mapping[str, Any], path: str = "") -> None:
        self.data = data
        self.path = path

    def at(self, *keys: str) -> str:
        """The path of a key below this table."""
        return ".".join(part for part in (self.path, *keys) if part)

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def table(self, *keys: str) -> Fields:
        """The table at a path; an empty one where there is none."""
        found: Any = self.data
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        if found is None:
            found = {}
        if not isinstance(found, Mapping):
            raise ValueError(f"{self.at(*keys)}: expected a table, found {_shown(found)}")
        return Fields(found, self.at(*keys))

    def tables(self, key: str) -> Iterator[Fields]:
        """The tables of a list; nothing where there is none."""
        found = self.data.get(key)
        if found is None:
            return
        if not isinstance(found, list):
            raise ValueError(f"{self.at(key)}: expected a list, found {_shown(found)}")
        for i, item in enumerate(found):
            if not isinstance(item, Mapping):
                raise ValueError(f"{self.at(key)}[{i}]: expected a table, found {_shown(item)}")
            yield Fields(item, f"{self.at(key)}[{i}]")

    def number(self, key: str) -> float | None:
        """The number of a key, None where it is left out or null; NaN and infinities as they are."""
        found = self.data.get(key)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float):
            if not isinstance(found, str):
                raise ValueError(f"{self.at(key)}: expected a number, found {_shown(found)}")
            try:
                return float(found)
            except ValueError:
                raise ValueError(f"{self.at(key)}: expected a number, found {_shown(found)}") from None
        try:
            return float(found)
        except OverflowError:
            raise ValueError(f"{self.at(key)}: expected a number, found one that is too large") from None

    def count(self, key: str) -> int | None:
        """The whole number of a key, None where it is left out or null."""
        found = self.number(key)
        if found is None:
            return None
        if found != found or found != int(min(max(found, -1e18), 1e18)):
            raise ValueError(f"{self.at(key)}: expected a whole number, found {_shown(self.data[key])}")
        return int(found)

    def text(self, key: str) -> str | None:
        """The text of a key, None where it is left out, null or empty."""
        found = self.data.get(key)
        if found is None or found == "":
            return None
        if not isinstance(found, str | int | float):
            raise ValueError(f"{self.at(key)}: expected a text, found {_shown(found)}")
        return str(found)

    def statistics(self, scale: float = 1.0) -> dict[str, float]:
        """Mean, percentiles, least and largest of this table, times ``scale``."""
        found: dict[str, float] = {}
        for key in self.data:
            name = _STATISTICS.get(key)
            value = self.number(key) if name is not None else None
            if name is not None and value is not None:
                found[name] = value * scale
        return found


def _shown(value: object) -> str:
    return f"{value!r:.60}"


class Collected:
    """Collects the fields of one run and where each stands; what is None or empty is left out."""

    def __init__(self, tool: str) -> None:
        self._values: dict[str, Any] = {"tool": tool}
        self._sources: dict[str, str] = {}

    def put(self, field: str, value: Any, where: str = "") -> None:
        """Keep a value of a field."""
        if value is None or (isinstance(value, Mapping) and not value):
            return
        self._values[field] = value
        if where:
            self._sources[field] = where

    def get(self, field: str) -> Any:
        """The value of a field, None when it has none."""
        return self._values.get(field)

    def measurement(self) -> Measurement:
        """The run."""
        return Measurement(**self._values, sources=self._sources)


def rate(fields: Fields, key: str) -> tuple[float | None, bool]:
    """A rate that was asked for, and whether it was unlimited (``inf``)."""
    found = fields.data.get(key)
    if isinstance(found, str) and not re.match(r"[-+]?[\d.]", found):
        return None, found.strip().lower() in ("inf", "infinity")
    value = fields.number(key)
    return (None, True) if value == float("inf") else (value, False)


FLAGS = {
    "tensor_parallel_size": "policy.parallelism.tensor", "tp_size": "policy.parallelism.tensor",
    "pipeline_parallel_size": "policy.parallelism.pipeline", "pp_size": "policy.parallelism.pipeline",
    "ep_size": "policy.parallelism.expert",
    "max_num_seqs": "policy.batching.max_sequences", "max_running_requests": "policy.batching.max_sequences",
    "max_num_batched_tokens": "policy.batching.max_batched_tokens",
    "kv_cache_dtype": "policy.quantization.kv_cache", "quantization": "policy.quantization.weights",
}  # fmt: skip
"""Server arguments of vLLM and SGLang that mean the same as a key of a spec, whatever the release, and that change
speed. The longest context of the server changes none, and a share of memory means another one in each engine."""


def settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a spec that recorded server arguments set; defaults (null, ``auto``) set nothing."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        path = FLAGS.get(name.lstrip("-").replace("-", "_"))
        if path is None or value in (None, "", "auto") or isinstance(value, bool | list | dict):
            continue
        text = str(value)
        if path == "policy.parallelism.expert" and text == "1":
            # Experts are then spread with the tensors, which a spec leaves to its default.
            continue
        found[path] = int(text) if text.isdecimal() and len(text) < 12 else value
    return found
