"""What plugins provide, held to the contract: descriptors as they are registered, results as they come back.

A wrong thing that is let in fails later in somebody else's code, where nothing says whose it was. Each check
raises `servelint.blame.Wrong`; the manager makes that the fault of the plugin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from servelint.architecture import Architecture, Block, ModelFamily, Tensor
from servelint.blame import Wrong, described, ends_run, shown
from servelint.descriptors import Default, Engine, Entry, LengthModel, Policy, Reporter, TraceFormat, TraceRow
from servelint.formats import Format
from servelint.hardware import Accelerator, Instance, Labels, Link
from servelint.lineage import Input, KeyPath, Source
from servelint.place import Place
from servelint.rule import Case, Edit, Finding, Fix, Lacks, Option, Related, Rule, RuleEntry, Severity, misnamed

MOST = 100_000
"""Things that one hook, or one rule on one file, can yield; a generator that yields more is taken for endless."""

CONFIDENCES = ("high", "medium", "low")
BUDGET_KINDS = ("total", "static", "free")
WHEN_FULL = ("evicts", "waits", "fails")


# Values


def _name(value: object, what: str = "name") -> None:
    if type(value) is not str or not value or len(value) > 200 or not value.isprintable() or value != value.strip():
        raise Wrong(f"has the {what} {shown(value)}, expected printable text of 1 to 200 characters")


def _texts(value: object, what: str) -> None:
    if not isinstance(value, tuple) or not all(type(v) is str for v in value):
        raise Wrong(f"has {what} {shown(value)}, expected a tuple of texts")


def _names(value: object, what: str) -> None:
    _texts(value, what)
    if value:
        for each in value:  # type: ignore[attr-defined]
            _name(each, f"{what} item")


def _function(value: object, what: str, *, optional: bool = False) -> None:
    if not callable(value) and not (optional and value is None):
        raise Wrong(f"has {what} {shown(value)}, expected a function{' or None' if optional else ''}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: object, what: str, low: float = -math.inf, high: float = math.inf, *, above: bool = False) -> None:
    """Hold a value to a finite number from ``low`` to ``high``; with ``above`` larger than ``low``."""
    if _is_number(value) and low <= value <= high and -1e300 < value < 1e300 and not (above and value == low):  # type: ignore[operator]
        return
    bounds = "" if low == -math.inf else f" {'above' if above else 'of at least'} {low:g}"
    bounds += "" if high == math.inf else f"{' and' if bounds else ' of'} at most {high:g}"
    raise Wrong(f"has {what} {shown(value)}, expected a finite number{bounds}")


def _maybe(value: object, what: str, low: float) -> None:
    if value is not None:
        _number(value, what, low)


def _members(value: object, kind: type, what: str) -> None:
    if not isinstance(value, tuple) or not all(isinstance(v, kind) for v in value):
        raise Wrong(f"has {what} {shown(value)}, expected a tuple of {kind.__name__}")


# What hooks yield


def listed(found: object, kinds: tuple[type, ...]) -> list[object]:
    """Return what a hook gave as a list; Wrong for what is no series of things, or for an endless one."""
    wanted = " or ".join("Rule" if k is type else k.__name__ for k in kinds)
    if found is None:
        return []
    if isinstance(found, (str, bytes, Mapping, *kinds)):
        raise Wrong(f"returned {type(found).__name__}, expected a series of {wanted}")
    try:
        series = iter(found)  # type: ignore[call-overload]
    except TypeError:
        raise Wrong(f"returned {type(found).__name__}, expected a series of {wanted}") from None
    items = list(islice(series, MOST + 1))
    if len(items) > MOST:
        raise Wrong(f"yields more than {MOST:,} things, which has no end that can be waited for")
    return items


def problem(item: Any, kinds: tuple[type, ...]) -> str:
    """Say what is wrong with a thing that a hook yielded, or return an empty string; never raises."""
    try:
        if type(item) is Entry and kinds[0] is Entry:
            # Most of what is yielded, hundreds of them.
            id_, load, aliases = item
            if type(id_) is str and 0 < len(id_) <= 200 and id_.isprintable() and callable(load) and callable(aliases):
                return ""
        if not isinstance(item, kinds):
            return f"yielded {type(item).__name__}, expected {' or '.join(k.__name__ for k in kinds)}"
        for kind, noun, check in _CHECKS:
            if isinstance(item, kind):
                try:
                    check(item)
                except Wrong as error:
                    return f"{noun} {_called(item)} {error}"
                return ""
        if type(item).__name__ == "ManifestFormat":
            # Not imported by a check of a spec, so not in the table.
            _manifest(item)
    except Wrong as error:
        return f"{_called(item)} {error}"
    except BaseException as error:
        if ends_run(error):
            raise
        return f"yielded a {type(item).__name__} that cannot be read: {described(error)}"
    return ""


def _called(item: Any) -> str:
    for attribute in ("__name__", "id", "name", "key"):
        name = getattr(item, attribute, None)
        if isinstance(name, str):
            return name if attribute == "__name__" else shown(name)
    return "without a name"


def _entry(entry: Entry[Any]) -> None:
    _name(entry.id, "id")
    if not callable(entry.load) or not callable(entry.aliases):
        raise Wrong("has load or aliases that are no functions")


def _family(family: ModelFamily) -> None:
    _name(family.name)
    _names(family.model_types, "model_types")
    _function(family.read, "read")


def _length_model(model: LengthModel) -> None:
    _name(model.name)
    _names(model.keys, "keys")
    _names(model.required, "required")
    _function(model.knots, "knots")


def _trace_format(trace: TraceFormat) -> None:
    _name(trace.name)
    _texts(trace.extensions, "extensions")
    _texts(trace.sources, "sources")
    _function(trace.read, "read")


def _format(found: Format) -> None:
    _name(found.name)
    _number(found.bits, "bits", 0, 1024, above=True)
    _number(found.metadata_bits, "metadata_bits", 0, 1024)
    _number(found.group, "group", 0)
    if found.compute is not None:
        _name(found.compute, "compute")
    _names(found.aliases, "aliases")
    _texts(found.covers, "covers")
    _texts(found.sources, "sources")
    _texts(found.endings, "endings")


def _policy(policy: Policy) -> None:
    # Imported by the time that policies are asked for: a spec is structured by it.
    from servelint.spec.schema import Kind, kinds

    _name(policy.name)
    for what in ("after", "before", "requires"):
        _names(getattr(policy, what), what)
    for what in ("graph", "memory", "scheduler", "defaults", "devices"):
        _function(getattr(policy, what), what, optional=True)
    cls = policy.config
    if not isinstance(cls, type) or "__attrs_attrs__" not in vars(cls):
        raise Wrong(f"has the config {shown(cls)}, expected an attrs class")
    for key, (_, kind, required) in kinds(cls).items():
        _name(key, "key")
        if not isinstance(kind, Kind):
            raise Wrong(f"has the key {key!r} of kind {shown(kind)}, expected one of servelint.plugin's")
        if required:
            raise Wrong(f"requires the key {key!r}, expected a default: a spec need not have the table")
    try:
        cls()
    except BaseException as error:
        if ends_run(error):
            raise
        raise Wrong(f"has a config that cannot be made without keys: {described(error)}") from None


def _engine(engine: Engine) -> None:
    _name(engine.name)
    _names(engine.aliases, "aliases")
    _texts(engine.sources, "sources")
    _texts(engine.moved, "moved")
    if type(engine.assumed) is not str:
        raise Wrong(f"has assumed {shown(engine.assumed)}, expected a text")
    _function(engine.defaults, "defaults")
    _function(engine.reserve_bytes, "reserve_bytes")
    _function(engine.read, "read", optional=True)
    _function(engine.caches, "caches", optional=True)
    _function(engine.unsupported, "unsupported", optional=True)
    _function(engine.dequantizes, "dequantizes", optional=True)
    _function(engine.first_release, "first_release", optional=True)
    if engine.budget_kind not in BUDGET_KINDS:
        raise Wrong(f"has budget_kind {shown(engine.budget_kind)}, expected one of {', '.join(BUDGET_KINDS)}")
    if engine.when_full not in WHEN_FULL:
        raise Wrong(f"has when_full {shown(engine.when_full)}, expected one of {', '.join(WHEN_FULL)}")


def _reporter(reporter: Reporter) -> None:
    _name(reporter.name)
    _function(reporter.render, "render")
    if type(reporter.summary) is not str:
        raise Wrong(f"has the summary {shown(reporter.summary)}, expected text")


def _manifest(found: Any) -> None:
    _name(found.name)
    _function(found.read, "read")
    _texts(found.endings, "endings")
    _texts(found.sources, "sources")
    _number(found.priority, "priority")


def _labels(labels: Labels) -> None:
    _name(labels.key, "key")
    _function(labels.match, "match", optional=True)
    if type(labels.cloud) is not str:
        raise Wrong(f"has the cloud {shown(labels.cloud)}, expected text")


def _rule_entry(entry: RuleEntry) -> None:
    for what in ("code", "name"):
        if type(getattr(entry, what)) is not str:
            raise Wrong(f"has the {what} {shown(getattr(entry, what))}, expected text")
    said = misnamed(entry.code, entry.name)
    if said:
        raise Wrong(said)
    _name(entry.name)
    _function(entry.load, "load")
    if type(entry.preview) is not bool or not isinstance(entry.when, tuple):
        raise Wrong("has a preview or when of the wrong type")
    for path in entry.when:
        _path(path)


def loaded_rule(cls: object, entry: RuleEntry) -> type[Rule]:
    """Return the class of a rule's entry; Wrong when it is no rule, or not the one that the entry names."""
    if not isinstance(cls, type) or not issubclass(cls, Rule):
        raise Wrong(f"gave {shown(cls)}, expected a Rule class")
    _rule(cls)
    if (cls.code, cls.name, cls.preview) != (entry.code, entry.name, entry.preview):
        raise Wrong(f"gave the rule {cls.code} {cls.name}, whose code, name or preview is not the entry's")
    return cls


