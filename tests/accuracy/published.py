"""Maps published measurements to compositions and prices them, through the tool's own interfaces.

One mapping for all rows: names to catalogue ids, number formats to format names, the declared split and load
to a spec. A row that cannot be mapped says why. Every figure becomes seconds for the work that the row
measured, so that ``measured / bound`` and ``estimate / measured`` mean the same for latencies and rates.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from attrs import evolve

from servelint.composition import Composition, build_topology
from servelint.cost import Pricer
from servelint.formats import Format
from servelint.graph import Op, StepGraph
from servelint.hardware import Topology
from servelint.layout import launch
from servelint.lineage import Lineage
from servelint.manager import Plugins
from servelint.plugin import API_VERSION, hookimpl
from servelint.resources import ActivationIO, CacheIO, Collective, Demand, Matmul, StateIO, WeightRead
from servelint.review import Review
from servelint.shapes import ONCE, TOKENS, StepShape, attended_pairs, cached_tokens, decode, prefill
from servelint.spec.document import parse
from servelint.spec.model import Hardware

Figure = Callable[[StepShape], Any]
"""A pricer's method: seconds of a step."""

DATA = Path(__file__).resolve().parents[1] / "data" / "measured" / "rows.csv"

MODELS = {
    "CodeLlama-13B": "codellama/CodeLlama-13b-hf",
    "CodeLlama-34B": "codellama/CodeLlama-34b-hf",
    "DeepSeek-R1": "deepseek-ai/DeepSeek-R1",
    "DeepSeek-R1-0528": "deepseek-ai/DeepSeek-R1",
    # The published config of the distilled model is that of its base.
    "DeepSeek-R1-Distill-Qwen-14B": "Qwen/Qwen2.5-14B",
    "DeepSeek-R1/V3": "deepseek-ai/DeepSeek-V3",
    "DeepSeek-V3": "deepseek-ai/DeepSeek-V3",
    "DeepSeek-V3.2": "deepseek-ai/DeepSeek-V3.2",
    "DeepSeek-V3/R1": "deepseek-ai/DeepSeek-V3",
    "GPT-J-6B": "EleutherAI/gpt-j-6b",
    "Kimi-K2.5": "moonshotai/Kimi-K2.5",
    "Llama-13B": "huggyllama/llama-13b",
    "Llama-2-13B": "meta-llama/Llama-2-13b-hf",
    "Llama-2-70B": "meta-llama/Llama-2-70b-hf",
    "Llama-2-7B": "meta-llama/Llama-2-7b-hf",
    "Llama-3-70B": "meta-llama/Meta-Llama-3-70B",
    "Llama-3-8B": "meta-llama/Meta-Llama-3-8B",
    "Llama-3.1-405B": "meta-llama/Llama-3.1-405B",
    "Llama-3.1-70B": "meta-llama/Llama-3.1-70B",
    "Llama-3.1-8B": "meta-llama/Llama-3.1-8B",
    "Llama-3.2-3B": "meta-llama/Llama-3.2-3B",
    "Llama-3.3-70B": "meta-llama/Llama-3.3-70B-Instruct",
    "Llama-3.x-70B": "meta-llama/Llama-3.1-70B",
    "Llama-30B": "huggyllama/llama-30b",
    "Llama-33B": "huggyllama/llama-30b",
    "Llama-4-Maverick": "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "Llama-4-Scout": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "Llama-7B": "huggyllama/llama-7b",
    # M2.5 has the layer shapes of M2.
    "MiniMax-M2.5": "MiniMaxAI/MiniMax-M2",
    "Mistral-7B": "mistralai/Mistral-7B-v0.1",
    "Mixtral-8x22B": "mistralai/Mixtral-8x22B-v0.1",
    "Mixtral-8x7B": "mistralai/Mixtral-8x7B-v0.1",
    "Nemotron-3-Super-120B-A12B": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
    "Qwen-1.5-72B": "Qwen/Qwen1.5-72B",
    "Qwen3-235B-A22B": "Qwen/Qwen3-235B-A22B",
    "Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B",
    "Qwen3-Coder-480B-A35B": "Qwen/Qwen3-Coder-480B-A35B-Instruct",
    "Qwen3.5-397B-A17B": "Qwen/Qwen3.5-397B-A17B",
    "TinyLlama-1.1B": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
}

