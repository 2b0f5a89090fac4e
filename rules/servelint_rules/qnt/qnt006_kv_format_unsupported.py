"""QNT006 kv-format-unsupported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from servelint.lineage import KeyPath, dotted
from servelint.plugin import (
    Case,
    CatalogueError,
    Composition,
    Edit,
    Finding,
    Fix,
    Format,
    Input,
    Lacks,
    LatentAttention,
    Related,
    Review,
    Rule,
    Severity,
    Source,
)
from servelint.releases import release
from servelint_rules.qnt.weights import written

PATH: KeyPath = ("policy", "quantization", "kv_cache")
BACKEND: KeyPath = ("engine", "attention_backend")
GGML = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
READS: dict[str, tuple[tuple[str, ...], str]] = {
    "vllm": (("fp8", "int8", "nvfp4"), "vllm-project/vllm vllm/config/cache.py"),
    "sglang": (("fp8", "mxfp8", "mxfp4", "nvfp4"), "sgl-project/sglang python/sglang/srt/server_args.py"),
    "tensorrt-llm": (("fp8", "int8", "nvfp4"), "NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py"),
    "tgi": (("fp8",), "huggingface/text-generation-inference launcher/src/main.rs"),
    "llama.cpp": (GGML, "ggml-org/llama.cpp common/arg.cpp"),
}
"""Formats under 16 bits that any release of an engine keeps a KV cache in, and where it says so."""

FLASH = ("FLASH_ATTN", "FLASH_ATTN_VLLM_V1")
FLASH_FILE = "vllm-project/vllm vllm/v1/attention/backends/flash_attn.py"
TRITON_FILE = "vllm-project/vllm vllm/v1/attention/backends/triton_attn.py"
READ_IN_REFUSALS = (0, 11, 2)
"""From this vLLM release on its plugin knows what the FlashAttention backend refuses."""

CHECKED = (0, 26)
"""The newest vLLM release whose backends were read."""
V1_ALONE = (0, 11)
"""From this vLLM release on there is one engine core, whose backends read E4M3 in hardware."""
TRITON_E4M3 = (0, 19)
"""The newest vLLM release that vllm-project/vllm#26431 speaks of: its Triton kernels do not compile for E4M3."""
SPARSE_LISTS = (0, 21)
"""From this vLLM release on the backends of sparse latent attention list what they read, for all models alike."""
SPARSE_12 = (0, 24)
"""From this vLLM release on one of them is for compute capability 12.x."""

FP8_CONVERSIONS = (8, 9)
FP8_ANYWHERE = (7, 5)
"""Compute capabilities: from the first Triton compiles E4M3, below the second no backend reads it."""

