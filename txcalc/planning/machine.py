"""The machine that a model is served or trained on: accelerators in nodes, their kernels, links and hosts, and the
messages that ranks send.

The time of a kernel follows the curve of its class (`curves.Curve`), which is fitted to measured kernels, to the
engine's if there are any. The time of a message follows the communication library (`Library`): with the same library, a
message takes the same time in serving and in training.
Source   Williams et al. 2009 (roofline)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from math import inf, log2
from typing import NamedTuple

from msgspec import Struct

from txcalc.errors import Fault, InputError
from txcalc.hardware import Accelerator, peak
from txcalc.hardware.curves import PYTORCH, Curve
from txcalc.num import ceil_div
from txcalc.planning.layout import Group, standing
from txcalc.units import bits_of

# Up to this number of ranks in a node, engines exchange experts' tokens by an all-gather and a reduce-scatter by
# default: vLLM (--all2all-backend allgather_reducescatter), SGLang (--moe-a2a-backend none), TensorRT-LLM except in
# racks.
GATHERED = 8
NODE = 8  # accelerators that usually share a link
SLOT = 8 * 10**9  # bytes per second between cards without a link: PCIe 4.0 of four lanes, the slowest slot in use
PCIE_5 = 64 * 10**9  # bytes per second of sixteen lanes of PCIe 5.0
RINGS = "all_reduce", "all_gather", "reduce_scatter"  # ring collectives


def slow_link(accelerator: Accelerator) -> str:
    """A note on a link no faster than PCIe 5.0, with the option that changes it; "" for faster links."""
    if not accelerator.link or accelerator.link > PCIE_5:
        return ""
    rate, source = f"{accelerator.link / 1e9:g} GB/s", accelerator.sources.get("link", "")
    if source == "--link":
        return f"GPUs are linked at {rate} (--link)"
    how = " by PCIe" if "pcie" in source.lower() else ""
    convention = f"{source}; " if source.startswith("by convention") else ""
    return f"GPUs are linked{how} at {rate} one way ({convention}--link changes it)"


class Message(NamedTuple):
    """A collective, or the tensors that one rank sends to the next.

    sent    bytes that each rank sends
    pieces  number of collectives
    across  bytes that leave the node; None: an even share
    """

    kind: str
    group: Group
    sent: float
    pieces: int = 1
    across: float | None = None


def ring(kind: str, group: Group, message: float, pieces: int = 1) -> Message:
    """A ring collective of a message of `message` bytes."""
    peer_share = (group.size - 1) / group.size
    return Message(kind, group, message * (2 * peer_share if kind == "all_reduce" else peer_share), pieces)


def relayed_all_to_all(group: Group, token_bytes: float, choices: float) -> Message:
    """An all-to-all of `token_bytes` of tokens, each with `choices` experts: a token is sent once to each node with any
    of its experts, to the rank of the same index, which forwards it once to each rank of its node that needs it.

    Source   DeepSeek-V3 (arXiv 2412.19437), section 3.2.2; DeepEP
    """
    ranks, local = group
    nodes = ceil_div(ranks, local)
    across = token_bytes * (nodes - 1) * (1 - (1 - 1 / nodes) ** choices)
    inside = token_bytes * ranks * (1 - (1 - 1 / ranks) ** choices) * (local - 1) / local
    return Message("all_to_all", group, inside + across, across=across)


def datasheet_seconds(accelerator: Accelerator, message: Message, least: bool = False) -> float:
    """Seconds of a message at datasheet rates: links within nodes and between them work concurrently, and the slower
    decides.

    A ring enters and leaves a node once, over the network cards of all its ranks there (at `least`, only bytes that no
    rank of the other node has); in an all-to-all every rank sends equally to all others, over its own card. A message
    between pipeline stages is the mean over all stages, some of which share a node; without a link it passes through
    host memory (at `least`, over PCIe 5.0 of sixteen lanes).
    Errors: `InputError` if a needed link is not known.
    """
    kind, group, sent, _, across = message
    if kind == "send" and accelerator.link is None and not group.crosses:
        return sent / (8 * SLOT if least else SLOT)
    inside = sent / accelerator.needed("link")
    if not group.crosses:
        return inside
    between = sent / accelerator.needed("link_between")
    ranks, local = group
    away = (ranks - local) / (ranks - 1)  # of the others
    if kind == "all_to_all":
        share = away if across is None or not sent else across / sent
        return max(inside * (1 - share), between * share)
    if kind == "send":
        hops = ceil_div(ranks, local) - 1
        return (between * hops + inside * (ranks - 1 - hops)) / (ranks - 1)
    return max(inside, between / local * (away if least and kind != "all_reduce" else 1))


class LibrarySource(Struct, frozen=True):
    """The library that sends a message, and the source of its figures."""

    library: str
    source: str


class Library(Struct, frozen=True):
    """A communication library."""

    @abstractmethod
    def seconds(self, accelerator: Accelerator, message: Message) -> float:
        """Seconds of a message on an accelerator's links."""

    @abstractmethod
    def source(self, accelerator: Accelerator, kind: str, group: Group) -> LibrarySource:
        """The library that sends a kind of message to a group."""


