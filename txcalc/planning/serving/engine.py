"""An engine's settings: formats of weights and cache, chunks, pages, and the reserve of engine and driver."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from txcalc.errors import Fault, InputError
from txcalc.hardware import Accelerator, peak
from txcalc.ledger import Entry
from txcalc.model import MAX_TOKENS, Model
from txcalc.num import ceil_div
from txcalc.parts.leaf import Leaf, Recurrence
from txcalc.planning.formats.names import NATIVE, weights_of
from txcalc.planning.formats.weights import Format
from txcalc.planning.serving.engine_memory import EngineMemory
from txcalc.planning.serving.engine_profiles import data, is_gguf, is_mlx, unsupported_fault
from txcalc.planning.serving.offload import Offload, is_single_decoder
from txcalc.units import bits_of, cache_bits_of, parse_bytes

BLOCK = 16  # tokens of a page of the cache
CHUNK = 8192  # tokens of a prefill step, of no engine
MLX_CHUNK = 2048  # of mlx-lm's (generate.py, prefill_step_size)


class Reserve(NamedTuple):
    """Memory reserved for the engine and the driver: a share of the accelerator's, and bytes."""

    share: Fraction = Fraction(1, 10)
    bytes: int = 0
    source: str = "vLLM's gpu_memory_utilization = 0.9"

    @classmethod
    def none(cls) -> Reserve:
        return cls(Fraction(0), 0, "none")

    def of(self, memory: int) -> int:
        """Reserved bytes of a memory."""
        return int(ceil_div(self.share.numerator * memory, self.share.denominator)) + self.bytes

    def available(self, accelerator: Accelerator) -> int:
        """Visible bytes of an accelerator less the reserve."""
        return accelerator.visible - self.of(accelerator.visible)

    def __str__(self) -> str:
        return f"{float(100 * self.share):g} %" if self.share else f"{self.bytes:,} bytes"


def parse_reserve(text: str) -> Reserve:
    """`10%` of the memory, or a size such as `4GiB`."""
    written = text.strip()
    if not written.endswith("%"):
        return Reserve(Fraction(0), parse_bytes(written, "--reserve"), "as asked")
    try:
        share = Fraction(written[:-1].strip()) / 100
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 <= share < 1:
        raise InputError("--reserve", [Fault("--reserve", text, "a share such as 10%, or a size such as 4GiB")])
    return Reserve(share, 0, "as asked")


