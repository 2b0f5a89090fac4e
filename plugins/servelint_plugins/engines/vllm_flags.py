"""Every flag that `vllm serve` has had: kind, releases that have it, other spellings, what took its place.

Made from the parser's definitions at the releases in `CHECKED_RELEASES` (vllm/engine/arg_utils.py,
vllm/entrypoints/openai/cli_args.py and vllm/entrypoints/cli/serve.py of vllm-project/vllm, as
red-hat-data-services/vllm-cpu and opendatahub-io/vllm keep them), and from the history of these files, whose
every added flag is here: so a name outside the table is one that no release up to `CHECKED` has.
"""

from __future__ import annotations

from functools import cache

from servelint.launch.flags import Flag, FlagTable
from servelint.lineage import KeyPath
from servelint_plugins.engines.layers import owners
from servelint_plugins.engines.vllm import ENGINE

CHECKED = "0.24.0"
CHECKED_RELEASES = (
    "0.4.3", "0.5.5", "0.6.0", "0.6.3", "0.6.6.post1", "0.7.0", "0.7.3", "0.8.5", "0.9.0", "0.9.1", "0.9.2", "0.10.0",
    "0.10.1.1", "0.11.0", "0.11.2", "0.13.0", "0.14.1", "0.16.0", "0.18.0", "0.19.1", "0.21.0", "0.24.0",
)  # fmt: skip
"""Between two of them nothing is known of a flag that only one has."""