def _rule(cls: type) -> None:
    if not issubclass(cls, Rule):
        raise Wrong("is not a Rule")
    for what in ("code", "name"):
        if type(getattr(cls, what)) is not str:
            raise Wrong(f"has the {what} {shown(getattr(cls, what))}, expected text")
    said = cls.problem()
    if said:
        raise Wrong(said)
    _name(cls.name)
    if not cls.code.isascii() or not cls.name.isascii():
        raise Wrong(f"has the code {cls.code!r} and the name {cls.name!r}, expected ASCII")
    missing = getattr(cls, "__abstractmethods__", ())
    if missing:
        raise Wrong(f"does not define {', '.join(sorted(missing))}")
    if not isinstance(cls.severity, Severity):
        raise Wrong(f"has the severity {shown(cls.severity)}, expected a Severity")
    if cls.confidence not in CONFIDENCES:
        raise Wrong(f"has the confidence {shown(cls.confidence)}, expected one of {', '.join(CONFIDENCES)}")
    for what in ("preview", "weighs"):
        if type(getattr(cls, what)) is not bool:
            raise Wrong(f"has {what} {shown(getattr(cls, what))}, expected a bool")
    if cls.__doc__ is not None and type(cls.__doc__) is not str:
        raise Wrong(f"has the docstring {shown(cls.__doc__)}, expected text")
    _texts(cls.questions, "questions")
    _members(cls.options, Option, "options")
    for option in cls.options:
        _name(option.name, "option")
        _number(option.default, f"the default of option {option.name}")
        if not (_is_number(option.minimum) and _is_number(option.maximum)):
            raise Wrong(f"has bounds of option {option.name} that are no numbers")
        if not option.minimum <= option.default <= option.maximum or type(option.doc) is not str:
            raise Wrong(f"has the option {option.name}, whose default is out of its bounds or whose doc is no text")
    for what in ("failing", "passing"):
        cases = getattr(cls, what)
        _members(cases, Case, what)
        if not all(type(case.name) is str and type(case.spec) is str for case in cases):
            raise Wrong(f"has {what} cases whose name or spec is no text")


