"""The time of a training step: a lower bound (floor), and a predicted time by cause.

achievable   the sum of all kernels, each at the efficiency of its class; collectives of tp, cp and ep between them; the
             pipeline's bubble by its schedule's table; the exchange of weights and gradients that compute does not
             hide; the optimizer's step; and the time by which the host is slower in launching kernels than the device
             in running them, if it was measured (`Efficiency.host_s`)
floor        the largest of compute, memory and link of any rank, each separately at the datasheet's rate

Counts   masked pairs of fused attention, all pairs of attention that saves its scores; backward as twice the forward,
         for fused attention as measured, else 2.5 times; recomputation
Hidden   with overlap: gathered weights during the previous block's compute, reduced gradients during the last
         micro-batch's backward, except those of the first and the last block; for tp what the framework hides
         (`waits`). Compute is slower meanwhile (`machine.SLOWED`). Never hidden: cp, ep, stages
Omits    data loading, unequal numbers of tokens per expert, failures
Source   Kaplan et al. 2020 (arXiv 2001.08361) for 2×; Dao 2023 (arXiv 2307.08691) for 2.5×
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from txcalc.ledger import same_input
from txcalc.model import Model
from txcalc.parts.part import MatMul
from txcalc.planning.gradients import flops_per_score, passes, scores
from txcalc.planning.machine import Floor, Kernels, LibrarySource, Machine, Message
from txcalc.planning.training import timeline
from txcalc.planning.training.activations import recomputed
from txcalc.planning.training.collectives import TWIN, Messages, muon_replicas
from txcalc.planning.training.exchange import Exchange, ProductTime, StageWeights, host_offload, repeats_gather, waits
from txcalc.planning.training.memory import Ranks
from txcalc.planning.training.optimizers import OPTIMIZERS
from txcalc.planning.training.profiles import logits
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import Pipeline, RankLeaf, StagePiece, tied_tables
from txcalc.planning.training.states import sharers
from txcalc.units import bits_of

SPENT = ("products", "attention", "other kernels", "collectives of a layer")


class CauseTime(NamedTuple):
    """Seconds by one cause: forward, backward, the part of backward for gradients of weights, and recomputation."""

    forward: float = 0.0
    backward: float = 0.0
    weights: float = 0.0
    recomputed: float = 0.0

    def plus(self, other: CauseTime) -> CauseTime:
        return CauseTime(*(a + b for a, b in zip(self, other, strict=True)))


class Work(Struct, frozen=True):
    """The time of one micro-batch in a pipeline piece.

    causes   by cause (`SPENT`)
    send     seconds of activations to the next piece
    issued   kernel launches
    """

    causes: dict[str, CauseTime]
    send: float
    issued: float

    @property
    def total(self) -> CauseTime:
        return CauseTime(*map(sum, zip(*self.causes.values(), strict=True)))

    @property
    def seconds(self) -> float:
        total = self.total
        return total.forward + total.backward + total.recomputed

    @property
    def piece(self) -> timeline.PieceTime:
        total = self.total
        inputs = total.backward - total.weights + total.recomputed
        return timeline.PieceTime(total.forward, inputs, total.weights, self.send)


class Step(Struct, frozen=True):
    """One step of all ranks.

    floor, seconds   lower bound and achievable time
    spent            achievable seconds of the busiest rank by cause; their sum is `seconds`
    sent             bytes that the busiest rank sends per step, by kind of collective
    libraries        the library that sends each of these kinds
    timeline         of the pipeline, without gradient exchange and optimizer
    unaligned        matrices (inputs, outputs) of that rank whose rows are not multiples of 16 bytes, with the measured
                     rate of their products over that of others; {} if it was not measured
    wide             matrices of that rank whose products stay in the compute dtype while others are in 8 bits
    """

    floor: float
    floor_bound: str
    seconds: float
    spent: dict[str, float]
    sent: dict[str, int]
    libraries: dict[str, LibrarySource]
    timeline: timeline.Timeline
    tokens: int
    gpus: int
    unaligned: dict[tuple[int, int], float]
    wide: tuple[tuple[int, int], ...] = ()

    @property
    def tokens_s(self) -> float:
        """Tokens per second and accelerator."""
        return self.tokens / self.seconds / self.gpus


class StepTimer(Messages):
    """Times of a model under a recipe on a machine; `modules`: as PyTorch's modules without grouped kernels, a layer's
    experts one after the other. Errors: `InputError` as `memory`, and for an unknown link."""

    def __init__(
        self, model: Model, recipe: Recipe, machine: Machine, pipeline: Pipeline | None = None, *, modules: bool = False
    ) -> None:
        super().__init__(model, recipe, machine, pipeline or Pipeline(model, recipe))
        self.kernels = Kernels(machine, flash=recipe.attention or recipe.rules.attention)
        self.bounds, self.exchange = Floor(machine), Exchange(recipe, machine)
        self.modules = modules

    def work(self, piece: StagePiece, kernels: Kernels) -> Work:
        """The time of one micro-batch in a piece."""
        causes = dict.fromkeys(SPENT, CauseTime())
        issued = 0.0
        products: dict[str, ProductTime] = {}
        numbers = recomputed(piece, self.recipe)

        def add(cause: str, forward: float, backward: float, weights: float = 0.0, share: float = 0.0) -> None:
            """Adds to a cause; `share` of forward is recomputed."""
            causes[cause] = causes[cause].plus(CauseTime(forward, backward, weights, forward * share))

        for before, leaf in pairwise((None, *piece.leaves)):
            assert leaf is not None
            merged = same_input(before and before.entry, leaf.entry)
            issued += 0.0 if merged else self.kernels_issued(leaf, numbers)
            for cause, time in self.leaf_times(leaf, kernels, merged):
                add(cause, time.forward, time.backward, time.weights, self._recomputed_share(leaf, numbers))
                if cause == "products":
                    products[leaf.entry.name] = ProductTime(time.forward, time.backward - time.weights, time.weights)
        for leaf, size in self._permuted(piece):
            seconds = kernels.stream(size, 2.0 * len(leaf.layers))
            add("other kernels", seconds, seconds, share=self._recomputed_share(leaf, numbers))
            issued += 2 * len(leaf.layers) * (2 + self._recomputed_share(leaf, numbers))
        for leaf in piece.collectives:
            concurrent = ProductTime.of(products[product.entry.name] for product in leaf.products)
            for message in self.exchanged(leaf):
                seconds = kernels.transfer(message) * float(leaf.entry.runs)
                forward, backward = waits(leaf, message.kind, seconds, concurrent, self.recipe, self.machine)
                add("collectives of a layer", forward, backward, share=self._recomputed_share(leaf, numbers))
        if elements := logits(self.recipe, [piece], 0):
            add("other kernels", 0.0, kernels.stream(self.recipe.loss_bytes * elements, 0))
        for message, direction in self.tp_reductions(piece):
            seconds = kernels.transfer(message)
            add("collectives of a layer", *((seconds, 0.0) if direction == "forward" else (0.0, seconds)))
        send = sum(kernels.transfer(message) for message in self.sends(piece))
        return Work(causes, send, issued)

    def kernels_issued(self, leaf: RankLeaf, numbers: frozenset[int]) -> float:
        """Kernel launches of a leaf and its copies: forward, one per gradient, and recomputation."""
        if leaf.entry.work is None or not leaf.entry.operations or not leaf.entry.leaf.launched:
            return 0.0
        return self._size(leaf)[2] * (passes(leaf.entry) + self._recomputed_share(leaf, numbers))

    def leaf_times(self, leaf: RankLeaf, kernels: Kernels, merged: bool) -> Iterator[tuple[str, CauseTime]]:
        """Times of a leaf and its copies, by cause. `merged`: it is fused with the product before, which has the same
        input."""
        entry, work = leaf.entry, leaf.entry.work
        if work is None or not entry.operations:
            return
        flops, size, starts, share = self._size(leaf)
        module = entry.leaf
        if entry.kind == "attention_core":
            forward, backward = self._core(leaf, kernels, flops, size, starts)
            yield "attention", CauseTime(forward, 0.0 if entry.gradient == "none" else backward)
        elif module.role == "product":
            kind = self._kind(leaf)
            depth, width = module.matrix or (0, 0)
            in_8_bits = (
                module.matrix and bits_of(kernels.dtype(module.matrix)) < 16
            )  # experts' too: TE, grouped_linear.py
            rows = float(work.positions) * float(entry.runs) if in_8_bits else 0.0
            read, starts = (0.0, 0.0) if merged else (rows, starts)
            forward = kernels.product(flops, size, starts, depth, read, kind, module.matrix)
            inputs = weights = 0.0  # seconds of their gradients
            if entry.gradient not in ("weights", "none"):
                inputs = kernels.product(flops, size, starts, width, rows, kind, module.matrix)
            if entry.gradient not in ("input", "none"):
                moved = size + self._accumulated(leaf)
                weights = kernels.product(flops, moved, starts, float(work.positions), 0.0, kind, module.matrix)
            if entry.gradient == "input" and self.recipe.packed and leaf.layers:  # each read dequantises the matrix
                dequantised = kernels.stream(float(entry.params) * (self.recipe.packed + self.element), starts)
                forward, inputs = forward + dequantised, inputs + dequantised
            yield "products", CauseTime(forward, inputs + weights, weights)
        else:
            unfused = self.recipe.eager or (self.modules and module.role != "norm")  # one kernel since torch 2.8
            forward = kernels.stream(size / share * (module.unfused if unfused else 1), starts)
            yield "other kernels", CauseTime(forward, 2 * forward + kernels.stream(self._table_gradient(leaf), 0))
        if self.recipe.layout.cp > 1 and entry.kind == "attention_core":
            seconds = kernels.transfer(self.keys(leaf)) * float(entry.runs)
            yield "collectives of a layer", CauseTime(seconds, self.keys_in_backward(leaf) * seconds)

    def _kind(self, leaf: RankLeaf) -> str:
        """The class of kernels of a product."""
        return "experts" if leaf.entry.routed and not self.modules else "matmul"

    def _odd_matrices(
        self, pieces: Iterable[StagePiece]
    ) -> tuple[dict[tuple[int, int], float], tuple[tuple[int, int], ...]]:
        """`Step.unaligned` and `Step.wide`; a vector needs no padding."""
        matrices = ((leaf.entry.leaf.matrix, self._kind(leaf)) for piece in pieces for leaf in piece.leaves)
        kinds = {matrix: kind for matrix, kind in matrices if matrix and min(matrix) > 1}
        slow = {matrix: share for matrix, kind in kinds.items() if (share := self.kernels.aligned(matrix, kind)) < 1}
        return slow, tuple(matrix for matrix in kinds if self.kernels.dtype(matrix) != self.machine.products)

    def _permuted(self, piece: StagePiece) -> Iterator[tuple[RankLeaf, float]]:
        """Bytes that forward moves to permute tokens into the order of their experts and to sum their results, for
        all layers; once per branch, with its first expert (Megatron-LM d98e8a64, core/transformer/moe/moe_utils.py,
        permute and unpermute). Backward moves as many."""
        branches = set[tuple[object, ...]]()
        for leaf in piece.leaves:
            entry = leaf.entry
            if entry.routed and entry.kind == "experts" and entry.leaf.matrix and leaf.branch not in branches:
                branches.add(leaf.branch)
                assert entry.work is not None
                width, rows = float(entry.leaf.matrix[0]), float(entry.work.positions)
                tokens = rows * len(leaf.layers) / (self.recipe.layout.tp if leaf.dispatched else 1)
                yield leaf, 2 * (tokens + rows * float(entry.runs)) * width * self.element

    def _core(self, leaf: RankLeaf, kernels: Kernels, flops: float, size: float, starts: float) -> tuple[float, float]:
        """Seconds of attention, forward and backward."""
        work, products = leaf.entry.work, [op for op in leaf.entry.operations if isinstance(op, MatMul)]
        assert work is not None
        if work.keep_scores:
            score_bytes, depth = 10 * self._scores(leaf), float(products[0].k)
            forward = kernels.scores(flops, size + score_bytes, starts, depth)
            return forward, kernels.scores(2 * flops, 2 * (size + score_bytes), 2 * starts, depth)
        latent = leaf.entry.leaf.kernels == "latent"
        keys, score = float(products[0].n), flops_per_score(leaf.entry.operations)
        forward = kernels.core(flops, size, starts, keys, score, latent)
        return forward, kernels.core(flops, size, starts, keys, score, latent, backward=True)

    def _accumulated(self, leaf: RankLeaf) -> float:
        """Bytes moved to accumulate gradients of weights: all of them in a buffer that is never freed, else not those
        of the first micro-batch nor of the first of layers that share them; with a reduction in every micro-batch, only
        a rank's share. If autograd's gradients are separate from the accumulated ones, they are read too."""
        entry, elements, recipe = leaf.entry, leaf.entry.leaf.owning.params, self.recipe
        summed: float = elements * (entry.times if entry.routed else entry.runs)
        if recipe.accumulation == 1 and not recipe.rules.gradient_buffers:
            summed -= entry.params
        if recipe.zero_stage == 3 and recipe.layout.pp == 1:
            summed /= sharers(recipe, entry.routed)
        return float(summed) * (2 * recipe.gradient_bytes + (self.element if recipe.rules.makes_gradients else 0))

    def _table_gradient(self, leaf: RankLeaf) -> float:
        """Bytes moved by the gradient of a table: all of its rows are written, even if few were read (ATen,
        embedding_dense_backward), and accumulated; for a tied table, autograd adds it to the output layer's gradient,
        whose accumulation counts there."""
        if leaf.entry.leaf.row is None or not leaf.learns:
            return 0.0
        written = float(leaf.entry.params) * self.element
        tied = (table.entry.path for piece in self.pipeline.pieces for table in tied_tables(piece.leaves))
        return 4 * written if leaf.entry.path in tied else written + self._accumulated(leaf)

    def _size(self, leaf: RankLeaf) -> tuple[float, float, float, int]:
        """FLOPs, bytes and kernel launches of a leaf's copies, and the number of tp ranks that share its rows."""
        entry = leaf.entry
        runs = float(entry.runs)
        fused = entry.kind != "attention_core" or (entry.work is not None and not entry.work.keep_scores)
        flops = float(leaf.flops(self.recipe.layout, masked=fused))
        elements = sum(float(op.traffic.activations + op.traffic.cache) for op in entry.operations) * runs
        copies = float(entry.times) if entry.routed else runs
        starts = float(len(leaf.layers)) if entry.routed and not self.modules else copies  # grouped kernels
        tables = entry.leaf.row is not None
        weights = 0.0 if tables else float(entry.leaf.owning.params) * copies
        width = bits_of(self.kernels.dtype(entry.leaf.matrix)) / 8 if entry.leaf.matrix else self.element
        return flops, elements * self.element + weights * width, starts, leaf.token_shards(self.recipe.layout)

    def _scores(self, leaf: RankLeaf) -> float:
        """Elements of the attention matrix, which unfused kernels write and read several times."""
        return float(scores(leaf.entry.operations) * leaf.entry.runs)

    def _recomputed_share(self, leaf: RankLeaf, numbers: frozenset[int]) -> float:
        """Share of its forward that is recomputed."""
        return leaf.recomputed_in(self.recipe.recompute, numbers) / (len(leaf.layers) or 1)

    @cached_property
    def works(self) -> list[Work]:
        return [self.work(piece, self.kernels) for piece in self.pipeline.pieces]

    def step(self, plan: Ranks) -> Step:
        """The step of the ranks of a memory plan."""
        recipe, layout = self.recipe, self.recipe.layout
        line = timeline.simulate(recipe, [work.piece for work in self.works], self.machine.waits)
        busiest = max(range(layout.pp), key=line.busy)
        pieces = self.pipeline.of_stage(busiest)
        works = [self.works[piece.number] for piece in pieces]
        batches = recipe.accumulation
        spent = dict.fromkeys(SPENT, 0.0)
        recomputed_seconds = 0.0
        for work in works:
            for kind in SPENT:
                spent[kind] += batches * (work.causes[kind].forward + work.causes[kind].backward)
            recomputed_seconds += batches * work.total.recomputed
        spent["computed again"] = recomputed_seconds
        spent["pipeline bubble"] = line.seconds - line.busy(busiest)
        weights = StageWeights.of(self.pipeline, pieces)
        forward, backward = sum(work.total.forward for work in works), sum(work.total.backward for work in works)
        exchange = self.exchange.exposed(weights, self.kernels, forward, sum(work.seconds for work in works) - forward)
        spent["weights and gradients"] = exchange
        waited = host_offload(recipe, plan.ranks, self.machine.host, forward, backward)
        spent["to and from the host"], spent["optimizer, on the host"] = waited
        spent["optimizer"] = 0.0
        if not recipe.offloads("optimizer"):
            spent["optimizer"] = self.exchange.optimizer((rank.state for rank in plan.ranks), self.kernels)
            spent["optimizer"] += self.passes_over_weights(pieces, weights) + sum(map(self._muon, pieces))
        issuing = batches * sum(work.issued for work in works) * self.kernels.efficiency.host_s
        spent["waiting for the host"] = max(0.0, issuing - sum(spent[kind] for kind in SPENT) - recomputed_seconds)
        seconds = sum(spent.values())
        floor, bound = self.floor(plan)
        sent = self.sent(pieces, weights)
        unaligned, wide = self._odd_matrices(pieces)
        return Step(
            floor=floor,
            floor_bound=bound,
            seconds=seconds,
            spent=spent,
            sent=sent,
            libraries={kind: self.machine.library_source(kind, self.exchange.copies) for kind in sent},
            timeline=line,
            tokens=recipe.global_batch * recipe.tokens,
            gpus=layout.gpus,
            unaligned=unaligned,
            wide=wide,
        )

    def passes_over_weights(self, pieces: Sequence[StagePiece], weights: StageWeights) -> float:
        """Seconds of passes over unsharded gradients and weights, without the optimizer's: to compute the norm of
        gradients and to zero them (`Framework.sweeps`); to copy them to and from DistributedDataParallel's buckets
        (torch, reducer.cpp, mark_variable_ready_dense, finalize_bucket_dense); three passes over weights that nanotron
        gathers, the last with a kernel for each tensor and rank (distributed.py, all_gather_coalesced)."""
        recipe, rules, copies = self.recipe, self.recipe.rules, self.exchange.copies.size
        if recipe.shards > 1 or recipe.zero_stage > 1:
            return 0.0
        sizes = weights.shared, weights.experts
        size, starts = rules.sweeps * sum(group_sizes.learning for group_sizes in sizes), 0.0
        updated = sum(group_sizes.updated for group_sizes in sizes) if copies > 1 else 0.0
        if rules.ddp and not recipe.zero:
            size += 4 * updated
        if rules.reduces_after and recipe.zero and updated:
            size += 6 * updated
            for before, leaf in (pair for piece in pieces for pair in pairwise((None, *piece.leaves))):
                if leaf and leaf.learns and not same_input(before and before.entry, leaf.entry):
                    starts += copies * leaf.entry.times * len(list(leaf.axes()))
        return self.kernels.stream(size, starts)

    def _muon(self, piece: StagePiece) -> float:
        """Seconds of Newton–Schulz: three products per iteration, of a matrix sharded by rows or gathered by each rank
        of tp, and their communication. Source: Jordan et al. 2024 (kellerjordan.github.io/posts/muon), runtime
        analysis."""
        seconds, steps = 0.0, OPTIMIZERS[self.recipe.optimizer].newton_schulz
        for tensor in self.orthogonalised(piece):
            ways = muon_replicas(tensor, self.recipe)
            sides = list(enumerate(tensor.shape))[-2:]
            short, long = sorted(n * ways if axis == tensor.axis else n for axis, n in sides)
            runs = steps * tensor.matrices / sharers(self.recipe, tensor.expert)
            flops, moved = 4 * short**2 * long + 2 * short**3, 3 * short * long + 4 * short**2
            seconds += self.kernels.product(runs * flops, runs * moved * self.element, 3 * runs, short)
        return seconds + sum(map(self.kernels.transfer, self.muon_messages(piece)))

    def sent(self, pieces: Sequence[StagePiece], weights: StageWeights) -> dict[str, int]:
        """Bytes that a rank sends per step, by kind of collective."""
        recipe = self.recipe
        bytes_sent: dict[str, float] = {}

        def add(message: Message, times: float) -> None:
            bytes_sent[message.kind] = bytes_sent.get(message.kind, 0.0) + times * message.sent

        for piece in pieces:
            numbers = recomputed(piece, self.recipe)
            for leaf in (*piece.collectives, *piece.leaves):
                per_forward, backwards = leaf.passes
                times = float(leaf.entry.runs) * recipe.accumulation
                forwards = per_forward * (1 + self._recomputed_share(leaf, numbers)) + repeats_gather(leaf, recipe)
                for message in self.exchanged(leaf):
                    add(message, forwards * times)
                    add(message._replace(kind=TWIN.get(message.kind, message.kind)), backwards * times)
                if recipe.layout.cp > 1 and leaf.entry.kind == "attention_core" and leaf.entry.work:
                    add(self.keys(leaf), (forwards + backwards * self.keys_in_backward(leaf)) * times)
            for message in (*self.sends(piece), *(reduction for reduction, _ in self.tp_reductions(piece))):
                add(message, recipe.accumulation)
            if self.recipe.layout.pp > 1 and not piece.first:  # gradients of what the previous piece sent
                for message in self.sends(self.pipeline.pieces[piece.number - 1]):
                    add(message, recipe.accumulation)
            for message in self.muon_messages(piece):
                add(message, 1)
        ends = any(piece.first or piece.last for piece in pieces)
        for message, phase, _ in self.exchange.messages(weights):
            add(message, self.exchange.rounds(phase) if ends or phase != "tied" else 0)
        return {kind: bytes_ for kind, size in sorted(bytes_sent.items()) if (bytes_ := round(size))}

    def floor(self, plan: Ranks) -> tuple[float, str]:
        """The lower bound at datasheet rates, the largest of compute, memory and link on any rank, and its name."""
        recipe, batches = self.recipe, self.recipe.accumulation
        compute = link = 0.0
        for stage in range(recipe.layout.pp):
            pieces = self.pipeline.of_stage(stage)
            compute = max(compute, batches * sum(self._arithmetic(piece) for piece in pieces))
            messages = self.exchange.messages(StageWeights.of(self.pipeline, pieces))
            link = max(link, sum(self.bounds.transfer(sent.message) for sent in messages))
        memory = 0.0
        if not recipe.offloads("optimizer"):
            memory = self.exchange.optimizer((rank.state for rank in plan.ranks), self.bounds)
        bounds = {"compute": compute, "memory": memory, "link": link}
        bound = max(bounds, key=bounds.__getitem__)
        return bounds[bound], bound

    def _arithmetic(self, piece: StagePiece) -> float:
        """Seconds of a micro-batch's FLOPs at the peak: forward, backward and recomputation, with masked attention."""
        numbers, total = recomputed(piece, self.recipe), 0.0
        for leaf in piece.leaves:
            entry = leaf.entry
            if entry.work is None or not entry.flops:
                continue
            rate = self.bounds.rate(entry.kind == "attention_core", entry.leaf.matrix)
            times = passes(entry) + self._recomputed_share(leaf, numbers)
            total += float(leaf.flops(self.recipe.layout, masked=True)) * times / rate
        return total
