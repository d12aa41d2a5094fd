"""What a pass asks of whatever accelerator a rank is: FLOPs, bytes and starts of every leaf of its tree.

`roofline` makes seconds of it; what is worked out for one accelerator stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from txcalc.ledger import Entry, same_input
from txcalc.parts.part import MatMul, Workload
from txcalc.parts.work import Transfer
from txcalc.planning.layout import Layout
from txcalc.planning.links import GATHERED
from txcalc.planning.parallelism import KEPT, Stage
from txcalc.planning.serving.engine import Engine

MOST_QUERIES = 64  # of a sequence, that a kernel of decode takes: a token and a draft's proposals


class LeafWork(NamedTuple):
    """What an entry of a rank's tree is, whatever is asked of it.

    weights   bytes of one copy; of a table, of one row
    chance    probability that a token passes a certain copy, of experts; 0: no expert
    dtype     what its format is multiplied in; None: it is wide
    inputs    of a product; 0: it is none
    starts    how many, all layers
    merged    engines make one product of it and the one before
    gathered  elements that a rank gathers of those that it shares experts with, for one position; 0: it does not
    row       FLOPs of one row of one copy, of experts
    aside     it lies in RAM
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
    aside: bool


class CoreWork(NamedTuple):
    """What is beside FLOPs and bytes of an attention core.

    name     of its curve
    depth    the dimension that it does in turn
    score    FLOPs of a score
    scores   all scores of one layer, masked or not; 0: of so few queries that no kernel writes them
    dense    FLOPs with the masked
    decodes  by kernels of few queries
    grouped  queries share keys
    again    times that the cache is read again where every query head reads it
    """

    name: str
    depth: float
    score: float
    scores: float
    dense: float
    decodes: bool
    grouped: bool
    again: float


class LeafLoad(NamedTuple):
    """What a sequence asks of a leaf, all layers: every figure grows with the batch.

    cache, moved   bytes of the cache, and of it and activations
    inputs, outputs    of a product; 0: it is none
    copies         whose weights are read; of a table, rows for every sequence
    rows           it is a table's
    """

    kind: str
    leaf: int
    inputs: int
    outputs: int
    flops: float
    cache: float
    moved: float
    runs: float
    copies: float
    tokens: float
    positions: float
    rows: bool
    core: CoreWork | None


class SentWork(NamedTuple):
    """What a sequence makes a rank send in one collective, which stands `runs` times `within` parts of a kind."""

    within: str
    kind: str
    axis: str
    message: float
    size: float
    runs: float


