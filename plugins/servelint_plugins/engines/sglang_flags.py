"""Every flag that SGLang's server has at the releases read: kind, releases, other spellings, what took its place.

Made from the parser's definitions in python/sglang/srt/server_args.py (from 0.5.16 also
python/sglang/srt/arg_groups/fields/) of sgl-project/sglang, as the wheels of `CHECKED_RELEASES` hold them.
"""

from __future__ import annotations

from functools import cache

from servelint.launch.flags import Flag, FlagTable
from servelint.lineage import KeyPath
from servelint.releases import release
from servelint_plugins.engines.layers import owners
from servelint_plugins.engines.sglang import ENGINE

CHECKED_RELEASES = (
    "0.4.3.post4", "0.4.6.post5", "0.4.9.post6", "0.5.1.post3", "0.5.3.post3", "0.5.5.post3", "0.5.7", "0.5.9",
    "0.5.12", "0.5.16", "0.5.20", "0.5.23",
)  # fmt: skip
"""Between two of them nothing is known of a flag that only one has, and of a flag that neither has."""

CHECKED = CHECKED_RELEASES[-1]
WHOLE = frozenset(release(version) for version in CHECKED_RELEASES if "post" not in version)
"""Releases of which every flag is known, so that another name is one that the parser refuses."""

