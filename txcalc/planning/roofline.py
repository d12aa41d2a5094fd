"""The time of a step on one layout: a roofline of every operation, from the ledger of the tree that each rank holds.

Every operation of a rank's ledger takes the longer of its arithmetic and its traffic. Two figures:

floor        no server is faster. Datasheet peaks and bandwidth, no start costs anything, all that can overlap does:
             the largest of the sums of compute, memory and link. Memory holds only what must be read or written: each
             weight once a step, of the experts the k that a single token touches (all may choose the same), and the
             cache; activations may stay on the chip. A sum of every operation's larger half would be no bound: the
             weights of the next can be fetched while the last computes.
achievable   the sum over operations, one after the other, of what a kernel of its class takes (`curves.Curve`: a start,
             and compute and memory, activations too, at the shares that it reaches); and of every transfer. A start is
             the accelerator's own; what the host takes to issue kernels overlaps with it, and of an eager pass the
             longer of the two counts (`Efficiency.host_s`). Servers replay passes that they captured: no host.

So no achievable figure is below a floor: no curve is below the larger of its compute and its memory at the datasheet's
rates, and a sum of maxima is at least the maximum of sums.

Counts   attention's masked pairs, which is what kernels compute; logits of a prompt's last position; MLA absorbed in
         decode; experts touched E·(1 − untouched), of a popularity that differs (`curves.untouched`), and for the
         fullest of their ranks as much more as that makes it, traffic too; no arithmetic for norms, activations and
         scans, which move more than they compute
Beside   while decoding, shared experts' starts are hidden behind the routed ones', which run on another stream: vLLM
         (VLLM_DISABLE_SHARED_EXPERTS_STREAM turns it off), TensorRT-LLM and SGLang do so within captured passes
Copies   of dp that share experts hold the sequences evenly; a prompt alone passes the experts on all their ranks
Fused    as engines fuse: products of one input (q, k, v; gate, up) and all routed experts of a layer are one start, an
         activation with its gate, a residual sum with the norm after it
Links    what the collectives of the tree send (`parts.collectives`), each with its latency; an all-reduce's floor is
         the message once, as a switch that adds can do. Between nodes over the network cards, where a node is known
RAM      what lies there is read and computed at the host's rates; for many tokens its weights are copied to the
         accelerator first (`planning.offload`). The floor reads each once
Source   Williams et al. 2009 (roofline); Pope et al. 2022 (arXiv 2211.05102) for the split of a step
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from math import log2, sqrt
from typing import NamedTuple

from txcalc.curves import Curve, untouched
from txcalc.errors import InputError
from txcalc.hardware import Accelerator, peak
from txcalc.ledger import Entry, same_input, walk
from txcalc.model import Model
from txcalc.parts.part import MatMul, Workload
from txcalc.parts.work import Transfer
from txcalc.planning.cost import Cost, total
from txcalc.planning.engine import Engine, multiplies
from txcalc.planning.layout import SERVING_ORDER, Layout
from txcalc.planning.links import GATHERED, HOST, seconds
from txcalc.planning.offload import MANY
from txcalc.planning.parallelism import Stage
from txcalc.units import ALIASES, bits_of

MOST_QUERIES = 64  # of a sequence, that a kernel of decode takes: a token and a draft's proposals
LINKS = "collectives"  # the parts that no leaf of the tree is
ADAPTERS = "adapters"


class _Leaf(NamedTuple):
    """What an entry of a rank's tree is, whatever is asked of it.

    weights   bytes of one copy; of a table, of one row
    chance    probability that a token passes a certain copy, of experts; 0: no expert
    start     seconds of all starts, all layers
    starts    how many these are
    peak      FLOPs per second
    curve     of its kernels
    row       FLOPs of one row of one copy, of experts
    narrowed  seconds to narrow the inputs of one position, all layers
    aside     it lies in RAM
    """

    weights: float
    chance: float
    start: float
    starts: float
    peak: float
    curve: Curve
    row: float
    narrowed: float
    aside: bool = False


class _Load(NamedTuple):
    """What a sequence asks of a leaf, all layers: every figure but the weights and the starts grows with the batch.

    least, compute   seconds of arithmetic, at the peak and as its curve has it
    cache, moved     bytes of the cache, and of it and activations
    copies           whose weights are read; of a table, rows for every sequence
    tokens           that choose among experts, for every sequence
    curve, start     of its kernels, and seconds of all starts
    narrowed         seconds to narrow its inputs
    host             seconds of the host for all starts
    flops            of RAM's: that the host computes, where it does
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