class EngineConfig(Struct, frozen=True, dict=True):
    """How an engine stores weights and caches.

    weights       format of the served model's weights
    weights_name  the format's name as the user gave it; a draft model uses it too
    memory        the engine's memory on the accelerator; None: no engine is named, and only the reserve counts
    kv            dtype of the cache
    block         tokens of a page of the cache; `block_given`: as the user asked
    chunk         most tokens of a prefill step, all sequences together
    kernels       the engine whose measured kernels apply; "": kernels that engines have in common
    prefix        tokens with which all sequences begin: their whole pages are stored once
    offload       the part of the model in RAM; None: nothing
    interval      decode steps between two polls for new requests
    gathers       copies that share experts poll when all have a request, at the latest after `interval` steps
    wide_states   recurrent states are kept in fp32
    windows_whole   the cache keeps every token of layers with windows
    marlin        Marlin, the kernels for any four bits, multiplies MXFP4 experts
    adapters      LoRA adapters in memory, of rank `rank`; each request uses one
    """

    weights: Format
    kv: str = "bf16"
    block: int = BLOCK
    block_given: bool = False
    chunk: int = CHUNK
    reserve: Reserve = field(default_factory=Reserve)
    weights_name: str = NATIVE
    memory: EngineMemory | None = None
    kernels: str = ""
    prefix: int = 0
    offload: Offload | None = None
    adapters: int = 0
    rank: int = 0
    interval: int = 1
    gathers: bool = False
    marlin: bool = False
    wide_states: bool = False
    windows_whole: bool = False

    def of(self, model: Model) -> EngineConfig:
        """The settings for a draft model: its weights in the requested format, no profile, no adapters."""
        return replace(self, weights=weights_of(model, self.weights_name), memory=None, offload=None, adapters=0)

    def adapted(self, entry: Entry) -> int:
        """Elements of one adapter on an entry, all its copies: two factors for every linear layer of a block except
        routed experts and routers, of the inputs and outputs in the rank's shard."""
        matrix = entry.leaf.matrix
        if not self.adapters or entry.routed or entry.kind == "router" or entry.layer is None or matrix is None:
            return 0
        return self.rank * sum(matrix) * entry.times

    @property
    def towers(self) -> str:
        """Where the towers of a multimodal model are: `split` over tp, `whole` on each GPU, or on the `first`."""
        return str(data()["towers"][self.memory.profile.engine]["layout"]) if self.memory else "whole"

    @property
    def window_room(self) -> tuple[int, int]:
        """Tokens paged besides a window, in prefill and later."""
        paged = self.memory.profile.rules.windows if self.memory else "window"
        later = MAX_TOKENS if self.windows_whole else self.chunk if paged == "chunk" else 1
        return max(self.chunk, later), later

    @property
    def shared(self) -> int:
        """Tokens of the prefix in whole pages."""
        return self.prefix // self.block * self.block

    def stored(self, entry: Entry) -> int:
        """Bytes of a leaf's weights as the engine stores them."""
        size = self.weights.bytes_of(entry)
        return self.memory.padded(entry, self.weights, size) if self.memory else size

    def kernel(self, form: Format, dtype: str) -> str:
        """The kernel class of a format's products in a dtype: some engines have kernels for MXFP4 only."""
        kernel = form.kernel(dtype)
        shared = self.marlin or (self.memory is not None and self.memory.profile.rules.shared_kernels)
        return "w4" if kernel == "mxfp4" and shared else kernel

    def peak(self, accelerator: Accelerator, dtype: str, narrow: bool) -> int:
        """FLOPs per second of products in a dtype. Some of llama.cpp's accumulate in fp16, or in integers for `narrow`
        weights, at twice a card's rate; its measured shares refer to that rate."""
        halves = self.memory.profile.numbers.get("half_sums", ()) if self.memory else ()
        times = accelerator.half_sums if accelerator.vendor in halves and (narrow or dtype == "fp16") else 1
        return peak(accelerator, dtype) * times

    @property
    def activation_bits(self) -> int:
        return 32 if self.weights.name == "fp32" else 16

    @cached_property
    def cache_bits(self) -> int:
        return cache_bits_of(self.kv)

    def bits_cached(self, leaf: Leaf) -> int:
        """Bits per cached element; recurrent states and convolution windows are not quantised."""
        wide = self.wide_states and isinstance(leaf, Recurrence)
        return max(32 if wide else 16, self.cache_bits) if leaf.cache_kind == "state" else self.cache_bits


def step_faults(block: int, chunk: int) -> list[Fault | str]:
    """The faults of the tokens of a page and of a step."""
    return out_of_range(("block", block, 1 << 16), ("chunk", chunk, MAX_TOKENS))


def out_of_range(*numbers: tuple[str, int, int]) -> list[Fault | str]:
    """The faults of numbers (name, value, maximum) that are not from 1 to the maximum."""
    return [
        Fault(name, value, f"a whole number from 1 to {most:,}")
        for name, value, most in numbers
        if type(value) is not int or not 1 <= value <= most
    ]