# Name, kind, newest release without it, oldest release with it, oldest release without it again, spellings, instead.
_TABLE = """
abort-on-priority-when-disabled switch 0.5.3 0.5.5 -
admin-api-key text 0.5.7 0.5.9 -
allow-auto-truncate switch - - -
allowed-media-domains many 0.5.16 0.5.20 -
api-key text - - -
asr-max-buffer-seconds int 0.5.12 0.5.16 -
asr-max-concurrent-sessions int 0.5.12 0.5.16 -
attention-backend text - - -
attn-cp-size int 0.5.7 0.5.9 - attention-context-parallel-size
attn-dp-size int 0.5.20 0.5.23 - attention-data-parallel-size
base-gpu-id int - - -
batch-notify-size int 0.5.9 0.5.12 -
bf16-gemm-backend text 0.5.12 0.5.16 -
boundary-reduction text 0.5.20 0.5.23 -
bucket-e2e-request-latency many 0.4.3 0.4.6 -
bucket-inter-token-latency many 0.4.3 0.4.6 -
bucket-time-to-first-token many 0.4.3 0.4.6 -
c128-page-size int 0.5.16 0.5.20 -
chat-template text - - -
checkpoint-engine-wait-weights-before-ready switch 0.5.3 0.5.5 -
chunked-prefill-size int - - -
collect-tokens-histogram switch 0.4.3 0.4.6 0.5.20
completion-template text 0.4.3 0.4.6 -
config text 0.5.1 0.5.3 -
constrained-json-disable-any-whitespace switch 0.5.1 0.5.3 -
constrained-json-max-whitespace-cnt int 0.5.20 0.5.23 -
constrained-json-whitespace-pattern text - - -
context-length int - - -
cp-strategy text 0.5.12 0.5.16 -
cpu-offload-gb int - - -
crash-dump-folder text 0.4.6 0.4.9 -
crash-on-nan text 0.5.1 0.5.3 0.5.6
cuda-graph-backend-decode text 0.5.12 0.5.16 -
cuda-graph-backend-prefill text 0.5.12 0.5.16 -
cuda-graph-bs many - - 0.5.20 - --cuda-graph-bs-decode
cuda-graph-bs-decode many 0.5.12 0.5.16 -
cuda-graph-bs-prefill many 0.5.12 0.5.16 -
cuda-graph-config text 0.5.12 0.5.16 -
cuda-graph-max-bs int - - 0.5.20 - --cuda-graph-max-bs-decode
cuda-graph-max-bs-decode int 0.5.12 0.5.16 -
cuda-graph-max-bs-prefill int 0.5.12 0.5.16 -
cuda-graph-max-seq-len-prefill int 0.5.20 0.5.23 -
cuda-graph-prefill-max-context int 0.5.20 0.5.23 - context-bucket
cuda-graph-tc-compiler text 0.5.12 0.5.16 0.5.23
custom-sigquit-handler text 0.5.5 0.5.7 0.5.16
custom-weight-loader many 0.4.6 0.4.9 -
dcp-comm-backend text 0.5.16 0.5.20 -
dcp-replicate-q-proj switch 0.5.16 0.5.20 -
dcp-size int 0.5.12 0.5.16 - decode-context-parallel-size
debug-cuda-graph switch 0.5.9 0.5.12 -
debug-tensor-dump-inject text - - 0.5.16
debug-tensor-dump-input-file text - - -
debug-tensor-dump-layers many 0.5.3 0.5.5 -
debug-tensor-dump-output-folder text - - -
debug-tensor-dump-prefill-only switch 0.4.6 0.4.9 0.5.4
decode-attention-backend text 0.4.6 0.4.9 -
decode-log-interval int - - -
decoupled-spec-bind-endpoint text 0.5.12 0.5.16 -
decoupled-spec-connect-endpoints text 0.5.12 0.5.16 -
decoupled-spec-rank int 0.5.12 0.5.16 -
decoupled-spec-role text 0.5.12 0.5.16 -
decrypted-config-file text 0.5.3 0.5.5 -
decrypted-draft-config-file text 0.5.3 0.5.5 -
deepep-config text 0.4.3 0.4.6 -
deepep-dispatcher-output-dtype text 0.5.12 0.5.16 -
deepep-mode text 0.4.3 0.4.6 -
deepep-v2-mode text 0.5.16 0.5.20 -
default-chat-template-kwargs text 0.5.12 0.5.16 -
default-priority-value int 0.5.9 0.5.12 -
delete-ckpt-after-loading switch - - -
detokenizer-worker-num int 0.5.9 0.5.12 -
device text - - -
disable-aiter-allreduce-fusion-in-decode switch 0.5.20 0.5.23 -
disable-aiter-allreduce-fusion-in-prefill switch 0.5.20 0.5.23 -
disable-attn-tp-gather switch 0.5.12 0.5.16 -
disable-chunked-prefix-cache switch 0.4.3 0.4.6 -
disable-cuda-graph switch - - -
disable-cuda-graph-padding switch - - -
disable-custom-all-reduce switch - - -
disable-decode-cuda-graph switch 0.5.12 0.5.16 -
disable-fast-image-processor switch 0.4.3 0.4.6 -
disable-flashinfer-autotune switch 0.5.5 0.5.7 -
disable-flashinfer-cutlass-moe-fp4-allgather switch 0.4.9 0.5.1 -
disable-hicache-numa-detect switch 0.5.7 0.5.9 0.5.12
disable-hybrid-swa-memory switch 0.4.6 0.4.9 -
disable-mla switch - - 0.4.7
disable-outlines-disk-cache switch - - -
disable-overlap-schedule switch - - -
disable-piecewise-cuda-graph switch 0.5.9 0.5.12 0.5.20 - --cuda-graph-backend-prefill disabled
disable-prefill-cuda-graph switch 0.5.12 0.5.16 -
disable-priority-preemption switch 0.5.9 0.5.12 -
disable-radix-cache switch - - -
disable-shared-experts-fusion switch 0.4.6 0.4.9 -
disable-tokenizer-batch-decode switch 0.5.3 0.5.5 -
disaggregation-bootstrap-port int 0.4.3 0.4.6 -
disaggregation-decode-allocation-policy text 0.5.20 0.5.23 -
disaggregation-decode-dp int 0.4.6 0.4.9 0.5.12
disaggregation-decode-enable-fake-auto switch 0.5.5 0.5.7 0.5.9
disaggregation-decode-enable-offload-kvcache switch 0.5.1 0.5.3 -
disaggregation-decode-enable-radix-cache switch 0.5.9 0.5.12 -
disaggregation-decode-extra-slots int 0.5.12 0.5.16 -
disaggregation-decode-host-receive-threshold float 0.5.20 0.5.23 -
disaggregation-decode-polling-interval int 0.5.1 0.5.3 -
disaggregation-decode-retraction-backup text 0.5.16 0.5.20 -
disaggregation-decode-tp int 0.4.6 0.4.9 0.5.12
disaggregation-enable-kv-checksum switch 0.5.20 0.5.23 -
disaggregation-ib-device text 0.4.3 0.4.6 -
disaggregation-mode text 0.4.3 0.4.6 -
disaggregation-prefill-pp int 0.4.6 0.4.9 0.5.12
disaggregation-transfer-backend text 0.4.3 0.4.6 -
dist-init-addr text - - - nccl-init-addr
dist-timeout int - - -
dllm-algorithm text 0.5.5 0.5.7 -
dllm-algorithm-config text 0.5.5 0.5.7 -
dllm-fdfo switch 0.5.12 0.5.16 -
download-dir text - - -
dp-size int - - - data-parallel-size,dp
ds-channel-config-path text - - 0.5.12
ds-heavy-channel-num int - - 0.5.12
ds-heavy-channel-type text - - 0.5.12
ds-heavy-token-num int - - 0.5.12
ds-sparse-decode-threshold int - - 0.5.12
dsa-decode-backend text 0.5.12 0.5.16 -
dsa-paged-mqa-logits-backend text 0.5.12 0.5.16 -
dsa-prefill-backend text 0.5.12 0.5.16 -
dsa-prefill-cp-mode text 0.5.12 0.5.16 0.5.20 - --cp-strategy
dsa-topk-backend text 0.5.12 0.5.16 -
dsa-triton-union int 0.5.20 0.5.23 -
dsv4-attn-backend text 0.5.16 0.5.20 -
dsv4-prefill-backend text 0.5.16 0.5.20 -
dtype text - - -
dwdp-size int 0.5.16 0.5.20 -
dynamic-batch-tokenizer-batch-size int 0.5.1 0.5.3 -
dynamic-batch-tokenizer-batch-timeout float 0.5.1 0.5.3 -
elastic-ep-backend text 0.5.1 0.5.3 -
elastic-ep-initial-size int 0.5.12 0.5.16 -
elastic-ep-join-mode text 0.5.12 0.5.16 -
elastic-ep-join-rank-offset int 0.5.12 0.5.16 -
elastic-ep-rejoin switch 0.5.9 0.5.12 0.5.23 - --elastic-ep-join-mode recover
elastic-ep-scale-timeout float 0.5.12 0.5.16 -
enable-adaptive-dispatch-to-encoder switch 0.5.9 0.5.12 -
enable-aiter-allreduce-fusion switch 0.5.9 0.5.12 -
enable-amd-monokernel switch 0.5.20 0.5.23 -
enable-attn-tp-input-scattered switch 0.5.3 0.5.5 -
enable-beta-spec switch 0.5.1 0.5.3 0.5.6
enable-breakable-cuda-graph switch 0.5.9 0.5.12 0.5.20 - --cuda-graph-backend-prefill breakable
enable-broadcast-mm-inputs-process switch 0.5.3 0.5.5 -
enable-cache-report switch - - -
enable-cp-decode-attn-tp switch 0.5.16 0.5.20 -
enable-cudagraph-gc switch 0.4.9 0.5.1 -
enable-custom-logit-processor switch - - -
enable-decoder-swa-bounded-replay switch 0.5.20 0.5.23 -
enable-deepep-moe switch 0.4.3 0.4.6 0.5.6 - --moe-a2a-backend deepep
enable-deepep-waterfill switch 0.5.9 0.5.12 0.5.16
enable-deepseek-v4-fp4-indexer switch 0.5.12 0.5.16 -
enable-dense-mlp-attn-tp switch 0.5.16 0.5.20 -
enable-deterministic-inference switch 0.5.1 0.5.3 -
enable-double-sparsity switch - - 0.5.12
enable-dp-attention switch - - -
enable-dp-attention-local-control-broadcast switch 0.5.9 0.5.12 -
enable-dp-lm-head switch 0.4.3 0.4.6 -
enable-draft-weights-cpu-backup switch 0.5.3 0.5.5 -
enable-dsa-cache-layer-split switch 0.5.12 0.5.16 -
enable-dsa-fused-indexer switch 0.5.20 0.5.23 -
enable-dsa-prefill-context-parallel switch 0.5.12 0.5.16 0.5.20 - --enable-prefill-cp
enable-dynamic-batch-tokenizer switch 0.5.1 0.5.3 -
enable-dynamic-chunking switch 0.5.5 0.5.7 -
enable-elastic-expert-backup switch 0.5.9 0.5.12 -
enable-encoder-swa-bounded-replay switch 0.5.20 0.5.23 -
enable-ep-moe switch - - 0.5.6 - --ep-size
enable-eplb switch 0.4.3 0.4.6 -
enable-expert-distribution-metrics switch 0.4.3 0.4.6 0.5.20
enable-flashinfer-allreduce-fusion switch 0.4.6 0.4.9 -
enable-flashinfer-cutedsl-moe switch 0.5.1 0.5.3 0.5.6 - --moe-runner-backend flashinfer_cutedsl
enable-flashinfer-cutlass-moe switch 0.4.6 0.4.9 0.5.6 - --moe-runner-backend flashinfer_cutlass
enable-flashinfer-mla switch - - 0.4.10 - --attention-backend flashinfer
enable-flashinfer-mxfp4-moe switch 0.4.9 0.5.1 0.5.6 - --moe-runner-backend flashinfer_mxfp4
enable-flashinfer-trtllm-moe switch 0.4.6 0.4.9 0.5.6 - --moe-runner-backend flashinfer_trtllm
enable-flashmla switch 0.4.3 0.4.6 0.4.10 - --attention-backend flashmla
enable-flexkv switch 0.5.12 0.5.16 -
enable-forward-pass-metrics switch 0.5.9 0.5.12 -
enable-fp32-lm-head switch 0.5.1 0.5.3 -
enable-fused-moe-sum-all-reduce switch 0.5.9 0.5.12 -
enable-fused-qk-norm-rope switch 0.5.5 0.5.7 -
enable-gdn-replayssm-spec switch 0.5.12 0.5.16 0.5.20
enable-hierarchical-cache switch - - - enable-hicache
enable-hisparse switch 0.5.9 0.5.12 -
enable-http-worker-reuseport switch 0.5.20 0.5.23 -
enable-http2 switch 0.5.9 0.5.12 -
enable-int8-mamba-checkpoint switch 0.5.12 0.5.16 -
enable-kv-cache-sharding switch 0.5.20 0.5.23 -
enable-layernorm-sp switch 0.5.16 0.5.20 -
enable-layerwise-nvtx-marker switch 0.5.3 0.5.5 -
enable-lean-attention text 0.5.16 0.5.20 -
enable-linear-replayssm switch 0.5.12 0.5.16 -
enable-linear-replayssm-spec switch 0.5.16 0.5.20 -
enable-linker-mla-dedup switch 0.5.20 0.5.23 -
enable-lmcache switch 0.5.1 0.5.3 -
enable-lora text 0.4.6 0.4.9 -
enable-lora-overlap-loading text 0.5.7 0.5.9 -
enable-mamba-cache-stochastic-rounding switch 0.5.12 0.5.16 -
enable-megamoe-for-layernorm-sp switch 0.5.20 0.5.23 -
enable-memory-saver switch - - -
enable-metrics switch - - -
enable-metrics-for-all-schedulers switch 0.4.6 0.4.9 -
enable-mfu-metrics switch 0.5.9 0.5.12 -
enable-mis switch 0.5.9 0.5.12 -
enable-mixed-chunk switch - - -
enable-mm-global-cache switch 0.5.9 0.5.12 -
enable-mscclpp switch 0.4.6 0.4.9 -
enable-multi-layer-eagle switch 0.5.5 0.5.7 -
enable-multimodal text 0.4.3 0.4.6 -
enable-nan-detection switch - - 0.5.16
enable-nccl-nvls switch - - -
enable-nsa-prefill-context-parallel switch 0.5.5 0.5.7 0.5.20 - --enable-prefill-cp
enable-nvidia-megakernel switch 0.5.20 0.5.23 -
enable-p2p-check switch - - -
enable-page-major-kv-layout switch 0.5.12 0.5.16 -
enable-paged-experts switch 0.5.20 0.5.23 -
enable-pd-role-switch switch 0.5.20 0.5.23 -
enable-pdmux switch 0.4.6 0.4.9 -
enable-piecewise-cuda-graph switch 0.5.1 0.5.3 0.5.16
enable-precise-embedding-interpolation switch 0.5.5 0.5.7 -
enable-prefill-context-parallel switch 0.5.9 0.5.12 0.5.20 - --enable-prefill-cp
enable-prefill-cp switch 0.5.12 0.5.16 -
enable-prefill-delayer switch 0.5.7 0.5.9 -
enable-prefix-mm-cache switch 0.5.5 0.5.7 -
enable-priority-scheduling switch 0.5.1 0.5.3 -
enable-profile-cuda-graph switch 0.4.6 0.4.9 -
enable-quant-communications text 0.5.9 0.5.12 -
enable-request-time-stats-logging switch 0.4.3 0.4.6 -
enable-response-store switch 0.5.16 0.5.20 -
enable-return-aux-hidden-states switch 0.5.20 0.5.23 -
enable-return-hidden-states switch 0.4.6 0.4.9 -
enable-return-indexer-topk switch 0.5.9 0.5.12 -
enable-return-routed-experts switch 0.5.5 0.5.7 -
enable-scattered-sconv switch 0.5.12 0.5.16 -
enable-session-radix-cache switch 0.5.12 0.5.16 -
enable-shared-experts-attn-tp switch 0.5.16 0.5.20 -
enable-single-batch-overlap switch 0.5.1 0.5.3 -
enable-ssl-refresh switch 0.5.9 0.5.12 -
enable-streaming-session switch 0.5.9 0.5.12 -
enable-strict-thinking switch 0.5.9 0.5.12 -
enable-symm-mem switch 0.4.9 0.5.1 -
enable-tf32-matmul switch 0.5.12 0.5.16 -
enable-tokenizer-batch-encode switch 0.4.3 0.4.6 -
enable-torch-compile switch - - -
enable-torch-compile-debug-mode switch 0.5.5 0.5.7 -
enable-torch-symm-mem switch 0.5.1 0.5.3 -
enable-tp-lm-head-all-to-all switch 0.5.16 0.5.20 -
enable-trace switch 0.5.1 0.5.3 -
enable-triton-kernel-moe switch 0.4.6 0.4.9 0.5.6 - --moe-runner-backend triton_kernel
enable-two-batch-overlap switch 0.4.6 0.4.9 -
enable-unified-cache-external-linker switch 0.5.16 0.5.20 -
enable-unified-memory switch 0.5.12 0.5.16 -
enable-w4a4-mxfp4-megamoe switch 0.5.16 0.5.20 -
enable-waterfill switch 0.5.12 0.5.16 -
enable-watermark switch 0.5.20 0.5.23 -
enable-weights-cpu-backup switch 0.5.1 0.5.3 -
encoder-bootstrap-port int 0.5.12 0.5.16 -
encoder-only switch 0.5.5 0.5.7 -
encoder-register-urls many 0.5.12 0.5.16 -
encoder-transfer-backend text 0.5.5 0.5.7 -
encoder-urls many 0.5.5 0.5.7 -
enforce-disable-flashinfer-allreduce-fusion switch 0.5.9 0.5.12 -
enforce-piecewise-cuda-graph switch 0.5.9 0.5.12 0.5.20 - --cuda-graph-backend-prefill tc_piecewise
enforce-shared-experts-fusion switch 0.5.9 0.5.12 -
engine-info-bootstrap-port int 0.5.9 0.5.12 -
ep-dispatch-algorithm text 0.4.3 0.4.6 -
ep-num-redundant-experts int 0.4.3 0.4.6 -
ep-size int - - - ep,expert-parallel-size
eplb-algorithm text 0.4.6 0.4.9 -
eplb-min-rebalancing-utilization-threshold float 0.5.1 0.5.3 -
eplb-rebalance-layers-per-chunk int 0.4.6 0.4.9 -
eplb-rebalance-num-iterations int 0.4.3 0.4.6 -
expert-balancedness-report-mode text 0.5.16 0.5.20 -
expert-distribution-recorder-buffer-size int 0.4.3 0.4.6 -
expert-distribution-recorder-mode text 0.4.3 0.4.6 -
experts-shared-outer-loras switch 0.5.9 0.5.12 -
export-metrics-to-file switch 0.5.3 0.5.5 -
export-metrics-to-file-dir text 0.5.3 0.5.5 -
extra-metric-labels text 0.5.7 0.5.9 -
fastapi-root-path text 0.5.5 0.5.7 -
file-storage-path text - - -
flashinfer-a2a-dispatch-type text 0.5.16 0.5.20 -
flashinfer-allreduce-fusion-backend text 0.5.12 0.5.16 -
flashinfer-autotune-skip-ops many 0.5.16 0.5.20 -
flashinfer-mla-disable-ragged switch - - -
flashinfer-mxfp4-moe-precision text 0.4.9 0.5.1 -
flexkv-config-file text 0.5.12 0.5.16 -
forward-hooks text 0.5.5 0.5.7 -
forward-pass-metrics-ipc-name text 0.5.9 0.5.12 -
forward-pass-metrics-worker-id text 0.5.9 0.5.12 -
fp4-gemm-backend text 0.5.7 0.5.9 -
fp8-gemm-backend text 0.5.5 0.5.7 -
fuseep-mode text 0.5.12 0.5.16 -
gated-launch-port int 0.5.16 0.5.20 -
gc-threshold many 0.5.9 0.5.12 -
gc-warning-threshold-secs float 0.4.9 0.5.1 -
generation-tokens-buckets many 0.5.1 0.5.3 -
gpu-id-step int - - -
grammar-backend text - - -
grpc-mode switch 0.5.1 0.5.3 -
grpc-port int 0.5.12 0.5.16 -
grpc-response-timeout-secs int 0.5.20 0.5.23 -
hf-chat-template-name text 0.5.7 0.5.9 -
hicache-host-memory-fraction float 0.5.20 0.5.23 -
hicache-host-memory-mode text 0.5.16 0.5.20 -
hicache-io-backend text 0.4.6 0.4.9 -
hicache-mem-layout text 0.4.9 0.5.1 -
hicache-ratio float 0.4.3 0.4.6 -
hicache-size int 0.4.3 0.4.6 -
hicache-storage-backend text 0.4.6 0.4.9 -
hicache-storage-backend-extra-config text 0.4.9 0.5.1 -
hicache-storage-prefetch-policy text 0.4.9 0.5.1 -
hicache-storage-prefetch-retry-max-attempts int 0.5.16 0.5.20 -
hicache-storage-prefetch-retry-poll-interval int 0.5.16 0.5.20 -
hicache-write-policy text 0.4.3 0.4.6 -
hisparse-config text 0.5.7 0.5.9 - hierarchical-sparse-attention-extra-config
host text - - -
http2-initial-connection-window-size int 0.5.16 0.5.20 -
http2-max-concurrent-streams int 0.5.16 0.5.20 -
hybrid-kvcache-ratio switch 0.4.6 0.4.9 0.5.16
image-processor-backend text 0.5.16 0.5.20 -
incremental-streaming-output switch 0.5.9 0.5.12 -
init-expert-location text 0.4.3 0.4.6 -
int8-mamba-ckpt-size int 0.5.12 0.5.16 -
is-embedding switch - - -
json-model-override-args text - - -
keep-mm-feature-on-device switch 0.5.1 0.5.3 0.5.23
kt-cpuinfer int 0.5.3 0.5.5 -
kt-max-deferred-experts-per-token int 0.5.3 0.5.5 -
kt-method text 0.5.3 0.5.5 -
kt-num-gpu-experts int 0.5.3 0.5.5 -
kt-threadpool-count int 0.5.3 0.5.5 -
kt-weight-path text 0.5.3 0.5.5 -
kv-cache-dtype text - - -
kv-canary text 0.5.12 0.5.16 -
kv-canary-real-data text 0.5.12 0.5.16 -
kv-canary-sweep-interval int 0.5.12 0.5.16 -
kv-events-config text 0.4.3 0.4.6 -
language-model-only switch 0.5.16 0.5.20 -
language-only switch 0.5.5 0.5.7 -
limit-mm-data-per-request text 0.5.5 0.5.7 -
linear-attn-backend text 0.5.9 0.5.12 -
linear-attn-decode-backend text 0.5.9 0.5.12 -
linear-attn-prefill-backend text 0.5.9 0.5.12 -
linear-attn-verify-backend text 0.5.16 0.5.20 -
linear-replayssm-cache-len int 0.5.12 0.5.16 -
lmcache-config-file text 0.5.12 0.5.16 -
load-balance-method text - - -
load-format text - - -
load-publish-endpoint text 0.5.16 0.5.20 -
load-snapshot-publish-interval int 0.5.12 0.5.16 -
load-watch-interval float 0.5.1 0.5.3 0.5.7
log-level text - - -
log-level-http text - - -
log-requests switch - - -
log-requests-format text 0.5.5 0.5.7 -
log-requests-level int - - -
log-requests-target many 0.5.7 0.5.9 -
lora-backend text - - -
lora-drain-wait-threshold float 0.5.9 0.5.12 -
lora-eviction-policy text 0.5.1 0.5.3 -
lora-paths many - - -
lora-strict-loading switch 0.5.9 0.5.12 -
lora-target-modules many 0.4.6 0.4.9 -
lora-use-virtual-experts switch 0.5.9 0.5.12 -
mamba-backend text 0.5.7 0.5.9 -
mamba-cache-philox-rounds int 0.5.12 0.5.16 -
mamba-full-memory-ratio float 0.5.1 0.5.3 -
mamba-max-states-per-path int 0.5.16 0.5.20 -
mamba-radix-cache-strategy text 0.5.12 0.5.16 -
mamba-scheduler-strategy text 0.5.5 0.5.7 0.5.20 - --mamba-radix-cache-strategy
mamba-ssm-dtype text 0.5.1 0.5.3 -
mamba-track-interval int 0.5.5 0.5.7 -
max-ep-size int 0.5.12 0.5.16 -
max-loaded-loras int 0.4.9 0.5.1 -
max-lora-chunk-size int 0.5.1 0.5.3 -
max-lora-rank int 0.4.6 0.4.9 -
max-loras-per-batch int - - -
max-mamba-cache-size int 0.5.1 0.5.3 -
max-micro-batch-size int 0.4.3 0.4.6 0.5.4 - --pp-max-micro-batch-size
max-prefill-tokens int - - -
max-queued-requests int 0.4.6 0.4.9 -
max-running-requests int - - -
max-total-tokens int - - -
media-url-max-file-size-mb int 0.5.16 0.5.20 -
mem-fraction-static float - - -
min-free-slots-delay int 0.5.12 0.5.16 -
mlx-enable-sampling switch 0.5.16 0.5.20 -
mm-attention-backend text 0.4.3 0.4.6 -
mm-enable-dp-encoder switch 0.5.5 0.5.7 -
mm-feature-transport text 0.5.12 0.5.16 -
mm-global-cache-backend text 0.5.16 0.5.20 -
mm-io-worker-num int 0.5.16 0.5.20 -
mm-max-concurrent-calls int 0.5.3 0.5.5 0.5.12
mm-per-request-timeout int 0.5.3 0.5.5 0.5.12
mm-preprocess-cache-size-mb int 0.5.16 0.5.20 -
mm-process-config text 0.5.5 0.5.7 -
mm-processor-worker-num int 0.5.16 0.5.20 -
model-checksum many 0.5.7 0.5.9 -
model-config-parser text 0.5.9 0.5.12 -
model-impl text 0.4.6 0.4.9 -
model-loader-extra-config text 0.4.6 0.4.9 -
model-path text - - - model
modelexpress-config text 0.5.9 0.5.12 -
modelopt-checkpoint-restore-path text 0.5.1 0.5.3 -
modelopt-checkpoint-save-path text 0.5.1 0.5.3 -
modelopt-export-path text 0.5.3 0.5.5 -
modelopt-quant text 0.5.1 0.5.3 -
moe-a2a-backend text 0.4.9 0.5.1 -
moe-dense-tp-size int 0.4.3 0.4.6 -
moe-dp-size int 0.5.7 0.5.9 - moe-data-parallel-size
moe-runner-backend text 0.4.9 0.5.1 -
monokernel-backend switch 0.5.20 0.5.23 -
mooncake-ib-device text 0.5.1 0.5.3 -
msprobe-dump-config text 0.5.9 0.5.12 -
multi-item-scoring-delimiter int 0.5.1 0.5.3 0.5.12
n-share-experts-fusion int 0.4.3 0.4.6 0.4.10
nccl-port int 0.4.6 0.4.9 -
nnodes int - - -
node-rank int - - -
nsa-decode-backend text 0.5.3 0.5.5 0.5.20 nsa-decode --dsa-decode-backend
nsa-prefill-backend text 0.5.3 0.5.5 0.5.20 nsa-prefill --dsa-prefill-backend
nsa-prefill-cp-mode text 0.5.7 0.5.9 0.5.20 - --cp-strategy
num-continuous-decode-steps int - - -
num-reserved-decode-tokens int 0.4.6 0.4.9 -
numa-node many 0.5.1 0.5.3 -
offload-group-size int 0.4.9 0.5.1 -
offload-mode text 0.4.9 0.5.1 -
offload-num-in-group int 0.4.9 0.5.1 -
offload-prefetch-step int 0.4.9 0.5.1 -
oltp-traces-endpoint text 0.5.1 0.5.3 0.5.6 - --otlp-traces-endpoint
optimistic-prefill-attempts int 0.5.12 0.5.16 -
otlp-service-name text 0.5.20 0.5.23 -
otlp-traces-endpoint text 0.5.3 0.5.5 -
page-size int 0.4.3 0.4.6 -
paged-experts-num-resident int 0.5.20 0.5.23 -
pdlb-url text 0.4.3 0.4.6 0.5.4
pdmux-config-path text 0.5.1 0.5.3 -
piecewise-cuda-graph-compiler text 0.5.3 0.5.5 0.5.20
piecewise-cuda-graph-max-tokens int 0.5.1 0.5.3 0.5.20 - --cuda-graph-max-bs-prefill
piecewise-cuda-graph-tokens many 0.5.1 0.5.3 0.5.20 - --cuda-graph-bs-prefill
ple-offload-backend text 0.5.16 0.5.20 -
ple-offload-dir text 0.5.16 0.5.20 -
ple-offload-embedding switch 0.5.16 0.5.20 -
port int - - -
pp-async-batch-depth int 0.5.5 0.5.7 -
pp-max-micro-batch-size int 0.5.1 0.5.3 -
pp-size int 0.4.3 0.4.6 - pipeline-parallel-size,pp
pre-warm-nccl switch 0.5.9 0.5.12 -
preferred-sampling-params text 0.4.3 0.4.6 -
prefill-attention-backend text 0.4.6 0.4.9 -
prefill-cp-mode text 0.5.9 0.5.12 0.5.20 - --cp-strategy
prefill-decode-interval int 0.5.16 0.5.20 -
prefill-decode-interval-min-bs int 0.5.20 0.5.23 -
prefill-delayer-forward-passes-buckets many 0.5.7 0.5.9 -
prefill-delayer-max-delay-ms float 0.5.9 0.5.12 -
prefill-delayer-max-delay-passes int 0.5.7 0.5.9 -
prefill-delayer-queue-min-ratio float 0.5.9 0.5.12 -
prefill-delayer-token-usage-low-watermark float 0.5.7 0.5.9 -
prefill-delayer-wait-seconds-buckets many 0.5.7 0.5.9 -
prefill-kv-cache-dequant-dtype text 0.5.20 0.5.23 -
prefill-max-requests int 0.5.5 0.5.7 -
prefill-only-disable-kv-cache switch 0.5.9 0.5.12 -
prefill-round-robin-balance switch 0.5.1 0.5.3 0.5.20
priority-scheduling-preemption-threshold int 0.5.1 0.5.3 -
prompt-tokens-buckets many 0.5.1 0.5.3 -
qsa-indexer-dtype text 0.5.20 0.5.23 -
quantization text - - -
quantization-param-path text - - -
quantize-and-serve switch 0.5.3 0.5.5 -
radix-cache-backend text 0.5.12 0.5.16 -
radix-eviction-policy text 0.5.1 0.5.3 -
radix-eviction-policy-config text 0.5.16 0.5.20 -
random-seed int - - -
reasoning-parser text - - -
record-nolora-graph switch 0.5.9 0.5.12 0.5.16
remote-instance-weight-loader-backend text 0.5.5 0.5.7 -
remote-instance-weight-loader-seed-instance-ip text 0.5.1 0.5.3 -
remote-instance-weight-loader-seed-instance-service-port int 0.5.1 0.5.3 -
remote-instance-weight-loader-send-weights-group-ports text 0.5.1 0.5.3 -
remote-instance-weight-loader-start-seed-via-transfer-engine switch 0.5.5 0.5.7 -
retraction-policy text 0.5.12 0.5.16 -
return-aux-hidden-state-layer-ids many 0.5.20 0.5.23 -
return-hidden-states-mode text 0.5.16 0.5.20 -
return-input-ids switch 0.5.16 0.5.20 -
return-output-ids switch 0.5.16 0.5.20 -
revision text - - -
rl-on-policy-target text 0.5.3 0.5.5 -
rl-quant-profile text 0.5.5 0.5.7 -
sampling-backend text - - -
sampling-defaults text 0.5.1 0.5.3 -
sampling-mask-max-tokens int 0.5.16 0.5.20 -
schedule-conservativeness float - - -
schedule-low-priority-values-first switch 0.5.1 0.5.3 -
schedule-policy text - - -
scheduler-recv-interval int 0.4.9 0.5.1 -
served-model-name text - - -
shared-experts-tp-size int 0.5.20 0.5.23 -
show-time-cost switch - - -
sidecar text 0.5.12 0.5.16 -
sidecar-args text 0.5.12 0.5.16 -
skip-server-warmup switch 0.4.6 0.4.9 -
skip-tokenizer-init switch - - -
sleep-on-idle switch 0.4.6 0.4.9 -
sm-group-num int 0.4.6 0.4.9 -
smg-grpc-mode switch 0.5.12 0.5.16 -
smg-http-sidecar-port int 0.5.9 0.5.12 - grpc-http-sidecar-port
soft-watchdog-timeout float 0.5.5 0.5.7 -
spec-trace-dir text 0.5.12 0.5.16 -
speculative-accept-threshold-acc float - - -
speculative-accept-threshold-single float - - -
speculative-adaptive switch 0.5.9 0.5.12 -
speculative-adaptive-config text 0.5.9 0.5.12 -
speculative-algorithm text - - -
speculative-attention-mode text 0.5.1 0.5.3 -
speculative-dflash-block-size int 0.5.9 0.5.12 -
speculative-dflash-draft-window-size int 0.5.9 0.5.12 0.5.20 - --speculative-draft-window-size
speculative-domino-candidate-pool-size int 0.5.16 0.5.20 -
speculative-draft-attention-backend text 0.5.5 0.5.7 -
speculative-draft-kv-cache-dtype text 0.5.16 0.5.20 -
speculative-draft-load-format text 0.5.1 0.5.3 -
speculative-draft-model-path text - - - speculative-draft-model
speculative-draft-model-quantization text 0.5.5 0.5.7 -
speculative-draft-model-revision text 0.5.1 0.5.3 -
speculative-draft-sink-size int 0.5.20 0.5.23 -
speculative-draft-window-size int 0.5.9 0.5.12 -
speculative-dsa-topk-backend text 0.5.16 0.5.20 -
speculative-dspark-align-verify-tokens-to-graph-tier switch 0.5.12 0.5.16 -
speculative-dspark-block-size int 0.5.12 0.5.16 -
speculative-dspark-confidence-sts-path text 0.5.12 0.5.16 -
speculative-dspark-sps-table-path text 0.5.12 0.5.16 -
speculative-eagle-topk int - - -
speculative-enable-w4a4-mxfp4-megamoe switch 0.5.20 0.5.23 -
speculative-moe-a2a-backend text 0.5.5 0.5.7 -
speculative-moe-runner-backend text 0.5.3 0.5.5 -
speculative-ngram-branch-length int 0.5.1 0.5.3 0.5.12
speculative-ngram-capacity int 0.5.1 0.5.3 -
speculative-ngram-external-corpus-max-tokens int 0.5.9 0.5.12 -
speculative-ngram-external-corpus-path text 0.5.9 0.5.12 -
speculative-ngram-external-sam-budget int 0.5.9 0.5.12 -
speculative-ngram-match-type text 0.5.1 0.5.3 -
speculative-ngram-max-bfs-breadth int 0.5.1 0.5.3 -
speculative-ngram-max-match-window-size int 0.5.1 0.5.3 0.5.12
speculative-ngram-max-trie-depth int 0.5.9 0.5.12 -
speculative-ngram-min-bfs-breadth int 0.5.1 0.5.3 -
speculative-ngram-min-match-window-size int 0.5.1 0.5.3 0.5.12
speculative-num-draft-tokens int - - -
speculative-num-steps int - - -
speculative-skip-dp-mlp-sync switch 0.5.9 0.5.12 0.5.23
speculative-token-map text - - -
speculative-use-block-verification switch 0.5.20 0.5.23 -
speculative-use-rejection-sampling switch 0.5.12 0.5.16 -
ssl-ca-certs text 0.5.9 0.5.12 -
ssl-certfile text 0.5.9 0.5.12 -
ssl-keyfile text 0.5.9 0.5.12 -
ssl-keyfile-password text 0.5.9 0.5.12 -
startup-weight-load-mode text 0.5.16 0.5.20 -
stream-interval int - - -
stream-output switch - - 0.5.20 - --incremental-streaming-output
stream-response-default-include-usage switch 0.5.9 0.5.12 -
strip-thinking-cache switch 0.5.9 0.5.12 -
swa-full-tokens-ratio float 0.4.6 0.4.9 -
swa-prefix-tails int 0.5.20 0.5.23 -
tbo-token-distribution-threshold float 0.4.9 0.5.1 -
tokenizer-backend text 0.5.9 0.5.12 -
tokenizer-metrics-allowed-custom-labels many 0.5.1 0.5.3 -
tokenizer-metrics-custom-labels-header text 0.5.1 0.5.3 -
tokenizer-mode text - - -
tokenizer-path text - - -
tokenizer-worker-num int 0.5.1 0.5.3 -
tool-call-parser text - - -
tool-server text 0.4.9 0.5.1 -
torch-compile-max-bs int - - -
torchao-config text - - 0.5.20
tp-size int - - - tensor-parallel-size,tp
trace-modules text 0.5.12 0.5.16 -
triton-attention-num-kv-splits int - - -
triton-attention-reduce-in-fp32 switch - - -
triton-attention-split-tile-size int 0.5.1 0.5.3 -
trust-mm-content-hashes switch 0.5.16 0.5.20 -
trust-remote-code switch - - -
trust-request-chat-template switch 0.5.20 0.5.23 -
unified-cache-external-linker-backend text 0.5.16 0.5.20 -
unified-cache-external-linker-config text 0.5.20 0.5.23 -
uno-lora-path text 0.5.16 0.5.20 -
use-ray switch 0.5.9 0.5.12 -
uvicorn-access-log-exclude-prefixes many 0.5.7 0.5.9 -
warmups text - - -
watchdog-timeout float - - -
watermark-config text 0.5.20 0.5.23 -
weight-cache-mode text 0.5.16 0.5.20 -
weight-cache-socket text 0.5.16 0.5.20 -
weight-cache-timeout int 0.5.16 0.5.20 -
weight-loader-disable-mmap switch 0.4.6 0.4.9 -
weight-loader-drop-cache-after-load switch 0.5.9 0.5.12 -
weight-loader-prefetch-checkpoints switch 0.5.9 0.5.12 -
weight-loader-prefetch-num-threads int 0.5.9 0.5.12 -
weight-version text 0.4.9 0.5.1 -
"""

