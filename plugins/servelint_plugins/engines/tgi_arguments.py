"""What the arguments and the environment of Text Generation Inference set, in keys of a spec.

Sources: launcher/src/main.rs of huggingface/text-generation-inference at every tag from v0.2.0 to v3.3.7 (flags,
which are variables of the same name too; combinations that are refused), backends/v3/src/lib.rs.
"""

from __future__ import annotations

from functools import cache

from servelint.launch.flags import Flag, FlagTable, read_options
from servelint.launch.flags import read as read_flags
from servelint.launch.invocation import Invocation, Reading, Setting, Word
from servelint.releases import release
from servelint_plugins.engines.layers import Layers, from_environment, own_server, owners
from servelint_plugins.engines.tgi import CHECKED, EDGE, ENGINE, input_edge, named_room, room

PARALLEL = ("policy", "parallelism")
BATCHING = ("policy", "batching")
CACHE = ("policy", "kv_cache")
QUANTIZATION = ("policy", "quantization")
SPECULATION = ("policy", "speculation")
PROMPTS = ("max-input-tokens", "max-input-length")
"""The flag that limits a prompt, and its name before 2.0, which later releases still take."""

# Name, kind, first release with it, first release without it again.
_TABLE = """
api-key text 2.3.0
cors-allow-origin text 0.3.1
cuda-graphs text 2.0.0
cuda-memory-fraction float 0.9.4
disable-crash-reports switch 2.2.0 2.3.0
disable-custom-kernels switch 0.3.0
disable-grammar-support switch 1.4.1
disable-usage-stats switch 2.2.0 2.3.0
dtype text 0.9.0
enable-cuda-graphs switch 1.4.1 2.0.0
enable-prefill-logprobs switch 3.0.0
env switch 0.7.0
graceful-termination-timeout int 3.2.2
hostname text 0.9.1
huggingface-hub-cache text 0.3.0
json-output switch
kv-cache-dtype text 2.4.0
lora-adapters text 2.1.0
master-addr text
master-port int
max-batch-prefill-tokens int 0.9.0
max-batch-size int
max-batch-total-tokens int 0.7.0
max-best-of int 0.4.0
max-client-batch-size int 2.0.1
max-concurrent-requests int
max-input-length int
max-input-tokens int 2.0.0
max-stop-sequences int 0.3.2
max-top-n-tokens int 1.0.3
max-total-tokens int 0.3.2
max-waiting-tokens int
model-id text
ngrok switch 0.9.0
ngrok-authtoken text 0.9.0
ngrok-domain text 0.9.0 0.9.4
ngrok-edge text 0.9.4
ngrok-password text 0.9.0 0.9.4
ngrok-username text 0.9.0 0.9.4
num-shard int
otlp-endpoint text 0.3.0
otlp-service-name text 2.1.0
payload-limit int 2.4.1
port int
prometheus-port int 3.3.0
quantize text
revision text
rope-factor float 1.0.1
rope-scaling text 1.0.1
shard-uds-path text
sharded text 0.4.0
speculate int 1.3.0
tokenizer-config-path text 1.4.0
trust-remote-code switch 0.7.0
usage-stats text 2.3.0
validation-workers int 0.9.2
waiting-served-ratio float 0.7.0
watermark-delta float 0.3.2
watermark-gamma float 0.3.2
weights-cache-override text 0.3.0
"""

_PATHS = {
    "model-id": ("model", "id"),
    "max-total-tokens": ("model", "max_model_len"),
    "num-shard": (*PARALLEL, "tensor"),
    "max-batch-prefill-tokens": (*BATCHING, "max_batched_tokens"),
    "max-batch-size": (*BATCHING, "max_sequences"),
}
_INSTEAD = {"disable-usage-stats": "--usage-stats off", "disable-crash-reports": "--usage-stats no-stack"}
_SHORT = {"port": ("-p",), "env": ("-e",)}
WEIGHT_METHODS = {"bitsandbytes": "int8-weight-only", "gptq": "int4-g128"}
"""Values of ``--quantize`` that other engines mean otherwise."""


def _flag(line: str) -> Flag:
    name, kind, since, until = (*line.split(), "", "")[:4]
    return Flag(
        name, _PATHS.get(name, ()), kind, _SHORT.get(name, ()), since=since, until=until, instead=_INSTEAD.get(name, "")
    )


@cache
def table(complete: bool = False) -> FlagTable:
    """The launcher's flags; ``complete`` for releases up to the newest one that was read."""
    flags = map(_flag, _TABLE.split("\n")[1:-1])
    return FlagTable(
        "TGI", flags, checked=CHECKED, complete=complete, prefixes=False, assumed=ENGINE.assumed, owners=owners
    )


def read(invocation: Invocation, words: tuple[Word, ...], version: str | None) -> Reading:
    """Return what an invocation of the launcher sets."""
    numbers = release(version)
    whole = numbers <= release(CHECKED) and own_server(invocation, ENGINE)
    names = {name.upper().replace("-", "_"): name for name in table().flags}
    flags = Layers(
        read_options(invocation.options, table(), version),
        # A variable that a release does not know is no mistake: it does nothing.
        from_environment(invocation.env, names, table(), None),
        read_flags(words, table(whole), version),
    )
    flags.as_they_stand()
    if str(flags.value("sharded")).lower() == "false" and flags.value("num-shard") is None:
        flags.set("sharded", (*PARALLEL, "tensor"), 1)
    _sequences(flags)
    _memory(flags, invocation, version)
    _formats(flags)
    graphs = flags.get("cuda-graphs")
    if graphs is not None and graphs.largest == 0:
        flags.set("cuda-graphs", ("engine", "enforce_eager"), True)
    flags.largest(("cuda-graphs",))
    if (flags.value("speculate") or 0) > 0:
        model = str(flags.value("model-id") or "").lower()
        method = "eagle" if "medusa" in model or "accelerator" in model else "ngram"
        flags.set("speculate", (*SPECULATION, "method"), method)
        flags.set("speculate", (*SPECULATION, "tokens"))
        if not numbers or numbers >= (3, 0):
            flags.set("speculate", (*BATCHING, "chunked_prefill"), False, "drafts switch chunked prompts off")
    _refused(flags, numbers)
    name = next((name for name in PROMPTS if flags.value(name)), None)
    if name is not None:
        flags.set(name, ("model", "max_prompt_tokens"))
    if input_edge(numbers):
        _longest_prompt(flags)
    return flags.reading(table())