# The share of a link's rate that NCCL's large messages reach: 367.61 of 450 GB/s on 8 × H200, 77 % to 83 % on 8 × A100.
LINK_SHARE = 0.82
# Seconds of a start, and of a hop (within a node, between nodes) of rings and of trees: NCCL's baseLat and hwLat.
START, RING, TREE = 14e-6, (1.9e-6, 4.0e-6), (1.25e-6, 8.5e-6)


class Nccl(Library, frozen=True):
    """NCCL as frameworks call it: a share of the links' rate, and for every collective of any size the latency of the
    LL128 protocol in NCCL's own cost model.

    busbw   bytes per second that rings between nodes reach at most, as measured by nccl-tests: for each group of ranks,
            with any number of a node's network cards
    """

    busbw: float = inf

    def seconds(self, accelerator: Accelerator, message: Message) -> float:
        limited = message.group.crosses and message.kind in RINGS
        least = message.sent / self.busbw if limited else 0.0
        rated = datasheet_seconds(accelerator, message) / LINK_SHARE
        return max(rated, least) + message.pieces * self.latency(message)

    def latency(self, message: Message) -> float:
        """Seconds of one collective of any size: the ring's, or for an all-reduce the tree's if that is less."""
        size, local = message.group
        nodes = ceil_div(size, local)
        hops = nodes if nodes > 1 else 0  # between nodes
        if message.kind not in RINGS:
            return START + (RING[1] if hops else RING[0])
        ring_s = max(0, size - 1 - hops) * RING[0] + hops * RING[1]
        if message.kind != "all_reduce":
            return START + ring_s
        return START + 2 * min(ring_s, (local - 1) * TREE[0] + log2(nodes) * TREE[1])

    def source(self, accelerator: Accelerator, kind: str, group: Group) -> LibrarySource:
        latencies = "latency: NCCL 2.2x, src/graph/tuning.cc"
        rates = "stas00/ml-engineering 744d01e, network/README.md; docs.alayanew.com, 2026-05-06"
        return LibrarySource("NCCL", f"{latencies}; share of the link: nccl-tests ({rates})")


class EngineCollectives(Library, frozen=True):
    """Collectives of serving engines. Within a node they replay captured graphs, with measured kernels
    (`Efficiency.links`): the engine's all-reduce (TensorRT-LLM, vLLM and SGLang each have one), and NCCL for every
    other collective. Between nodes they call NCCL as frameworks do, since ranks of the engine's all-reduce write into
    each other's memory, which works only within a node.

    Source   vLLM, distributed/device_communicators/custom_all_reduce.py: disabled for a group over several nodes, and
             for more than two GPUs on a shared bus (PCIe), where the measurements are of NCCL
    """

    def seconds(self, accelerator: Accelerator, message: Message) -> float:
        if message.group.crosses:
            return NCCL.seconds(accelerator, message)
        curve, ranks = accelerator.efficiency.transfer(message.kind), message.group.size
        rated = datasheet_seconds(accelerator, message)
        return rated / curve.reached(rated * (accelerator.link or SLOT), ranks) + curve.latency(ranks)

    def source(self, accelerator: Accelerator, kind: str, group: Group) -> LibrarySource:
        cited = accelerator.efficiency.cited
        if group.crosses:
            return NCCL.source(accelerator, kind, group)
        if kind != "all_reduce":
            return LibrarySource("NCCL in captured graphs", cited["link.all_to_all"])
        shared_bus = group.size > 2 and accelerator.efficiency.transfer(kind).crowd
        return LibrarySource("NCCL" if shared_bus else "all-reduce of the engine", cited["link.all_reduce"])