ACCELERATORS = {
    "AMD Instinct MI210 64GB": "amd/mi210-pcie-64gb",
    "AMD Instinct MI300X 192GB": "amd/mi300x-oam-192gb",
    "AMD Instinct MI325X 256GB": "amd/mi325x-oam-256gb",
    "AWS Inferentia2 (Inf2.48xlarge, 12 chips)": "aws/inferentia2",
    "AWS Trainium1 (Trn1.32xlarge, 16 chips)": "aws/trainium1",
    "Apple M2 Ultra (76-core GPU) 192GB": "apple/m2-ultra-76c",
    "Apple M3 Ultra 512GB": "apple/m3-ultra-80c",
    "Google TPU v4": "google/tpu-v4",
    "Google TPU v6e (Trillium)": "google/tpu-v6e",
    "Google TPU7x (Ironwood)": "google/tpu7x",
    "Intel Gaudi2 96GB": "intel/gaudi2-oam-96gb",
    "Intel Gaudi3 128GB": "intel/gaudi3-oam-128gb",
    # The part with the higher bandwidth of the two form factors.
    "NVIDIA A100 80GB (form factor unstated)": "nvidia/a100-sxm4-80gb",
    "NVIDIA A100 PCIe 80GB": "nvidia/a100-pcie-80gb",
    "NVIDIA A100 SXM4 40GB": "nvidia/a100-sxm4-40gb",
    "NVIDIA A100 SXM4 80GB": "nvidia/a100-sxm4-80gb",
    "NVIDIA A10G 24GB": "nvidia/a10g",
    "NVIDIA A40 48GB": "nvidia/a40",
    "NVIDIA B200 SXM 180GB": "nvidia/b200-sxm6-180gb",
    "NVIDIA B300 SXM 288GB": "nvidia/b300-sxm6-270gb",
    "NVIDIA GB200 NVL72 (per GPU)": "nvidia/gb200-nvl72-186gb",
    "NVIDIA GB300 NVL72 (per GPU)": "nvidia/gb300-nvl72-279gb",
    "NVIDIA GH200 144GB HBM3e": "nvidia/gh200-144gb",
    "NVIDIA GH200 96GB HBM3": "nvidia/gh200-96gb",
    "NVIDIA GeForce RTX 3090 24GB": "nvidia/rtx-3090",
    "NVIDIA GeForce RTX 4090 24GB": "nvidia/rtx-4090",
    "NVIDIA GeForce RTX 5090 32GB": "nvidia/rtx-5090",
    "NVIDIA H100 NVL PCIe 94GB": "nvidia/h100-nvl-94gb",
    "NVIDIA H100 PCIe 80GB": "nvidia/h100-pcie-80gb",
    "NVIDIA H100 SXM5 80GB": "nvidia/h100-sxm5-80gb",
    "NVIDIA H200 NVL PCIe 141GB": "nvidia/h200-nvl-141gb",
    "NVIDIA H200 SXM 141GB": "nvidia/h200-sxm5-141gb",
    "NVIDIA H800 SXM5 80GB": "nvidia/h800-sxm5-80gb",
    "NVIDIA L40S 48GB": "nvidia/l40s",
    "NVIDIA RTX 6000 Ada 48GB": "nvidia/rtx-6000-ada",
    "NVIDIA RTX PRO 6000 Blackwell Server 96GB": "nvidia/rtx-pro-6000-blackwell-server",
    "NVIDIA RTX PRO 6000 Blackwell Workstation 96GB": "nvidia/rtx-pro-6000-blackwell-ws",
}