_CHECKS: tuple[tuple[type, str, Callable[[Any], None]], ...] = (
    (Entry, "entry", _entry),
    (RuleEntry, "rule", _rule_entry),
    (type, "rule", _rule),
    (Format, "format", _format),
    (Policy, "policy", _policy),
    (ModelFamily, "model family", _family),
    (Engine, "engine", _engine),
    (LengthModel, "length model", _length_model),
    (TraceFormat, "trace format", _trace_format),
    (Reporter, "reporter", _reporter),
    (Labels, "labels", _labels),
)


# What entries load


def loaded(found: Any, kind: type, id_: str) -> None:
    """Hold what an entry loaded to its kind and id, and to the figures that everything is computed from."""
    if not isinstance(found, kind):
        raise Wrong(f"gave {type(found).__name__}, expected {kind.__name__}")
    if type(found.id) is not str or found.id.lower() != id_.lower():  # type: ignore[attr-defined]
        raise Wrong(f"gave one with the id {shown(found.id)}")  # type: ignore[attr-defined]
    if isinstance(found, Accelerator):
        accelerator(found)
    elif isinstance(found, Architecture):
        architecture(found)
    elif isinstance(found, Instance):
        _name(found.accelerator, "accelerator")
        _number(found.devices, "devices", 1)


