"""The time of a forward pass on one rank of a layout: a roofline over every operation of the rank's ledger.

floor        no server is faster. Datasheet peaks and bandwidth, no launch cost, and perfect overlap: the largest of
             total compute, total memory and total link time. Memory counts only what must be read or written: each
             weight once per step (of experts, the k of one token: all tokens may choose the same) and the cache;
             activations may stay on the chip. The sum of every operation's own bound would be no lower bound: the next
             operation's weights can be fetched while the last one computes.
achievable   the sum over operations, one after the other, of a kernel's time for its class (`curves.Curve`: its launch,
             and compute and memory, activations included, at the shares of the peak that it reaches), plus every
             transfer. A launch is the accelerator's latency. The host's time to issue kernels overlaps with it; in a
             pass without captured graphs the longer of the two counts (`Efficiency.host_s`). Servers replay captured
             graphs, so the host does not count.

An achievable time is never below its floor: no curve is below the larger of its compute and memory at datasheet rates,
and a sum of maxima is at least the maximum of the sums.

Counts   attention's masked pairs, which kernels compute; logits of a prompt's last position; MLA absorbed in decode;
         E·(1 − untouched) experts read, of unequal popularity (`curves.untouched`), and the compute and traffic of the
         fullest rank of experts; no arithmetic for norms, activations and scans, which are bound by memory
Streams  in decode, launches of shared experts are hidden behind those of routed experts on another stream: vLLM
         (VLLM_DISABLE_SHARED_EXPERTS_STREAM turns it off), TensorRT-LLM and SGLang do so within captured graphs
Replicas that share experts (dp) hold equal numbers of sequences; the experts of a prompt alone run on all their ranks
Fused    as engines fuse: products of one input (q, k, v; gate, up) are one launch, as are all routed experts of a
         layer, an activation with its gate, a residual sum with the next norm. Eager: one launch per module and per
         expert that a token chooses, with experts chosen evenly
Links    what the collectives of the tree send (`parts.sharding`), each with its latency. An all-reduce's floor is
         its message once, as a switch that reduces can do. Between nodes over the network cards, where a node is known
RAM      weights in host RAM are read and computed at the host's rates; for many tokens they are copied to the
         accelerator first (`planning.serving.offload`). The floor reads each once
Source   Williams et al. 2009 (roofline); Pope et al. 2022 (arXiv 2211.05102) for the split of a step
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import log2, sqrt
from typing import NamedTuple

from txcalc.errors import InputError
from txcalc.hardware import Accelerator, peak
from txcalc.hardware.curves import Curve, untouched
from txcalc.ledger import same_input, walk
from txcalc.parts.part import Workload
from txcalc.planning.layout import SERVING_ORDER, Layout
from txcalc.planning.machine import (
    ENGINE_COLLECTIVES,
    GATHERED,
    Kernels,
    LibrarySource,
    Machine,
    Message,
    datasheet_seconds,
)
from txcalc.planning.parallelism import PipelineStage
from txcalc.planning.serving.durations import Cost, total
from txcalc.planning.serving.engine import EngineConfig, multiplies
from txcalc.planning.serving.offload import MANY
from txcalc.planning.serving.rank_work import CoreWork, LeafLoad, LeafWork, RankWork
from txcalc.units import ALIASES, bits_of

LINKS = "collectives"  # names of the times that belong to no leaf
ADAPTERS = "adapters"


class _Leaf(NamedTuple):
    """A leaf of a rank on an accelerator, independent of the workload.

    weights   bytes of one copy as they are multiplied
    start     seconds of kernel launches, all layers
    peak      FLOPs per second
    curve     efficiency curve of its kernels
    narrowed  seconds to quantise the inputs of one position, all layers
    """

    work: LeafWork
    weights: float
    start: float
    peak: float
    curve: Curve
    narrowed: float


class _Load(NamedTuple):
    """The work of one sequence in a leaf, all layers. The batch multiplies all but weights, unpacking and launches.

    least, compute   seconds of arithmetic, at the peak and on its curve
    cache, moved     bytes of the cache; of the cache and activations
    copies           of the weights that are read; of an embedding table, rows per sequence
    tokens           that choose experts, per sequence
    curve, start     of its kernels; seconds of launches
    narrowed         seconds to quantise its inputs
    host             seconds in which the host issues the launches
    flops            for weights in RAM: computed by the host
    unpacked         seconds in which weights that are read are unpacked, once for all sequences
    """

    kind: str
    leaf: _Leaf
    least: float
    compute: float
    cache: float
    moved: float
    copies: float
    tokens: float
    rows: bool
    curve: Curve
    start: float
    narrowed: float
    host: float
    flops: float
    unpacked: float


class RankTime:
    """Time of a forward pass on one accelerator of a stage, by kind of part.

    eager    PyTorch modules as they are called, nothing fused
    issued   the host issues every kernel of every pass; otherwise captured graphs are replayed

    Errors: `InputError` where a peak or a link is needed and not known.
    """

    def __init__(
        self,
        stage: PipelineStage,
        layout: Layout,
        accelerator: Accelerator,
        engine: EngineConfig,
        eager: bool = False,
        issued: bool = False,
    ) -> None:
        self.stage, self.layout, self.engine = stage, layout, engine
        self.work = RankWork.of(stage, layout, engine)
        self.accelerator, self.efficiency = accelerator, accelerator.efficiency
        self.groups = {axis: layout.group(axis, accelerator.node, SERVING_ORDER) for axis in ("tp", "pp", "ep", "etp")}
        self.eager, self.issue = eager, self.efficiency.host_s if issued else 0.0
        offload = engine.offload
        self.offload = offload if offload and offload.cuts else None
        if self.offload and (self.offload.host is None or self.offload.host.bandwidth is None):
            raise InputError("--ram", ["its bandwidth is not given, and what lies in it is read at that: 64GB@80GB/s"])
        for axis, group in self.groups.items():
            if group.size > 1:
                probe = Message("send" if axis == "pp" else "all_reduce", group, 0.0)
                datasheet_seconds(accelerator, probe)  # raises for an unknown link
        self.wide = {"fp32": "fp32", "fp16": "fp16"}.get(engine.weights.name, "bf16")
        machine = Machine(accelerator, self.wide, engine=engine.kernels, library=ENGINE_COLLECTIVES)
        self.kernels = Kernels(machine, self.wide)
        # Attention kernels compute in the wide dtype; some can compute in the cache's.
        self.core = peak(accelerator, self.wide)
        self.best_core = max(self.core, accelerator.peaks.get(ALIASES.get(engine.kv.lower(), engine.kv.lower()), 0))
        self._adapted: tuple[float, float] | None = None  # elements of an adapter, and launches
        self._rest = Curve(memory=self.efficiency.memory)
        self._leaves: list[_Leaf] = []
        self._loads: dict[Workload, list[_Load]] = {}

    def cost(self, work: Workload, head: bool = True, busy: float = 1.0) -> Cost:
        """Seconds of one pass. `head`: with logits; `busy`: mean sequences per replica that shares experts, relative to
        this one."""
        return total([*self._operations(work, head, busy), *self._adapters(work), *self._transfers(work, head)])

    def parts(self, work: Workload, head: bool = True, busy: float = 1.0) -> dict[str, Cost]:
        """Seconds of one pass by kind of part, and of adapters and collectives."""
        sums: dict[str, list[Cost]] = {}
        kinds = [load.kind for load in self.loads_of(work, head)]
        for kind, cost in zip(kinds, self._operations(work, head, busy), strict=True):
            sums.setdefault(kind, []).append(cost)
        if adapters := self._adapters(work):
            sums[ADAPTERS] = adapters
        if transfers := list(self._transfers(work, head)):
            sums[LINKS] = transfers
        return {kind: total(costs) for kind, costs in sums.items()}

    def loads_of(self, work: Workload, head: bool) -> list[_Load]:
        single_sequence = work._replace(batch=1)
        if single_sequence not in self._loads:
            loads_of_rank = self.work.loads(single_sequence)
            self._leaves = self._leaves or self._leaf_times()
            self._loads[single_sequence] = [self._load(ask, self._leaves[ask.leaf]) for ask in loads_of_rank]
        loads = self._loads[single_sequence]
        return loads if head else [load for load in loads if load.kind != "head"]

    def _operations(self, work: Workload, head: bool, busy: float) -> Iterator[Cost]:
        """The cost of every leaf (the hot loop)."""
        sequences, bandwidth, spread = float(work.batch), self.accelerator.bandwidth, self.efficiency.spread
        loads, fullest = self.loads_of(work, head), self._fullest()
        streams = self.engine.memory is None or self.engine.memory.profile.rules.streams
        overlapped = work.decoding and streams  # shared experts run concurrently with the routed ones
        for load in loads:
            leaf, chance, copies, curve = load.leaf, load.leaf.work.chance, load.copies, load.curve
            started = 1.0
            batch = sequences * busy if chance else sequences
            least, compute, unpacked = copies, load.compute * batch, load.unpacked
            if chance:
                touched = 1 - untouched(chance, load.tokens * batch, spread)
                if self.eager:
                    started = touched = min(1.0, chance * load.tokens * batch)
                least *= min(chance, touched)
                copies *= touched
                unpacked *= touched / chance
                padding = copies * curve.tile / 2 * leaf.work.row / leaf.peak / curve.compute
                compute = compute * fullest + padding
            elif load.rows:
                copies *= batch
                least = copies
            if leaf.work.in_ram:
                yield self._in_ram(load, copies, least, compute, batch, work.tokens * sequences)
                continue
            moved = load.moved * batch * (fullest if chance else 1.0)
            compute += unpacked
            memory = (leaf.weights * copies + moved) / bandwidth / curve.memory
            seconds = curve.blended(memory, compute) + load.narrowed * batch
            bound_by_compute = compute > memory
            yield Cost(
                least_compute=load.least * batch,
                least_weights=leaf.weights * least / bandwidth,
                least_cache=load.cache * batch / bandwidth,
                compute=seconds if bound_by_compute else 0.0,
                memory=0.0 if bound_by_compute else seconds,
                launch=0.0 if overlapped and load.kind == "shared_experts" else load.start * started,
                host=load.host * started,
            )

    def _in_ram(self, load: _Load, copies: float, least: float, compute: float, batch: float, tokens: float) -> Cost:
        """The cost of a leaf in RAM: the host computes few tokens; for many, the weights are copied to the accelerator.

        Errors: `InputError` for attention of many tokens on a host whose peak is not known.
        """
        assert self.offload and self.offload.host and self.offload.host.bandwidth
        host, leaf, bandwidth = self.offload.host, load.leaf, self.accelerator.bandwidth
        core = load.kind == "attention_core"
        read, floor = leaf.weights * copies, (leaf.weights * least + load.cache * batch) / self.offload.host.bandwidth
        many = tokens >= MANY and not load.rows
        if many and not core:
            memory = (read + load.moved * batch) / bandwidth / load.curve.memory
            return Cost(
                least_compute=load.least * batch,
                memory=load.curve.blended(memory, compute),
                link=read / host.link,
                launch=load.start,
                host=load.host,
                least_ram=floor,
            )
        if many and host.peak is None:
            fault = "attention of layers in RAM is the host's, whose peak is not given: 64GB@80GB/s@1TFLOPS"
            raise InputError("--ram", [fault])
        assert host.bandwidth
        reads = (read + load.moved * batch) / host.bandwidth / self.efficiency.memory
        computes = load.flops * batch / host.peak if host.peak else 0.0
        return Cost(
            least_compute=load.least * batch,
            compute=computes if computes > reads else 0.0,
            memory=0.0 if computes > reads else reads,
            least_ram=floor,
        )

    def _adapters(self, work: Workload) -> list[Cost]:
        """The factors of LoRA adapters: two launches beside each fused product of linear layers of one input, as in
        Punica's kernels (Chen et al. 2023, arXiv 2310.18547). The floor reads one adapter; the achievable time reads
        one per sequence, up to all."""
        if not self.engine.adapters:
            return []
        if self._adapted is None:
            entries = walk(self.stage.root, work._replace(batch=1)).entries
            adapted = [entry if self.engine.adapted(entry) else None for entry in entries]
            pairs = pairwise([None, *adapted])
            starts = sum(2.0 * float(entry.runs) for before, entry in pairs if entry and not same_input(before, entry))
            self._adapted = float(sum(map(self.engine.adapted, entries))), starts
        elements, starts = self._adapted
        flops = 2.0 * elements * float(work.positions) / self.core
        read = elements * self.work.element / self.accelerator.bandwidth
        memory = read * min(self.engine.adapters, float(work.batch)) / self.efficiency.memory
        compute = flops / self.efficiency.matmul[self.wide]
        launch, host = starts * self.efficiency.launch_s, starts * self.issue
        return [
            Cost(
                least_compute=flops,
                least_weights=read,
                compute=compute if compute > memory else 0.0,
                memory=0.0 if compute > memory else memory,
                launch=launch,
                host=host,
            )
        ]

    def _fullest(self) -> float:
        """Load of the fullest rank of experts over the mean. Experts' popularities are independent (`spread`), so the
        load of a rank has a relative standard deviation of 1/√(spread·experts of a layer).

        Counts   the mean of the largest of n normal deviations is 0.56·(log2 n)^0.82, within 4 % up to n = 64 (n = 2:
                 0.56 for 0.56, 8: 1.38 for 1.42, 64: 2.43 for 2.34)
        """
        n, experts = self.layout.ep, self.work.experts
        if n == 1 or not experts:
            return 1.0
        return 1 + 0.56 * float(log2(n) ** 0.82) / sqrt(self.efficiency.spread * experts)

    def _leaf_times(self) -> list[_Leaf]:
        """Every leaf's weights, launches, peak and curve on this accelerator."""
        form, efficiency, ep = self.engine.weights, self.efficiency, self.layout.ep
        element, rate = self.work.element, self.accelerator.bandwidth * efficiency.memory
        leaves, times = [], {}
        for leaf in self.work.leaves:
            place = "experts" if leaf.entry.routed and not self.eager else "matmul"
            if (place, leaf.dtype) not in times:
                dtype, kernel, reached = self._multiplied(leaf.dtype)
                times[place, leaf.dtype] = dtype, kernel, reached, self.kernels.curve(place, kernel)
            dtype, kernel, reached, curve = times[place, leaf.dtype]
            if curve.unpack:
                curve = self.kernels.curve(place, kernel, form.kernels(leaf.entry, dtype))
            if self.eager and leaf.entry.leaf.matrix:  # servers pad
                curve = curve.of_matrix(leaf.entry.leaf.matrix, bits_of(dtype))
            start, narrowed = curve.start_s + curve.depth_s * leaf.inputs if leaf.inputs else efficiency.launch_s, 0.0
            if leaf.gathered:
                narrowed = curve.gathered * (1 - 1 / ep) * leaf.gathered
            elif curve.quantise and leaf.inputs and not (leaf.entry.routed or leaf.merged):
                narrowed = curve.quantise * leaf.inputs * (element + bits_of(dtype) / 8) * float(leaf.entry.runs)
            leaves.append(_Leaf(leaf, leaf.weights, self._starts(leaf) * start, reached, curve, narrowed / rate))
        return leaves

    def _starts(self, leaf: LeafWork) -> float:
        """Kernel launches, all layers; eager: one per call of a module, experts included."""
        if not self.eager:
            return leaf.starts
        entry = leaf.entry
        return float((entry.leaf.additions or 1) * (entry.times if entry.routed else entry.runs))

    def _multiplied(self, product_dtype: str | None) -> tuple[str, str, int]:
        """The dtype, kernel class and peak FLOPs per second of products with weights; `product_dtype`: that of their
        format (None: unquantised)."""
        form, dtype = self.engine.weights, product_dtype or self.wide
        kernel = self.engine.kernel(form, product_dtype) if product_dtype else self.wide
        if not multiplies(self.accelerator, dtype):
            dtype = self.wide  # the weights are read quantised and multiplied in 16 bits
            kernel = "w4" if form.bits <= 4 else "w8"
        return dtype, kernel, self.engine.peak(self.accelerator, dtype, bool(product_dtype) and form.bits < 16)

    def _load(self, ask: LeafLoad, leaf: _Leaf) -> _Load:
        if ask.inputs and not leaf.work.chance:
            leaf = self._widened(leaf, ask)
        curve, start, reached = leaf.curve, leaf.start, leaf.peak
        flops, starts, scores, unpacked = ask.flops, self._starts(leaf.work), 0.0, 0.0
        moved, module = ask.moved, leaf.work.entry.leaf
        if self.eager and module.role != "norm":  # a norm is one kernel since torch 2.8
            moved = ask.cache + (ask.moved - ask.cache) * module.unfused + ask.on_chip
        if core := ask.core:
            curve, start, reached = self._attention(core, ask.runs)
            score_bytes = self.engine.memory.score_bytes if self.engine.memory else 0
            scores = core.scores * score_bytes * ask.runs / self.efficiency.memory * curve.memory
            flops, starts = core.dense if scores else flops, ask.runs
            scores += ask.cache * curve.apart * core.extra_reads
        elif not flops:
            curve = self._rest
        elif curve.unpack and ask.tokens <= 1:
            unpacked = max(0.0, flops * (curve.unpack / 2 - 1 / curve.compute) / reached)
        return _Load(
            kind=ask.kind,
            leaf=leaf,
            least=flops / (self.best_core if core else leaf.peak),
            compute=flops / reached / curve.compute,
            cache=ask.cache,
            moved=moved + scores,
            copies=ask.copies,
            tokens=ask.positions * self.layout.sharing,
            rows=ask.rows,
            curve=curve,
            start=start,
            narrowed=leaf.narrowed * ask.positions,
            host=starts * self.issue,
            flops=flops,
            unpacked=unpacked,
        )

    def _widened(self, leaf: _Leaf, ask: LeafLoad) -> _Leaf:
        """A product of many rows, whose weights are first converted to fp16 and which accumulates in fp16."""
        from_ = self.engine.memory.of_vendor("widened") if self.engine.memory else 0
        if not from_ or ask.tokens < from_:
            return leaf
        wide = 2.0 * ask.inputs * ask.outputs
        written = (leaf.weights + wide) * ask.runs / self.accelerator.bandwidth / self.efficiency.memory
        start = leaf.start + (written if leaf.weights < wide else 0.0)
        curve = self.kernels.curve("matmul", "fp16")
        at = peak(self.accelerator, "fp16") * float(self.accelerator.half_sums)
        return leaf._replace(weights=wide, start=start, peak=at, curve=curve)

    def _attention(self, core: CoreWork, runs: float) -> tuple[Curve, float, float]:
        """The curve of an attention core, seconds of its launches, and the FLOPs per second that the curve's share
        refers to: a score costs at least a softmax, and a group of threads where the kernel starts one for it."""
        curve = self.kernels.curve("attention", core.name)
        memory = self.engine.memory if core.decodes else None
        many = memory.of_vendor("grouped_kernels" if core.grouped else "attention_kernels") if memory else 0
        start = runs * (many * self.efficiency.launch_s or curve.start_s + curve.depth_s * core.depth)
        least = max(curve.score, memory.of_vendor("score_flops") if memory else 0)
        return curve, start, self.core / max(1.0, least / core.score)

    def _transfers(self, work: Workload, head: bool) -> Iterator[Cost]:
        """The cost of every collective of this rank in a pass."""
        batch = float(work.batch)
        for sent in self.work.sends(work._replace(batch=1)):
            if head or sent.within != "head":
                yield self.message_cost(sent.kind, sent.axis, sent.message * batch, sent.size * batch).times(sent.runs)

    def libraries(self, work: Workload) -> dict[str, LibrarySource]:
        """The communication library of each kind of collective of a pass."""
        return {
            sent.kind: self.kernels.machine.library_source(sent.kind, self.groups[sent.axis])
            for sent in self.work.sends(work._replace(batch=1))
        }

    def message_cost(self, kind: str, axis: str, message: float, sent: float) -> Cost:
        """The cost of a collective over an axis, from the bytes of its message and the bytes that one rank sends."""
        group, reduces = self.groups[axis], kind == "all_reduce"
        least = Message(kind, group, message if reduces else sent)
        if kind == "all_to_all" and group.size <= GATHERED and not group.crosses:
            sent = message * (group.size - 1)
        library = self.kernels.machine.library
        return Cost(
            least_link=datasheet_seconds(self.accelerator, least, least=True),
            link=library.seconds(self.accelerator, Message(kind, group, sent)),
        )