WEIGHTS: dict[str, str | None] = {
    # None keeps what the checkpoint stores.
    "": None,
    "UINT4": "int4-g128",
    "awq-int4-g128": "int4-g128",
    "bf16": "bf16",
    "bf16/fp16": "bf16",
    "exl2-2.5bpw": "exl2-2.5bpw",
    "exl2-3.0bpw": "exl2-3.0bpw",
    "exl2-4.0bpw": "exl2-4.0bpw",
    "fp16": "fp16",
    "fp4": "nvfp4",
    "fp8": "fp8",
    "fp8-block128": "fp8-block128",
    "gptq-int4-g128": "int4-g128",
    "int4": "int4-g128",
    "int4 (MoE)": None,
    "int4-awq": "int4-g128",
    "int4-g32": "int4-g32",
    "int8": "int8-weight-only",
    "int8 (w8a8)": "int8",
    "mxfp4": None,
    "nvfp4": "nvfp4",
    "nvfp4 (MoE+dense FFN), bf16 attention": "nvfp4",
    "q4_k_m": "q4_k_m",
}
COVERS = {"nvfp4 (MoE+dense FFN), bf16 attention": ("mlp", "shared_experts", "routed_experts")}
"""Number formats as the sources write them."""

KV = {"bf16": "bf16", "fp16": "fp16", "bf16/fp16": "bf16", "fp8": "fp8", "fp8 or bf16 (not stated)": "fp8"}

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}

_EVERYTHING = ("attention", "mlp", "shared_experts", "routed_experts", "ssm", "lm_head")


class CommunityFormats:
    """A plugin with the formats of ExLlamaV2 that rows are measured in."""

    servelint_api = API_VERSION

    @hookimpl
    def servelint_formats(self) -> Iterator[Format]:
        """Yield them; the bits are averages over the file, tables and head included."""
        for bits in (2.5, 3.0, 4.0):
            source = (f"turboderp/exllamav2, README: {bits} bits per weight on average",)
            yield Format(f"exl2-{bits}bpw", bits, 0.0, None, 32, _EVERYTHING, sources=source)


class Row(NamedTuple):
    """One published measurement, as the data file has it; numbers are None where the source states none."""

    id: str
    source: str
    model: str
    weights: str
    kv: str
    hardware: str
    devices: int | None
    tp: int | None
    pp: int | None
    ep: int | None
    dp: int | None
    engine: str
    version: str
    phase: str
    load: str
    batch: int | None
    isl: int | None
    osl: int | None
    metric: str
    value: float
    unit: str
    use: str
    note: str


class Score(NamedTuple):
    """A priced row, all in seconds for the work that it measured. ``estimate`` is None for a mere bound."""

    row: Row
    measured: float
    bound: float
    floor: float
    sustained: float
    estimate: float | None

    @property
    def error(self) -> float:
        """Relative error of the estimate: above 0 when the tool expects more time than was measured."""
        assert self.estimate is not None
        return self.estimate / self.measured - 1

    @property
    def margin(self) -> float:
        """Measured over bound; below 1 the bound is beaten."""
        return self.measured / self.bound if self.bound else float("inf")


class UnmappedError(Exception):
    """A row that cannot be priced: the reason, and what it is about."""

    def __init__(self, reason: str, what: str = "") -> None:
        super().__init__(f"{reason}: {what}" if what else reason)
        self.reason = reason


def read_rows(path: Path = DATA) -> list[Row]:
    """Return the rows of a data file."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(record) for record in csv.DictReader(file)]


def _row(record: dict[str, str]) -> Row:
    numbers = ("devices", "tp", "pp", "ep", "dp", "batch", "isl", "osl")
    values: dict[str, Any] = dict(record)
    for name in numbers:
        values[name] = int(record[name]) if record[name] else None
    values["value"] = float(record["value"])
    return Row(**values)


@cache
def plugins() -> Plugins:
    """The installed plugins and the community formats."""
    loaded = Plugins(modules={"community-formats": CommunityFormats()})
    assert not loaded.faults, loaded.faults
    return loaded


class Split(NamedTuple):
    """Degrees of parallelism of one replica."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    data: int = 1

    @property
    def devices(self) -> int:
        """Devices of the replica."""
        return self.tensor * self.pipeline * self.data


