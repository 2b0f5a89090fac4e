"""Where a figure comes from: a tree from the figure down to spec lines and datasheet fields.

Every node has a value and says what it is; a leaf says which key, field or document it was read from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from servelint.architecture import LatentAttention
from servelint.distribution import percentile_share
from servelint.errors import CatalogueError
from servelint.lineage import Input, KeyPath, Lineage, Source, dotted
from servelint.report.cost import op_of, unit_of
from servelint.report.figures import Figures, Step, hbm_kind
from servelint.report.lineage_tree import Node
from servelint.resources import CacheIO, Collective, Demand, HostWork, Launch, Matmul, WeightRead
from servelint.service import Point

METRICS = ("ttft", "itl", "tpot", "e2e")
STEP_FIGURES = ("bound_s", "sustained_bound_s", "estimate_s", "flops", "hbm_bytes", "link_bytes")
SHOWN_PERCENTILES = ("mean", "p50", "p90", "p95", "p99")


class Explainer:
    """Builds the tree of any figure of one spec, by name."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        self.review = figures.review
        self._named: dict[str, Callable[[], Node]] = {
            "kv_bytes_per_token": self._kv_bytes_per_token,
            "kv_bytes_per_token_per_device": self._kv_bytes_per_device,
            "weights_bytes_per_device": self._weights,
            "memory_budget": self._budget,
            "kv_capacity_tokens": self._capacity,
            "max_resident_sequences": self._resident,
            "machine_balance": self._balance,
            "single_stream": self._single_stream,
            "crossover_batch": self._crossover,
        }
        for step in figures.steps:
            for figure in STEP_FIGURES:
                self._named[f"{step}.{figure}"] = partial(self._step_figure, step, figure)
        if figures.point is not None:
            self._named["operating_point"] = self._operating_point
            self._named["throughput"] = self._throughput
            for metric in METRICS:
                for percentile in SHOWN_PERCENTILES:
                    self._named[f"{metric}.{percentile}"] = partial(self._latency, metric, percentile)
            if self.review.objectives:
                self._named["knee"] = self._knee

    def figure_names(self) -> list[str]:
        """Names of the figures themselves."""
        return list(self._named)

    def op_names(self) -> list[str]:
        """Names of the ops; with ``prefill.`` or ``mixed.`` before them they are those of that step."""
        return [op.name for op, _ in self.figures.rows(self.figures.steps["decode"])]

    def key_names(self) -> list[str]:
        """Key paths of assumed values."""
        return [dotted(a.path) for a in self.review.assumptions]

    def explain(self, name: str) -> Node | None:
        """Return the tree of a figure, an op, or a key path of the spec; None when there is none."""
        for spelling in (name, name.replace(" ", "_"), f"{name}_s"):
            if spelling in self._named:
                return self._named[spelling]()
        metric, _, percentile = name.partition(".")
        if metric in METRICS and self.figures.point is not None and percentile:
            try:
                percentile_share(percentile)
            except ValueError:
                return None
            return self._latency(metric, percentile)
        op = op_of(self.figures, name)
        if op is not None:
            return self._op(*op)
        return self._key(name)

    def lacking(self, name: str) -> tuple[str, ...]:
        """Return the tables that the spec lacks for a figure that there would be with them; empty for other names."""
        metric, _, percentile = name.partition(".")
        needed: tuple[str, ...] = ()
        if name == "knee":
            needed = ("workload", "slo")
        elif name.replace(" ", "_") in ("operating_point", "throughput") or (metric in METRICS and percentile):
            needed = ("workload",)
        given = {"workload": self.review.mix is not None, "slo": bool(self.review.objectives)}
        return tuple(table for table in needed if not given[table])

    # Leaves

    def leaf(self, item: Input) -> Node:
        """Turn an input of a formula into a leaf with its documents."""
        return Node(item.name, item.value, item.unit, "", item.source, self.documents(item.source))

    def documents(self, source: Source) -> tuple[str, ...]:
        """Return the published documents, or the reason of an assumption, that a source rests on."""
        if source.kind == "datasheet":
            return self._datasheet_documents(source)
        if source.kind == "model":
            architecture = self.review.architecture
            if architecture is not None and architecture.id == source.where:
                return architecture.sources
            found = self.review.plugins.models.resolve(source.where)
            return self.review.plugins.models.get(found).sources if found else ()
        if source.kind == "format":
            return tuple(part for part in source.field.split("; ") if part)
        return ()

    def _datasheet_documents(self, source: Source) -> tuple[str, ...]:
        accelerator = self.figures.decode_side.setup.topology.accelerator
        if accelerator.id != source.where:
            try:
                accelerator = self.review.plugins.accelerators.get(source.where)
            except CatalogueError:
                return ()
        group = source.field.partition(".")[0]
        basis = (accelerator.measured_basis,) if group == "efficiency" and accelerator.measured_basis else ()
        return (*basis, *accelerator.sources.get(group, ()))

    def lineage(self, lineage: Lineage) -> tuple[Node, ...]:
        """Return the inputs of a derivation, then each change that a policy made."""
        inputs = [self.leaf(i) for i in lineage.inputs]
        changes = [
            Node(f"changed by policy.{r.by}", formula=r.formula, children=tuple(map(self.leaf, r.inputs)))
            for r in lineage.rewrites
        ]
        return (*inputs, *changes)

    def _datasheet(self, name: str, value: float, unit: str, group: str, field: str) -> Node:
        """A datasheet's figure as a leaf, or the spec's where ``hardware.override`` replaced it."""
        accelerator = self.figures.decode_side.setup.topology.accelerator
        return self.leaf(Input(name, value, unit, accelerator.source(group, field)))

    def _bandwidth(self) -> Node:
        rate = self.figures.decode_side.setup.topology.accelerator.memory_bandwidth_bytes_per_s
        return self._datasheet("memory bandwidth", rate, "B/s", "memory", "bandwidth_bytes_per_s")

    def _dense(self, precision: str, rate: float) -> Node:
        return self._datasheet(f"dense {precision} rate", rate, "FLOP/s", "compute", f"dense_flops.{precision}")

    def _rate(self, precision: str, step: Step) -> Node:
        return self._dense(*step.composition.setup.topology.accelerator.rate(precision))

    def _efficiency(self, *names: str) -> tuple[Node, ...]:
        efficiency = self.figures.decode_side.setup.topology.efficiency
        nodes = []
        for name in names:
            assumed = self.review.assumption("hardware", "efficiency", name)
            source = assumed.source if assumed else self.review.source("hardware", "efficiency", name)
            nodes.append(self.leaf(Input(f"sustained {name} fraction", getattr(efficiency, name), "", source)))
        return tuple(nodes)

    def _shape(self, step: Step) -> Node:
        return Node("step shape", step.words, source=Source("computed", step.basis))

    # Memory

    def _kv_bytes_per_token(self) -> Node:
        figures = self.figures
        architecture = figures.decode_side.setup.architecture
        blocks = {block.name: block for block in architecture.blocks}
        children = []
        for cache in figures.memory.caches:
            block = blocks.get(cache.block)
            if block is None:
                continue  # a draft's own cache
            elements = getattr(block.mixer, "cache_elements", 0)
            indexer = getattr(getattr(block.mixer, "indexer", None), "bytes_per_token", 0.0)
            if cache.held and isinstance(block.mixer, LatentAttention):
                # The window beside compressed entries; the index is of the entries.
                elements, indexer = block.mixer.entry_elements, 0.0
            width = cache.format.bytes_per_element
            model = partial(Source, "model", architecture.id)
            parts = [
                self.leaf(Input("elements per token and layer", elements, "", model("KV heads x head dims"))),
                self._format_leaf(cache.format.name, width, ("policy", "quantization", "kv_cache")),
                self.leaf(Input("layers", block.count, "", model("layers of this kind"))),
            ]
            if indexer:
                parts.append(self.leaf(Input("index bytes per token and layer", indexer, "B", model("index_head_dim"))))
            value = block.count * (elements * width + indexer)
            formula = "elements x bytes per element x layers" + (" + index bytes x layers" if indexer else "")
            children.append(Node(f"{cache.block} layers", value, "B", formula, children=tuple(parts)))
        formula = "KV bytes that one more token adds, all layers, counted once whatever the parallelism"
        return Node("kv_bytes_per_token", figures.kv_bytes_per_token, "B", formula, children=tuple(children))

    def _format_leaf(self, name: str, width: float, path: KeyPath) -> Node:
        chosen = self.review.plugins.formats.get(name)
        sources = chosen.sources if chosen is not None else ()
        source = self.review.source(*path) if self.review.declared(*path) else Source("format", name)
        return Node(f"bytes per element ({name})", width, "B", "", source, sources)

    def _kv_bytes_per_device(self) -> Node:
        memory = self.figures.memory
        children = tuple(
            Node(
                f"{c.block}: per layer",
                c.bytes_per_token,
                "B",
                c.lineage.formula,
                children=(*self.lineage(c.lineage), Node("stored as", c.format.name)),
            )
            for c in memory.caches
        )
        formula = "sum over layers on a device of the fullest stage"
        return Node("kv_bytes_per_token_per_device", memory.bytes_per_token(), "B", formula, children=children)

    def _weights(self) -> Node:
        memory = self.figures.memory
        stage = max(range(memory.stages), key=lambda s: memory.fit(s).weights)
        children = []
        for held in sorted(memory.weights, key=lambda w: -w.bytes_on(stage)):
            size = held.bytes_on(stage)
            if size:
                stored = self._format_leaf(held.format.name, held.format.bytes_per_element, ())
                layers = Node("layers on the stage", held.repeats[stage])
                params = Node("params per device and layer", held.params)
                formula = "params per device x bytes per parameter x layers"
                parts = (params, stored, layers, *self.lineage(held.lineage))
                children.append(Node(held.name, size, "B", formula, children=parts))
        where = f" of stage {stage + 1} of {memory.stages}" if memory.stages > 1 else ""
        formula = f"sum of the tensors that a device{where} holds"
        return Node("weights_bytes_per_device", memory.weights_bytes, "B", formula, children=tuple(children))

    def _budget(self) -> Node:
        memory = self.figures.memory
        lineage = memory.budget_lineage
        return Node("memory_budget", memory.budget, "B", lineage.formula, children=self.lineage(lineage))

    def _left(self) -> Node:
        memory = self.figures.memory
        stage = memory.tightest
        if memory.cache_bytes is not None:
            source = self.review.source("policy", "kv_cache", "memory_bytes")
            return self.leaf(Input("KV cache size", memory.cache_bytes, "B", source))
        fit = memory.fit(stage)
        reserves = tuple(
            Node(r.name, r.bytes, "B", r.lineage.formula, children=self.lineage(r.lineage)) for r in memory.reserves
        )
        weights = Node("weights", fit.weights, "B", "see weights_bytes_per_device")
        return Node(
            "memory for KV cache and state",
            memory.cache_left(stage),
            "B",
            "budget - weights - reserves, not below 0",
            children=(self._budget(), weights, *reserves),
        )

    def _capacity(self) -> Node:
        figures, memory = self.figures, self.figures.memory
        context = figures.max_model_len
        each = memory.sequence_bytes(context, memory.tightest)
        formula = "memory for KV / bytes of one sequence x its tokens, in whole pages, per rank"
        if memory.pool is not None:
            each = memory.pool.reported_blocks(context) * memory.pool.block_bytes[memory.tightest]
            formula = "blocks that fit / blocks of a sequence and a step x its tokens, as the engine logs it, per rank"
            if memory.pool.groups_share_blocks:
                formula = "blocks that fit / groups of layers x tokens of a block, as the engine logs it, per rank"
        return Node(
            "kv_capacity_tokens",
            figures.kv_capacity_tokens if figures.kv_capacity_tokens is not None else "not limited by a cache",
            "tok",
            formula,
            children=(
                self._left(),
                Node("bytes of one sequence", each, "B", f"of {context:,} tokens (max_model_len) on the device"),
                self._page(),
                self._kv_bytes_per_device(),
            ),
        )

    def _page(self) -> Node:
        if "kv_cache" in self.figures.decode_side.context.configs:
            return self.leaf(self.figures.decode_side.context.input("kv_cache", "page_size", "tok"))
        return Node("page size", self.figures.memory.page_size, "tok")

    def _resident(self) -> Node:
        figures, memory = self.figures, self.figures.memory
        each = memory.sequence_bytes(figures.context, memory.tightest)
        return Node(
            "max_resident_sequences",
            figures.max_resident_sequences,
            "",
            "floor(memory for KV / bytes of one sequence) x ranks",
            children=(
                self._left(),
                Node("bytes of one sequence", each, "B", f"of {figures.context:,.0f} tokens, in whole pages"),
                self._page(),
                Node("ranks", memory.ranks),
                self._kv_bytes_per_device(),
            ),
        )

    # Rooflines

    def _balance(self) -> Node:
        flops = self.figures.decode_side.setup.topology.accelerator.dense_flops
        formula = "dense rate / memory bandwidth"
        children = tuple(
            Node(precision, balance, "FLOP/B", formula, children=(self._dense(precision, flops[precision]),))
            for precision, balance in self.figures.machine_balance.items()
        )
        return Node("machine_balance", formula="by precision", children=(self._bandwidth(), *children))

    def _single_stream(self) -> Node:
        stream = self.figures.single_stream
        below = stream.balance / stream.intensity if stream.intensity else math.inf
        return Node(
            "single_stream",
            stream.ceiling_tokens_per_s,
            "tok/s",
            "memory bandwidth / weight bytes that one token reads; no cache, no latency (a bound)",
            children=(
                self._bandwidth(),
                Node("weight bytes read", stream.read_bytes, "B", "every weight on the token's path once"),
                Node("intensity", stream.intensity, "FLOP/B", "2 x params that multiply / weight bytes read"),
                Node("machine balance", stream.balance, "FLOP/B", "at the precisions of the GEMMs"),
                Node("below balance", below, "x", "machine balance / intensity"),
            ),
        )

    def _crossover(self) -> Node:
        crossover = self.figures.crossover_batch
        return Node(
            "crossover_batch",
            crossover if crossover is not None else "none: reading the weights always takes longer",
            "",
            "batch from which the GEMMs at peak take longer than reading their weights at peak",
            children=(self._bandwidth(), *self._balance().children[1:]),
        )

    # Steps

    def _step_figure(self, step_name: str, figure: str) -> Node:
        step = self.figures.steps[step_name]
        value = float(getattr(step.cost, figure))
        build = {"bound_s": self._bound, "sustained_bound_s": self._sustained, "estimate_s": self._estimate}.get(figure)
        if build is not None:
            return build(step)._replace(name=f"{step_name}.{figure}", value=value)
        unit = "FLOP" if figure == "flops" else "B"
        formula = "sum over the ops of the busiest stage"
        children = (self._shape(step), *self._contributions(step, figure))
        return Node(f"{step_name}.{figure}", value, unit, formula, children=children)

    def _contributions(self, step: Step, figure: str) -> Iterable[Node]:
        rows = step.composition.pricer.breakdown(step.shape)
        unit = "FLOP" if figure == "flops" else "B"
        for row in sorted(rows, key=lambda r: -float(getattr(r, figure))):
            amount = float(getattr(row, figure))
            if amount:
                yield Node(row.name, amount, unit, f"{row.instances:,} instances; explain {step.name}.{row.name}")

    def _bound(self, step: Step) -> Node:
        children = [self._shape(step)]
        for resource, seconds in step.composition.pricer.by_resource(step.shape).items():
            children.append(self._resource(step, resource, float(seconds)))
        formula = "the largest of the resources' times at peak rates: no schedule is faster"
        return Node("bound", float(step.cost.bound_s), "s", formula, children=tuple(children))

    def _resource(self, step: Step, resource: str, seconds: float) -> Node:
        if resource == "compute":
            totals: dict[str, float] = {}
            for op, demands in self.figures.rows(step):
                for demand, amount in demands:
                    if isinstance(demand, Matmul):
                        name, _ = step.composition.setup.topology.accelerator.rate(demand.precision)
                        totals[name] = totals.get(name, 0.0) + amount * op.count
            parts = [
                Node(f"{name} FLOPs", amount, "FLOP", "at its own rate", children=(self._rate(name, step),))
                for name, amount in totals.items()
            ]
            return Node("compute", seconds, "s", "sum over precisions of FLOPs / dense rate", children=tuple(parts))
        if resource == "hbm":
            l2 = step.composition.setup.topology.accelerator.l2_bytes
            kinds = self.figures.hbm_bytes_by_kind(step)
            parts = [Node(kind.replace("_", " "), amount, "B") for kind, amount in kinds.items() if amount]
            if l2:
                parts.append(self._datasheet("L2 capacity, which is taken off", l2, "B", "die", "l2_bytes"))
            formula = "(bytes - one L2 capacity) / memory bandwidth"
            return Node("hbm", seconds, "s", formula, children=(self._bandwidth(), *parts))
        formula = "bytes that no algorithm can avoid / one-direction bandwidth of the tier"
        return Node(resource, seconds, "s", formula, children=tuple(self._collectives(step, resource)))

    def _collectives(self, step: Step, resource: str) -> Iterable[Node]:
        topology = step.composition.setup.topology
        tier = resource.partition(":")[2]
        for op, demands in self.figures.rows(step):
            for demand, amount in demands:
                if isinstance(demand, Collective):
                    for hop in topology.hops(demand.group, demand.stride):
                        if hop.tier == tier:
                            about = f"{demand.kind} of {demand.group} devices, {op.count} instances"
                            rate = Node("one-direction bandwidth", hop.bytes_per_s, "B/s", source=self._link(tier))
                            yield Node(op.name, amount, "B", about, children=(rate,))

    def _link(self, tier: str) -> Source:
        accelerator = self.figures.decode_side.setup.topology.accelerator
        if tier == "network":
            if self.review.declared("hardware", "network", "bandwidth"):
                return self.review.source("hardware", "network", "bandwidth")
            if assumed := self.review.assumption("hardware", "network", "bandwidth"):
                return assumed.source
            return Source("default", "docs/conventions.md", "network")
        return accelerator.source("link" if tier == "scale_up" else "pcie", "")

    def _sustained(self, step: Step) -> Node:
        formula = "the bound with each resource at its sustained fraction of the peak"
        children = (*self._bound(step).children, *self._efficiency("compute", "memory", "link"))
        return Node("sustained bound", float(step.cost.sustained_bound_s), "s", formula, children=children)

    def _estimate(self, step: Step) -> Node:
        efficiency = step.composition.setup.topology.efficiency
        rows = step.composition.pricer.breakdown(step.shape)
        own = tuple(
            Node(row.name, float(row.seconds), "s", f"{row.instances:,} instances")
            for row in sorted(rows, key=lambda r: -float(r.seconds))
            if row.seconds
        )
        formula = "the longest path of the ops' own sustained times with latencies, never below the sustained bound"
        return Node(
            "estimate",
            float(step.cost.estimate_s),
            "s",
            formula,
            children=(
                self._shape(step),
                Node("sustained bound", float(step.cost.sustained_bound_s), "s", f"see {step.name}.sustained_bound_s"),
                *self._efficiency("compute", "memory", "link"),
                Node("one kernel launch", efficiency.launch_s, "s", source=efficiency.launch_source),
                Node("own times of the ops", formula="each op alone, all its instances", children=own),
            ),
        )

    def _op(self, step: Step, op: Any, demands: list[tuple[Demand, float]]) -> Node:
        row = next(r for r in step.composition.pricer.breakdown(step.shape) if r.name == op.name)
        children = []
        for demand, amount in demands:
            about = _kind(demand)
            parts = [*self.lineage(demand.lineage)]
            if isinstance(demand, WeightRead | CacheIO) and demand.format is not None:
                stored = demand.format
                parts.append(Node(f"stored as {stored.name}", stored.bytes_per_element, "B", documents=stored.sources))
            if isinstance(demand, Matmul):
                parts.append(self._rate(demand.precision, step))
            parts.append(Node("grows with", demand.feature.name))
            children.append(Node(about, amount, unit_of(demand), demand.lineage.formula, children=tuple(parts)))
        formula = f"own estimate of {row.instances:,} instances, laid by {op.origin}; what one instance asks for:"
        return Node(f"{step.name}.{op.name}", float(row.seconds), "s", formula, children=(self._shape(step), *children))

    # Service

    def _where(self, point: Point) -> tuple[Node, ...]:
        mix, review = point.service.mix, self.review
        nodes = [
            Node("sequences that decode", point.batch, "", self.figures.basis),
            Node(
                "mean context",
                mix.mean_context,
                "tok",
                "E[prompt] + E[output^2] / (2 E[output])",
                children=(
                    self._length("prompt_tokens", "mean prompt", mix.prompt.mean),
                    self._length("output_tokens", "mean output", mix.output.mean),
                ),
            ),
        ]
        rate = review.rate()
        if rate is not None:
            nodes.append(self.leaf(Input("requests per second and replica", rate, "req/s", self._rate_source())))
        elif review.declared("workload", "concurrency"):
            nodes.append(self._declared("workload", "concurrency"))
        return tuple(nodes)

    def _rate_source(self) -> Source:
        return self.review.source("workload", "rate")

    def _length(self, key: str, name: str, mean: float) -> Node:
        path = ("workload", key) if self.review.declared("workload", key) else ("workload", "trace")
        return self.leaf(Input(name, mean, "tok", self.review.source(*path)))

    def _declared(self, *path: str) -> Node:
        value = self.review.document.value(path)
        shown = value if isinstance(value, str | int | float) else str(value)
        return self.leaf(Input(dotted(path), shown, "", self.review.source(*path)))

    def _point(self) -> Point:
        point = self.figures.point
        if point is None:
            raise ValueError("the spec has no workload")
        return point

    def _pace(self, point: Point) -> tuple[Node, ...]:
        return (
            Node("step without prefill", point.plain_s, "s", "estimate; see decode.estimate_s"),
            Node(
                "step with prefill, average" if point.service.mixed else "prompts and the step after them, average",
                point.average_mixed_s,
                "s",
                "estimate; see mixed.estimate_s" if "mixed" in self.figures.steps else "estimate",
            ),
            Node(
                "share of steps with prefill", point.mixed_share, "", "prompt tokens that arrive in the time of a step"
            ),
            *self._efficiency("compute", "memory", "link"),
        )

    def _operating_point(self) -> Node:
        point = self._point()
        limits = Node(
            "most sequences at once",
            point.service.batch_limit,
            "",
            "the least of these limits",
            children=tuple(Node(name, limit) for name, limit in point.service.limits.items()),
        )
        formula = "batch = rate x time that a request decodes (Little's law), within the limits"
        children = (*self._where(point)[1:], *self._pace(point), limits)
        return Node("operating_point", point.batch, "sequences", formula, children=children)

    def _throughput(self) -> Node:
        point = self._point()
        formula = "sequences x tokens kept in a step / average step (estimate), one replica"
        kept = Node("tokens kept in a step", point.service.scheduler.yield_per_step)
        step = Node("average step", point.step_s, "s", children=self._pace(point))
        return Node("throughput", point.throughput, "tok/s", formula, children=(*self._where(point), kept, step))

    def _latency(self, metric: str, percentile: str) -> Node:
        point = self._point()
        value = point.latency(metric, percentile)
        children: list[Node] = [*self._where(point)]
        if metric in ("ttft", "e2e"):
            at = percentile if metric == "ttft" else "mean"
            children.append(self._first_token(point, at))
        if metric != "ttft":
            children.append(Node("pace of decoding", point.tpot("mean"), "s", children=self._pace(point)))
        formula = {
            "itl": "step time that this share of decoded tokens waits at most (estimate)",
            "tpot": "mean step over the tokens it yields, spread over requests (estimate)",
            "ttft": "queue + prefill + cold compile + KV transfer (estimate)",
            "e2e": "mean time to first token + the output's quantile at the mean pace (estimate)",
        }[metric]
        for o in self.review.objectives:
            if (o.metric, o.percentile) == (metric, percentile):
                source = self.review.source(*self.review.objective_path(o))
                children.append(Node("objective", o.limit_s, "s", "declared limit x (1 - headroom)", source))
        return Node(f"{metric}.{percentile}", value, "s", formula, children=tuple(children))

    def _first_token(self, point: Point, percentile: str) -> Node:
        mix, scheduler = point.service.mix, point.service.scheduler
        length = mix.prompt.mean if percentile == "mean" else mix.prompt.quantile(percentile_share(percentile))
        how = "on its own pool, with the KV transfer" if self.figures.separate else "beside decoding"
        if not point.service.mixed:
            how = "before the others decode"
        parts = [
            Node("wait for prefill, mean", point.queue_s, "s", "Kingman's G/G/1 form, exponential tail"),
            Node("wait for a sequence slot, mean", point.slot_wait[1], "s", "G/G/c in Sakasegawa's form"),
            Node("prefill side busy", point.prefill_utilization, "", "rate x mean occupancy of a prompt"),
            Node(f"prefill of {length:,.0f} prompt tokens", point.prefill_s(length), "s", how),
        ]
        if mix.prefix_hit:
            parts.append(Node("prompt tokens found in the prefix cache", mix.prefix_hit, "", "", self._hit_source()))
        if scheduler.first_token_s:
            parts.append(Node("grammar compile when cold", scheduler.first_token_s, "s"))
        return Node("time to first token", point.ttft(percentile), "s", percentile, children=tuple(parts))

    def _hit_source(self) -> Source:
        return self.review.source("workload", "prefix_hit")

    def _knee(self) -> Node:
        knee = self.review.knee
        if knee is None:
            return Node("knee", "no batch meets the SLO", children=tuple(self._objectives(None)))
        formula = "the largest batch at which every objective holds with its headroom, and prefill keeps up (estimate)"
        limit = Node("most sequences at once", knee.service.batch_limit)
        children = (
            Node("throughput", knee.throughput, "tok/s"),
            *self._objectives(knee),
            limit,
            *self._pace(knee),
        )
        return Node("knee", knee.batch, "sequences", formula, children=children)

    def _objectives(self, point: Point | None) -> Iterable[Node]:
        for o in self.review.objectives:
            source = self.review.source(*self.review.objective_path(o))
            declared = self.leaf(Input("declared", o.declared_s, "s", source))
            limit = Node("limit", o.limit_s, "s", "declared x (1 - headroom)", children=(declared,))
            value = None if point is None else point.latency(o.metric, o.percentile)
            yield Node(f"{o.metric} {o.percentile}", value, "s", children=(limit,))

    # Keys

    def _key(self, name: str) -> Node | None:
        path = _key_path(name)
        assumed = self.review.assumption(*path)
        if assumed is not None:
            value = assumed.value if isinstance(assumed.value, str | int | float) else str(assumed.value)
            return Node(name, value, "", f"assumed: {assumed.reason}", assumed.source, self.documents(assumed.source))
        if not path or not self.review.declared(*path):
            return None
        found = self.review.document.value(path)
        shown = found if isinstance(found, str | int | float) else "a table or an array"
        return Node(name, shown, "", "declared", self.review.source(*path))


def _key_path(name: str) -> KeyPath:
    path: list[str | int] = []
    for part in name.split("."):
        key, *indices = part.replace("]", "").split("[")
        path.append(key)
        path += [int(i) for i in indices if i.isascii() and i.isdigit() and len(i) < 9]
    return tuple(path)


def _kind(demand: Demand) -> str:
    if isinstance(demand, Matmul):
        return f"FLOPs at {demand.precision}"
    if isinstance(demand, Collective):
        return f"{demand.kind} message"
    if isinstance(demand, HostWork):
        return "host seconds (estimate only)"
    if isinstance(demand, Launch):
        return "kernel launches (estimate only)"
    kind = hbm_kind(demand)
    return f"{kind.replace('_', ' ')} bytes" if kind else "activation bytes (estimate only)"