def accelerator(found: Accelerator) -> None:
    """Hold an accelerator to figures that can be computed with."""
    for name in ("name", "vendor", "form_factor", "architecture"):
        if type(getattr(found, name)) is not str:
            raise Wrong(f"has {name} {shown(getattr(found, name))}, expected text")
    given = found.compute_capability
    if given is not None and (type(given) is not str or len(found.capability) != 2):
        raise Wrong(f'has compute_capability {shown(given)}, expected major and minor such as "9.0"')
    for name in ("memory_bytes", "memory_bandwidth_bytes_per_s"):
        _number(getattr(found, name), name, 0, above=True)
    for name in ("driver_total_bytes", "runtime_visible_bytes", "power_w"):
        _maybe(getattr(found, name), name, 1)
    _number(found.l2_bytes, "l2_bytes", 0)
    for name in ("dense_flops", "sparse_flops", "measured"):
        table = getattr(found, name)
        if not isinstance(table, Mapping):
            raise Wrong(f"has {name} {shown(table)}, expected a mapping of numbers")
        for key, value in table.items():
            _name(key, f"key in {name}")
            _number(value, f"{name} of {key}", 0, above=True)
    if not isinstance(found.sources, Mapping):
        raise Wrong(f"has sources {shown(found.sources)}, expected a mapping")
    for name in ("native_formats", "aliases", "gaps", "notes"):
        _texts(getattr(found, name), name)
    if found.link is not None:
        if not isinstance(found.link, Link):
            raise Wrong(f"has the link {shown(found.link)}, expected a Link")
        _number(found.link.per_direction_bytes_per_s, "link.per_direction_bytes_per_s", 0, above=True)
        _number(found.link.domain, "link.domain", 1)


def architecture(found: Architecture) -> None:
    """Hold a model to shapes that can be computed with."""
    for name in ("hidden_size", "num_layers", "vocab_size", "max_position"):
        _number(getattr(found, name), name, 1)
    _members(found.blocks, Block, "blocks")
    if not found.blocks:
        raise Wrong("has no blocks")
    for block in found.blocks:
        _name(block.name, "block name")
        _members(block.tensors, Tensor, f"tensors of block {block.name}")
        if not isinstance(block.layers, tuple) or not block.layers:
            raise Wrong(f"has layers {shown(block.layers)} of block {block.name}, expected a tuple of indices")
        for tensor in block.tensors:
            _number(tensor.params, f"params of {block.name}.{tensor.name}", 0)
    for name in ("embedding", "lm_head", "final_norm", "positions"):
        tensor = getattr(found, name)
        if not isinstance(tensor, Tensor) and not (tensor is None and name in ("lm_head", "positions")):
            raise Wrong(f"has {name} {shown(tensor)}, expected a Tensor")
    _members(found.extras, Tensor, "extras")
    _name(found.stored, "stored format")
    for name in ("aliases", "sources", "notes", "conflicts"):
        _texts(getattr(found, name), name)


