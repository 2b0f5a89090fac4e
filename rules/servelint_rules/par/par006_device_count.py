"""PAR006 device-count."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Edit, Finding, Fix, Input, Lacks, Related, Review, Rule, Severity
from servelint_rules.show import counted

DEGREES = ("tensor", "pipeline", "data", "context")


class DeviceCount(Rule):
    """The degrees of parallelism do not multiply to the devices of a replica.

    What it checks
    --------------
    Tensor x pipeline x data (x context, where it has devices of its own) against ``hardware.devices``, when both
    are declared. Pools of disaggregated serving have devices of their own and are PAR002's.

    Why it is bad
    -------------
    With too few devices the engine refuses to start. With too many the rest is paid for and idles.

    The arithmetic
    --------------
    ``tensor x pipeline x data x context = devices``. Experts and attention data parallelism use the devices of
    these groups and add none; a context degree that divides the tensor degree shares its devices.

    How to fix
    ----------
    Set the devices, or a degree, to the number that the help line gives.

    Source
    ------
    vllm/config/parallel.py (world size); docs/cost-model.md, parallelism and collectives.
    """

    code = "PAR006"
    name = "device-count"
    severity = Severity.ERROR
    questions = ("does it start", "is it too expensive")
    failing = (
        Case(
            "four ranks on one device",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 1
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.parallelism]
tensor = 4 # expect: PAR006
""",
            flip=("hardware.devices", "4"),
        ),
        Case(
            "one device of two idles",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 2 # expect: PAR006
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.parallelism]
tensor = 1
""",
            flip=("hardware.devices", "1"),
        ),
        Case(
            "data ranks multiply tensor-parallel groups",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.parallelism]
tensor = 8
data = 2 # expect: PAR006
""",
            flip=("policy.parallelism.data", "1"),
        ),
    )
    passing = (
        Case(
            "the product is the number of devices",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.parallelism]
tensor = 2
pipeline = 2
data = 2
""",
        ),
        Case(
            "a context degree within the tensor-parallel group",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 8192
[policy.parallelism]
tensor = 8
context = 8
""",
        ),
        Case(
            "degrees alone say how many devices there are",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.parallelism]
tensor = 4
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Multiply the declared degrees."""
        policies = review.deployment.policies
        config, devices = policies.get("parallelism"), review.deployment.hardware.devices
        declared = [d for d in DEGREES if review.declared("policy", "parallelism", d)]
        if config is None or devices is None or not declared or "disaggregation" in policies:
            yield Lacks("hardware.devices and degrees of policy.parallelism")
            return
        needed = next(
            (p.devices(config) for p in review.plugins.policies if p.name == "parallelism" and p.devices is not None),
            None,
        )
        # A context degree that divides the tensor degree may share its devices or have its own.
        if needed is None or devices in (needed, needed * config.c):
            return
        # A tensor degree that is left out takes what the other degrees leave.
        if "tensor" not in declared and devices % needed == 0:
            return
        product = " x ".join(f"{d} {getattr(config, d)}" for d in declared)
        last = max(declared, key=lambda d: (getattr(config, d) > 1, DEGREES.index(d)))
        at: KeyPath = ("policy", "parallelism", last)
        few = needed > devices
        path: KeyPath = at if few else ("hardware", "devices")
        need = "needs" if len(declared) == 1 else "need"
        yield Finding(
            path,
            f"{product} {need} {counted(needed, 'device')}, and a replica has {devices}"
            + (
                ": the engine cannot start"
                if few
                else f": {devices - needed} of them {'is' if devices - needed == 1 else 'are'} idle"
            ),
            equation=f"{product} = {needed} {'>' if few else '<'} {counted(devices, 'device')}",
            inputs=(
                *(review.input(d, getattr(config, d), "", "policy", "parallelism", d) for d in declared),
                Input("devices", devices, "", review.source("hardware", "devices")),
            ),
            help=f"set hardware.devices = {needed}, or degrees whose product is {devices}",
            related=(Related(("hardware", "devices") if few else at, counted(devices, "device") if few else product),),
            fix=Fix(f"set devices to {needed}", (Edit(("hardware", "devices"), str(needed)),)),
            severity=Severity.ERROR if few else Severity.WARNING,
        )
