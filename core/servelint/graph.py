"""The step graph: operations with named inputs and outputs, composed by name into a DAG.

Edges follow from names: an op that reads a value comes after the op that produces it. Repeated layers are
one op with a repeat count per pipeline stage. Every policy is a pure function from graph to graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from servelint.errors import GraphError
from servelint.resources import Demand
from servelint.values import Value

if TYPE_CHECKING:
    import networkx


@frozen(eq=False, repr=False)
class Op(Value):
    """One operation, or a run of equal ones.

    ``repeats`` counts instances per pipeline stage (one entry without pipeline parallelism); ``layers`` are
    the layer indices they stand for, empty for ops outside the layers. ``origin`` names the plugin that
    laid it.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    demands: tuple[Demand, ...]
    repeats: tuple[int, ...] = (1,)
    layers: tuple[int, ...] = ()
    origin: str = "model"

    @property
    def count(self) -> int:
        """Instances over all stages."""
        return sum(self.repeats)

    def mapped(self, change: Callable[[Demand], Demand]) -> Op:
        """Return the op with every demand passed through ``change``; itself when nothing changed."""
        demands = tuple(change(d) for d in self.demands)
        if all(a is b for a, b in zip(demands, self.demands, strict=True)):
            return self
        return evolve(self, demands=demands)


@frozen(slots=False, eq=False, repr=False)
class StepGraph(Value):
    """A directed acyclic graph of ops, for every step shape of one composed deployment.

    ``stages`` pipeline stages work on ``micro_batches`` micro-batches of a step; 1 and 1 without pipeline
    parallelism. ``ranks`` groups of devices have sequences of their own, so that a micro-batch takes at
    least one from each.
    """

    ops: tuple[Op, ...]
    micro_batches: int = 1
    stages: int = 1
    ranks: int = 1

    @cached_property
    def stage_kinds(self) -> tuple[tuple[int, int], ...]:
        """The first stage of each kind, and how many stages there are of it.

        Stages of a kind have equally many of every op, and so cost the same. GraphError for an op that does not
        say how many of it each stage has.
        """
        for op in self.ops:
            if len(op.repeats) != self.stages:
                raise GraphError(
                    f"{op.name!r} ({op.origin}) has instances on {len(op.repeats)} stages; the graph has {self.stages}"
                )
        return kinds_of_stages(self.stages, (op.repeats for op in self.ops))

    def op(self, name: str) -> Op:
        """Return the op of that name; GraphError if there is none."""
        for op in self.ops:
            if op.name == name:
                return op
        raise GraphError(f"no operation named {name!r} in the step graph; it has {', '.join(o.name for o in self.ops)}")

    def mapped(self, change: Callable[[Op, Demand], Demand]) -> StepGraph:
        """Return the graph with every demand passed through ``change``."""
        ops = tuple(op.mapped(lambda d, op=op: change(op, d)) for op in self.ops)  # type: ignore[misc]
        return evolve(self, ops=ops)

    def with_op(self, op: Op) -> StepGraph:
        """Return the graph with the op of the same name replaced."""
        self.op(op.name)
        return evolve(self, ops=tuple(op if o.name == op.name else o for o in self.ops))

    def inserted_after(self, name: str, op: Op) -> StepGraph:
        """Return the graph with ``op`` between the op ``name`` and everything that read its outputs.

        The earlier op's outputs are renamed to ``<value>.<op.name>.in``, and the new op reads these and
        produces the old names.
        """
        ops: list[Op] = []
        for old in self.ops:
            if old.name == name:
                inner = tuple(f"{v}>{op.name}" for v in old.outputs)
                ops.append(evolve(old, outputs=inner))
                ops.append(evolve(op, inputs=(*op.inputs, *inner), outputs=(*op.outputs, *old.outputs)))
            else:
                ops.append(old)
        if len(ops) == len(self.ops):
            self.op(name)
        return evolve(self, ops=tuple(ops))

    def with_ops(self, *new: Op) -> StepGraph:
        """Return the graph with ops added."""
        return evolve(self, ops=(*self.ops, *new))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each op, the indices of the ops it waits for."""
        producer: dict[str, int] = {}
        for i, op in enumerate(self.ops):
            for value in op.outputs:
                if value in producer:
                    first = self.ops[producer[value]]
                    raise GraphError(
                        f"value {value!r} is produced by both {first.name!r} ({first.origin}) "
                        f"and {op.name!r} ({op.origin})"
                    )
                producer[value] = i
        result = []
        for op in self.ops:
            before = set()
            for value in op.inputs:
                if value in producer:
                    before.add(producer[value])
                elif value not in ROOTS:
                    raise GraphError(f"{op.name!r} ({op.origin}) reads {value!r}, which no operation produces")
            result.append(tuple(sorted(before)))
        return tuple(result)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Op indices in a topological order; GraphError names the cycle if there is one."""
        waiting = [set(p) for p in self.predecessors]
        done: list[int] = []
        ready = [i for i, p in enumerate(waiting) if not p]
        followers: list[list[int]] = [[] for _ in self.ops]
        for i, before in enumerate(self.predecessors):
            for j in before:
                followers[j].append(i)
        while ready:
            i = ready.pop()
            done.append(i)
            for j in followers[i]:
                waiting[j].discard(i)
                if not waiting[j]:
                    ready.append(j)
        if len(done) < len(self.ops):
            import networkx as nx

            cycle = nx.find_cycle(self.to_networkx())
            raise GraphError("the step graph has a cycle: " + " -> ".join([cycle[0][0], *(v for _, v in cycle)]))
        return tuple(done)

    def to_networkx(self, weight: Callable[[Op], float] | None = None) -> networkx.DiGraph[Any]:
        """Return the graph as a networkx DiGraph with one node an op, for export and analysis.

        Nodes carry ``op``; with ``weight`` every edge carries the weight of the op it leaves, since
        networkx measures paths by their edges, and a node ``end`` closes the last ones.
        """
        import networkx as nx

        graph: networkx.DiGraph[Any] = nx.DiGraph()
        for op in self.ops:
            graph.add_node(op.name, op=op)
        for i, before in enumerate(self.predecessors):
            for j in before:
                source = self.ops[j]
                extra = {} if weight is None else {"weight": weight(source)}
                graph.add_edge(source.name, self.ops[i].name, **extra)
        if weight is not None:
            for op in self.ops:
                if graph.out_degree(op.name) == 0:
                    graph.add_edge(op.name, "end", weight=weight(op))
        return graph


def kinds_of_stages(stages: int, repeats: Iterable[tuple[int, ...]]) -> tuple[tuple[int, int], ...]:
    """Return the first stage of each kind and the number of its kind, given what each stage has of everything."""
    first: dict[tuple[int, ...], int] = {}
    number: dict[int, int] = {}
    # What stages have of one thing they mostly have of the next, so each list is looked at only once.
    different = tuple(dict.fromkeys(repeats)) if stages > 1 else ()
    for stage, has in enumerate(zip(*different, strict=True) if different else [()] * stages):
        kind = first.setdefault(has, stage)
        number[kind] = number.get(kind, 0) + 1
    return tuple(number.items())


ROOTS = frozenset({"tokens", "schemas"})
"""Values that a step starts from: token ids, and grammars of constrained requests."""


def demands_of(graph: StepGraph, *kinds: type[Demand]) -> Iterable[tuple[Op, Demand]]:
    """Yield every demand of the given kinds with its op."""
    for op in graph.ops:
        for demand in op.demands:
            if not kinds or isinstance(demand, kinds):
                yield op, demand
