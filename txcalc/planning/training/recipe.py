"""A training recipe: layout, batch, sequence length, recomputation, optimizer, dtypes, framework, adapters.

`Recipe.check` finds faults of a recipe for any model, `stages.Pipeline` those for one model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from txcalc.errors import Fault, InputError, UnknownName, meant, nearest
from txcalc.planning.layout import Layout
from txcalc.planning.training.frameworks import FRAMEWORKS, SCHEDULES, Framework
from txcalc.planning.training.optimizers import OPTIMIZERS
from txcalc.units import bits_of

MOST, LONGEST = 1 << 20, 10**9
BEHIND = 1 << 12  # added to the indices of a decoder's layers, so that they differ from its encoder's

V_SHAPED = frozenset({"zbv", "dualpipev"})  # rank n has the n-th piece from the front and the n-th from the end
RECOMPUTE = ("none", "core", "blocks", "every:N", "layers:0,2,…")
GRANULARITY = {"full": "blocks", "selective": "core"}  # Megatron-LM's --recompute-granularity
FROZEN = ("fp32", "bf16", "fp16", "int8", "nf4", "nf4-dq")  # of frozen matrices, with adapters
OFFLOAD = ("none", "optimizer", "activations", "optimizer+activations")
FLASH = ("flash1", "flash2")
CONTEXT_PARALLEL = ("ring", "allgather", "ulysses")


class Recipe(Struct, frozen=True):
    """One training run.

    micro_batch      sequences per rank and forward pass
    accumulation     micro-batches per rank and step
    tokens           sequence length
    recompute        none; core (attention); blocks (each saves only its input); every:N (every N-th block);
                     layers:0,2 (these blocks)
    optimizer        a key of `optimizers.OPTIMIZERS`
    parameter, gradient, compute, reduce   dtypes; None: the framework's
    zero             dp shards: 1 optimizer state, 2 also gradients, 3 also parameters
    context          how the ranks of cp exchange keys and values
    loss_parallel    with tp: each rank computes the loss on the logits of its own rows of the vocabulary
    keep_scores      attention without a fused kernel: the score matrix is saved
    attention        the fused kernel: flash1 (FlashAttention 1, also in Triton) or flash2; None: the framework's, or
                     the kernel measured on the accelerator
    fused_loss       cross-entropy as one kernel that writes the logits' gradient in place (Liger, Transformer Engine)
    eager            RMSNorm and rotary positions as separate fp32 operations, as in PyTorch without compilation (before
                     2.8): affects memory traffic, not saved activations
    reshard          FSDP2 frees a block's gathered weights after its forward
    frozen           format of the blocks' matrices in a model with adapters: nf4 has an fp32 scale per 64 weights,
                     nf4-dq an 8-bit scale and one more fp32 per 256 scales (QLoRA, arXiv 2305.14314, section 3), int8
                     an fp32 scale per row (arXiv 2208.07339); None: the compute dtype
    adapter          dtype of the adapters; None: the parameters'
    offload          moved to host memory: optimizer, activations, optimizer+activations; none
    regather         with sequence parallelism, whether backward gathers a sharded product's input again instead of
                     saving it; None: the framework's default (nanotron: tp_recompute_allgather)
    stages           layers of each piece of the pipeline, from the front; None: the framework's partition
    """

    layout: Layout = field(default_factory=Layout)
    micro_batch: int = 1
    accumulation: int = 1
    tokens: int = 4096
    recompute: str = "none"
    optimizer: str = "adamw"
    framework: str = "fsdp2"
    schedule: str = "1f1b"
    zero: int = 0
    parameter: str | None = None
    gradient: str | None = None
    compute: str = "bf16"
    reduce: str = "fp32"
    context: str = "ring"
    loss_parallel: bool = True
    keep_scores: bool = False
    attention: str | None = None
    fused_loss: bool = False
    eager: bool = False
    reshard: bool = True
    frozen: str | None = None
    adapter: str | None = None
    stages: tuple[int, ...] | None = None
    offload: str = "none"
    regather: bool | None = None

    def offloads(self, what: str) -> bool:
        """Whether `what` is in host memory: the optimizer's state ("optimizer") or saved "activations"."""
        return what in self.offload.split("+")

    @property
    def regathers_inputs(self) -> bool:
        """Whether a sharded product saves only its slice of the input, and gathers all of it again in backward."""
        return self.rules.resave_inputs if self.regather is None else self.regather

    @property
    def rules(self) -> Framework:
        if self.framework not in FRAMEWORKS:
            raise UnknownName(
                "recipe", "framework", self.framework, list(FRAMEWORKS), "one of " + ", ".join(FRAMEWORKS)
            )
        return FRAMEWORKS[self.framework]

    @property
    def global_batch(self) -> int:
        """Sequences per step, over all ranks."""
        return self.micro_batch * self.accumulation * self.layout.copies

    @property
    def parameter_bytes(self) -> int:
        return bits_of(self.parameter or self.rules.parameter) // 8

    @property
    def adapter_bytes(self) -> int:
        return bits_of(self.adapter or self.parameter or self.rules.parameter) // 8

    @property
    def packed(self) -> int:
        """Bytes per element that a kernel reads of a quantised frozen matrix, rounded up; 0 without quantisation."""
        return 1 if self.frozen in ("int8", "nf4", "nf4-dq") else 0

    @property
    def gradient_bytes(self) -> int:
        return bits_of(self.gradient or self.rules.gradient or self.parameter or self.rules.parameter) // 8

    @property
    def compute_bytes(self) -> int:
        return bits_of(self.compute) // 8

    @property
    def reduce_bytes(self) -> int:
        return bits_of(self.reduce) // 8

    @property
    def logit_bytes(self) -> tuple[int, int]:
        """Bytes per logit: saved for backward (fp32, or the compute dtype with a fused loss), and at the peak."""
        return (self.compute_bytes, self.compute_bytes) if self.fused_loss else (4, self.rules.logits)

    @property
    def loss_bytes(self) -> int:
        """Memory traffic of the loss in bytes per logit. A fused kernel reads each logit twice and writes its gradient
        (Liger, cross_entropy.py; flash-attn, losses/cross_entropy.py)."""
        width = self.compute_bytes
        if self.fused_loss:
            return 3 * width
        loss_width = max(4, width) if self.rules.widens else width
        conversions = 2 * (width + loss_width) if loss_width > width else 0
        return self.rules.loss[self.loss_parallel and self.layout.tp > 1] * loss_width + conversions

    @property
    def local_tokens(self) -> int:
        """Tokens of a sequence per rank of cp."""
        return self.tokens // self.layout.cp

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage of dp or fsdp; FSDP is stage 3."""
        return 3 if self.shards > 1 else self.zero

    @property
    def shards(self) -> int:
        """The number of ranks over which FSDP shards weights other than experts': fsdp · cp (torchtitan,
        distributed/parallel_dims.py: the mesh of dp_shard and cp); 1 without FSDP2."""
        return self.layout.fsdp * self.layout.cp if self.rules.dtensor else 1

    def recomputed(self, layers: int) -> frozenset[int]:
        """Numbers of the layers whose blocks are recomputed."""
        if self.recompute == "blocks":
            return frozenset(range(layers))
        if self.recompute.startswith("every:"):
            return frozenset(i for i in range(layers) if i % BEHIND % int(self.recompute[6:]) == 0)
        if self.recompute.startswith("layers:"):
            return frozenset(map(int, self.recompute[7:].split(",")))
        return frozenset()

    def faults(self) -> list[Fault | str]:
        """Faults of the recipe for any model."""
        faults = [*self.layout.faults(), *self._sizes(), *self._names()]
        return faults or [*self._combined()]

    def check(self) -> None:
        """Errors: `InputError` with every fault of the recipe, `UnknownName` for a framework or an optimizer."""
        if faults := self.faults():
            raise InputError("recipe", faults)

    def _sizes(self) -> list[Fault | str]:
        limits = (("micro_batch", MOST), ("accumulation", MOST), ("tokens", LONGEST))
        return [
            Fault(name, number, f"a whole number from 1 to {limit:,}")
            for name, limit in limits
            if type(number := getattr(self, name)) is not int or not 1 <= number <= limit
        ]

    def _names(self) -> list[Fault | str]:
        if self.optimizer not in OPTIMIZERS:
            raise UnknownName(
                "recipe", "optimizer", self.optimizer, list(OPTIMIZERS), f"one of {', '.join(OPTIMIZERS)}"
            )
        faults: list[Fault | str] = []
        choices = {"schedule": SCHEDULES, "context": CONTEXT_PARALLEL, "attention": (None, *FLASH), "offload": OFFLOAD}
        faults += [
            _unknown(name, value, [value_name for value_name in allowed if value_name])
            for name, allowed in choices.items()
            if (value := getattr(self, name)) not in allowed
        ]
        if not _is_recompute(self.recompute):
            faults.append(_unknown("recompute", self.recompute, RECOMPUTE, GRANULARITY))
        if self.zero not in (0, *self.rules.zeros):
            others = " or ".join(name for name, rules in FRAMEWORKS.items() if self.zero in rules.zeros)
            mend = "fsdp=N is ZeRO-3" if self.rules.dtensor else others and f"{others} has it"
            faults.append(
                Fault("zero", self.zero, f"{choice(self.rules.zeros)} with --framework {self.framework}", mend)
            )
        for name in ("parameter", "gradient", "compute", "reduce", "adapter"):
            value = getattr(self, name)
            if value is not None and bits_of(value) % 8:
                faults.append(Fault(name, value, "a dtype of whole bytes"))
        return faults

    def _combined(self) -> list[Fault | str]:
        layout, faults = self.layout, list[Fault | str]()
        if self.frozen is not None and self.frozen not in FROZEN:
            faults.append(_unknown("frozen", self.frozen, FROZEN))
        elif self.packed and not self.rules.packs:
            expected = f"bf16, fp16 or fp32 with --framework {self.framework}, which quantises no weights"
            faults.append(Fault("frozen", self.frozen, expected))
        if layout.fsdp > 1 and not self.rules.dtensor:
            faults.append(Fault("fsdp", layout.fsdp, f"1 with --framework {self.rules.name}", "say dp and zero"))
        expected = f"1 with --framework {self.framework}, which has none"
        faults += (Fault(name, getattr(layout, name), expected) for name in self.rules.lacks(layout))
        if self.zero and layout.dp == 1 and layout.cp == 1:
            faults.append(Fault("zero", self.zero, "0 where dp = cp = 1"))
        if self.tokens % layout.cp:
            faults.append(Fault("tokens", self.tokens, f"a multiple of cp = {layout.cp}"))
        elif self.local_tokens % layout.sp:
            faults.append(Fault("tokens", self.tokens, f"a multiple of cp · sp = {layout.cp * layout.sp}"))
        if self.keep_scores and layout.cp > 1:
            faults.append(Fault("keep_scores", "on", f"off with cp = {layout.cp}, whose attention kernels are fused"))
        if self.zero > 1 and layout.pp > 1:  # DeepSpeed, runtime/pipe/engine.py
            faults.append(Fault("zero", self.zero, "0 or 1 with pp, which accumulates unsharded gradients"))
        if self.zero and OPTIMIZERS[self.optimizer].newton_schulz:
            expected = f"0 with {self.optimizer}, which needs whole matrices"
            faults.append(Fault("zero", self.zero, expected, "fsdp=N shards rows instead"))
        faults += self._pipeline()
        return faults

    def _pipeline(self) -> list[Fault | str]:
        layout, faults = self.layout, list[Fault | str]()
        pieces = layout.pp * self.pieces
        if self.stages is not None and len(self.stages) != pieces:
            faults.append(Fault("stages", "+".join(map(str, self.stages)), f"as many numbers as pieces ({pieces})"))
            return faults
        if not self.rules.schedules_by(self.schedule, layout.pp):
            return [self._unscheduled()]
        if layout.pp == 1:
            return []
        pieces_of_schedule = {"gpipe": 1, "1f1b": 1, "zbv": 2, "dualpipev": 2}.get(self.schedule)
        if pieces_of_schedule is not None and layout.vpp not in (1, pieces_of_schedule):
            faults.append(Fault("vpp", layout.vpp, f"{pieces_of_schedule} with --schedule {self.schedule}"))
        if self.schedule == "interleaved" and layout.vpp == 1:
            faults.append(Fault("vpp", 1, "2 or more with --schedule interleaved"))
        if self.schedule in ("interleaved", "zb") and self.accumulation % layout.pp and layout.vpp > 1:
            expected = f"a multiple of pp = {layout.pp}"
            faults.append(Fault("accumulation", self.accumulation, expected, "global batch / micro-batch / dp / fsdp"))
        if self.accumulation < self.min_micro_batches:
            schedule = self.schedule + (f" of {self.framework}" if self.schedule == "1f1b" else "")
            expected = (
                f"at least {self.min_micro_batches} micro-batches for the schedule {schedule} at pp = {layout.pp}"
            )
            faults.append(Fault("accumulation", self.accumulation, expected, "global batch / micro-batch / dp / fsdp"))
        return faults

    def _unscheduled(self) -> Fault:
        """The fault of a schedule that the framework does not have, with the frameworks that do."""
        if not self.rules.schedules:
            return Fault("pp", self.layout.pp, f"1 with --framework {self.framework}, which has no pipeline")
        others = " or ".join(name for name, rules in FRAMEWORKS.items() if self.schedule in rules.schedules)
        expected = f"{' or '.join(self.rules.schedules)} with --framework {self.framework}"
        return Fault("schedule", self.schedule, expected, f"{others} has it")

    @property
    def min_micro_batches(self) -> int:
        """The fewest micro-batches that the pipeline's schedule allows."""
        pp, gap = self.layout.pp, self.rules.min_microbatch_gap
        fewest = {"gpipe": 1, "1f1b": 1 if gap is None else max(1, pp - gap), "dualpipev": 2 * pp}
        return fewest.get(self.schedule, pp) if pp > 1 else 1

    @property
    def pieces(self) -> int:
        """Pieces of the model per pipeline rank."""
        return 2 if self.layout.pp > 1 and self.schedule in V_SHAPED else self.layout.vpp