def aliases(found: object) -> tuple[str, ...]:
    """Return an entry's aliases."""
    names = tuple(islice(iter(found), MOST)) if isinstance(found, Iterable) and not isinstance(found, str) else None
    if names is None:
        raise Wrong(f"gave {type(found).__name__}, expected a tuple of texts")
    for name in names:
        _name(name, "alias")
    return names


# What functions return


def knots(found: Any) -> list[tuple[float, float]]:
    """Return the knots of a length distribution: both columns ascending, probabilities within 0 and 1."""
    points = [] if isinstance(found, str | bytes | Mapping) else list(islice(iter(found), MOST))
    if not points or not all(isinstance(p, tuple | list) and len(p) == 2 for p in points):
        raise Wrong(f"returned {shown(found)}, expected points (probability, tokens)")
    before = (0.0, 0.0)
    for share, tokens in points:
        if not (_is_number(share) and _is_number(tokens) and 0 <= share <= 1 and 0 <= tokens < 1e300):
            raise Wrong(f"returned the point ({shown(share)}, {shown(tokens)}), expected 0 to 1 and a count of tokens")
        # The last digits of a sum are no descent.
        if share < before[0] - 1e-9 or tokens < before[1] * (1 - 1e-9):
            raise Wrong(f"returned ({share:g}, {tokens:g}) after ({before[0]:g}, {before[1]:g}), expected them to rise")
        before = (share, tokens)
    return [(share, tokens) for share, tokens in points]


def rows(found: Any, most: int) -> list[TraceRow]:
    """Return the rows of a trace, of which there are at most as many as the text has characters."""
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise Wrong(f"returned {type(found).__name__}, expected rows")
    taken: list[TraceRow] = []
    for row in found:
        if not isinstance(row, TraceRow):
            raise Wrong(f"yielded {type(row).__name__}, expected TraceRow")
        arrival, prompt, output = row
        if not (
            _is_number(arrival)
            and _is_number(prompt)
            and _is_number(output)
            and -1e300 < arrival < 1e300
            and 0 <= prompt < 1e15
            and 0 <= output < 1e15
        ):
            raise Wrong(f"yielded {shown(tuple(row))}, expected seconds and two counts of tokens")
        taken.append(row)
        if len(taken) > most:
            raise Wrong(f"yielded more than {most:,} rows, more than the file has characters")
    return taken


def devices(found: object) -> int | None:
    """Return the devices that a policy needs."""
    if found is not None and (type(found) is not int or found < 1):
        raise Wrong(f"returned {shown(found)}, expected a whole number of at least 1 or None")
    return found


def default(found: object, what: str) -> None:
    """Hold a default to its form: a value with a reason and a source."""
    if not isinstance(found, Default):
        raise Wrong(f"returned {shown(found)} for {what}, expected a Default")
    if type(found.reason) is not str or not isinstance(found.source, Source):
        raise Wrong(f"returned a Default for {what} without a reason and a source")


def assumption(path: object, reason: object, source: object) -> None:
    """Hold what a policy assumes to a key path, a reason and a source."""
    if not isinstance(path, tuple) or not all(type(part) is str or type(part) is int for part in path):
        raise Wrong(f"assumes a value at {shown(path)}, expected a key path")
    if type(reason) is not str or not isinstance(source, Source):
        raise Wrong(f"assumes a value for {shown(path)} without a reason and a source")


def setting(kind: Any, found: Default, what: str) -> None:
    """Hold the value of a default to the kind of the key that it stands for.

    One that follows from the spec may be larger than the spec itself could say; a share is none above 1.
    """
    from servelint.spec.schema import Boolean, Integer, Number, Problems, Quantity, Text

    value = found.value
    if value is None or not isinstance(kind, Boolean | Integer | Number | Quantity | Text):
        return
    if isinstance(kind, Integer | Number | Quantity) and _is_number(value) and kind.maximum > 1:
        whole = isinstance(value, int) or not isinstance(kind, Integer)
        if whole and max(kind.minimum, 0.0) <= value < math.inf:
            return
    try:
        kind.parse(value)
    except Problems as error:
        raise Wrong(f"returned a wrong default for {what}: {error}") from None