_TABLE = """
additional-config json 0.7.0 0.7.3 -
aggregate-engine-logging switch 0.11.0 0.11.2 -
all2all-backend text 0.11.0 0.11.2 -
allow-credentials switch - - -
allow-deprecated-quantization switch 0.13.0 0.14.1 -
allowed-headers many - - -
allowed-local-media-path text 0.6.3 0.6.6.post1 -
allowed-media-domains many 0.10.1.1 0.11.0 -
allowed-methods many - - -
allowed-origins many - - -
api-key many - - -
api-server-count int 0.8.5 0.9.1 -
async-scheduling switch 0.9.2 0.10.0 -
attention-backend text 0.11.2 0.13.0 -
attention-config json 0.11.2 0.13.0 -
block-size int - - -
calculate-kv-scales switch 0.6.6.post1 0.7.0 -
chat-template text - - -
chat-template-content-format text 0.6.3 0.6.6.post1 -
chat-template-text-format text - - 0.6.6.post1
code-revision text - - -
collect-detailed-traces text 0.4.3 0.5.5 -
compilation-config json 0.6.3 0.6.6.post1 -
config text 0.5.5 0.6.0 -
config-format text 0.6.0 0.6.3 -
convert text 0.10.0 0.10.1.1 -
cp-kv-cache-interleave-size int 0.11.2 0.13.0 -
cpu-distributed-timeout-seconds int 0.21.0 0.24.0 -
cpu-offload-gb float 0.4.3 0.5.5 -
cpu-offload-params many 0.16.0 0.18.0 -
cuda-graph-sizes many 0.8.5 0.9.0 0.13.0
cudagraph-capture-sizes many 0.11.0 0.11.2 -
cudagraph-metrics switch 0.11.2 0.13.0 -
data-parallel-address text 0.8.5 0.9.0 -
data-parallel-backend text 0.9.0 0.9.1 -
data-parallel-external-lb switch 0.11.0 0.11.2 -
data-parallel-hybrid-lb switch 0.9.2 0.10.0 -
data-parallel-multi-port-external-lb switch 0.21.0 0.24.0 -
data-parallel-rank int 0.9.1 0.9.2 -
data-parallel-rpc-port int 0.8.5 0.9.0 -
data-parallel-size int 0.7.3 0.8.5 -
data-parallel-size-local int 0.8.5 0.9.0 -
data-parallel-start-rank int 0.8.5 0.9.1 -
data-parallel-supervisor-port int 0.21.0 0.24.0 -
dbo-decode-token-threshold int 0.10.1.1 0.11.0 -
dbo-prefill-token-threshold int 0.10.1.1 0.11.0 -
dcp-comm-backend text 0.16.0 0.18.0 -
dcp-kv-cache-interleave-size int 0.11.0 0.11.2 -
decode-context-parallel-size int 0.10.1.1 0.11.0 -
default-chat-template-kwargs json 0.13.0 0.14.1 -
default-mm-loras json 0.9.2 0.10.0 -
device text - - 0.10.0
device-ids text 0.21.0 0.24.0 -
diffusion-config json 0.21.0 0.24.0 -
disable-access-log-for-endpoints text 0.14.1 0.16.0 -
disable-async-output-proc switch 0.5.5 0.6.0 0.11.0
disable-cascade-attn switch 0.7.3 0.8.5 -
disable-chunked-mm-input switch 0.7.3 0.8.5 -
disable-custom-all-reduce switch - - -
disable-fastapi-docs switch 0.6.0 0.6.3 -
disable-frontend-multiprocessing switch 0.4.3 0.5.5 0.19.1
disable-hybrid-kv-cache-manager switch 0.9.0 0.9.1 -
disable-image-processor switch - - 0.6.6.post1
disable-log-requests switch - - 0.18.0
disable-log-stats switch - - -
disable-logprobs-during-spec-decoding switch 0.4.3 0.5.5 0.8.5
disable-mm-preprocessor-cache switch 0.6.3 0.6.6.post1 0.13.0
disable-nccl-for-dp-synchronization switch 0.11.0 0.11.2 -
disable-sliding-window switch - - -
disable-uvicorn-access-log switch 0.7.3 0.8.5 -
distributed-executor-backend text - - -
distributed-timeout-seconds int 0.16.0 0.18.0 -
download-dir text - - -
dp-supervisor-probe-failure-threshold int 0.21.0 0.24.0 -
dp-supervisor-probe-interval-s float 0.21.0 0.24.0 -
dp-supervisor-probe-timeout-s float 0.21.0 0.24.0 -
dtype text - - -
ec-transfer-config json 0.11.0 0.11.2 -
enable-auto-tool-choice switch 0.5.5 0.6.0 -
enable-chunked-prefill switch - - -
enable-cumem-allocator switch 0.21.0 0.24.0 -
enable-dbo switch 0.10.1.1 0.11.0 -
enable-elastic-ep switch 0.16.0 0.18.0 -
enable-ep-weight-filter switch 0.16.0 0.18.0 -
enable-eplb switch 0.9.1 0.9.2 -
enable-expert-parallel switch 0.7.3 0.8.5 -
enable-flash-late-interaction switch 0.19.1 0.21.0 -
enable-flashinfer-autotune switch 0.14.1 0.16.0 -
enable-force-include-usage switch 0.9.1 0.9.2 -
enable-layerwise-nvtx-tracing switch 0.11.2 0.13.0 -
enable-log-deltas switch 0.13.0 0.14.1 -
enable-log-outputs switch 0.10.0 0.10.1.1 -
enable-log-requests switch 0.10.0 0.10.1.1 -
enable-logging-iteration-details switch 0.13.0 0.14.1 -
enable-lora switch - - -
enable-lora-bias switch 0.6.3 0.6.6.post1 0.11.2
enable-mamba-cache-stochastic-rounding switch 0.19.1 0.21.0 -
enable-mfu-metrics switch 0.13.0 0.14.1 -
enable-mixed-moe-lora-format switch 0.21.0 0.24.0 -
enable-mm-embeds switch 0.11.0 0.11.2 -
enable-multimodal-encoder-data-parallel switch 0.9.0 0.9.1 0.13.0
enable-offline-docs switch 0.13.0 0.14.1 -
enable-prefix-caching switch - - -
enable-prompt-adapter switch 0.4.3 0.5.5 0.11.0
enable-prompt-embeds switch 0.8.5 0.9.0 -
enable-prompt-tokens-details switch 0.6.3 0.6.6.post1 -
enable-reasoning switch 0.7.0 0.7.3 0.10.0
enable-request-id-headers switch 0.6.3 0.6.6.post1 -
enable-return-routed-experts switch 0.13.0 0.14.1 -
enable-server-load-tracking switch 0.7.3 0.8.5 -
enable-sleep-mode switch 0.6.6.post1 0.7.0 -
enable-ssl-refresh switch 0.7.3 0.8.5 -
enable-tokenizer-info-endpoint switch 0.9.2 0.10.0 -
enable-tower-connector-lora switch 0.13.0 0.14.1 -
enforce-eager switch - - -
engine-use-ray switch - - 0.6.3
eplb-config json 0.10.1.1 0.11.0 -
eplb-log-balancedness switch 0.9.1 0.9.2 0.13.0
eplb-step-interval int 0.9.1 0.9.2 0.13.0
eplb-window-size int 0.9.1 0.9.2 0.13.0
exclude-tools-when-tool-choice-none switch 0.10.0 0.10.1.1 -
expand-tools-even-if-tool-choice-none switch 0.9.1 0.9.2 0.10.0
expert-placement-strategy text 0.10.1.1 0.11.0 -
fail-on-environ-validation switch 0.16.0 0.18.0 -
fingerprint-mode text 0.19.1 0.21.0 -
fingerprint-value text 0.19.1 0.21.0 -
forced-num-gpu-blocks int - - 0.6.6.post1
fully-sharded-loras switch - - -
gdn-prefill-backend text 0.16.0 0.18.0 -
generation-config text 0.6.3 0.6.6.post1 -
gpu-memory-utilization float - - -
grpc switch 0.16.0 0.18.0 -
guided-decoding-backend text - - 0.13.0
guided-decoding-disable-additional-properties switch 0.8.5 0.9.0 0.13.0
guided-decoding-disable-any-whitespace switch 0.8.5 0.9.0 0.13.0
guided-decoding-disable-fallback switch 0.8.5 0.9.0 0.13.0
h11-max-header-count int 0.9.2 0.10.0 -
h11-max-incomplete-event-size int 0.9.2 0.10.0 -
headless switch 0.8.5 0.9.1 -
help text - - -
hf-config-path text 0.7.3 0.8.5 -
hf-overrides json 0.6.3 0.6.6.post1 -
hf-token many 0.7.3 0.8.5 -
host text - - -
ignore-patterns many 0.4.3 0.5.5 -
image-feature-size int - - 0.5.5
image-input-shape text - - 0.5.5
image-input-type text - - 0.5.5
image-processor text - - 0.6.6.post1
image-processor-revision text - - 0.6.6.post1
image-token-id int - - 0.5.5
interleave-mm-strings switch 0.9.2 0.10.0 -
io-processor-plugin text 0.10.1.1 0.11.0 -
ir-op-priority json 0.19.1 0.21.0 -
jit-monitor-verbose switch 0.21.0 0.24.0 -
kernel-config json 0.14.1 0.16.0 -
kv-cache-dtype text - - -
kv-cache-dtype-skip-layers many 0.18.0 0.19.1 -
kv-cache-memory-bytes count 0.10.1.1 0.11.0 -
kv-cache-metrics switch 0.11.2 0.13.0 -
kv-cache-metrics-sample float 0.11.2 0.13.0 -
kv-events-config json 0.8.5 0.9.0 -
kv-offloading-backend text 0.11.0 0.11.2 -
kv-offloading-size float 0.11.0 0.11.2 -
kv-sharing-fast-prefill switch 0.10.0 0.10.1.1 -
kv-transfer-config json 0.6.3 0.6.6.post1 -
language-model-only switch 0.16.0 0.18.0 -
limit-mm-per-prompt text 0.4.3 0.5.5 -
linear-backend text 0.21.0 0.24.0 -
load-format text - - -
log-config-file text 0.8.5 0.9.1 -
log-error-stack switch 0.10.1.1 0.11.2 -
logits-processor-pattern text 0.6.3 0.6.6.post1 0.18.0
logits-processors many 0.10.0 0.10.1.1 -
logprobs-mode text 0.9.2 0.10.0 -
long-lora-scaling-factors many - - 0.10.0
long-prefill-token-threshold int 0.7.0 0.7.3 -
lora-dtype text - - -
lora-extra-vocab-size int - - 0.13.0
lora-modules many - - -
lora-target-modules many 0.18.0 0.19.1 -
mamba-backend text 0.19.1 0.21.0 -
mamba-block-size int 0.11.0 0.11.2 -
mamba-cache-dtype text 0.10.0 0.10.1.1 -
mamba-cache-mode text 0.14.1 0.16.0 -
mamba-cache-philox-rounds int 0.19.1 0.21.0 -
mamba-ssm-cache-dtype text 0.10.0 0.10.1.1 -
master-addr text 0.11.0 0.11.2 -
master-port int 0.11.0 0.11.2 -
max-context-len-to-capture int - - 0.6.6.post1
max-cpu-loras int - - -
max-cudagraph-capture-size int 0.11.0 0.11.2 -
max-log-len int - - -
max-logprobs int - - -
max-long-partial-prefills int 0.7.0 0.7.3 -
max-lora-rank int - - -
max-loras int - - -
max-model-len count - - -
max-num-batched-tokens count - - -
max-num-partial-prefills int 0.7.0 0.7.3 -
max-num-seqs count - - -
max-paddings int - - 0.6.6.post1
max-parallel-loading-workers int - - -
max-prompt-adapter-token int 0.4.3 0.5.5 0.10.0
max-prompt-adapters int 0.4.3 0.5.5 0.10.0
max-seq-len-to-capture int - - 0.11.0
media-io-kwargs json 0.9.1 0.9.2 -
middleware each - - -
mm-cache-preprocessor switch - - 0.6.6.post1
mm-encoder-attn-backend text 0.11.0 0.11.2 -
mm-encoder-attn-dtype text 0.19.1 0.21.0 -
mm-encoder-fp8-scale-path text 0.19.1 0.21.0 -
mm-encoder-fp8-scale-save-margin float 0.19.1 0.21.0 -
mm-encoder-fp8-scale-save-path text 0.19.1 0.21.0 -
mm-encoder-only switch 0.14.1 0.16.0 -
mm-encoder-tp-mode text 0.10.1.1 0.11.0 -
mm-placeholder-str-override json - - -
mm-processor-cache-gb float 0.10.0 0.10.1.1 -
mm-processor-cache-type text 0.10.1.1 0.11.0 -
mm-processor-kwargs json 0.6.0 0.6.3 -
mm-shm-cache-max-object-size-mb int 0.10.1.1 0.11.0 -
mm-tensor-ipc text 0.18.0 0.19.1 -
model text - - -
model-impl text 0.7.0 0.7.3 -
model-loader-extra-config json - - -
moe-backend text 0.16.0 0.18.0 -
multi-step-stream-outputs switch 0.6.0 0.6.3 0.10.1.1
ngram-prompt-lookup-max int - - 0.8.5
ngram-prompt-lookup-min int - - 0.8.5
nnodes int 0.11.0 0.11.2 -
node-rank int 0.11.0 0.11.2 -
num-gpu-blocks-override int - - -
num-lookahead-slots int - - 0.13.0
num-redundant-experts int 0.9.1 0.9.2 0.13.0
num-scheduler-steps int 0.4.3 0.5.5 0.10.1.1
num-speculative-tokens int - - 0.8.5
numa-bind switch 0.19.1 0.21.0 -
numa-bind-cpus many 0.19.1 0.21.0 -
numa-bind-nodes many 0.19.1 0.21.0 -
offload-backend text 0.16.0 0.18.0 -
offload-group-size int 0.16.0 0.18.0 -
offload-num-in-group int 0.16.0 0.18.0 -
offload-params many 0.16.0 0.18.0 -
offload-prefetch-step int 0.16.0 0.18.0 -
optimization-level int 0.11.2 0.13.0 -
otlp-traces-endpoint text 0.4.3 0.5.5 -
override-attention-dtype text 0.9.1 0.9.2 -
override-generation-config json 0.7.0 0.7.3 -
override-neuron-config json 0.5.5 0.6.0 0.11.0
override-pooler-config json 0.6.3 0.6.6.post1 0.13.0
performance-mode text 0.16.0 0.18.0 -
pipeline-parallel-size int - - -
pooler-config json 0.10.1.1 0.11.0 -
pooling-norm switch - - 0.6.6.post1
pooling-returned-token-ids many - - 0.6.6.post1
pooling-softmax switch - - 0.6.6.post1
pooling-step-tag-id int - - 0.6.6.post1
pooling-type text - - 0.6.6.post1
port int - - -
preemption-mode text 0.4.3 0.5.5 0.11.0
prefill-context-parallel-size int 0.11.2 0.13.0 -
prefill-schedule-interval int 0.21.0 0.24.0 -
prefix-caching-hash-algo text 0.7.3 0.8.5 -
profiler-config json 0.11.2 0.13.0 -
prompt-adapters many 0.4.3 0.5.5 0.10.0
pt-load-map-location text 0.8.5 0.9.0 -
qlora-adapter-name-or-path text 0.4.3 0.5.5 0.10.0
quantization text - - -
quantization-config json 0.21.0 0.24.0 -
quantization-param-path text - - 0.7.0
ray-workers-use-nsight switch - - -
reasoning-config json 0.18.0 0.19.1 -
reasoning-parser text 0.7.0 0.7.3 -
reasoning-parser-plugin text 0.11.0 0.11.2 -
renderer-num-workers int 0.18.0 0.19.1 -
response-role text - - -
return-tokens-as-token-ids switch 0.4.3 0.5.5 -
revision text - - -
root-path text - - -
rope-scaling json - - 0.11.2
rope-theta float 0.4.3 0.5.5 0.11.2
runner text 0.10.0 0.10.1.1 -
safetensors-load-strategy text 0.10.1.1 0.11.0 -
safetensors-prefetch-block-size int 0.19.1 0.21.0 -
safetensors-prefetch-num-threads int 0.19.1 0.21.0 -
scheduler-cls text 0.7.0 0.7.3 -
scheduler-delay-factor float - - 0.11.0
scheduler-reserve-full-isl switch 0.18.0 0.19.1 -
scheduling-policy text 0.6.0 0.6.3 -
seed int - - -
served-model-name many - - -
show-hidden-metrics-for-version text 0.7.3 0.8.5 -
shutdown-timeout int 0.16.0 0.18.0 -
skip-mm-profiling switch 0.10.0 0.10.1.1 -
skip-tokenizer-init switch - - -
spec-decoding-acceptance-method text 0.4.3 0.5.5 0.8.5
spec-method text 0.21.0 0.24.0 -
spec-model text 0.21.0 0.24.0 -
spec-tokens int 0.21.0 0.24.0 -
specialize-active-lora switch 0.14.1 0.16.0 -
speculative-config json 0.7.3 0.8.5 -
speculative-disable-by-batch-size int - - 0.8.5
speculative-disable-mqa-scorer switch 0.6.0 0.6.3 0.8.5
speculative-draft-tensor-parallel-size int 0.4.3 0.5.5 0.8.5
speculative-max-model-len int - - 0.8.5
speculative-model text - - 0.8.5
speculative-model-quantization text 0.4.3 0.5.5 0.8.5
ssl-ca-certs text - - -
ssl-cert-reqs int - - -
ssl-certfile text - - -
ssl-ciphers text 0.14.1 0.16.0 -
ssl-keyfile text - - -
stream-interval int 0.11.0 0.11.2 -
structured-outputs-config json 0.10.1.1 0.11.0 -
swap-space float - - 0.18.0
task text 0.6.3 0.6.6.post1 0.13.0
tensor-parallel-size int - - -
tokenizer text - - -
tokenizer-mode text - - -
tokenizer-pool-extra-config json - - 0.10.0
tokenizer-pool-size int - - 0.10.0
tokenizer-pool-type text - - 0.10.0
tokenizer-revision text - - -
tokens-only switch 0.10.1.1 0.11.2 -
tool-call-parser text 0.5.5 0.6.0 -
tool-parser-plugin text 0.6.0 0.6.3 -
tool-server text 0.10.0 0.10.1.1 -
trust-remote-code switch - - -
trust-request-chat-template switch 0.10.1.1 0.11.2 -
typical-acceptance-sampler-posterior-alpha float 0.4.3 0.5.5 0.8.5
typical-acceptance-sampler-posterior-threshold float 0.4.3 0.5.5 0.8.5
ubatch-size int 0.13.0 0.14.1 -
uds text 0.10.0 0.10.1.1 -
use-dummy-weights switch - - 0.6.6.post1
use-fp64-gumbel switch 0.21.0 0.24.0 -
use-np-weights switch - - 0.6.6.post1
use-tqdm-on-load switch 0.7.3 0.8.5 -
use-v2-block-manager switch - - 0.10.0
uvicorn-log-level text - - -
video-pruning-rate float 0.10.1.1 0.11.0 -
watermark float 0.21.0 0.24.0 -
weight-transfer-config json 0.14.1 0.16.0 -
worker-cls text 0.6.3 0.6.6.post1 -
worker-extension-cls text 0.7.3 0.8.5 -
worker-use-ray switch - - 0.7.0
"""
"""Name, kind, the newest release known not to have it yet, the first known to have it, the first known to have it
no more; ``-`` where none is."""

