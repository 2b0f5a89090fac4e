"""What plugins provide: frozen descriptors. Core holds them, orders them and calls their functions.

Accelerators and models are `Entry` values, so that a check reads only the files that its spec names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from attrs import field, frozen

from servelint.lineage import KeyPath, Source
from servelint.values import Value

if TYPE_CHECKING:
    from servelint.composition import Context
    from servelint.formats import Format
    from servelint.graph import StepGraph
    from servelint.hardware import Accelerator
    from servelint.launch.invocation import Invocation, Reading, Word
    from servelint.memory import BudgetKind, MemoryLedger, WhenFull
    from servelint.scheduler import Scheduler

T = TypeVar("T")


class Entry(NamedTuple, Generic[T]):
    """A named catalogue entry, loaded when it is asked for.

    ``aliases`` is called only when no id matches; ids and aliases compare case-insensitively.
    """

    id: str
    load: Callable[[], T]
    aliases: Callable[[], tuple[str, ...]] = tuple


@frozen(slots=False, eq=False, repr=False)
class Policy(Value):
    """One deployment choice: its own ``[policy.NAME]`` table, and what it changes.

    ``config`` is the attrs class of the table (fields made with `servelint.spec.schema` helpers). The three
    functions are pure: given the resolved config, the thing, and the context, each returns a new thing.
    ``after`` names policies that must have been applied before, ``before`` those that must come later;
    both only matter when the other is present. ``requires`` names policies that must be provided at all.
    ``defaults`` fills fields that neither the spec nor the engine sets: it maps a field to the value and
    the reason. ``devices`` says how many devices a replica needs under a config, None when it does not say.
    """

    name: str
    config: type[Any]
    graph: Callable[[Any, StepGraph, Context], StepGraph] | None = None
    memory: Callable[[Any, MemoryLedger, Context], MemoryLedger] | None = None
    scheduler: Callable[[Any, Scheduler, Context], Scheduler] | None = None
    defaults: Callable[[Any, Context], Mapping[str, Default]] | None = None
    devices: Callable[[Any], int | None] | None = None
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()


class Default(NamedTuple):
    """A value that was assumed, why, and from what source; without a reason it is the identity, not reported."""

    value: Any
    reason: str
    source: Source


@frozen(slots=False, eq=False, repr=False)
class Engine(Value):
    """A serving engine: the defaults it applies, by version and device.

    ``defaults(version, context)`` maps ``(policy, field)`` to a `Default`; ``reserve_bytes(version,
    context)`` maps the name of a fixed per-device cost (runtime context, graphs, workspace) to a `Default`
    in bytes. ``version`` is None when the spec gives none; the engine then says which set it assumed.
    ``budget_kind`` says what its memory fraction is of, see `servelint.memory.BudgetKind`; ``when_full`` what it does
    by default when running sequences outgrow the KV cache, see `servelint.memory.WhenFull`.

    ``caches(version, ledger, context)`` rewrites the finished ledger the way the engine pages and reports its KV
    cache (`servelint.memory.PagePool`), and holds what it holds otherwise than the policies know.

    The rest reads launch files. ``starts`` are sequences of words that start it (``("vllm", "serve")``; folders
    in front are left out), ``images`` parts of names of images that hold it, ``release_images`` of those whose
    tag is its release. ``read(invocation, arguments, version)`` turns an `Invocation` and the words after the
    command into a `Reading`: settings by key path of the spec, and what is wrong with them.
    ``unsupported(version, context)`` yields combinations that the engine certainly refuses at start on this model
    and device, each as the key path that decides, a message and its source; nothing for a release that nobody
    looked at. ``moved`` are releases, ascending: the oldest that was read, then those from which on some default is
    another one. ``assumed`` is the release whose defaults stand where none is stated.
    ``dequantizes(version, format, accelerator)`` says whether a release is known to load weights of a format that the
    device does not multiply, and to multiply them in 16 bit; ``first_release(model_type)`` is the oldest release that
    is known to load a model, empty where nothing is known. ``pieces(version, context)`` names the keys of
    ``[policy.batching]`` that the engine can be told here, of those that let others decode between the pieces of a
    prompt: ``chunked_prefill``, ``mixed_steps``, ``prefill_decode_interval``. Without ``mixed_steps`` among them,
    chunked prompts are mixed with decoding.
    """

    name: str
    defaults: Callable[[str | None, Context], Mapping[tuple[str, str], Default]]
    reserve_bytes: Callable[[str | None, Context], Mapping[str, Default]]
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    budget_kind: BudgetKind = "total"
    when_full: WhenFull = "evicts"
    caches: Callable[[str | None, MemoryLedger, Context], MemoryLedger] | None = None
    starts: tuple[tuple[str, ...], ...] = ()
    images: tuple[str, ...] = ()
    release_images: tuple[str, ...] = ()
    read: Callable[[Invocation, tuple[Word, ...], str | None], Reading] | None = None
    unsupported: Callable[[str | None, Context], Iterable[tuple[KeyPath, str, Source]]] | None = None
    moved: tuple[str, ...] = ()
    assumed: str = ""
    dequantizes: Callable[[str, Format, Accelerator], bool] | None = None
    first_release: Callable[[str], str] | None = None
    pieces: Callable[[str | None, Context], tuple[str, ...]] | None = None


class TraceRow(NamedTuple):
    """One request of a trace: arrival in seconds from the start, tokens, and tokens of reusable prefix."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int


@frozen(slots=False, eq=False, repr=False)
class TraceFormat(Value):
    """Reads one trace format. ``read`` takes text lines and yields rows; ValueError names a bad line."""

    name: str
    read: Callable[[Iterable[str]], Iterable[TraceRow]] = field(repr=False)
    extensions: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@frozen(slots=False, eq=False, repr=False)
class LengthModel(Value):
    """Builds a length distribution from the keys of a table: ``{p50 = 900, p99 = 7000}``.

    ``keys`` are the keys that it takes; a table belongs to the first model (by name) that takes all of its
    keys and has its ``required`` ones. ``knots`` returns points (probability, tokens) of the inverse
    distribution function, both ascending; between them it is log-linear.
    """

    name: str
    keys: tuple[str, ...]
    required: tuple[str, ...]
    knots: Callable[[Mapping[str, float]], Sequence[tuple[float, float]]] = field(repr=False)


@frozen(slots=False, eq=False, repr=False)
class Reporter(Value):
    """Renders the result of a check. ``render`` returns the whole text of one output."""

    name: str
    render: Callable[[Any], str] = field(repr=False)
    summary: str = ""