def engine(
    model: Model,
    weights: str = NATIVE,
    kv: str = "bf16",
    block: int | None = None,
    chunk: int = CHUNK,
    reserve: Reserve | None = None,
    memory: EngineMemory | None = None,
    prefix: int = 0,
    offload: Offload | None = None,
    adapters: tuple[int, int] = (0, 0),
    interval: int = 1,
    gathers: bool = False,
) -> EngineConfig:
    """A checked engine for a model; `adapters`: their number and rank."""
    given, block = block is not None, BLOCK if block is None else block
    faults = step_faults(block, chunk) + out_of_range(("gather" if gathers else "poll", interval, 1000))
    if type(prefix) is not int or not 0 <= prefix <= MAX_TOKENS:
        faults.append(Fault("shared prefix", prefix, f"a whole number from 0 to {MAX_TOKENS:,}"))
    faults += [
        Fault(name, value, f"a whole number from 1 to {most:,}", "" if value else f"--{name.replace(' ', '-')} 16")
        for name, value, most in zip(("adapters", "adapter rank"), adapters, (1 << 16, 4096), strict=True)
        if any(adapters) and not 1 <= value <= most
    ]
    if faults:
        raise InputError("engine", faults)
    model.cache_bits(kv)
    form, reserved = weights_of(model, weights), reserve or Reserve()
    plain = EngineConfig(
        weights=form, kv=kv, block=block, block_given=given, chunk=chunk, reserve=reserved, weights_name=weights,
        prefix=prefix, offload=offload, adapters=adapters[0], rank=adapters[1], interval=interval, gathers=gathers,
        wide_states=model.description.model_type.startswith(tuple(data()["states"]["fp32"])),
    )  # fmt: skip
    return plain if memory is None else with_engine(plain, model, memory, reserve)


def with_engine(plain: EngineConfig, model: Model, memory: EngineMemory, reserve: Reserve | None) -> EngineConfig:
    """The settings with an engine's kernels, steps, memory and reserve on an accelerator. Errors: `InputError` for a
    model or a format that the engine does not support there."""
    if lacking := unsupported_fault(memory.profile, model, plain.weights, memory.accelerator, plain.kv):
        raise InputError("engine", [lacking])
    rules, limits = memory.profile.rules, {leaf.max_keys for leaf in model.root.leaves() if leaf.attended}
    # llama.cpp keeps the embedding table in RAM, unless the memory is unified
    tables_in_ram = rules.offloads and not memory.accelerator.unified and is_single_decoder(model)
    return replace(
        plain,
        chunk=memory.most_tokens,
        wide_states=plain.wide_states or rules.wide_states,
        windows_whole=rules.windows == "all" or (rules.windows == "chunk" and len(limits) == 1),
        memory=memory,
        kernels=memory.profile.kernels,
        marlin=memory.hopper and bool(memory.profile.numbers.get("marlin")),
        reserve=reserve or reserve_of(memory),
        offload=plain.offload or (Offload() if tables_in_ram else None),
    )


def on_accelerator(
    plain: EngineConfig,
    model: Model,
    memory: EngineMemory | None,
    reserve: Reserve | None,
    named: bool,
    preferred: bool,
) -> EngineConfig:
    """The settings with the engine of a `memory`; None: without an engine.

    An engine that is not `named` is llama.cpp. It counts for formats of .gguf files and, if `preferred`, for all
    formats that it has; MLX formats run on mlx-lm, which reserves nothing; else no engine counts. Errors: `InputError`.
    """
    if memory is None:
        return plain
    if named:
        return with_engine(plain, model, memory, reserve)
    form, accelerator = plain.weights, memory.accelerator
    if is_mlx(form):
        none = Reserve(Fraction(0), 0, "mlx-lm reserves none")
        return replace(plain, chunk=memory.tokens or MLX_CHUNK, reserve=reserve or none)
    usable = preferred and not unsupported_fault(memory.profile, model, form, accelerator, plain.kv)
    if not (usable or is_gguf(form)):
        return plain
    return with_engine(plain, model, memory, reserve)


def reserve_of(memory: EngineMemory | None) -> Reserve:
    """The default reserve of an engine."""
    if memory is None:
        return Reserve()
    profile = memory.profile
    share = Fraction(str(profile.numbers.get("left_alone", profile.rules.share)))
    source = f"{profile}'s gpu_memory_utilization" if share else f"{profile} reserves none"
    return Reserve(share, 0, source)


def multiplies(accelerator: Accelerator, dtype: str) -> bool:
    """Whether an accelerator multiplies in a dtype; dtypes of 16 bits and more count as supported."""
    return dtype in accelerator.peaks or not accelerator.peaks or bits_of(dtype) >= 16