NO_INT8_LATENT = ("vllm", "sglang")
SPARSE_LAYOUT = ("deepseek_v32",)
"""Model types for which vLLM takes the layout of sparse latent attention whatever FP8 is asked for."""

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
[policy.quantization]
kv_cache = "fp8"
"""
LATENT = """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
[model]
id = "zai-org/GLM-5.2-FP8"
max_model_len = 8192
[engine]
name = "vllm"
[policy.parallelism]
tensor = 8
[policy.quantization]
kv_cache = "fp8_e4m3" # expect: QNT006
"""


class Problem(NamedTuple):
    """Why nothing reads a cache in this format: what is said, by whom, how sure, and the other key that decides.

    ``help`` begins with what ``edit`` does; ``use`` is a format that the help proposes before it, where that is read.
    """

    message: str
    source: Source
    severity: Severity
    equation: str = ""
    other: KeyPath = ()
    help: str = "leave the cache in 16 bit"
    use: str = ""
    edit: tuple[KeyPath, str] = (PATH, '"auto"')


class KvFormatUnsupported(Rule):
    """No kernel of this engine, backend or device reads a KV cache in the declared format.

    What it checks
    --------------
    ``policy.quantization.kv_cache`` in fewer than 16 bits: formats of weights, formats that no release of the named
    engine has, FP8 for FlashAttention outside compute capability 9.x, FP8 E4M3 in Triton below 8.9 and anywhere
    below 7.5, NVFP4 without FP4 units, int8 for latent attention and plain FP8 elements for its sparse kind,
    llama.cpp's block formats without flash attention. Where the release is declared and was read, also what it
    chooses by itself, and what the assumed one does where none is declared. Silent where the engine's
    plugin knows that the release refuses it (ENG004).

    Why it is bad
    -------------
    The server exits at start or at the first request, or keeps the cache in 16 bit: then half of the sequences that
    were planned do not fit.

    The arithmetic
    --------------
    None: which formats a kernel reads is a list. Errors are what no release has; what depends on the release, or on a
    kernel that the engine chooses, is a warning.

    How to fix
    ----------
    The format, backend or device of the help line.

    Source
    ------
    The files that the finding names; vllm-project/vllm#26431 and #24577 (FP8 on Ampere by backend),
    vllm-project/recipes#565 (sparse latent attention); llama.cpp src/llama-context.cpp (quantized V needs flash
    attention).
    """

    code = "QNT006"
    name = "kv-format-unsupported"
    severity = Severity.ERROR
    questions = ("does it start", "may I quantize this")
    failing = (
        Case(
            "a format of weights",
            SPEC.replace('"fp8"', '"fp8-block128" # expect: QNT006'),
            flip=("policy.quantization.kv_cache", '"fp8"'),
        ),
        Case(
            "a block format of llama.cpp in vLLM",
            SPEC.replace('"fp8"', '"q8_0" # expect: QNT006'),
            flip=("engine.name", '"llama.cpp"'),
        ),
        Case(
            "FP8 in llama.cpp",
            SPEC.replace('"vllm"', '"llama.cpp"').replace('"fp8"', '"fp8" # expect: QNT006'),
            flip=("policy.quantization.kv_cache", '"q8_0"'),
        ),
        Case(
            "FlashAttention reads FP8 on Hopper only",
            SPEC.replace("nvidia/h100-sxm5-80gb", "nvidia/a100-sxm4-80gb").replace(
                'name = "vllm"', 'name = "vllm"\nattention_backend = "FLASH_ATTN" # expect: QNT006'
            ),
            flip=("engine.attention_backend", '"FLASHINFER"'),
        ),
        Case(
            "E4M3 in Triton on compute capability 8.6",
            SPEC.replace("nvidia/h100-sxm5-80gb", "nvidia/rtx-3090").replace(
                'name = "vllm"', 'name = "vllm"\nattention_backend = "TRITON_ATTN"'
            ).replace('"fp8"', '"fp8" # expect: QNT006'),
            flip=("hardware.accelerator", '"nvidia/l40s"'),
        ),
        Case(
            "NVFP4 without FP4 units",
            SPEC.replace('"vllm"', '"tensorrt-llm"').replace('"fp8"', '"nvfp4" # expect: QNT006')
            + '[[evidence]]\nkind = "task-eval"\nartifact = "llama-3.1-8b-nvfp4-kv"\ntasks = { code = -0.4 }\n',
            flip=("hardware.accelerator", '"nvidia/b200-sxm6-180gb"'),
        ),
        Case(
            "plain FP8 for sparse latent attention",
            LATENT,
            flip=("policy.quantization.kv_cache", '"fp8"'),
        ),
        Case(
            "plain FP8 for sparse latent attention in a release that was read",
            LATENT.replace('"vllm"', '"vllm"\nversion = "0.22.0"'),
            flip=("hardware.accelerator", '"nvidia/b200-sxm6-180gb"'),
        ),
        Case(
            "the backend that a release takes by itself",
            SPEC.replace("nvidia/h100-sxm5-80gb", "nvidia/rtx-3090")
            .replace("8192", "4096")
            .replace('"vllm"', '"vllm"\nversion = "0.11.0"')
            .replace('"fp8"', '"fp8" # expect: QNT006'),
            flip=("engine.version", '"0.11.2"'),
        ),
        Case(
            "the backend that the assumed release takes by itself",
            SPEC.replace("nvidia/h100-sxm5-80gb", "nvidia/a100-sxm4-80gb").replace('"fp8"', '"fp8" # expect: QNT006'),
            flip=("hardware.accelerator", '"nvidia/l40s"'),
        ),
        Case(
            "a block format without flash attention",
            SPEC.replace('"vllm"', '"llama.cpp"').replace('"fp8"', '"q8_0" # expect: QNT006')
            + '[policy.attention]\nkernel = "naive"\n',
            flip=("policy.quantization.kv_cache", '"fp16"'),
        ),
    )  # fmt: skip
    passing = (
        Case("FP8 in vLLM", SPEC),
        Case(
            "FP8 on Ampere through FlashInfer",
            SPEC.replace("nvidia/h100-sxm5-80gb", "nvidia/a100-sxm4-80gb").replace(
                'name = "vllm"', 'name = "vllm"\nattention_backend = "FLASHINFER"'
            ),
        ),
        Case(
            "E4M3 in Triton from compute capability 8.9 on",
            SPEC.replace("nvidia/h100-sxm5-80gb", "nvidia/l4").replace(
                'name = "vllm"', 'name = "vllm"\nattention_backend = "TRITON_ATTN"'
            ),
        ),
        Case(
            "E5M2 on Volta",
            SPEC.replace("nvidia/h100-sxm5-80gb", "nvidia/v100-sxm2-32gb")
            .replace("meta-llama/Llama-3.1-8B", "meta-llama/Llama-2-7b-hf")
            .replace("max_model_len = 8192", "max_model_len = 4096")
            .replace('"fp8"', '"fp8_e5m2"'),
        ),
        Case(
            "the layout of sparse latent attention",
            LATENT.replace('"fp8_e4m3" # expect: QNT006', '"fp8"'),
        ),
        Case("a block format in llama.cpp", SPEC.replace('"vllm"', '"llama.cpp"').replace('"fp8"', '"q8_0"')),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look the format up for the engine, then for backend, attention and device."""
        config = review.policy("quantization")
        composition = review.composition
        if composition is None or config is None:
            yield Lacks("a composed deployment")
            return
        if config.kv_cache in (None, "auto") or any(path in (PATH, BACKEND) for path, _, _ in review.refusals):
            return
        try:
            format_ = review.plugins.format(config.kv_cache)
        except CatalogueError:
            return
        if format_.bits >= 16 or not any(c.elements for c in composition.memory.caches):
            return
        problem = next(problems(review, composition, format_, _spelled(review, config.kv_cache)), None)
        if problem is None:
            return
        path = BACKEND if problem.other == BACKEND else PATH
        related = PATH if path == BACKEND else problem.other
        help_, edit = _remedy(review, composition, problem)
        yield Finding(
            path,
            problem.message,
            equation=problem.equation,
            inputs=(review.policy_input("quantization", "kv_cache"), Input("reads", format_.name, "", problem.source)),
            help=help_,
            related=(Related(related, _about(related)),) if related and review.declared(*related) else (),
            fix=Fix(f"set {dotted(edit.path)} to {edit.text}", (edit,)) if written(review, edit.path) else None,
            severity=problem.severity,
        )


