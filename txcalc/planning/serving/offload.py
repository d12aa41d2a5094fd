"""llama.cpp's offload to host RAM: whole layers with their caches, or the routed experts of layers.

Layers are counted as llama.cpp counts them: of L layers and the head, `--gpu-layers N` puts the last N on the
accelerator, the head being one of them; `--n-cpu-moe N` leaves the routed experts of the first N in RAM. The embedding
table always stays in RAM; a tied head is a second copy of it on the accelerator. The host computes steps of few tokens
with the weights in RAM; for steps of `MANY` or more, the weights are copied to the accelerator. Attention is computed
where its cache is.

Source   llama.cpp src/llama-model.cpp (i_gpu_start, the list of an input layer), common/arg.cpp (n-cpu-moe), ggml-cuda
         (an operation is offloaded from a batch of 32 on), 2026
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

from msgspec import Struct

from txcalc.errors import Fault, InputError
from txcalc.hardware.cards import numbers
from txcalc.ledger import Entry
from txcalc.model import Model
from txcalc.units import parse_bytes, parse_rate

MANY = 32  # tokens of a step from which on weights are copied to the accelerator
SLOT = 25 * 10**9  # default bytes per second to an accelerator: copies over PCIe 4.0 x16


class HostMemory(Struct, frozen=True):
    """A host's memory in bytes, its bandwidth, its peak in FLOP/s, and bytes per second to an accelerator.

    Without a bandwidth nothing is timed; without a peak the host's arithmetic is not counted, and prompts that pass
    attention on it are not timed.
    """

    memory: int
    bandwidth: int | None = None
    peak: int | None = None
    link: int = SLOT


class Offload(Struct, frozen=True):
    """A model's tensors in RAM: the embedding table, the first `layers`, the routed experts of the first `experts`
    layers, and, if no layer is on an accelerator, the `head`.

    host   None: not known; only the table is in RAM
    """

    host: HostMemory | None = None
    layers: int = 0
    experts: int = 0
    head: bool = False

    @property
    def cuts(self) -> tuple[int, ...]:
        """Layer numbers at which a group of equal layers ends; empty: only the embedding table is in RAM."""
        return tuple(sorted({self.layers, self.experts} - {0}))

    def holds(self, entry: Entry) -> bool:
        """Whether a leaf's weights are in RAM."""
        if (number := _layer(entry)) is None:
            return entry.kind == "embedding" or (self.head and entry.kind == "head")
        return number < self.layers or (entry.routed and number < self.experts)

    def keeps(self, entry: Entry) -> bool:
        """Whether a leaf's cache is in RAM."""
        number = _layer(entry)
        return number is not None and number < self.layers

    def notes(self) -> Iterator[str]:
        if not self.cuts or self.host is None:
            return
        yield f"prompts' weights are copied to the GPU at {self.host.link / 1e9:g} GB/s (--pcie changes it)"
        if self.host.peak is None:
            yield "the CPU's arithmetic is not counted: with few sequences, reading RAM takes longer"

    def __str__(self) -> str:
        words = []
        if self.layers:
            words.append(f"{self.layers} layers" + (" and the head" if self.head else ""))
        if self.experts > self.layers:
            words.append(f"{self.experts} layers' experts")
        return " and ".join(words) or "the table of tokens"


def _layer(entry: Entry) -> int | None:
    """The number of a leaf's first layer; None: it is in no layer."""
    return entry.numbers[0] if entry.layer else None


class OffloadRequest(NamedTuple):
    """llama.cpp's options as given; without both, the least goes to RAM with which the rest fits.

    cpu_moe   layers whose experts are in RAM; -1: all of them
    """

    host: HostMemory
    gpu_layers: int | None = None
    cpu_moe: int | None = None

    def of(self, model: Model, fits: Callable[[Offload], bool]) -> Offload:
        """The tensors in RAM; `fits`: whether the rest fits on the accelerator. Errors: `InputError` for a model
        without such layers."""
        layers, sparse = layer_count(model), any(layer.experts for layer in model.description.layers)
        if self.gpu_layers is None and self.cpu_moe is None:
            return least_offload(self.host, layers, sparse, fits)
        if self.cpu_moe is not None and not sparse:
            raise InputError(
                "--n-cpu-moe", [f"{model.name} has no experts (--gpu-layers N leaves whole layers in RAM)"]
            )
        on_host = 0 if self.gpu_layers is None else min(layers, max(layers + 1 - self.gpu_layers, 0))
        experts = layers if self.cpu_moe == -1 else min(layers, self.cpu_moe or 0)
        return Offload(self.host, on_host, experts, self.gpu_layers == 0)


def parse_offload(
    ram: str | None, pcie: str | None, gpu_layers: int | None, cpu_moe: str | None
) -> OffloadRequest | None:
    """Parses `64GB@80GB/s`, `25GB/s`, 20 and `12` or `all`; None: no offloading.

    Errors: `InputError` for texts that are not sizes, rates or numbers; without the size of the RAM.
    """
    faults: list[Fault | str] = []
    if ram is None:
        options = (("--gpu-layers", gpu_layers), ("--n-cpu-moe", cpu_moe), ("--pcie", pcie))
        faults += [
            f"{flag} needs the size of the RAM: --ram 64GB@80GB/s" for flag, value in options if value is not None
        ]
        if faults:
            raise InputError("--ram", faults)
        return None
    memory, bandwidth, peak = numbers(ram, "--ram") or (parse_bytes(ram, "--ram"), None, None)
    if not memory:
        faults.append(Fault("--ram", ram, "more than 0, where layers or experts can be left", "64GB"))
    if gpu_layers is not None and gpu_layers < 0:
        faults.append(Fault("--gpu-layers", gpu_layers, "a whole number from 0: the layers and the head on the GPU"))
    if cpu_moe is not None and cpu_moe != "all" and not (cpu_moe.isdecimal() and len(cpu_moe) < 7):
        faults.append(Fault("--n-cpu-moe", cpu_moe, "a number of layers, or all"))
    rate = parse_rate(pcie, "--pcie") if pcie is not None else SLOT
    if not rate:
        faults.append(Fault("--pcie", pcie, "bytes per second", "25GB/s"))
    if faults:
        raise InputError("--ram", faults)
    experts = None if cpu_moe is None else -1 if cpu_moe == "all" else int(cpu_moe)
    return OffloadRequest(HostMemory(memory, bandwidth, peak, rate), gpu_layers, experts)


def layer_count(model: Model) -> int:
    """The number of layers that can be in RAM. Errors: `InputError` for other models."""
    if not is_single_decoder(model):
        raise InputError(model.name, ["its layers cannot lie in RAM: llama.cpp splits a single stack that decodes"])
    return model.n_layers


def is_single_decoder(model: Model) -> bool:
    """Whether a model is a single stack of layers that decodes."""
    return model.root.cuttable and model.decodes and not model.has_encoder_apart


def least_offload(host: HostMemory, layers: int, sparse: bool, fits: Callable[[Offload], bool]) -> Offload:
    """The least in RAM with which the rest fits: experts of ever more layers, then whole layers; else all."""
    offloads = [Offload(host, experts=n) for n in range(layers * sparse + 1)]
    offloads += [Offload(host, n, layers * sparse, n == layers) for n in range(1, layers + 1)]
    return offloads[bisect_left(offloads, True, key=fits, hi=len(offloads) - 1)]
