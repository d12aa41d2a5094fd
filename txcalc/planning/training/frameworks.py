"""Training frameworks' defaults, each rule read from the framework's own code."""

from __future__ import annotations

from msgspec import Struct

from txcalc.planning.layout import Layout

SPLITS = ("tp", "cp", "ep")


class Framework(Struct, frozen=True, kw_only=True):
    """How a framework keeps the state of a training run, by default.

    parameter               dtype of the stored weights
    gradient                dtype of accumulated gradients; None: the weights'
    master                  an fp32 copy of 16-bit weights in the optimizer
    gradient_buffers        gradients live in buffers that are never freed
    zeros                   ZeRO stages for dp
    logits                  bytes per logit, at the peak
    loss                    times that a logit is read or written, from the output layer's result to its gradient, but
                            for its conversions: of whole logits, and of those that tp splits
    widens                  logits are converted to fp32 for the loss, and their gradient back
    schedules               of its pipeline; empty: no pipeline
    splits                  the degrees of a layout that it supports beside replicas and stages
    pads                    the vocabulary is padded to a multiple of `pads` · tp
    min_microbatch_gap      1F1B needs at least stages − `min_microbatch_gap` micro-batches; None: any number
    source                  where the rules are found
    caution                 known errors of its rules against its runs (tests/scripts/train_memory.py)
    dtensor                 PyTorch's own: fsdp and cp shard weights by rows; a split dimension is cut like
                            `torch.chunk`, nothing is padded or repeated
    stacks                  the experts of a rank are one tensor (experts, out, in) of each projection
    by_tensor               ZeRO shards each tensor by itself; the others pad one buffer of all tensors
    packs                   frozen matrices may be in 4 or 8 bits (bitsandbytes, of which Megatron-LM and nanotron have
                            nothing)
    balanced                pipeline stages are balanced by elements of matrices, not by layers
    resave_inputs           with sequence parallel, a sharded product saves its slice of the input and gathers it again
                            in backward
    hidden_backward         the collectives of a split product's input whose twin in backward goes on beside the
                            gradient of its weights; what is gathered again, beside that of its input
    overlaps_gather         a sharded product begins with the rank's own positions while the others' are gathered
    gather_buffers          buffers for gathered inputs and output gradients of sharded products are never freed
    fused                   the gate's activation and product are one kernel, which saves only its operands
    eager                   norms in single operations, which keep an fp32 copy of what they read; adapters behind a
                            dropout, which keep its result and its mask; values as a view of the joint product of q, k
                            and v, which stays whole
    fused_qkv               q, k and v of as many heads are one tensor, which stays whole beside what rotary makes of it
    attention               its fused kernel, if not the accelerator's newest
    record_stream           memory that a collective reads or writes on its own stream is not given out again before it
                            is done (torch 2.1's recordStream, unless TORCH_NCCL_AVOID_RECORD_STREAMS): 0 where it is;
                            else what a layer's forward puts into the device's launch queue, kernels and events
    ddp                     without ZeRO, DistributedDataParallel's buckets hold the gradients once more
    makes_gradients         autograd's gradients, in the weights' dtype, exist beside the accumulated ones
    fuses_gradients         a product adds its weight's gradient to the accumulated one; autograd gets a dummy
    relays                  a token for experts on another node is sent there once and forwarded within it; else once
                            per expert
    bucket                  bytes of gradients per reduction
    gathers_beside          ZeRO gathers weights beside compute after a step
    sweeps                  bytes moved per whole gradient and step to zero it, for its norm and to clip it
    reduces_after           with ZeRO, whole gradients are all-reduced at once after the last backward
    zero_bucket, zero_live  with ZeRO, elements reduced at once, and the most gathered elements alive in stage 3
    """

    name: str
    parameter: str
    gradient: str | None
    master: bool
    gradient_buffers: bool
    zeros: tuple[int, ...]
    logits: int
    loss: tuple[int, int]
    bucket: int
    source: str
    schedules: tuple[str, ...] = ()
    splits: tuple[str, ...] = SPLITS
    pads: int = 1
    min_microbatch_gap: int | None = None
    caution: str = ""
    widens: bool = True
    dtensor: bool = False
    stacks: bool = False
    by_tensor: bool = False
    packs: bool = True
    balanced: bool = False
    resave_inputs: bool = False
    hidden_backward: tuple[str, ...] = ()
    overlaps_gather: bool = False
    gather_buffers: bool = False
    fused: bool = False
    eager: bool = False
    fused_qkv: bool = False
    attention: str | None = None
    record_stream: int = 0
    ddp: bool = False
    sweeps: int = 0
    makes_gradients: bool = False
    fuses_gradients: bool = False
    gathers_beside: bool = False
    relays: bool = False
    reduces_after: bool = False
    zero_bucket: int = 0
    zero_live: int = 0

    def lacks(self, layout: Layout) -> list[str]:
        """The degrees of a layout above 1 that it does not support."""
        return [name for name in SPLITS if getattr(layout, name) > 1 and name not in self.splits]

    def schedules_by(self, schedule: str, stages: int) -> bool:
        """Whether a schedule is available for `stages` stages; for one stage any, if the framework has no pipeline."""
        return schedule in self.schedules or (stages == 1 and not self.schedules)


