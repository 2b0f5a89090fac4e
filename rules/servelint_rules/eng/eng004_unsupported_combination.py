"""ENG004 unsupported-combination."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.plugin import Case, Finding, Input, Lacks, Review, Rule, Severity

BF16 = """\
servelint = 1
[hardware]
accelerator = "nvidia/v100-sxm2-32gb"
[model]
id = "Qwen/Qwen2.5-1.5B"
max_model_len = 4096
[engine]
name = "vllm"
version = "0.8.5"
args = "--dtype auto"
"""
FP8 = """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.4.1"
[policy.quantization]
weights = "fp8"
"""


class UnsupportedCombination(Rule):
    """The engine refuses this combination of model, device and settings at start.

    What it checks
    --------------
    What the engine's plugin knows the declared release to refuse: formats below the compute capability that their
    kernels need, batches that cannot hold a prompt, drafts with pipeline stages, context parallelism that does not
    divide the heads, and so on. Silent where no release is declared, and for releases that nobody looked at. What the
    engine's reader of launch arguments knows to be refused together is reported with and without a release.

    Why it is bad
    -------------
    The server exits at start, after the node with the accelerators was waited for and the weights were loaded.

    The arithmetic
    --------------
    That of the engine's own check, in the message.

    How to fix
    ----------
    Change the key that the finding points at, or use a release without the limit.

    Source
    ------
    The engine's source at the file that the finding names; docs/engines.md lists the releases.
    """

    code = "ENG004"
    name = "unsupported-combination"
    severity = Severity.ERROR
    questions = ("does it start",)
    failing = (
        Case(
            "a step that cannot hold one token of each sequence",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
[policy.batching]
max_sequences = 513
max_batched_tokens = 512 # expect: ENG004
""",
            flip=("policy.batching.max_sequences", "512"),
        ),
        Case(
            "a prompt that no step can hold, without chunks",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8193
[engine]
name = "vllm"
version = "0.11.2"
[policy.batching]
max_batched_tokens = 8192 # expect: ENG004
chunked_prefill = false
""",
            flip=("model.max_model_len", "8192"),
        ),
        Case(
            "a bf16 checkpoint where the device has no bf16, in a release that does not convert it",
            BF16.replace('Qwen2.5-1.5B"', 'Qwen2.5-1.5B" # expect: ENG004'),
            flip=("engine.args", '"--dtype half"'),
        ),
        Case(
            "FP8 on Ampere in the release that asks for Hopper",
            FP8.replace('"fp8"', '"fp8" # expect: ENG004'),
            flip=("policy.quantization.weights", '"int4-g128"'),
        ),
        Case(
            "arguments that refuse each other in every release",
            """\
servelint = 1
[engine]
name = "tgi"
args = "--max-input-tokens 8192 --max-total-tokens 8192" # expect: ENG004
""",
            flip=("engine.args", '"--max-input-tokens 8191 --max-total-tokens 8192"'),
        ),
    )
    passing = (
        Case("the first release that converts it", BF16.replace("0.8.5", "0.9.0")),
        Case(
            "as many tokens as sequences",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
[policy.batching]
max_sequences = 512
max_batched_tokens = 512
""",
        ),
        Case(
            "no release declared",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
[policy.batching]
max_sequences = 513
max_batched_tokens = 512
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Report what the engine's reader of arguments says is refused, then what its plugin says of the deployment."""
        told = set()
        launched = review.document.launched
        for about, trouble in launched.named_troubles().items() if launched is not None else ():
            if trouble.kind == "unsupported":
                told.add(trouble.place)
                yield Finding(("engine", "args", about), trouble.message, help=trouble.help)
        setup = review.setup
        if setup is None:
            return
        if setup.engine_version is None:
            yield Lacks("engine.version")
            return
        for path, message, source in review.refusals:
            if review.document.place(path) in told:
                # The arguments' reader has said why that value is refused.
                continue
            yield Finding(
                path,
                f"{setup.engine.name} {setup.engine_version} refuses this at start: {message}",
                inputs=(Input("engine", f"{setup.engine.name} {setup.engine_version}", "", source),),
            )
