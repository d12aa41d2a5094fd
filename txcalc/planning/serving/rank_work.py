"""FLOPs, bytes and kernel launches of every leaf of a rank in one forward pass, on any accelerator.

`rank_time` turns them into seconds. They depend on stage, layout and formats only, so all accelerators share them
(`RankWork.of`).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from txcalc.ledger import Entry, same_input
from txcalc.parts.part import MatMul, Workload
from txcalc.parts.work import Transfer
from txcalc.planning.gradients import flops_per_score, scores
from txcalc.planning.layout import Layout
from txcalc.planning.machine import GATHERED
from txcalc.planning.parallelism import KEPT, PipelineStage
from txcalc.planning.serving.engine import EngineConfig

MOST_QUERIES = 64  # queries per sequence of a decode kernel: a token and a draft's proposals


class LeafWork(NamedTuple):
    """The costs of a rank's leaf that do not depend on the workload.

    weights   bytes of one copy; of an embedding table, of one row
    chance    probability that a token is routed to a given expert; 0: the leaf is no expert
    dtype     of its products; None: unquantised
    inputs    columns of its matrix; 0: it has none
    starts    kernel launches, all layers
    merged    engines compute it in one product with the leaf before it
    gathered  elements per position that a rank gathers from the ranks that it shares experts with; 0: none
    row       FLOPs of one row through one expert
    in_ram    its weights are in the host's RAM
    """

    entry: Entry
    weights: float
    chance: float
    dtype: str | None
    inputs: int
    starts: float
    merged: bool
    gathered: float | Fraction
    row: float
    in_ram: bool


class CoreWork(NamedTuple):
    """Further properties of an attention core.

    name     of its efficiency curve
    depth    keys that a kernel processes sequentially
    score    FLOPs per score
    scores   scores of one layer, masked ones included; 0 for few queries: their kernels write none
    dense    FLOPs, masked pairs included
    decodes  whether a decode kernel (few queries) computes it
    grouped  whether several query heads share a key/value head
    extra_reads  additional reads of the cache by kernels in which every query head reads it
    """

    name: str
    depth: float
    score: float
    scores: float
    dense: float
    decodes: bool
    grouped: bool
    extra_reads: float


class LeafLoad(NamedTuple):
    """The work of one sequence in a leaf, all layers; every figure is multiplied by the batch.

    leaf             index of its `LeafWork`
    cache, moved     bytes of the cache; of the cache and of activations
    on_chip          bytes of activations that fused kernels keep on the chip, and unfused ones write and read
    inputs, outputs  of its matrix; 0: it has none
    copies           of the weights that are read; of an embedding table, rows per sequence
    rows             whether it is an embedding table
    """

    kind: str
    leaf: int
    inputs: int
    outputs: int
    flops: float
    cache: float
    moved: float
    on_chip: float
    runs: float
    copies: float
    tokens: float
    positions: float
    rows: bool
    core: CoreWork | None


class SentWork(NamedTuple):
    """A collective's bytes per sequence: of the whole message, and sent by this rank. It runs `runs` times, in parts of
    the kind `within`."""

    within: str
    kind: str
    axis: str
    message: float
    size: float
    runs: float


class RankWork:
    """The work of one rank of a stage in an engine's formats of weights and cache."""

    def __init__(self, stage: PipelineStage, layout: Layout, engine: EngineConfig) -> None:
        self.stage, self.layout, self.engine = stage, layout, engine
        self.element = engine.activation_bits / 8
        self.experts = 0.0  # of a layer, on this rank
        self.leaves: list[LeafWork] = []
        # These do not depend on the format of the weights.
        self._loads: dict[Workload, list[LeafLoad]] = stage.passes.setdefault((layout, self.element, engine.kv), {})
        self._sent: dict[Workload, list[SentWork]] = {}

    @classmethod
    def of(cls, stage: PipelineStage, layout: Layout, engine: EngineConfig) -> RankWork:
        """The work of a stage, computed once for all accelerators."""
        key = layout, engine.weights, engine.kv, engine.offload
        work = stage.passes.get(key)
        if work is None:
            work = stage.passes[key] = cls(stage, layout, engine)
        return work

    def loads(self, work: Workload) -> list[LeafLoad]:
        """The load of one sequence on every leaf that computes; the cache keeps at most `KEPT` workloads."""
        entries = self.stage.ledger(work).entries
        if not self.leaves:
            self.leaves = list(self._leaves(entries))
            self.experts = next((float(e.times / e.layers) for e in entries if e.routed), 0.0)
        if work not in self._loads:
            if len(self._loads) == KEPT:
                self._loads.clear()
            self._loads[work] = [self._load(i, entry) for i, entry in enumerate(entries) if entry.operations]
        return self._loads[work]

    def _leaves(self, entries: tuple[Entry, ...]) -> Iterator[LeafWork]:
        before: Entry | None = None
        form, ep, sharing = self.engine.weights, self.layout.ep, self.layout.sharing
        expert_share, offload = Fraction(self.layout.tp, self.layout.expert_group), self.engine.offload
        for entry in entries:
            entry = entry.owner  # shared weights are read here too
            leaf, tensors = entry.leaf, entry.leaf.tensors
            size = sum(form.bits_of(weight, entry) for weight in tensors) / 8
            if leaf.row is not None:
                size = size / tensors[0].shape[0] if tensors else leaf.row * self.element
            # k of E: a rank has E/ep experts, or shards of them, and the tokens that its group sends it.
            chance = float(entry.runs / entry.times * expert_share) if entry.routed else 0.0
            d_in, d_out = leaf.matrix or (0, 0)
            merged = same_input(before, entry)
            inside = entry.routed and not leaf.matrix  # of a grouped kernel
            launched = leaf.launched and not (merged or inside)
            starts = 0 if not launched else entry.layers if entry.routed else entry.runs
            gathers = leaf.matrix and entry.routed and launched and ep <= GATHERED
            # Two products of a layer share passes over 2-byte elements.
            gathered = sharing * self.stage.root.stacks[-1].d_model * entry.layers if gathers else 0
            row = 2.0 * d_in * d_out if entry.routed else 0.0
            in_ram = offload is not None and bool(offload.cuts) and offload.holds(entry)
            yield LeafWork(
                entry=entry,
                weights=float(size),
                chance=min(1.0, chance),
                dtype=form.dtype_of(entry),
                inputs=d_in,
                starts=float(starts),
                merged=merged,
                gathered=gathered,
                row=row,
                in_ram=in_ram,
            )
            before = entry

    def _load(self, number: int, entry: Entry) -> LeafLoad:
        work, runs = entry.work, float(entry.runs)
        assert work is not None
        core, inner, positions = entry.kind == "attention_core", entry.leaf, float(work.positions)
        cache = activations = 0.0
        for op in entry.operations:
            activations += float(op.traffic.activations)
            cache += float(op.traffic.cache)
        on_chip = float(inner.on_chip(work))
        activations -= on_chip
        if entry.routed and not inner.matrix:  # the grouped kernel's own
            activations, on_chip = 0.0, activations + on_chip
        cache *= runs * self.engine.bits_cached(inner) / 8
        (d_in, d_out), rows = inner.matrix or (0, 0), inner.row is not None
        return LeafLoad(
            kind=entry.kind,
            leaf=number,
            inputs=d_in,
            outputs=d_out,
            flops=float(entry.flops_masked),
            cache=cache,
            moved=cache + activations * runs * self.element,
            on_chip=on_chip * runs * self.element,
            runs=runs,
            copies=float(entry.times) if self.leaves[number].chance else runs * positions if rows else runs,
            tokens=float(work.tokens),
            positions=positions,
            rows=rows,
            core=self._core(entry, work) if core else None,
        )

    def _core(self, entry: Entry, work: Workload) -> CoreWork:
        products = [op for op in entry.operations if isinstance(op, MatMul)]
        decodes = work.decoding and float(work.tokens) <= MOST_QUERIES
        name = "_".join(filter(None, (entry.leaf.kernels, "decode" if decodes else "prefill")))
        name += "-fp8" if decodes and self.engine.cache_bits < 16 else ""
        few = float(work.tokens) <= MOST_QUERIES
        score, number = flops_per_score(entry.operations), 0.0 if few else float(scores(entry.operations))
        heads = entry.leaf.attended
        extra_reads = float(heads.heads / heads.groups) - 1 if heads else 0.0
        grouped = bool(heads and heads.groups != heads.heads)
        return CoreWork(
            name=name,
            depth=float(products[0].n),
            score=score,
            scores=number,
            dense=float(entry.flops),
            decodes=decodes,
            grouped=grouped,
            extra_reads=extra_reads,
        )

    def sends(self, work: Workload) -> list[SentWork]:
        """The collectives of this rank for one sequence."""
        if work not in self._sent:
            self._sent[work] = [
                SentWork(entry.within, transfer.kind, transfer.axis.name, *self._sizes(transfer), float(entry.runs))
                for entry in self.stage.ledger(work)
                for transfer in (entry.transfers if entry.leaf.role == "collective" else ())
                if transfer.sent
            ]
        return self._sent[work]

    def _sizes(self, transfer: Transfer) -> tuple[float, float]:
        """Bytes of its message and of what is sent, in the dtype of the products if the transfer may be quantised."""
        wide, form = self.engine.activation_bits, self.engine.weights
        narrow = transfer.narrow and form.dtype not in ("bf16", "fp16", "fp32")
        bits = min(wide, form.bits if narrow else wide)
        return float(transfer.message * bits / 8), float(transfer.sent * bits / 8)