_ALIASES: dict[str, tuple[str, ...]] = {
    "api-server-count": ("-asc",),
    "attention-config": ("-ac",),
    "compilation-config": ("-cc",),
    "data-parallel-address": ("-dpa",),
    "data-parallel-backend": ("-dpb",),
    "data-parallel-external-lb": ("-dpe",),
    "data-parallel-hybrid-lb": ("-dph",),
    "data-parallel-multi-port-external-lb": ("-dpm",),
    "data-parallel-rank": ("-dpn",),
    "data-parallel-rpc-port": ("-dpp",),
    "data-parallel-size": ("-dp",),
    "data-parallel-size-local": ("-dpl",),
    "data-parallel-start-rank": ("-dpr",),
    "decode-context-parallel-size": ("-dcp",),
    "diffusion-config": ("-dc",),
    "enable-expert-parallel": ("-ep",),
    "help": ("-h",),
    "nnodes": ("-n",),
    "node-rank": ("-r",),
    "pipeline-parallel-size": ("-pp",),
    "prefill-context-parallel-size": ("-pcp",),
    "quantization": ("-q",),
    "speculative-config": ("-sc",),
    "speculative-draft-tensor-parallel-size": ("-spec-draft-tp",),
    "tensor-parallel-size": ("-tp",),
}

