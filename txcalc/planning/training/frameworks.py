"""Training frameworks' defaults, from `presets/frameworks.toml`."""

from __future__ import annotations

from msgspec import Struct, convert

from txcalc.planning.layout import Layout
from txcalc.sources.presets import folder, read

SPLITS = ("tp", "cp", "ep")


class Framework(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A framework's defaults for the state, memory and communication of a training run.

    parameter               dtype of the stored weights
    gradient                dtype of accumulated gradients; None: the weights'
    master                  the optimizer has an fp32 copy of 16-bit weights
    gradient_buffers        gradients are in buffers that are never freed
    zeros                   ZeRO stages for dp
    logits                  bytes per logit, at the peak
    loss                    reads and writes of a logit, from the output layer's result to its gradient, without
                            conversions: for full logits, and for logits sharded over tp
    widens                  logits are converted to fp32 for the loss, and their gradient back
    schedules               of its pipeline; empty: no pipeline
    splits                  supported degrees of a layout other than replicas and stages
    pads                    the vocabulary is padded to a multiple of `pads` · tp
    min_microbatch_gap      1F1B needs at least stages − `min_microbatch_gap` micro-batches; None: any number
    source                  source of the rules
    caution                 known errors of its rules against its runs (tests/scripts/train_memory.py)
    dtensor                 PyTorch's own: fsdp and cp shard weights by rows; a dimension is sharded like `torch.chunk`,
                            without padding or replication
    stacks                  the experts of a rank are one tensor (experts, out, in) per projection
    by_tensor               ZeRO shards each tensor separately; others pad one buffer of all tensors
    packs                   frozen matrices may be in 4 or 8 bits (bitsandbytes; not in Megatron-LM and nanotron)
    balanced                pipeline stages are balanced by elements of matrices, not by layers
    resave_inputs           with sequence parallel, a sharded product saves its slice of the input and gathers it again
                            in backward
    hidden_backward         collectives of a sharded product's input whose twin in backward overlaps with its weights'
                            gradient; a repeated gather overlaps with its input's gradient
    overlaps_gather         a sharded product begins with the rank's own positions while gathering the others'
    gather_buffers          buffers for gathered inputs and output gradients of sharded products are never freed
    fused                   the gate's activation and product are one kernel, which saves only its operands
    eager                   norms run as single operations, which save an fp32 copy of their input; adapters follow a
                            dropout, which saves its result and its mask; values are a view of the fused product of q,
                            k and v, which stays allocated
    fused_qkv               q, k and v of as many heads are one tensor, which stays allocated with rotary's result
    attention               its fused kernel, if not the accelerator's newest
    record_stream           memory that a collective uses on its own stream is reused only after the collective ends
                            (torch 2.1's recordStream, unless TORCH_NCCL_AVOID_RECORD_STREAMS): entries of the device's
                            launch queue per layer's forward (kernels and events); 0 without recordStream
    ddp                     without ZeRO, DistributedDataParallel's buckets store the gradients a second time
    makes_gradients         autograd's gradients, in the weights' dtype, exist in addition to the accumulated ones
    fuses_gradients         a product adds its weight's gradient to the accumulated one; autograd gets a dummy
    relays                  a token for experts on another node is sent there once and forwarded within it; else once
                            per expert
    bucket                  bytes of gradients per reduction
    gathers_beside          after a step, ZeRO gathers weights during compute
    sweeps                  bytes moved per gradient and step to zero it, for its norm and to clip it
    reduces_after           with ZeRO, unsharded gradients are all-reduced at once after the last backward
    zero_bucket, zero_live  with ZeRO, elements reduced at once, and the most gathered elements alive in stage 3
    """

    name: str
    parameter: str
    gradient: str | None = None
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


SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb", "zbv", "dualpipev")
FRAMEWORKS = {
    name: convert({"name": name, **row}, Framework) for name, row in read(folder() / "frameworks.toml")[0].items()
}
