"""Training frameworks' defaults, as `presets/frameworks.toml` has them."""

from __future__ import annotations

from msgspec import Struct, convert

from txcalc.planning.layout import Layout
from txcalc.sources.presets import folder, read

SPLITS = ("tp", "cp", "ep")


class Framework(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