_PATHS: dict[str, KeyPath] = {
    "attention-backend": ("engine", "attention_backend"),
    "block-size": ("policy", "kv_cache", "page_size"),
    "data-parallel-size": ("policy", "parallelism", "data"),
    "decode-context-parallel-size": ("policy", "parallelism", "context"),
    "enable-chunked-prefill": ("policy", "batching", "chunked_prefill"),
    "enable-prefix-caching": ("policy", "kv_cache", "prefix_reuse"),
    "gpu-memory-utilization": ("policy", "kv_cache", "memory_utilization"),
    "kv-cache-memory-bytes": ("policy", "kv_cache", "memory_bytes"),
    "max-model-len": ("model", "max_model_len"),
    "max-num-batched-tokens": ("policy", "batching", "max_batched_tokens"),
    "max-num-seqs": ("policy", "batching", "max_sequences"),
    "pipeline-parallel-size": ("policy", "parallelism", "pipeline"),
    "scheduling-policy": ("policy", "batching", "admission"),
    "tensor-parallel-size": ("policy", "parallelism", "tensor"),
}
"""Flags whose value a key of the spec takes as it stands."""

_DRAFT = "--speculative-config and its key "
_INSTEAD = {
    "cuda-graph-sizes": "--cudagraph-capture-sizes",
    "disable-mm-preprocessor-cache": "--mm-processor-cache-gb 0",
    "enable-multimodal-encoder-data-parallel": "--mm-encoder-tp-mode data",
    "enable-reasoning": "--reasoning-parser alone",
    "engine-use-ray": "--distributed-executor-backend ray",
    "eplb-log-balancedness": "--eplb-config and its key log_balancedness",
    "eplb-step-interval": "--eplb-config and its key step_interval",
    "eplb-window-size": "--eplb-config and its key window_size",
    "guided-decoding-backend": "--structured-outputs-config and its key backend",
    "guided-decoding-disable-additional-properties": "--structured-outputs-config and its key "
    "disable_additional_properties",
    "guided-decoding-disable-any-whitespace": "--structured-outputs-config and its key disable_any_whitespace",
    "guided-decoding-disable-fallback": "--structured-outputs-config and its key disable_fallback",
    "max-context-len-to-capture": "--max-cudagraph-capture-size, which limits tokens of a step",
    "max-seq-len-to-capture": "--max-cudagraph-capture-size, which limits tokens of a step",
    "ngram-prompt-lookup-max": f"{_DRAFT}prompt_lookup_max",
    "ngram-prompt-lookup-min": f"{_DRAFT}prompt_lookup_min",
    "num-redundant-experts": "--eplb-config and its key num_redundant_experts",
    "num-speculative-tokens": f"{_DRAFT}num_speculative_tokens",
    "override-pooler-config": "--pooler-config",
    "rope-scaling": "--hf-overrides with the model's rope_scaling",
    "rope-theta": "--hf-overrides with the model's rope_theta",
    "speculative-disable-by-batch-size": f"{_DRAFT}disable_by_batch_size",
    "speculative-draft-tensor-parallel-size": f"{_DRAFT}draft_tensor_parallel_size",
    "speculative-max-model-len": f"{_DRAFT}max_model_len",
    "speculative-model": f"{_DRAFT}model",
    "speculative-model-quantization": f"{_DRAFT}quantization",
    "task": "--runner and --convert",
    "worker-use-ray": "--distributed-executor-backend ray",
}
"""What took the place of a flag; the others that are gone do nothing any more, or are the default."""


def _flag(line: str) -> Flag:
    name, kind, before, since, until = ("" if part == "-" else part for part in line.split())
    return Flag(
        name,
        _PATHS.get(name, ()),
        kind,
        _ALIASES.get(name, ()),
        since=since,
        until=until,
        instead=_INSTEAD.get(name, ""),
        before=before,
    )


@cache
def table(complete: bool = True) -> FlagTable:
    """The flags of vLLM's server. Unambiguous beginnings of names are taken, ``_`` and ``-`` are the same.

    Not ``complete`` for a program that adds flags of its own.
    """
    flags = map(_flag, _TABLE.split("\n")[1:-1])
    return FlagTable("vLLM", flags, checked=CHECKED, complete=complete, assumed=ENGINE.assumed, owners=owners)