class Passes:
    """The passes of a rank of a stage, in an engine's formats of weights and cache."""

    def __init__(self, stage: Stage, layout: Layout, engine: Engine) -> None:
        self.stage, self.layout, self.engine = stage, layout, engine
        self.element = engine.activation_bits / 8
        self.experts = 0.0  # of a layer, on this rank
        self.leaves: list[LeafWork] = []
        self._asks: dict[Workload, list[LeafLoad]] = {}
        self._sent: dict[Workload, list[SentWork]] = {}

    @classmethod
    def of(cls, stage: Stage, layout: Layout, engine: Engine) -> Passes:
        """Those of a stage, worked out once for all accelerators."""
        key = layout, engine.weights, engine.kv, engine.offload
        found = stage.passes.get(key)
        if found is None:
            found = stage.passes[key] = cls(stage, layout, engine)
        return found

    def asks(self, one: Workload) -> list[LeafLoad]:
        """What one sequence asks of every leaf that does something; of many workloads the latest are kept."""
        if one not in self._asks:
            entries = self.stage.ledger(one).entries
            if not self.leaves:
                self.leaves = list(self._leaves(entries))
                self.experts = next((float(e.times / e.layers) for e in entries if e.routed), 0.0)
            if len(self._asks) == KEPT:
                self._asks.clear()
            self._asks[one] = [self._ask(i, entry) for i, entry in enumerate(entries) if entry.operations]
        return self._asks[one]

    def _leaves(self, entries: tuple[Entry, ...]) -> Iterator[LeafWork]:
        before: Entry | None = None
        form, ep, sharing = self.engine.weights, self.layout.ep, self.layout.sharing
        held, offload = Fraction(self.layout.tp, self.layout.expert_group), self.engine.offload
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
            # k of all E: a rank has E/ep of them, or pieces, and those of its own tokens that its group passes on.
            chance = float(entry.runs / entry.times * held) if entry.routed else 0.0
            d_in, d_out = leaf.matrix or (0, 0)
            merged = same_input(before, entry)
            inside = entry.routed and not leaf.matrix  # of a grouped kernel
            launched = leaf.launched and not (merged or inside)
            starts = 0 if not launched else entry.layers if entry.routed else entry.runs
            gathers = leaf.matrix and entry.routed and launched and ep <= GATHERED
            # Two products of a layer share passes of 2 bytes.
            gathered = sharing * self.stage.root.stacks[-1].d_model * entry.layers if gathers else 0
            row = 2.0 * d_in * d_out if entry.routed else 0.0
            aside = offload is not None and bool(offload.asked) and offload.holds(entry)
            dtype, once = form.dtype_of(entry), min(1.0, chance)
            yield LeafWork(entry, float(size), once, dtype, d_in, float(starts), merged, gathered, row, aside)
            before = entry

    def _ask(self, number: int, entry: Entry) -> LeafLoad:
        work, runs = entry.work, float(entry.runs)
        assert work is not None
        core, inner, positions = entry.kind == "attention_core", entry.leaf, float(work.positions)
        cache = activations = 0.0
        for op in entry.operations:
            activations += float(op.traffic.activations)
            cache += float(op.traffic.cache)
        activations -= float(inner.on_chip(work))
        if entry.routed and not inner.matrix:
            activations = 0.0  # the grouped kernel's own
        cache *= runs * (self.engine.cache_bits if core else self.engine.state_bits) / 8
        (d_in, d_out), rows = inner.matrix or (0, 0), inner.row is not None
        return LeafLoad(
            entry.kind,
            number,
            d_in,
            d_out,
            float(entry.flops_masked),
            cache,
            cache + activations * runs * self.element,
            runs,
            float(entry.times) if self.leaves[number].chance else runs * positions if rows else runs,
            float(work.tokens),
            positions,
            rows,
            self._core(entry, work) if core else None,
        )

    def _core(self, entry: Entry, work: Workload) -> CoreWork:
        products = [op for op in entry.operations if isinstance(op, MatMul)]
        decodes = work.decoding and float(work.tokens) <= MOST_QUERIES
        name = "_".join(filter(None, (entry.leaf.kernels, "decode" if decodes else "prefill")))
        name += "-fp8" if decodes and self.engine.cache_bits < 16 else ""
        first, last = products[0], products[-1]
        score = 2.0 * float(first.k) + (2.0 * float(last.n) if len(products) > 1 else 0.0)
        few = float(work.tokens) <= MOST_QUERIES
        scores = 0.0 if few else float(sum(op.flops for op in products)) / score
        heads = entry.leaf.attended
        again = float(heads.heads / heads.groups) - 1 if heads else 0.0
        grouped = bool(heads and heads.groups != heads.heads)
        return CoreWork(name, float(first.n), score, scores, float(entry.flops), decodes, grouped, again)

    def sends(self, one: Workload) -> list[SentWork]:
        """What one sequence makes this rank send."""
        if one not in self._sent:
            self._sent[one] = [
                SentWork(entry.within, each.kind, each.axis.name, *self._sizes(each), float(entry.runs))
                for entry in self.stage.ledger(one)
                for each in (entry.transfers if entry.leaf.role == "collective" else ())
                if each.sent
            ]
        return self._sent[one]

    def _sizes(self, transfer: Transfer) -> tuple[float, float]:
        """Bytes of its message and of what is sent; in the dtype of the products, where they allow it."""
        wide, form = self.engine.activation_bits, self.engine.weights
        narrow = transfer.narrow and form.dtype not in ("bf16", "fp16", "fp32")
        bits = min(wide, form.bits if narrow else wide)
        return float(transfer.message * bits / 8), float(transfer.sent * bits / 8)