class Datasheet(Library, frozen=True):
    """A lower bound instead of a library: every byte at the datasheet's rate; an all-reduce sends its message once, as
    with a switch that reduces."""

    def seconds(self, accelerator: Accelerator, message: Message) -> float:
        if message.kind == "all_reduce":
            size = message.group.size
            message = message._replace(sent=message.sent * size / (2 * (size - 1)))
        return datasheet_seconds(accelerator, message, least=True)

    def source(self, accelerator: Accelerator, kind: str, group: Group) -> LibrarySource:
        return LibrarySource("none", "datasheet")


NCCL, ENGINE_COLLECTIVES, DATASHEET = Nccl(), EngineCollectives(), Datasheet()


# The share of an A100's peak that FlashAttention reaches: the middle of 25 to 40 % (1) and of 50 to 73 % (2). On newer
# accelerators, whose new instructions it does not use, it reaches `NEWER` times this share: 335 of an H100's 989
# TFLOP/s, against 73 % of an A100's peak (Dao 2023, arXiv 2307.08691, abstract, sections 1 and 4.1).
FLASH = {"flash1": 0.325, "flash2": 0.615}
OLDER = ("ampere", "ada")
NEWER = 335 / 989 / 0.73

# Seconds that compute loses per second of a concurrent collective, since they share multiprocessors, memory and power.
# On average, concurrent collectives slowed compute by 18.9 %, and running both in sequence took 10.2 % longer than
# running them concurrently: collectives took 0.310 of the time of compute (1.189 * 1.102 - 1).
# Lee et al. 2025 (arXiv 2507.03114, abstract): GPT-3 and Llama training steps on 4 A100, H100, MI210 or MI250.
SLOWED = 0.189 / (1.189 * 1.102 - 1)

# Bytes per second one way between an accelerator and its host, by default: 16 lanes of PCIe 4.0 at 16 GT/s, rounded as
# datasheets do (128 of 130 bits are data: 31.5).
PCIE_4 = 32 * 10**9

# Bytes of a process's CUDA context, with the kernels of PyTorch and its libraries: 0.31 to 0.42 GiB, rounded up. It is
# the non-PyTorch memory of out-of-memory messages: awslabs/keys_values#92 (414 MiB, A100), DINGYANB/MTVCrafter#21
# (0.42 GiB, RTX 6000 Ada), qingze-bai/VSmTrans#3 (0.34 GiB), BayraktarLab/cell2location#398 (0.31 GiB).
CONTEXT = 512 << 20


def allocatable(accelerator: Accelerator) -> int:
    """Bytes that PyTorch can allocate on an accelerator: those that a process sees, minus NVIDIA's CUDA context."""
    return max(0, accelerator.visible - (CONTEXT if accelerator.vendor == "NVIDIA" else 0))