def _sequences(flags: Layers) -> None:
    path = (*BATCHING, "max_sequences")
    most, batch = flags.value("max-concurrent-requests"), flags.value("max-batch-size")
    if most is not None and most > 0 and (batch is None or most < batch):
        flags.set("max-concurrent-requests", path, note="requests that wait are counted too")
    prefill = flags.settings.get((*BATCHING, "max_batched_tokens"))
    if prefill is not None:
        flags.set("max-batch-prefill-tokens", (*BATCHING, "prefill_chunk"))


def _memory(flags: Layers, invocation: Invocation, version: str | None) -> None:
    share = flags.value("cuda-memory-fraction")
    stated = invocation.env.get("TGI_WIGGLE_ROOM") if named_room(release(version)) else None
    left = room(version)
    try:
        own = float(stated.text) if stated is not None else left
    except ValueError:
        own = left
    # The server refuses anything else.
    own = own if 0 < own < 1 else left
    path = (*CACHE, "memory_utilization")
    if share is not None and 0 < share <= 1:
        flags.set("cuda-memory-fraction", path, round(share * own, 6), f"{share} x {own}, which is kept of the share")
    elif stated is not None and own != left:
        flags.settings[path] = Setting(path, own, stated.place, "TGI_WIGGLE_ROOM", stated.note)
    for name in ("PREFIX_CACHING", "USE_PREFIX_CACHING"):
        word = invocation.env.get(name)
        if word is not None and not word.unresolved:
            path = (*CACHE, "prefix_reuse")
            flags.settings[path] = Setting(path, word.text.lower() in ("1", "true"), word.place, name, word.note)
    if flags.value("lora-adapters") and (*CACHE, "prefix_reuse") not in flags.settings:
        flags.set("lora-adapters", (*CACHE, "prefix_reuse"), False, "adapters switch prefix caching off")
    attention = invocation.env.get("ATTENTION")
    if attention is not None and attention.text and not attention.unresolved:
        backend = ("engine", "attention_backend")
        flags.settings[backend] = Setting(backend, attention.text, attention.place, "ATTENTION", attention.note)


def _formats(flags: Layers) -> None:
    if str(flags.value("kv-cache-dtype") or "").startswith("fp8"):
        flags.set("kv-cache-dtype", (*QUANTIZATION, "kv_cache"), "fp8")
    flags.stored("quantize", (*QUANTIZATION, "weights"), WEIGHT_METHODS)


def _refused(flags: Layers, numbers: tuple[int, ...]) -> None:
    total, capacity = flags.value("max-total-tokens"), flags.value("max-batch-total-tokens")
    name = next((name for name in PROMPTS if flags.value(name)), PROMPTS[-1])
    prompt = flags.value(name)
    if flags.value("max-input-tokens") and flags.value("max-input-length"):
        flags.trouble(
            "unsupported",
            "max-input-length",
            "--max-input-tokens and --max-input-length are the same: the launcher refuses both together",
            "leave --max-input-length out",
        )
    if total is None and (0, 9) <= numbers < (2, 0):
        total = 2048
    if prompt and total and prompt >= total:
        flags.trouble(
            "unsupported",
            name,
            f"prompts of {prompt} tokens leave no room for output in the {total} of --max-total-tokens: the launcher "
            "refuses to start",
            f"set --{name} to at most {total - 1}, or raise --max-total-tokens",
        )
    batch = flags.value("max-batch-prefill-tokens") or (4096 if (0, 9) <= numbers < (2, 0) else None)
    if prompt and batch and prompt > batch and (0, 9) <= numbers < (2, 4):
        flags.trouble(
            "unsupported",
            name,
            f"a prompt of {prompt} tokens is longer than the {batch} of --max-batch-prefill-tokens: releases before "
            "2.4 refuse to start",
            f"raise --max-batch-prefill-tokens to {prompt}",
        )
    if total and capacity and flags.value("max-total-tokens") and total > capacity:
        flags.trouble(
            "unsupported",
            "max-batch-total-tokens",
            f"a batch of {capacity} tokens cannot hold one request of {total}: the launcher refuses to start",
            f"raise it to {total}, or leave it out",
        )
    if (flags.value("num-shard") or 1) > 1 and flags.value("quantize") == "exl2":
        flags.trouble("unsupported", "quantize", "exl2 checkpoints cannot be sharded: the launcher refuses to start")
    # With Flash Attention the server measures the capacity itself and says that it ignores the flag.
    flags.used -= {"max-batch-total-tokens", *PROMPTS}


def _longest_prompt(flags: Layers) -> None:
    """Let the longest prompt say how many tokens a step takes, where nothing else does."""
    path, batch = (*BATCHING, "max_batched_tokens"), flags.value("max-batch-size")
    name = next((name for name in PROMPTS if name in flags.given), None)
    if name is None or path in flags.settings:
        return
    longest = flags.value(name)
    tokens, note = (longest * batch, "times --max-batch-size") if batch else (longest + EDGE, f"and {EDGE} tokens")
    flags.set(name, path, tokens, note)