_PATHS: dict[str, KeyPath] = {
    "allow-auto-truncate": ("engine", "truncates"),
    "attention-backend": ("engine", "attention_backend"),
    "context-length": ("model", "max_model_len"),
    "dcp-size": ("policy", "parallelism", "context"),
    "enable-mixed-chunk": ("policy", "batching", "mixed_steps"),
    "ep-num-redundant-experts": ("policy", "moe", "redundant_experts"),
    "max-prefill-tokens": ("policy", "batching", "max_batched_tokens"),
    "max-total-tokens": ("policy", "kv_cache", "max_tokens"),
    "mem-fraction-static": ("policy", "kv_cache", "memory_utilization"),
    "model-path": ("model", "id"),
    "page-size": ("policy", "kv_cache", "page_size"),
    "pp-size": ("policy", "parallelism", "pipeline"),
    "prefill-decode-interval": ("policy", "batching", "prefill_decode_interval"),
    "schedule-policy": ("policy", "batching", "admission"),
    "tp-size": ("policy", "parallelism", "tensor"),
}
"""Flags whose value a key of the spec takes as it stands."""


def _flag(line: str) -> Flag:
    name, kind, before, since, until, *more = ("" if part == "-" else part for part in line.split(None, 6))
    aliases = tuple(more[0].split(",")) if more and more[0] else ()
    return Flag(
        name,
        _PATHS.get(name, ()),
        kind,
        tuple(f"--{alias}" for alias in aliases),
        since=since,
        until=until,
        instead=more[1] if len(more) > 1 else "",
        before=before,
    )


@cache
def table(complete: bool = False) -> FlagTable:
    """The flags of SGLang's server; ``complete`` where each of the release is known (`WHOLE`), or none is stated."""
    flags = map(_flag, _TABLE.split("\n")[1:-1])
    return FlagTable("SGLang", flags, checked=CHECKED, complete=complete, assumed=ENGINE.assumed, owners=owners)