class Machine(Struct, frozen=True):
    """The machine on which a model runs.

    accelerator  with the node and the link between nodes that it is sold with, or requested ones
    products     dtype of linear layers' products
    overlap      whether collectives overlap with compute if the framework allows it
    host         bytes per second one way between an accelerator and its host
    engine       the engine whose kernels run; "": kernels that engines have in common
    library      of communication
    waits        seconds that both stages are blocked before a message between them: of activations, of gradients
    """

    accelerator: Accelerator
    products: str = "bf16"
    overlap: bool = True
    host: int = PCIE_4
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
        """`node` accelerators share links, and each has `network` bytes per second one way to other nodes (None: as it
        is sold) and `host` bytes per second one way to its host. Errors: `InputError` for a node or rate below 1, and
        for a dtype whose peak is not known."""
        peak(accelerator, products)
        if host is not None and host < 1:
            raise InputError("--host-link", [Fault("--host-link", host, "a rate above 0", "64GB/s")])
        return cls(accelerator.placed(node, network), products, overlap, host or PCIE_4)

    @property
    def node(self) -> int | None:
        """Accelerators that share links; None: all of them."""
        return self.accelerator.node

    def library_source(self, kind: str, group: Group) -> LibrarySource:
        """The library that sends a kind of message to a group."""
        return self.library.source(self.accelerator, kind, group)

    @staticmethod
    def lost(collectives: float, compute: float) -> float:
        """Seconds by which concurrent collectives of `collectives` seconds prolong `compute` seconds of compute."""
        return max(SLOWED * collectives, collectives - compute)

    def group(self, size: int, stride: int, ranks: int) -> Group:
        """A group of `size` ranks, `stride` apart, out of `ranks`."""
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
        """The curve of a class of kernels: the engine's own if they were measured on this accelerator. `layers`: as in
        `Efficiency.curve`."""
        return self.efficiency.curve(kind, name, self.machine.engine, layers)

    @property
    def source(self) -> str:
        """The sources of the rates of products and attention."""
        names = ("matmul", self.machine.products), ("attention", "prefill")
        keys = (self.efficiency.named(kind, name, self.machine.engine) for kind, name in names)
        return "; ".join(dict.fromkeys(self.efficiency.cited[key] for key in keys))

    def dtype(self, matrix: tuple[int, int] | None) -> str:
        """The dtype of a product with a matrix: 8-bit kernels take only sizes that are multiples of 16.

        Source   torch._scaled_mm; torchtitan b5bcd76c, components/quantization/utils.py, module_filter_fn
        """
        in_8_bits = bits_of(self.machine.products) < 16
        return self.wide if in_8_bits and any(size % 16 for size in matrix or ()) else self.machine.products

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
        """Seconds of `starts` matrix products with `flops` FLOPs and `size` bytes in total, and inner size `depth`.
        `rows` of the input are quantised first, if products have fewer bits than their inputs. `matrix`: (inputs,
        outputs), whose rows set the alignment of memory reads."""
        dtype = self.dtype(matrix)
        curve = self.curve(kind, dtype)
        curve = curve.of_matrix(matrix, bits_of(dtype)) if matrix else curve
        compute = flops / self._peaks[dtype] / curve.compute
        memory = size / self.bandwidth / curve.memory
        passes = self.curve("matmul", dtype).quantise  # the same for experts' inputs
        quantised = passes * rows * depth * (bits_of(self.wide) + bits_of(dtype)) / 8
        seconds: float = curve.blended(memory, compute)
        seconds += starts * (curve.start_s + curve.depth_s * depth)
        return seconds + quantised / self.bandwidth / self.memory_share

    def aligned(self, matrix: tuple[int, int], kind: str = "matmul") -> float:
        """The rate of a large product with this matrix over that of one with rows of multiples of 16 bytes."""
        curve = self.curve(kind, self.dtype(matrix))
        return curve.of_matrix(matrix, bits_of(self.dtype(matrix))).compute / curve.compute

    def core(
        self, flops: float, size: float, starts: float, keys: float, score: float, latent: bool, backward: bool = False
    ) -> float:
        """Seconds of attention in one kernel, with `flops` in forward and `score` FLOPs per query-key pair of a head;
        narrow heads are slower, since the softmax also takes time. FlashAttention's shares hold for forward and
        backward."""
        curve = self.curve("attention", "latent_prefill" if latent else "prefill")
        if backward:
            flops *= Curve().backward if self.flash else curve.backward
            size, starts = 2 * size, 2 * starts
        share = curve.compute if latent or not self.flash else min(curve.compute, self.flash)
        compute = flops / self._peaks[self.wide] / share * max(1.0, curve.score / score)
        seconds: float = curve.blended(size / self.bandwidth / curve.memory, compute)
        return seconds + starts * (curve.start_s + curve.depth_s * keys)

    def scores(self, flops: float, size: float, starts: float, depth: float) -> float:
        """Seconds of unfused attention, whose kernels write scores to memory."""
        curve = self.curve("matmul", self.wide)
        compute, memory = flops / self._peaks[self.wide] / curve.compute, size / self.bandwidth / self.memory_share
        return compute + memory + 4 * starts * (curve.start_s + curve.depth_s * depth)

    def stream(self, size: float, starts: float) -> float:
        """Seconds of kernels limited by memory bandwidth."""
        return size / self.bandwidth / self.memory_share + starts * self.launch

    def update(self, size: float, moments: str) -> float:
        """Seconds of an optimizer that moves `size` bytes; `moments`: the dtype of AdamW's, "" for other optimizers."""
        return size / self.bandwidth / (self.curve("optimizer", moments).memory if moments else self.memory_share)

    def transfer(self, message: Message) -> float:
        """Seconds of a collective, or of a message between stages."""
        if message.group.size == 1 or not message.sent:
            return 0.0
        return self.library.seconds(self.accelerator, message)


class Floor(Kernels):
    """Lower bounds at the datasheet's peaks and bandwidths, with launches that take no time."""

    def __init__(self, machine: Machine, wide: str = "bf16") -> None:
        super().__init__(machine, wide)
        self.memory_share, self.launch, self.library = 1.0, 0.0, DATASHEET

    def curve(self, kind: str, name: str, layers: Mapping[str, int] | None = None) -> Curve:
        return Curve()

    def rate(self, core: bool, matrix: tuple[int, int] | None = None) -> float:
        """FLOPs per second of attention, or of linear layers."""
        return self._peaks[self.wide if core else self.dtype(matrix)]
