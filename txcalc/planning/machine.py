"""The machine that a model is served or trained on: accelerators in nodes, their kernels, links and hosts.

The time of a kernel follows the curve of its class (`curves.Curve`), which is fitted to measured kernels: those of the
engine if there are any. The time of a message follows the communication library (`links.Library`).
Source   Williams et al. 2009 (roofline)
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from txcalc.errors import Fault, InputError
from txcalc.hardware import Accelerator, peak
from txcalc.hardware.curves import PYTORCH, Curve
from txcalc.planning.layout import Group, standing
from txcalc.planning.links import DATASHEET, NCCL, Library, LibrarySource, Message
from txcalc.units import bits_of

# Share of an A100's peak that FlashAttention reaches: the middle of 25 to 40 % (1) and of 50 to 73 % (2). On newer
# accelerators, whose new instructions it does not use, it reaches `NEWER` times this share: 335 of an H100's 989
# TFLOP/s, against 73 % of an A100's peak (Dao 2023, arXiv 2307.08691, abstract, sections 1 and 4.1).
FLASH = {"flash1": 0.325, "flash2": 0.615}
OLDER = ("ampere", "ada")
NEWER = 335 / 989 / 0.73

# Seconds that compute loses per second of a concurrent collective: they share multiprocessors, memory and power. On
# average compute took 18.9 % longer with concurrent collectives than alone, and running both in sequence took 10.2 %
# longer than running them concurrently: collectives alone took 0.310 of the time of compute alone (1.189 * 1.102 - 1).
# Lee et al. 2025 (arXiv 2507.03114, abstract): GPT-3 and Llama training steps on 4 A100, H100, MI210 or MI250.
SLOWED = 0.189 / (1.189 * 1.102 - 1)

# Bytes per second one way between an accelerator and its host, by default: 16 lanes of PCIe 4.0, each of
# 16 GT/s with 128 of 130 bits.
PCIE = 31_507_692_307

# Bytes of a process's CUDA context, with the kernels of PyTorch and its libraries: 0.31 to 0.42 GiB, rounded up. It is
# the non-PyTorch memory of out-of-memory messages: awslabs/keys_values#92 (414 MiB, A100), DINGYANB/MTVCrafter#21
# (0.42 GiB, RTX 6000 Ada), qingze-bai/VSmTrans#3 (0.34 GiB), BayraktarLab/cell2location#398 (0.31 GiB).
CONTEXT = 512 << 20


def allocatable(accelerator: Accelerator) -> int:
    """Bytes that PyTorch can allocate on an accelerator: what a process sees, of NVIDIA's without the CUDA context."""
    return max(0, accelerator.visible - (CONTEXT if accelerator.vendor == "NVIDIA" else 0))


class Machine(Struct, frozen=True):
    """Where a model runs.

    accelerator  with the node and the link between nodes that it is sold with, or those that were said
    products     dtype that linear layers multiply in
    overlap      whether collectives go on beside compute, where the framework lets them
    host         bytes per second one way between an accelerator and its host
    engine       whose kernels it runs; "": those that engines have in common
    library      of its communication
    waits        seconds that both stages are blocked before a message between them: of activations, of gradients
    """

    accelerator: Accelerator
    products: str = "bf16"
    overlap: bool = True
    host: int = PCIE
    engine: str = PYTORCH
    library: Library = NCCL
    waits: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(
        cls,
        accelerator: Accelerator,
        node: int | None = None,
        network: int | None = None,
        products: str = "bf16",
        overlap: bool = True,
        host: int | None = None,
    ) -> Machine:
        """`node` accelerators share links, and each has `network` bytes per second to other nodes, one way; None: as it
        is sold; `host` a second one way to its host. Errors: `InputError` for a node of none, a link of nothing,
        and a dtype whose peak is not known."""
        peak(accelerator, products)
        if host is not None and host < 1:
            raise InputError("--host-link", [Fault("--host-link", host, "a rate above 0")])
        return cls(accelerator.placed(node, network), products, overlap, host or PCIE)

    @property
    def node(self) -> int | None:
        """Accelerators that share links; None: all of them."""
        return self.accelerator.node

    def library_source(self, kind: str, group: Group) -> LibrarySource:
        """What sends a kind of message to a group."""
        return self.library.source(self.accelerator, kind, group)

    @staticmethod
    def lost(collectives: float, compute: float) -> float:
        """Seconds that compute of `compute` seconds takes longer next to `collectives` seconds of concurrent
        collectives."""
        return max(SLOWED * collectives, collectives - compute)

    def group(self, size: int, stride: int, ranks: int) -> Group:
        """A group of `size` out of `ranks` ranks, `stride` apart."""
        return Group(size, size if self.node is None else standing(size, stride, self.node, ranks)[0])