def reserve(found: object, what: str) -> None:
    """Hold a reserve to bytes."""
    if type(what) is not str:
        raise Wrong(f"returned a reserve called {shown(what)}, expected text")
    default(found, what)
    value = found.value  # type: ignore[attr-defined]
    if not _is_number(value) or not 0 <= value < 1e300:
        raise Wrong(f"returned {shown(value)} bytes for {what}, expected a number of at least 0")


def refusal(found: object) -> tuple[KeyPath, str, Source]:
    """Return a refusal of an engine: key path, message, source."""
    if not isinstance(found, tuple) or len(found) != 3:
        raise Wrong(f"yielded {shown(found)}, expected a key path, a message and a Source")
    path, message, source = found
    if type(message) is not str or not isinstance(source, Source):
        raise Wrong(f"yielded {shown(found)}, expected a key path, a message and a Source")
    _path(path)
    return path, message, source


def reading(found: Any) -> None:
    """Hold what an engine read of launch arguments to settings of keys and troubles with places."""
    from servelint.launch.invocation import Reading, Setting, Trouble

    if not isinstance(found, Reading):
        raise Wrong(f"returned {type(found).__name__}, expected Reading")
    for item in found.settings:
        if not isinstance(item, Setting) or not isinstance(item.place, Place) or type(item.spelling) is not str:
            raise Wrong(f"returned the setting {shown(item)}, expected a Setting with a place")
        _path(item.path)
    for trouble in found.troubles:
        if not isinstance(trouble, Trouble) or not isinstance(trouble.place, Place) or type(trouble.message) is not str:
            raise Wrong(f"returned the trouble {shown(trouble)}, expected a Trouble with a place and a message")
    _texts(found.unused, "unused")


def invocation(found: Any) -> None:
    """Hold what a reader of manifests yielded to an invocation with a place."""
    from servelint.launch.invocation import Invocation

    if not isinstance(found, Invocation) or not isinstance(found.place, Place):
        raise Wrong(f"yielded {shown(found)}, expected Invocation")
    _texts(found.part, "part")
    _members(found.commands, tuple, "commands")


def composed(before: object, after: Any) -> None:
    """Hold what a policy made of a graph, a ledger or a scheduler to the same kind and to usable figures."""
    if type(after) is not type(before):
        raise Wrong(f"returned {type(after).__name__}, expected {type(before).__name__}")
    check = _COMPOSED.get(type(after).__name__)
    if check is not None:
        check(after)


def _scheduler(made: Any) -> None:
    for name in ("max_sequences", "max_batched_tokens", "chunk_tokens"):
        _maybe(getattr(made, name), name, 1)
    for name in ("verify_tokens", "samples", "ranks"):
        _number(getattr(made, name), name, 1)
    _number(made.tokens_per_step, "tokens_per_step", 0, above=True)
    _number(made.first_token_s, "first_token_s", 0)
    _number(made.first_token_share, "first_token_share", 0, 1)
    _number(made.skipped_share, "skipped_share", 0, 1)
    if made.skipped_share == 1:
        raise Wrong("has skipped_share 1, expected less: some token needs a step")


def _ledger(made: Any) -> None:
    for name in ("budget", "visible"):
        _number(getattr(made, name), name, 0)
    for name in ("stages", "ranks", "page_size"):
        _number(getattr(made, name), name, 1)
    _maybe(made.cache_bytes, "cache_bytes", 0)
    _maybe(made.token_cap, "token_cap", 1)
    for held in made.reserves:
        _number(held.bytes, f"the reserve {held.name}", 0)
    if made.pool is not None:
        if len(made.pool.block_bytes) != made.stages:
            raise Wrong(f"has a pool for {len(made.pool.block_bytes)} stages, expected {made.stages}")
        for name in ("block_bytes", "asked_bytes"):
            for size in getattr(made.pool, name):
                _number(size, f"{name} of the pool", 0)
        if made.pool.asked_bytes and len(made.pool.asked_bytes) != made.stages:
            raise Wrong(f"has a pool that asks for {len(made.pool.asked_bytes)} stages, expected {made.stages}")
        for group in made.pool.groups:
            _number(group.tokens, "tokens of a block", 1)
        if not made.pool.blocks(1) > 0:
            raise Wrong("has a pool in which a sequence takes no block")