def _remedy(review: Review, composition: Composition, problem: Problem) -> tuple[str, Edit]:
    """The help line, and the edit that does what it says first."""
    if problem.use:
        other = review.plugins.format(problem.use)
        if next(problems(review, composition, other, problem.use), None) is None:
            return f'use "{problem.use}", or {problem.help}', Edit(PATH, f'"{problem.use}"')
    return problem.help, Edit(*problem.edit)


def _about(path: KeyPath) -> str:
    return {"kv_cache": "the format of the cache", "kernel": "the kernel", "accelerator": "the device"}.get(
        str(path[-1]), "what it is for"
    )


def _spelled(review: Review, name: str) -> str:
    """The format as the spec or the engine's arguments spell it."""
    set_by = review.document.settings.get(PATH)
    return f"{name} {set_by.note}" if set_by is not None else name


def problems(review: Review, composition: Composition, format_: Format, spelled: str) -> Iterator[Problem]:
    """What keeps the engine, or its kernels on these devices, from reading a KV cache in a format."""
    engine = review.engine.name if review.engine is not None else ""
    accelerator = composition.setup.topology.accelerator
    capability = accelerator.capability
    shown = accelerator.compute_capability or ""
    reads, file = READS.get(engine, ((), ""))
    listed = ", ".join(reads)
    if engine in READS and format_.name not in reads:
        yield Problem(
            f"no release of {engine} keeps a KV cache in {format_.name}: under 16 bits it has {listed}",
            Source("engine", file, "kv cache dtype"),
            Severity.ERROR,
            other=("engine", "name"),
            use=reads[0] if reads else "",
        )
    if not format_.kv_cache and format_.name not in reads:
        yield Problem(
            f"{format_.name} is a format of weights, and no engine keeps a KV cache in it",
            format_.source,
            Severity.ERROR,
            use="fp8",
        )
    naive = review.policy("attention")
    if format_.name in GGML and naive is not None and naive.kernel == "naive":
        yield Problem(
            f"a cache in {format_.name} needs flash attention: the plain kernel reads values in 16 bit only",
            Source("engine", "ggml-org/llama.cpp src/llama-context.cpp", "type_v"),
            Severity.ERROR,
            other=("policy", "attention", "kernel"),
            help='set policy.attention.kernel = "flash", or leave the cache in 16 bit',
            edit=(("policy", "attention", "kernel"), '"flash"'),
        )
    if format_.name == "nvfp4" and not {"fp4", "nvfp4"} & {*accelerator.native_formats, *accelerator.dense_flops}:
        yield Problem(
            f"kernels that read an NVFP4 cache need FP4 units, and {accelerator.name} ({accelerator.architecture}) has "
            "none",
            accelerator.source("native", "formats"),
            Severity.WARNING,
            f"fp4 is not among {', '.join(accelerator.native_formats)}",
            ("hardware", "accelerator"),
            use="fp8",
        )
    latent = any(isinstance(b.mixer, LatentAttention) for b in composition.setup.architecture.blocks)
    if format_.name == "int8" and latent and engine in NO_INT8_LATENT:
        yield Problem(
            f"kernels of latent attention (MLA) in {engine} read a cache in 16 bit or FP8, not in int8",
            Source("engine", "vllm-project/vllm vllm/v1/attention/backends/mla", "supported_kv_cache_dtypes"),
            Severity.WARNING,
            other=("model", "id"),
            use="fp8",
        )
    sparse = any(
        isinstance(b.mixer, LatentAttention) and b.mixer.indexer is not None
        for b in composition.setup.architecture.blocks
    )
    numbers = release(review.engine_version)[:3]
    own_layout = composition.setup.architecture.model_type in SPARSE_LAYOUT and numbers < SPARSE_LISTS
    if engine == "vllm" and sparse and re.search("e4m3|e5m2", spelled) and not own_layout:
        read = SPARSE_LISTS <= numbers[:2] <= CHECKED
        if read and "e4m3" in spelled and capability and capability[0] in _sparse_e4m3(numbers):
            return
        yield Problem(
            "vLLM's backends of sparse latent attention read a cache in 16 bit or in their own layout, fp8_ds_mla, and "
            "refuse plain FP8 elements" + (f" on compute capability {shown}" if read and shown else ""),
            Source("engine", "vllm-project/vllm vllm/v1/attention/backends/mla", "supported_kv_cache_dtypes"),
            Severity.ERROR if read and capability else Severity.WARNING,
            other=("model", "id"),
            help='leave the cache in 16 bit, or name the layout (--kv-cache-dtype fp8_ds_mla, here "fp8")',
        )
    if format_.name != "fp8" or "e5m2" in spelled or not capability or engine not in ("vllm", "sglang"):
        return
    backend = (review.deployment.engine.attention_backend or "").upper()
    if engine == "vllm" and backend in FLASH and capability[0] != 9 and (not numbers or numbers < READ_IN_REFUSALS):
        yield Problem(
            f"vLLM's FlashAttention reads an FP8 cache in its version 3 only, which runs on compute capability 9.x; "
            f"{accelerator.name} has {shown}",
            Source("engine", FLASH_FILE, "supports_kv_cache_dtype"),
            Severity.WARNING,
            f"{shown} is not 9.x",
            BACKEND,
            'set engine.attention_backend = "FLASHINFER", or leave the cache in 16 bit',
            edit=(BACKEND, '"FLASHINFER"'),
        )
        return
    # 0.11.0 and 0.11.1 take Triton for an FP8 cache; later ones prefer FlashInfer.
    assumed = review.engine.assumed if review.engine is not None and not numbers else ""
    takes = engine == "vllm" and not backend and V1_ALONE <= (numbers or release(assumed)) < READ_IN_REFUSALS
    triton = (backend.startswith("TRITON") or takes) and capability < FP8_CONVERSIONS and not latent
    if capability < FP8_ANYWHERE or triton:
        least = FP8_ANYWHERE if capability < FP8_ANYWHERE else FP8_CONVERSIONS
        taken = (
            f"Triton, which {assumed}, the assumed release, takes," if assumed else "Triton, which this release takes,"
        )
        where = "every backend" if least == FP8_ANYWHERE else taken if takes else "Triton"
        newest = CHECKED if least == FP8_ANYWHERE else TRITON_E4M3
        certain = engine == "vllm" and V1_ALONE <= numbers[:2] <= newest and not latent
        yield Problem(
            f"reading FP8 E4M3 in {where} needs compute capability {least[0]}.{least[1]}, and {accelerator.name} has "
            f"{shown}",
            Source("engine", TRITON_FILE, "fp8e4nv"),
            Severity.ERROR if certain else Severity.WARNING,
            f"{shown} < {least[0]}.{least[1]}",
            ("hardware", "accelerator"),
            "leave the cache in 16 bit"
            + ("" if least == FP8_ANYWHERE else ', or use the backend "FLASHINFER"')
            + (
                ", or state a release from 0.11.2 on, which prefers it"
                if takes and assumed and least == FP8_CONVERSIONS
                else ""
            ),
        )


def _sparse_e4m3(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Major compute capabilities on which a backend of sparse latent attention reads plain E4M3."""
    return (10, 12) if numbers >= SPARSE_12 else (10,)