class _Sent(NamedTuple):
    """What a sequence makes a rank send in one collective, which stands `runs` times `within` parts of a kind."""

    within: str
    kind: str
    axis: str
    message: float
    size: float
    runs: float


class Rank:
    """One accelerator of a stage: the time it takes for a workload, by kind of part. `eager`: the host issues every
    kernel of every pass; else passes were captured once, and are replayed.

    Errors: `InputError` where a peak or the link is needed and not known.
    """

    def __init__(
        self,
        model: Model,
        stage: Stage,
        layout: Layout,
        accelerator: Accelerator,
        engine: Engine,
        eager: bool = False,
    ) -> None:
        self.model, self.stage, self.layout, self.engine = model, stage, layout, engine
        self.accelerator, self.efficiency = accelerator, accelerator.efficiency
        self.groups = {axis: layout.group(axis, accelerator.node, SERVING_ORDER) for axis in ("tp", "pp", "ep", "etp")}
        self.issue = self.efficiency.host_s if eager else 0.0
        offload = engine.offload
        self.offload = offload if offload and offload.asked else None
        if self.offload and (self.offload.host is None or self.offload.host.bandwidth is None):
            raise InputError("--ram", ["its bandwidth is not given, and what lies in it is read at that: 64GB@80GB/s"])
        for axis, group in self.groups.items():
            if group.size > 1:
                seconds(accelerator, group, "send" if axis == "pp" else "all_reduce", 0.0)  # refused now, if not known
        self.wide = {"fp32": "fp32", "fp16": "fp16"}.get(engine.weights.name, "bf16")
        self.element = engine.activation_bits / 8
        # Kernels of attention compute in the wide dtype; some can in that of the cache.
        self.core = peak(accelerator, self.wide)
        self.best_core = max(self.core, accelerator.peaks.get(ALIASES.get(engine.kv.lower(), engine.kv.lower()), 0))
        self._experts = 0.0  # of a layer, on this rank
        self._adapted: tuple[float, float] | None = None  # elements of an adapter, and starts
        self._rest = Curve(memory=self.efficiency.memory)
        self._leaves: list[_Leaf] = []
        self._loads: dict[Workload, list[_Load]] = {}
        self._sent: dict[Workload, list[_Sent]] = {}

    def cost(self, work: Workload, head: bool = True, busy: float = 1.0) -> Cost:
        """Seconds of one pass; `head`: with logits; `busy`: sequences of a copy that shares its experts, on average,
        over those of this one."""
        return total([*self._operations(work, head, busy), *self._adapters(work), *self._transfers(work, head)])

    def parts(self, work: Workload, head: bool = True, busy: float = 1.0) -> dict[str, Cost]:
        """Seconds of one pass by kind of part, and of the transfers between ranks."""
        sums: dict[str, list[tuple[float, ...]]] = {}
        kinds = [load.kind for load in self._asked(work, head)]
        for kind, cost in zip(kinds, self._operations(work, head, busy), strict=True):
            sums.setdefault(kind, []).append(cost)
        if adapters := self._adapters(work):
            sums[ADAPTERS] = list(adapters)
        if transfers := list(self._transfers(work, head)):
            sums[LINKS] = list(transfers)
        return {kind: total(costs) for kind, costs in sums.items()}

    def _asked(self, work: Workload, head: bool) -> list[_Load]:
        one = work._replace(batch=1)
        if one not in self._loads:
            entries = self.stage.ledger(one).entries
            if not self._leaves:
                self._leaves = list(self._known(entries))
            found = zip(entries, self._leaves, strict=True)
            self._experts = next((float(e.times / e.layers) for e in entries if e.routed), 0.0)
            self._loads[one] = [self._load(entry, leaf) for entry, leaf in found if entry.operations]
        loads = self._loads[one]
        return loads if head else [load for load in loads if load.kind != "head"]

    def _operations(self, work: Workload, head: bool, busy: float) -> Iterator[tuple[float, ...]]:
        """The fields of a cost for every leaf; this is the loop in which time is spent."""
        own, bandwidth, spread = float(work.batch), self.accelerator.bandwidth, self.efficiency.spread
        loads = self._asked(work, head)
        fullest, beside = self._fullest(), work.decoding and self.engine.streams
        for load in loads:
            leaf, copies, curve = load.leaf, load.copies, load.curve
            batch = own * busy if leaf.chance else own
            least, compute = copies, load.compute * batch
            if leaf.chance:
                touched = 1 - untouched(leaf.chance, load.tokens * batch, spread)
                least *= min(leaf.chance, touched)
                copies *= touched
                padding = copies * curve.tile / 2 * leaf.row / leaf.peak / curve.compute
                compute = compute * fullest + padding
            elif load.rows:
                copies *= batch
                least = copies
            if leaf.aside:
                yield self._aside(load, copies, least, compute, batch, work.tokens * own)
                continue
            moved = load.moved * batch * (fullest if leaf.chance else 1.0)
            memory = (leaf.weights * copies + moved) / bandwidth / curve.memory
            taken = curve.blended(memory, compute) + load.narrowed * batch
            computes = compute > memory
            yield (
                load.least * batch,
                leaf.weights * least / bandwidth,
                load.cache * batch / bandwidth,
                0.0,
                taken if computes else 0.0,
                0.0 if computes else taken,
                0.0,
                0.0 if beside and load.kind == "shared_experts" else load.start,
                load.host,
                0.0,
            )

    def _aside(
        self, load: _Load, copies: float, least: float, compute: float, batch: float, tokens: float
    ) -> tuple[float, ...]:
        """The fields of a cost of a leaf in RAM: of few tokens on the host, of many on the accelerator, to which its
        weights are copied. Errors: `InputError` for many tokens' attention on a host whose peak is not known."""
        assert self.offload and self.offload.host and self.offload.host.bandwidth
        host, leaf, bandwidth = self.offload.host, load.leaf, self.accelerator.bandwidth
        core = load.kind == "attention_core"
        read, floor = leaf.weights * copies, (leaf.weights * least + load.cache * batch) / self.offload.host.bandwidth
        many = tokens >= MANY and not load.rows
        if many and not core:
            memory = (read + load.moved * batch) / bandwidth / load.curve.memory
            taken, link = load.curve.blended(memory, compute), read / host.link
            return (load.least * batch, 0.0, 0.0, 0.0, 0.0, taken, link, load.start, load.host, floor)
        if many and host.peak is None:
            fault = "attention of layers in RAM is the host's, whose peak is not given: 64GB@80GB/s@1TFLOPS"
            raise InputError("--ram", [fault])
        assert host.bandwidth
        reads = (read + load.moved * batch) / host.bandwidth / self.efficiency.memory
        computes = load.flops * batch / host.peak if host.peak else 0.0
        own = (computes, 0.0) if computes > reads else (0.0, reads)
        return (load.least * batch, 0.0, 0.0, 0.0, *own, 0.0, 0.0, 0.0, floor)

    def _adapters(self, work: Workload) -> list[Cost]:
        """The factors of LoRA adapters, one sequence after the other of each: two products, each of their own, beside
        every product that engines make of linear layers of one input (as Punica's kernels: Chen et al. 2023, arXiv
        2310.18547). The floor reads one adapter; else as many as there are sequences, up to all."""
        if not self.engine.adapters:
            return []
        if self._adapted is None:
            entries = walk(self.stage.root, work._replace(batch=1)).entries
            own = [entry if self.engine.adapted(entry) else None for entry in entries]
            pairs = pairwise([None, *own])
            starts = sum(2.0 * float(one.runs) for before, one in pairs if one and not same_input(before, one))
            self._adapted = float(sum(map(self.engine.adapted, entries))), starts
        elements, starts = self._adapted
        flops = 2.0 * elements * float(work.positions) / self.core
        read = elements * self.element / self.accelerator.bandwidth
        memory = read * min(self.engine.adapters, float(work.batch)) / self.efficiency.memory
        compute = flops / self.efficiency.matmul[self.wide]
        launch, host = starts * self.efficiency.launch_s, starts * self.issue
        spent = (compute, 0.0) if compute > memory else (0.0, memory)
        return [Cost(flops, read, 0.0, 0.0, *spent, 0.0, launch, host)]

    def _fullest(self) -> float:
        """What the fullest of the ranks that experts are spread over gets, over the mean: popularities are independent
        (`spread`), so that a rank's share of all has a relative deviation of 1/√(spread·experts of a layer).

        Counts   the largest of n deviations is on average about 0.56·(log2 n)^0.82 (n = 2: 0.56, 8: 1.42, 64: 2.34)
        """
        n, each = self.layout.ep, self._experts
        if n == 1 or not each:
            return 1.0
        return 1 + 0.56 * float(log2(n) ** 0.82) / sqrt(self.efficiency.spread * each)

    def _known(self, entries: tuple[Entry, ...]) -> Iterator[_Leaf]:
        before: Entry | None = None
        form, ep, sharing = self.engine.weights, self.layout.ep, self.layout.sharing
        held = Fraction(self.layout.tp, self.layout.expert_group)
        efficiency, engine = self.efficiency, self.engine.kernels
        for entry in entries:
            leaf = entry.leaf.untied
            if leaf is not entry.leaf:  # read here too, wherever it is held
                entry = Entry(
                    entry.steps, leaf, entry.kind, entry.work, entry.times, entry.active_times, entry.runs, entry.routed
                )
            tensors = leaf.tensors
            size = sum(form.bits_of(weight, entry) for weight in tensors) / 8
            if leaf.row is not None:
                size = size / tensors[0].shape[0] if tensors else leaf.row * self.element
            asked = form.dtype_of(entry)
            dtype = asked or self.wide
            kernel = self.engine.kernel(form, asked) if asked else self.wide
            if not multiplies(self.accelerator, dtype):
                dtype = self.wide  # the weights are read narrow, and multiplied wide
                kernel = "w4" if form.bits <= 4 else "w8"
            # k of all E: a rank has E/ep of them, or pieces, and those of its own tokens that its group passes on.
            chance = float(entry.runs / entry.times * held) if entry.routed else 0.0
            d_in, d_out = leaf.matrix or (0, 0)
            merged = same_input(before, entry)
            place, layers = "experts" if entry.routed else "matmul", form.kernels(entry, dtype)
            curve = efficiency.curve(place, kernel, engine, layers)
            inside = entry.routed and not leaf.matrix  # of a grouped kernel
            launched = leaf.launched and not (merged or inside)
            starts = 0 if not launched else entry.layers if entry.routed else entry.runs
            start = curve.start_s + curve.depth_s * d_in if leaf.matrix else efficiency.launch_s
            row, narrowed = 2.0 * d_in * d_out if entry.routed else 0.0, 0.0
            if leaf.matrix and entry.routed:
                if launched and ep <= GATHERED:  # two products of a layer share passes of 2 bytes
                    vectors = sharing * self.stage.root.stacks[-1].d_model * entry.layers
                    narrowed = curve.gathered * (1 - 1 / ep) * vectors
            elif leaf.matrix and not merged:
                narrowed = curve.quantise * d_in * (self.element + bits_of(dtype) / 8) * float(entry.runs)
            narrowed /= self.accelerator.bandwidth * efficiency.memory
            at, counted = self.engine.peak(self.accelerator, dtype, bool(asked) and form.bits < 16), float(starts)
            aside = self.offload is not None and self.offload.holds(entry)
            yield _Leaf(float(size), min(1.0, chance), counted * start, counted, at, curve, row, narrowed, aside)
            before = entry

    def _load(self, entry: Entry, leaf: _Leaf) -> _Load:
        work, runs = entry.work, float(entry.runs)
        assert work is not None
        core, positions = entry.kind == "attention_core", float(work.positions)
        flops = float(entry.flops_masked)
        cache = activations = 0.0
        for op in entry.operations:
            activations += float(op.traffic.activations)
            cache += float(op.traffic.cache)
        inner = entry.leaf
        if inner.matrix and not entry.routed:
            leaf = self._widened(leaf, entry, work)
        activations -= float(inner.on_chip(work))
        if entry.routed and not inner.matrix:
            activations = 0.0  # the grouped kernel's own
        bits = self.engine.cache_bits if core else self.engine.state_bits
        cache *= runs * bits / 8
        rows = inner.row is not None
        curve, start, reached = leaf.curve, leaf.start, leaf.peak
        starts = float(entry.runs) if core else leaf.starts
        scores = 0.0
        if core:
            curve, start, reached = self._attention(entry, work)
            scores = self._scores(entry, work) / self.efficiency.memory * curve.memory
            flops = float(entry.flops) if scores else flops
            if curve.apart and (heads := inner.attended):
                scores += cache * curve.apart * (float(heads.heads / heads.groups) - 1)
        elif not flops:
            curve = self._rest
        elif curve.unpack and float(work.tokens) <= 1:
            reached *= min(1.0, 2 / curve.unpack / curve.compute)
        return _Load(
            entry.kind,
            leaf,
            flops / (self.best_core if core else leaf.peak),
            flops / reached / curve.compute,
            cache,
            cache + activations * runs * self.element + scores,
            float(entry.times) if leaf.chance else runs * positions if rows else runs,
            positions * self.layout.sharing,
            rows,
            curve,
            start,
            leaf.narrowed * positions,
            starts * self.issue,
            flops,
        )

    def _widened(self, leaf: _Leaf, entry: Entry, work: Workload) -> _Leaf:
        """A product of many rows where weights are written out in 16 bits first, and summed in them."""
        from_ = self.engine.memory.widened if self.engine.memory else 0
        if not from_ or float(work.tokens) < from_:
            return leaf
        d_in, d_out = entry.leaf.matrix or (0, 0)
        wide, runs = 2.0 * d_in * d_out, float(entry.runs)
        written = (leaf.weights + wide) * runs / self.accelerator.bandwidth / self.efficiency.memory
        start = leaf.start + (written if leaf.weights < wide else 0.0)
        curve = self.efficiency.curve("matmul", "fp16", self.engine.kernels)
        at = peak(self.accelerator, "fp16") * float(self.accelerator.half_sums)
        return leaf._replace(weights=wide, start=start, peak=at, curve=curve)

    def _attention(self, entry: Entry, work: Workload) -> tuple[Curve, float, float]:
        """The curve of an attention core, seconds of all its starts, and the FLOPs per second that its share is of; a
        score costs its softmax, however narrow its heads."""
        products = [op for op in entry.operations if isinstance(op, MatMul)]
        deciding = work.decoding and float(work.tokens) <= MOST_QUERIES
        name = "_".join(filter(None, (entry.leaf.kernels, "decode" if deciding else "prefill")))
        name += "-fp8" if deciding and self.engine.cache_bits < 16 else ""
        curve = self.efficiency.curve("attention", name, self.engine.kernels)
        score = 2.0 * float(products[0].k) + (2.0 * float(products[-1].n) if len(products) > 1 else 0.0)
        heads = entry.leaf.attended
        grouped = bool(heads and heads.groups != heads.heads)
        many = self.engine.memory.attention_kernels(grouped) if deciding and self.engine.memory else 0
        each = many * self.efficiency.launch_s or curve.start_s + curve.depth_s * float(products[0].n)
        start = float(entry.runs) * each
        return curve, start, self.core / max(1.0, curve.score / score)

    def _scores(self, entry: Entry, work: Workload) -> float:
        """Bytes of the scores of a prompt's attention, where kernels do not fuse it: of all keys, masked or not."""
        each = self.engine.memory.score_bytes if self.engine.memory else 0
        products = [op for op in entry.operations if isinstance(op, MatMul)]
        if not each or not products or float(work.tokens) <= MOST_QUERIES:
            return 0.0
        return float(products[0].flops) / (2.0 * float(products[0].k)) * each * float(entry.runs)

    def _transfers(self, work: Workload, head: bool) -> Iterator[Cost]:
        """The costs of everything that this rank sends in a pass."""
        batch = float(work.batch)
        for sent in self._sends(work._replace(batch=1)):
            if head or sent.within != "head":
                yield self._transfer(sent.kind, sent.axis, sent.message * batch, sent.size * batch).times(sent.runs)

    def _sends(self, one: Workload) -> list[_Sent]:
        if one not in self._sent:
            self._sent[one] = [
                _Sent(entry.within, each.kind, each.axis.name, *self._sizes(each), float(entry.runs))
                for entry in self.stage.ledger(one)
                for each in (entry.transfers if entry.leaf.role == "collective" else ())
                if each.sent
            ]
        return self._sent[one]

    def _sizes(self, transfer: Transfer) -> tuple[float, float]:
        """Bytes of its message and of what is sent; in the dtype of the products, where they allow it."""
        narrow = transfer.narrow and self.engine.weights.dtype not in ("bf16", "fp16", "fp32")
        bits = min(self.engine.activation_bits, self.engine.weights.bits if narrow else self.engine.activation_bits)
        return float(transfer.message * bits / 8), float(transfer.sent * bits / 8)

    def _transfer(self, kind: str, axis: str, message: float, sent: float) -> Cost:
        """A collective of an axis's ranks: bytes of its message, and of what one rank sends."""
        group, reduces = self.groups[axis], kind == "all_reduce"
        least = seconds(self.accelerator, group, kind, message if reduces else sent, least=True)
        if kind == "all_to_all" and group.size <= GATHERED and not group.crosses:
            sent = message * (group.size - 1)
        most = seconds(self.accelerator, group, kind, sent)
        curve, ranks = self.efficiency.transfer(kind), group.size
        # A link between nodes is slower: what it takes longer for reaches as much of it as what takes as long within.
        share = curve.reached(most * (self.accelerator.link or HOST), ranks)
        return Cost(least_link=least, link=most / share + curve.latency(ranks))