TEXTS = (
    "recompute", "optimizer", "framework", "schedule", "parameter", "gradient", "compute", "reduce", "context",
    "frozen", "adapter", "offload", "attention",
)  # fmt: skip
NUMBERS = ("micro_batch", "accumulation", "tokens", "zero")
FLAGS = ("loss_parallel", "keep_scores", "fused_loss", "eager", "reshard", "regather")


def parse_recipe(text: str, layout: Layout) -> Recipe:
    """`tokens=64,micro_batch=2,schedule=1f1b` as a `Recipe`, with its defaults, except for tokens: 32 · cp · sp.

    Errors: `InputError` with every fault at once.
    """
    recipe = Recipe(layout=layout, **{"tokens": 32 * layout.cp * layout.sp, **parse_options(text)})
    recipe.check()
    return recipe


def parse_options(text: str) -> dict[str, Any]:
    """The fields of a recipe given as text: `name=value,…`; flags are on or off, stages the layers of each, `3+4+4+3`.

    Errors: `InputError` with every fault at once.
    """
    keys, faults = (*TEXTS, *NUMBERS, *FLAGS, "stages"), list[Fault | str]()
    options: dict[str, object] = {}
    for pair in filter(None, re.split(r",(?!\s*\d)", text)):  # numbers of layers have commas too
        name, _, value = (piece.strip() for piece in pair.partition("="))
        if name not in keys:
            mend = meant(nearest(name, keys)[:1], f"one of {', '.join(keys)}")
            faults.append(f"{name!r} is not an option of a recipe ({mend})")
        elif name in options:
            faults.append(f"{name} is given twice")
        elif name in FLAGS and value not in ("on", "off"):
            faults.append(Fault(name, value, "on or off"))
        elif name in NUMBERS and not _is_number(value):
            faults.append(Fault(name, value, "a whole number"))
        elif name == "stages":
            if all(map(_is_number, value.split("+"))):
                options[name] = tuple(map(int, value.split("+")))
            else:
                faults.append(Fault(name, value, "the layers of each piece of the pipeline", "3+4+4+3"))
        else:
            options[name] = value == "on" if name in FLAGS else int(value) if name in NUMBERS else value
    if faults:
        raise InputError("--recipe", faults)
    return options


def choice(numbers: Sequence[int]) -> str:
    """`0`, or `one of 0, 1`."""
    return f"{'one of ' * (len(numbers) > 1)}{', '.join(map(str, numbers))}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _unknown(name: str, value: str, names: Sequence[str], translations: Mapping[str, str] | None = None) -> Fault:
    """The fault of an unknown value, with the nearest known one; `translations` translates another tool's names."""
    near = [
        (translations or {}).get(candidate, candidate) for candidate in nearest(value, [*names, *(translations or {})])
    ]
    return Fault(name, value, f"one of {', '.join(names)}", meant(near[:1], ""))


def _is_recompute(text: str) -> bool:
    if text in ("none", "core", "blocks"):
        return True
    kind, _, numbers = text.partition(":")
    if kind == "every":
        return _is_number(numbers) and 1 <= int(numbers) <= MOST
    return kind == "layers" and all(map(_is_number, numbers.split(",")))