def spec_text(row: Row, split: Split, kv: str) -> str:
    """Return the row's deployment as a spec."""
    model, accelerator = MODELS.get(row.model), ACCELERATORS.get(row.hardware)
    if accelerator is None:
        raise UnmappedError("the accelerator is not in the catalogue", row.hardware)
    if model is None:
        raise UnmappedError("the model is not in the catalogue", row.model)
    if row.weights not in WEIGHTS:
        raise UnmappedError("the number format is not in the catalogue", row.weights)
    weights = WEIGHTS[row.weights]
    lines = [
        "servelint = 1",
        "[hardware]",
        f'accelerator = "{accelerator}"',
        f"devices = {split.devices}",
        "[model]",
        f'id = "{model}"',
        "[policy.parallelism]",
        f"tensor = {split.tensor}",
        f"pipeline = {split.pipeline}",
        f"data = {split.data}",
        f"expert = {split.expert}",
        "[policy.quantization]",
        f'kv_cache = "{kv}"',
    ]
    if weights is not None:
        lines.append(f'weights = "{weights}"')
    elif row.weights == "mxfp4" and "llama.cpp" in row.engine.lower():
        # Community files keep only the experts in mxfp4; attention and tables are 8-bit there.
        lines += ['weights = "int8-weight-only"', 'covers = ["attention", "lm_head"]']
    if row.weights in COVERS:
        lines.append(f"covers = {list(COVERS[row.weights])}")
    engine = row.engine.split(" ")[0].lower()
    if plugins().engines.get(engine) is not None:
        lines += ["[engine]", f'name = "{engine}"']
    if row.load == "closed" and row.isl and row.osl and row.batch:
        # Prompts are jittered between 80 and 100 % of the nominal length.
        lines += [
            "[workload]",
            f"prompt_tokens = {0.9 * row.isl}",
            f"output_tokens = {row.osl}",
            f"concurrency = {row.batch}",
        ]
    return "\n".join(lines)


@cache
def review(text: str) -> Review:
    """Return the review of a spec; UnmappedError if it does not compose."""
    loaded = plugins()
    document = parse("row.toml", text, loaded.policies)
    assert not document.problems, (text, document.problems)
    found = Review(document, loaded, Path("."))
    if found.composition is None:
        raise UnmappedError("the deployment does not compose", str(found.infeasible or found.unresolved[0].message))
    return found


def composition(row: Row, split: Split, kv: str) -> Composition:
    """Return the composed replica of a row."""
    found = review(spec_text(row, split, kv)).composition
    assert found is not None
    return found


def bound_kv(row: Row) -> str:
    """The smallest plausible format of the cache: 8 bit where the source states none."""
    return KV.get(row.kv, "fp8")


def estimate_kv(row: Row) -> str:
    """The likely format: engines keep 16 bit unless told, TensorRT-LLM follows a quantized checkpoint."""
    if row.kv:
        return bound_kv(row)
    sixteen = row.weights in ("bf16", "fp16", "bf16/fp16")
    return "fp8" if row.engine.startswith("TensorRT-LLM") and not sixteen else "bf16"