# torch.nn.functional.cross_entropy: log-softmax (2), its gradient made (1) and taken through (3).
CROSS_ENTROPY = 6
# On split logits, Megatron-LM's, Megatron-DeepSpeed's and nanotron's (core/tensor_parallel/cross_entropy.py;
# functional.py, _ShardedCrossEntropy): largest (1), less that (2), exponential (2), summed (1), divided (2); backward
# times the loss's gradient (2).
SPLIT_CROSS_ENTROPY = 10
# DTensor's (distributed/tensor/parallel/loss.py): largest (1), less that (2), exponential (2), summed (1), less its
# logarithm (2); backward zeros (1), exponential (2), their sum (3), times the loss's gradient (2).
DTENSOR_CROSS_ENTROPY = 16
# LinearWithGradAccumulationAndAsyncCommunication (Megatron-LM, Megatron-DeepSpeed: core/tensor_parallel/layers.py).
ASYNC = ("all_gather", "all_reduce")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb", "zbv", "dualpipev")
DDP_BUCKET = 25 << 20  # torch.nn.parallel.DistributedDataParallel: bucket_cap_mb
FRAMEWORKS = {
    f.name: f
    for f in (
        Framework(
            name="fsdp2",
            parameter="fp32",
            gradient=None,
            master=False,
            gradient_buffers=False,
            zeros=(0,),
            logits=12,
            loss=(CROSS_ENTROPY, DTENSOR_CROSS_ENTROPY),
            bucket=DDP_BUCKET,  # with fsdp a block at a time
            source="torch 2.13: distributed.fsdp.fully_shard, DTensor, pipelining.schedules",
            schedules=SCHEDULES,
            min_microbatch_gap=0,  # Schedule1F1B.__init__
            dtensor=True,
            stacks=True,  # torchtitan, models/common/moe.py, GroupedExperts; transformers 5, such as MixtralExperts
            ddp=True,
            gathers_beside=True,
        ),
        Framework(
            name="megatron",
            parameter="bf16",
            gradient="fp32",
            master=True,
            gradient_buffers=True,
            zeros=(0, 1),
            logits=6,
            loss=(SPLIT_CROSS_ENTROPY, SPLIT_CROSS_ENTROPY),
            bucket=160 * 10**6,  # core/distributed/distributed_data_parallel.py: 40e6 fp32 elements
            source="Megatron-LM d98e8a64: core/distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py",
            schedules=("1f1b", "interleaved"),  # core/pipeline_parallel/schedules.py
            pads=128,  # training/arguments.py: --make-vocab-size-divisible-by
            packs=False,
            resave_inputs=True,
            hidden_backward=ASYNC,
            fused=True,
            sweeps=4,  # param_and_grad_buffer.py, reset; what it clips is sharded, or rarely multiplied
            fuses_gradients=True,
            gathers_beside=True,
            relays=True,  # --moe-token-dispatcher-type flex (DeepEP, HybridEP), as Megatron-Bridge's recipes have it
        ),
        Framework(
            name="nanotron",
            parameter="bf16",
            gradient="fp32",
            master=True,
            gradient_buffers=True,
            zeros=(0, 1),
            logits=8,
            loss=(SPLIT_CROSS_ENTROPY, SPLIT_CROSS_ENTROPY),
            bucket=2 * DDP_BUCKET,  # of fp32 sums, as of gradients in 16 bits; optim/zero.py gathers after the step
            source="nanotron 67c5ebb6 (branch nouamane/bench2): trainer.py, optim/gradient_accumulator.py, "
            "models/llama.py, models/base.py, distributed.py, parallel/utils.py, parallel/pipeline_parallel/p2p.py, "
            "parallel/tensor_parallel/functional.py; torch 2.1 ProcessGroupNCCL",
            schedules=("gpipe", "1f1b"),  # parallel/pipeline_parallel/engine.py: two PipelineEngines
            min_microbatch_gap=1,
            caution="nanotron: activations and buffers are modelled; of 463 runs of 1B and 3B whose step took at most "
            "twice the prediction the median error of what is reserved is 4 %, and a tenth are over 13 % off (where a "
            "stage ends was chosen with them); runs whose hosts wait for messages reserve up to half less",
            by_tensor=True,
            packs=False,
            balanced=True,
            resave_inputs=True,
            hidden_backward=ASYNC[:1],  # tp_linear_async_communication, which is refused beside all-reduce (nn.py)
            overlaps_gather=True,
            gather_buffers=True,
            fused_qkv=True,
            attention="flash2",
            sweeps=4 + 4 + 8,  # optim/gradient_accumulator.py, zero_grad; optim/clip_grads.py, which always multiplies
            reduces_after=True,  # trainer.py, training_step: reduce_scatter=False
            record_stream=45,  # 29 kernels; four collectives that wait for an event and record one, and are waited for
            ddp=True,
            makes_gradients=True,
        ),
        Framework(
            name="deepspeed",
            parameter="bf16",
            gradient="bf16",
            master=True,
            gradient_buffers=True,
            zeros=(0, 1, 2, 3),
            logits=12,
            loss=(CROSS_ENTROPY, SPLIT_CROSS_ENTROPY),
            bucket=10**9,  # zero_bucket, of 16 bits
            source="DeepSpeed 0.19: runtime/bf16_optimizer.py, runtime/zero/stage_1_and_2.py, stage3.py; tp with "
            "sequence parallel: Megatron-DeepSpeed 1de4f542",
            caution="deepspeed: activations and buffers are modelled, and were compared with no run",
            schedules=("1f1b",),  # runtime/pipe/schedule.py: TrainSchedule
            resave_inputs=True,
            hidden_backward=ASYNC,
            zero_bucket=500_000_000,  # runtime/zero/config.py: reduce_bucket_size, stage3_max_live_parameters
            zero_live=1_000_000_000,
        ),
        Framework(
            name="litgpt",
            parameter="bf16",
            gradient="bf16",
            master=False,
            gradient_buffers=False,
            zeros=(0,),
            logits=6,
            loss=(CROSS_ENTROPY, CROSS_ENTROPY),
            widens=False,  # utils.py, chunked_cross_entropy
            bucket=DDP_BUCKET,  # Lightning Fabric's: torch's own
            source="litgpt 26857050: model.py (RMSNorm, CausalSelfAttention), lora.py (LoRAQKVLinear), "
            "--precision bf16-true",
            pads=64,  # config.py: the least padding_multiple of its configs, 64 to 512
            splits=(),  # tensor parallelism is of its generation alone: generate/tp.py
            eager=True,
            gathers_beside=True,
        ),
    )
}