_COMPOSED: Mapping[str, Callable[[Any], None]] = {"Scheduler": _scheduler, "MemoryLedger": _ledger}


def text(found: object) -> str:
    """Return a rendered report in characters that can be written."""
    if not isinstance(found, str):
        raise Wrong(f"returned {type(found).__name__}, expected text")
    return str(found) if found.isascii() else found.encode("utf-8", "backslashreplace").decode("utf-8")


# What rules yield


def finding(item: object, rule: type[Rule]) -> Finding:
    """Return what a rule yielded; Wrong when a report could not show it."""
    if not isinstance(item, Finding):
        raise Wrong(f"yielded {type(item).__name__}, expected Finding or Lacks")
    if item.code != rule.code or item.name != rule.name:
        raise Wrong("yielded a Finding under another rule's code or name")
    if not type(item.message) is type(item.equation) is type(item.help) is str:
        raise Wrong("yielded a Finding whose message, equation or help is no text")
    if not isinstance(item.severity, Severity) or item.confidence not in CONFIDENCES:
        raise Wrong(
            f"yielded a Finding of severity {shown(item.severity)} and confidence {shown(item.confidence)}, expected "
            f"a Severity and one of {', '.join(CONFIDENCES)}"
        )
    _path(item.path)
    _found_inputs(item)
    _found_related(item)
    if item.fix is not None:
        _fix(item.fix)
    return item


def _path(path: object) -> None:
    if not isinstance(path, tuple) or not all(type(part) is str or type(part) is int for part in path):
        raise Wrong(f"yielded a Finding at {shown(path)}, expected a tuple of names and indices")


def _found_inputs(item: Finding) -> None:
    if not isinstance(item.inputs, tuple):
        raise Wrong(f"yielded a Finding with inputs {shown(item.inputs)}, expected a tuple of Input")
    for entry in item.inputs:
        if not isinstance(entry, Input) or not isinstance(entry.source, Source):
            raise Wrong(f"yielded a Finding with the input {shown(entry)}, expected an Input with a Source")
        value = entry.value
        if type(entry.name) is not str or type(entry.unit) is not str or not isinstance(value, int | float | str):
            raise Wrong(f"yielded a Finding with the input {shown(entry)}, expected a name, a number or text, a unit")
        if isinstance(value, int) and not -1e300 < value < 1e300:
            raise Wrong(f"yielded a Finding with the input {entry.name[:60]}, whose number is too large to show")
        if not type(entry.source.kind) is type(entry.source.where) is type(entry.source.field) is str:
            raise Wrong(f"yielded a Finding with the source {shown(entry.source)}, expected texts")
        _path(entry.source.path)


def _found_related(item: Finding) -> None:
    if not isinstance(item.related, tuple):
        raise Wrong(f"yielded a Finding with related {shown(item.related)}, expected a tuple of Related")
    for entry in item.related:
        if not isinstance(entry, Related) or type(entry.message) is not str:
            raise Wrong(f"yielded a Finding with the related place {shown(entry)}, expected a Related with a message")
        _path(entry.path)


def _fix(fix: object) -> None:
    if not isinstance(fix, Fix) or type(fix.description) is not str or not isinstance(fix.edits, tuple):
        raise Wrong(f"yielded a Finding with the fix {shown(fix)}, expected a Fix with edits")
    for edit in fix.edits:
        if not isinstance(edit, Edit) or type(edit.text) is not str:
            raise Wrong(f"yielded a Finding with the edit {shown(edit)}, expected an Edit with text")
        _path(edit.path)


def lack(item: Lacks) -> str:
    """Return what a rule lacked."""
    if type(item.what) is not str:
        raise Wrong(f"yielded Lacks({shown(item.what)}), expected text")
    return item.what