def splits(row: Row) -> list[Split]:
    """The declared split; where none is declared, or experts may be spread otherwise, all plausible ones."""
    moe = MODELS.get(row.model) is not None and _is_moe(MODELS[row.model])
    if row.tp is not None:
        declared = Split(row.tp, row.pp or 1, row.ep or 1, row.dp or 1)
        found = [declared]
        if row.load == "offline" and moe and declared.data == 1 and declared.tensor > 1:
            t, p = declared.tensor, declared.pipeline
            found += [Split(t, p, t, 1), Split(1, p, t, t)]
        return found
    count = row.devices or 1
    found = []
    for t in _divisors(count):
        for p in _divisors(count // t):
            found.append(Split(t, p))
            if moe and t > 1:
                found += [Split(t, p, t, 1), Split(1, p, t, t)]
    return found


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@cache
def _is_moe(model: str) -> bool:
    return any(block.experts is not None for block in plugins().models.get(model).blocks)


def score(row: Row) -> Score:
    """Price a row; UnmappedError says why it cannot be."""
    if row.use == "context":
        raise UnmappedError("its source marks it as no bound", "speculation, cache hits, or a set that fits the cache")
    if row.load in ("kernel", "membw", "collective"):
        return _component(row)
    rule = {"offline": _offline, "closed": _closed, "static": _static, "decode": _decode, "prefill": _prefill}
    return rule[row.load](row)


def _scored(row: Row, measured: float, pricer: Pricer, whole: Callable[[Figure], float], estimate: Any) -> Score:
    figures = whole(pricer.bound), whole(pricer.floor), whole(pricer.sustained_bound)
    return Score(row, measured, *figures, None if row.use == "bound_only" else float(estimate))


def _replica_seconds(row: Row, split: Split, tokens: float) -> float:
    """Seconds for ``tokens`` tokens of one replica, from a rate or a latency of the row's devices."""
    if row.unit in SECONDS:
        return row.value * SECONDS[row.unit]
    devices = 1 if row.unit.endswith("/gpu") else (row.devices or 1)
    return tokens / (row.value * split.devices / devices)


def _context(row: Row, share: float = 1.0) -> float:
    """Mean tokens in the cache over the tokens that a request decodes."""
    return (row.isl or 0) * share + (row.osl or 0) / 2


def _pair(row: Row, split: Split) -> tuple[Composition, Composition]:
    """The replica as the bound takes it, and as the estimate does."""
    return composition(row, split, bound_kv(row)), composition(row, split, estimate_kv(row))


def _decode(row: Row) -> Score:
    split = splits(row)[0]
    batch = float(row.batch or 1)
    shape = decode(batch, _context(row))
    low, high = _pair(row, split)
    tokens = batch if row.metric == "output_tokens_per_s" else 1.0
    measured = _replica_seconds(row, split, tokens)
    return _scored(row, measured, low.pricer, lambda figure: float(figure(shape)), high.pricer.estimate(shape))


def _prefill(row: Row) -> Score:
    split = splits(row)[0]
    if not row.isl:
        raise UnmappedError("the prompt length is not stated")
    low, high = _pair(row, split)
    batch = float(row.batch or 1)
    # Of a jittered prompt only the shortest is certain.
    shape = prefill(row.isl * (0.8 if "jittered" in row.note else 1.0), sequences=batch)
    estimate = high.pricer.estimate(prefill(row.isl, sequences=batch))
    measured = _replica_seconds(row, split, row.isl * batch)
    return _scored(row, measured, low.pricer, lambda figure: float(figure(shape)), estimate)


def _static(row: Row) -> Score:
    """A whole batch from its prompts to its last token; no estimate where the memory does not hold it at once."""
    split = splits(row)[0]
    batch, isl, osl = float(row.batch or 1), float(row.isl or 0), float(row.osl or 0)
    if not osl:
        raise UnmappedError("the output length is not stated")
    low, high = _pair(row, split)
    prompt, step = prefill(isl, sequences=batch), decode(batch, _context(row))

    def whole(figure: Figure) -> float:
        return float(figure(prompt) + (osl - 1) * figure(step))

    scored = _scored(row, _replica_seconds(row, split, batch * osl), low.pricer, whole, whole(high.pricer.estimate))
    fits = high.memory.resident_sequences(isl + osl) >= batch
    return scored if fits else scored._replace(estimate=None)


def _closed(row: Row) -> Score:
    """A fixed number of users: the tool's own operating point against mean latencies and rates."""
    split = splits(row)[0]
    if not (row.batch and row.isl and row.osl):
        raise UnmappedError("the lengths are not stated")
    point = review(spec_text(row, split, estimate_kv(row))).operating_point
    if point is None:
        raise UnmappedError("the tool finds no operating point")
    batch = float(row.batch)
    pricer = composition(row, split, bound_kv(row)).pricer
    if row.metric == "tpot":
        shape, measured, estimate = decode(batch, _context(row, 0.8)), row.value / 1e3, point.tpot("mean")
    else:
        shape, measured = _spread(batch, row, 0.8), _replica_seconds(row, split, batch)
        estimate = batch / point.throughput
    return _scored(row, measured, pricer, lambda figure: float(figure(shape)), estimate)


def _spread(batch: Any, row: Row, share: float = 1.0) -> StepShape:
    """A decode step that carries its even share of the prompts: per request every resource's total counts."""
    osl = float(row.osl or 1)
    return decode(batch, _context(row, share))._replace(
        prefill_sequences=batch / osl, prefill_tokens=(row.isl or 0) * share
    )


def _per_step(seconds: Figure, batch: Any, row: Row, ranks: int) -> Any:
    """Least seconds of a decode step with its even share of the prompts.

    Ranks take whole prompts, so with several a step with one on each is set against as many decode steps as
    bring them in.
    """
    import numpy as np

    if ranks == 1:
        return np.asarray(seconds(_spread(batch, row)))
    steps = np.asarray(seconds(decode(batch, _context(row))))
    prompts = np.asarray(seconds(prefill(row.isl or 1, sequences=float(ranks))))
    return np.maximum(steps, prompts * batch / (ranks * float(row.osl or 1)))


def _offline(row: Row) -> Score:
    """The batch is not stated: the most tokens per second that any batch that fits allows."""
    import numpy as np

    if not row.osl:
        raise UnmappedError("the output length is not stated")
    best = [math.inf, math.inf, math.inf]
    reason: UnmappedError | None = None
    for split in splits(row):
        try:
            found = composition(row, split, bound_kv(row))
        except UnmappedError as error:
            reason = error
            continue
        pricer, ledger, context = found.pricer, found.memory, max(_context(row), 1.0)
        # All that the runtime sees, without an engine's reserves.
        room = min(
            (ledger.visible - sum(w.bytes_on(s) for w in ledger.weights)) / ledger.sequence_bytes(context, s)
            for s in range(ledger.stages)
        )
        limit = room * ledger.ranks
        if limit < 1:
            reason = UnmappedError("the weights leave no room on any split")
            continue
        for i, figure in enumerate((pricer.bound, pricer.floor, pricer.sustained_bound)):
            if row.unit == "ms":
                seconds = float(figure(decode(1.0, context)))
            else:
                batch = np.geomspace(1.0, limit, 24)
                rated = 1 if row.unit.endswith("/gpu") else row.devices or 1
                seconds = float((_per_step(figure, batch, row, ledger.ranks) / batch * split.devices / rated).min())
            best[i] = min(best[i], seconds)
    if math.isinf(best[0]):
        raise reason or UnmappedError("no split is possible")
    measured = row.value / 1e3 if row.unit == "ms" else 1 / row.value
    return Score(row, measured, best[0], best[1], best[2], None)


# Components: one kernel, one stream, one collective


_NOTE = Lineage("as measured", ())


def _component(row: Row) -> Score:
    name = ACCELERATORS.get(row.hardware)
    if name is None:
        raise UnmappedError("the accelerator is not in the catalogue", row.hardware)
    topology, _ = build_topology(plugins().accelerators.get(name), Hardware(), row.devices or 1)
    measured = row.value * SECONDS.get(row.unit, 1.0)
    shape = decode(float(row.batch or 1), float(row.isl or 0))
    demands: list[Demand]
    if row.load == "membw":
        demands, measured = [StateIO(1e9, ONCE, "replicated", _NOTE)], 1 / row.value
    elif row.load == "collective":
        match = re.match(r"(\d+) bytes", row.note)
        if match is None:
            raise UnmappedError("the message size is not stated")
        size, group = float(match[1]), row.devices or 1
        if row.metric == "busbw":
            measured = size * 2 * (group - 1) / group / (row.value * 1e9)
        demands = [Collective(size, ONCE, "replicated", _NOTE, "all_reduce", group)]
    else:
        demands, shape, measured = _kernel(row, shape, measured)
        demands.append(launch())
    pricer = Pricer(StepGraph((Op("row", ("tokens",), ("out",), tuple(demands)),)), topology)
    return _scored(row, measured, pricer, lambda figure: float(figure(shape)), float(pricer.estimate(shape)))


def _kernel(row: Row, shape: StepShape, measured: float) -> tuple[list[Demand], StepShape, float]:
    gemm = re.fullmatch(r"GEMM (\d+)x(\d+)x(\d+)", row.model)
    attention = re.fullmatch(r"GQA .*attention (\d+)q/(\d+)kv/d(\d+)", row.model)
    demands: list[Demand]
    if gemm is not None:
        m, n, k = map(float, gemm.groups())
        fmt = plugins().format(WEIGHTS.get(row.weights) or row.weights)
        if row.unit == "TFLOP/s":
            measured = 2 * m * n * k / (row.value * 1e12)
        demands = [
            WeightRead(n * k, ONCE, "replicated", _NOTE, None, fmt),
            Matmul(2 * n * k, TOKENS, "replicated", _NOTE, fmt.compute or "bf16"),
            ActivationIO(k * fmt.bytes_per_element + n * 2, TOKENS, "replicated", _NOTE),
        ]
        return demands, decode(m, 0.0), measured
    if attention is not None:
        heads, kv_heads, width = map(float, attention.groups())
        fmt = plugins().format(row.kv)
        demands = [
            Matmul(4 * heads * width, attended_pairs(), "replicated", _NOTE, fmt.compute or "bf16"),
            CacheIO(2 * kv_heads * width, cached_tokens(), "replicated", _NOTE, fmt),
        ]
        if "prefill" in row.model:
            shape = prefill(float(row.isl or 0), sequences=float(row.batch or 1))
        return demands, shape, measured
    raise UnmappedError("the kernel's shape is not stated", row.model)


def without_launches(topology: Topology) -> Topology:
    """Return the topology with kernels that cost nothing besides their rooflines."""
    return evolve(topology, efficiency=evolve(topology.efficiency, launch_s=0.0))


# What is fitted, and on what


def fitted(row: Row) -> bool:
    """Whether the time of a kernel was set on this row: serving on B200, three engines, six models."""
    return row.load == "closed" and row.hardware == "NVIDIA B200 SXM 180GB"


class Component(NamedTuple):
    """One measured fraction of a peak, or the microseconds of one small collective."""

    component: str
    hardware: str
    devices: int
    dtype: str
    value: float
    source: str


COMPONENTS = DATA.with_name("components.csv")


def read_components(path: Path = COMPONENTS) -> list[Component]:
    """Return the component facts that constants are medians of."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Component(r["component"], r["hardware"], int(r["devices"]), r["dtype"], float(r["value"]), r["source"])
            for r in csv.DictReader(file)
        ]


ARCHITECTURES = {
    "NVIDIA A100 SXM4 80GB": "Ampere (A100)",
    "NVIDIA H100 SXM5 80GB": "Hopper",
    "NVIDIA H200 SXM 141GB": "Hopper",
    "NVIDIA B200 SXM 180GB": "Blackwell (data center)",
    "NVIDIA B300 SXM 288GB": "Blackwell (data center)",
    "NVIDIA GB200 NVL72 (per GPU)": "Blackwell (data center)",
    "NVIDIA GB300 NVL72 (per GPU)": "Blackwell (data center)",
    "NVIDIA L40S 48GB": "Ada",
    "NVIDIA RTX PRO 6000 Blackwell Server 96GB": "Blackwell (RTX PRO)",
}
OVER_PCIE = ("NVIDIA L40S 48GB", "NVIDIA RTX PRO 6000 Blackwell Server 96GB", "Intel Arc Pro B60 24GB")


def compute_fractions(components: list[Component]) -> dict[str, list[float]]:
    """Fractions of the dense peak by architecture: GEMMs of 256 to 8192 rows, causal prefill attention."""
    found: dict[str, list[float]] = {}
    for c in components:
        if c.component in ("gemm_mfu", "prefill_attention_mfu") and c.hardware in ARCHITECTURES:
            found.setdefault(ARCHITECTURES[c.hardware], []).append(c.value)
    return found


def collective_us(components: list[Component]) -> dict[str, list[float]]:
    """Microseconds of all-reduces of at most 64 KiB in a captured graph by tier; over PCIe per device."""
    found: dict[str, list[float]] = {"scale_up": [], "pcie": []}
    for c in components:
        if c.component == "allreduce_latency":
            pcie = c.hardware in OVER_PCIE
            found["pcie" if pcie else "scale_up"].append(c.value / (c.devices if pcie else 1))
    return found