class Kernels:
    """Achievable seconds of a rank's kernels and collectives; `Floor` has the lower bounds."""

    def __init__(self, machine: Machine, wide: str = "bf16", flash: str | None = None) -> None:
        self.machine, self.accelerator = machine, machine.accelerator
        self.flash = 0.0 if flash is None else FLASH[flash] * (1 if self.accelerator.kernels in OLDER else NEWER)
        self.efficiency, self.wide = self.accelerator.efficiency, wide
        self.memory_share, self.launch = self.efficiency.memory, self.efficiency.launch_s
        self.library = machine.library
        self.bandwidth = float(self.accelerator.bandwidth)
        self._peaks = {dtype: float(peak(self.accelerator, dtype)) for dtype in {wide, machine.products}}

    def curve(self, kind: str, name: str, layers: Mapping[str, int] | None = None) -> Curve:
        """The curve of a class of kernels: the engine's own, where they were measured on this accelerator. `layers`: as
        in `Efficiency.curve`."""
        return self.efficiency.curve(kind, name, self.machine.engine, layers)

    @property
    def source(self) -> str:
        """Where products' and attention's rates are from."""
        names = ("matmul", self.machine.products), ("attention", "prefill")
        keys = (self.efficiency.named(kind, name, self.machine.engine) for kind, name in names)
        return "; ".join(dict.fromkeys(self.efficiency.cited[key] for key in keys))

    def dtype(self, matrix: tuple[int, int] | None) -> str:
        """What a product by a matrix multiplies in: 8 bits take only sizes that are multiples of 16.

        Source   torch._scaled_mm; torchtitan b5bcd76c, components/quantization/utils.py, module_filter_fn
        """
        narrow = bits_of(self.machine.products) < 16
        return self.wide if narrow and any(size % 16 for size in matrix or ()) else self.machine.products

    def product(
        self,
        flops: float,
        size: float,
        starts: float,
        depth: float,
        rows: float = 0.0,
        kind: str = "matmul",
        matrix: tuple[int, int] | None = None,
    ) -> float:
        """Seconds of `starts` matrix products of `flops` FLOPs and `size` bytes together, with inner size `depth`.
        `rows` of the input are quantised first, if products are narrower than their inputs. `matrix`: (inputs,
        outputs), whose rows set the alignment of memory reads."""
        dtype = self.dtype(matrix)
        curve = self.curve(kind, dtype)
        curve = curve.of_matrix(matrix, bits_of(dtype)) if matrix else curve
        compute = flops / self._peaks[dtype] / curve.compute
        memory = size / self.bandwidth / curve.memory
        passes = self.curve("matmul", dtype).quantise  # experts' inputs as any other's
        narrowed = passes * rows * depth * (bits_of(self.wide) + bits_of(dtype)) / 8
        seconds: float = curve.blended(memory, compute)
        seconds += starts * (curve.start_s + curve.depth_s * depth)
        return seconds + narrowed / self.bandwidth / self.memory_share

    def aligned(self, matrix: tuple[int, int], kind: str = "matmul") -> float:
        """The rate of a large product with this matrix over that of one with rows of multiples of 16 bytes."""
        curve = self.curve(kind, self.dtype(matrix))
        return curve.of_matrix(matrix, bits_of(self.dtype(matrix))).compute / curve.compute

    def core(
        self, flops: float, size: float, starts: float, keys: float, score: float, latent: bool, backward: bool = False
    ) -> float:
        """Attention in one kernel, of `flops` forward; `score` FLOPs of one pair of a head: its softmax takes time too,
        however narrow. FlashAttention's shares are of forward and backward alike."""
        curve = self.curve("attention", "latent_prefill" if latent else "prefill")
        if backward:
            flops *= Curve().backward if self.flash else curve.backward
            size, starts = 2 * size, 2 * starts
        share = curve.compute if latent or not self.flash else min(curve.compute, self.flash)
        compute = flops / self._peaks[self.wide] / share * max(1.0, curve.score / score)
        seconds: float = curve.blended(size / self.bandwidth / curve.memory, compute)
        return seconds + starts * (curve.start_s + curve.depth_s * keys)

    def scores(self, flops: float, size: float, starts: float, depth: float) -> float:
        """Attention in products whose scores go through memory, one kernel after the other."""
        curve = self.curve("matmul", self.wide)
        compute = flops / self._peaks[self.wide] / curve.compute
        return (
            compute + size / self.bandwidth / self.memory_share + 4 * starts * (curve.start_s + curve.depth_s * depth)
        )

    def stream(self, size: float, starts: float) -> float:
        """Whatever moves more than it computes."""
        return size / self.bandwidth / self.memory_share + starts * self.launch

    def update(self, size: float, moments: str) -> float:
        """The optimizer over all tensors, which moves `size` bytes; `moments`: AdamW's dtype, "" of another."""
        return size / self.bandwidth / (self.curve("optimizer", moments).memory if moments else self.memory_share)

    def transfer(self, message: Message) -> float:
        """A collective, or what a stage sends to the next."""
        if message.group.size == 1 or not message.sent:
            return 0.0
        return self.library.seconds(self.accelerator, message)


class Floor(Kernels):
    """The same at the datasheet: full peaks and bandwidths, and starts that cost nothing."""

    def __init__(self, machine: Machine, wide: str = "bf16") -> None:
        super().__init__(machine, wide)
        self.memory_share, self.launch, self.library = 1.0, 0.0, DATASHEET

    def curve(self, kind: str, name: str, layers: Mapping[str, int] | None = None) -> Curve:
        return Curve()

    def rate(self, core: bool, matrix: tuple[int, int] | None = None) -> float:
        """FLOPs per second of attention, or of linear layers."""
        return self._peaks[self.wide if core else self.dtype(matrix)]
