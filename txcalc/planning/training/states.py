"""Parameters, gradients and optimizer state of one rank: a framework's shards of a tensor, an optimizer's state.

Each tensor is sharded separately, in exact integers: of 128,256 rows over 1,024 ranks most ranks have 126, one has 108
and the last 6 none. Experts that a framework stacks are one tensor (experts, out, in) per projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from txcalc.errors import Fault, InputError
from txcalc.ledger import Entry
from txcalc.num import Num, ceil_div, product
from txcalc.planning.memory import MASTER_BYTES
from txcalc.planning.training.frameworks import Framework
from txcalc.planning.training.optimizers import BLOCK, OPTIMIZERS, SMALLEST, Shape
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import StagePiece, tied_tables
from txcalc.units import bits_of

NF4_BLOCK = 64


class RankTensor(NamedTuple):
    """A weight on one rank of tp (and ep), before data parallelism shards it.

    shape     begins with the number of experts if they are stacked
    rows      the dimension that FSDP shards
    copies    number of equal tensors
    axis      the dimension sharded over tp; None: replicated
    expert    a routed expert's
    hidden    a matrix of a block, which Muon orthogonalises; not of an embedding, a head or a norm
    group     the layers with this weight (the first of layers that share it); () outside all layers
    reads     number of layers that share it
    learns    whether it has a gradient
    packed    a frozen matrix of a block, which may be quantised
    adapter   one of an adapter's matrices
    gradient  shape of the gradient if it differs from the weight's
    kind      the ledger's kind of its leaf
    """

    shape: Shape
    copies: int
    axis: int | None
    expert: bool
    hidden: bool
    group: tuple[int, ...]
    learns: bool = True
    gradient: Shape | None = None
    packed: bool = False
    adapter: bool = False
    kind: str = "other"
    reads: int = 1
    rows: int = 0

    @property
    def buffer(self) -> tuple[bool, bool, bool, bool]:
        """The flat buffer it belongs to, in frameworks that shard buffers."""
        return self.expert, self.learns, self.packed, self.adapter

    @property
    def matrices(self) -> int:
        """The number of matrices in all copies, with one per stacked expert."""
        return self.copies * product(self.shape[:-2])

    @property
    def size(self) -> int:
        return product(self.shape)


def tensors(piece: StagePiece, recipe: Recipe, rank: int = 0) -> Iterator[RankTensor]:
    """The weights of a piece on tp rank `rank`. FSDP2 (DTensor) shards a dimension like `torch.chunk`, so that the last
    ranks may have less or nothing; the other frameworks pad to equal shares."""
    exact = recipe.rules.dtensor
    # torch 2.13: every rank computes the full gradient of a row-sharded table, until FSDP reduces it. Without FSDP it
    # stays full, unless the table is tied to the output layer.
    tied = tied_tables(piece.leaves)
    full_gradients = exact and recipe.shards == 1
    for leaf in (*piece.leaves, *piece.towers):
        # With adapters, towers are also frozen, but not quantised (bitsandbytes is told to skip them).
        frozen_tower = recipe.frozen is not None and leaf.of_tower
        reads = len(leaf.layers) if leaf.shared else 1
        group = leaf.layers[:1] if leaf.shared else leaf.layers
        for rank_shape, whole_shape, axis in leaf.axes():
            shape = rank_shape
            if exact and axis is not None and not leaf.entry.routed:
                shape = (*rank_shape[:axis], chunk(whole_shape[axis], recipe.layout.tp, rank), *rank_shape[axis + 1 :])
            table = full_gradients and axis == 0 and leaf.entry.leaf.row is not None and leaf not in tied
            hidden = len(rank_shape) == 2 and bool(leaf.layers) and leaf.entry.kind != "norm"
            learns = leaf.learns and not frozen_tower
            tensor = RankTensor(
                shape=shape,
                copies=leaf.entry.times,
                axis=axis,
                expert=leaf.entry.routed,
                hidden=hidden,
                group=group,
                learns=learns,
                gradient=whole_shape if table else None,
                packed=hidden and not learns and not leaf.of_tower,
                adapter=leaf.entry.kind == "adapters",
                kind=leaf.entry.kind,
                reads=reads,
            )
            if tensor.expert and recipe.rules.stacks:
                tensor = _stack(tensor, stacked_experts(leaf.entry, recipe.rules), recipe)
            yield tensor


def stacked_experts(entry: Entry, rules: Framework) -> Num:
    """The number of experts stacked in one tensor on a rank; 1 without stacking."""
    return product([step.times for step in entry.steps if step.duty == "expert" and rules.stacks])


def _stack(tensor: RankTensor, experts: int, recipe: Recipe) -> RankTensor:
    """The stacked tensor of a layer's experts. FSDP shards by expert or, with more ranks than experts, by rows, which
    must be divisible (torchtitan b5bcd76c, distributed/fsdp.py, apply_fsdp_to_decoder); adapters whose rows are not are
    sharded by expert, the default of fully_shard, so that some ranks have none."""
    axis, ways = None if tensor.axis is None else tensor.axis + 1, sharers(recipe, True)
    rows = int(ways > experts and not (tensor.adapter and tensor.shape[0] % ways))
    return tensor._replace(shape=(experts, *tensor.shape), copies=tensor.copies // experts, axis=axis, rows=rows)


def rank_weights(pieces: Sequence[StagePiece], recipe: Recipe, rank: int = 0) -> list[list[RankTensor]]:
    """The weights of each of a rank's pieces. Errors: `InputError` if FSDP cannot shard stacked experts."""
    weights = [list(tensors(piece, recipe, rank)) for piece in pieces]
    if stack := find_unshardable((tensor for piece_weights in weights for tensor in piece_weights), recipe):
        experts, rows = stack.shape[:2]
        ways = sharers(recipe, True)
        expected = f"at most {experts} ranks for {experts} experts, not {ways}, or a divisor of their {rows:,} rows"
        raise InputError(f"layout {recipe.layout}", [Fault("fsdp", recipe.layout.fsdp, expected, "see ep")])
    return weights


def find_unshardable(weights: Iterable[RankTensor], recipe: Recipe) -> RankTensor | None:
    """The first tensor of stacked experts that FSDP can shard neither by expert nor by rows."""
    ways = sharers(recipe, True)
    stacks = (tensor for tensor in weights if tensor.expert and recipe.rules.stacks and not tensor.adapter)
    return next((tensor for tensor in stacks if ways > tensor.shape[0] and tensor.shape[1] % ways), None)


def chunk(number: int, ways: int, rank: int) -> int:
    """Rows of rank `rank` under `torch.chunk`: equal, but the last ones smaller or empty."""
    rows = ceil_div(number, ways)
    return max(0, min(rows, number - rank * rows))


class State(NamedTuple):
    """Bytes that a rank holds throughout a step; `parameters` excludes `adapters`."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    adapters: int = 0

    def __add__(self, other: object) -> State:
        assert isinstance(other, State)
        return State(*(a + b for a, b in zip(self, other, strict=True)))


def states(weights: Sequence[RankTensor], recipe: Recipe, rank: int, column: int = 0) -> State:
    """State of weights on data-parallel rank `rank` and tp rank `column`."""
    optimizer = OPTIMIZERS[recipe.optimizer]
    zero, usual_bytes = recipe.zero_stage, (recipe.parameter_bytes, recipe.gradient_bytes)
    parameters = gradients = optimizer_state = adapters = 0
    for tensor, shard in _shares(weights, recipe, rank, column):
        shape = tensor.shape
        size = tensor.copies * weight_bytes(tensor, product(shard if zero == 3 else shape), recipe)
        parameters, adapters = (parameters, adapters + size) if tensor.adapter else (parameters + size, adapters)
        if tensor.learns:
            width, gradient_width = (recipe.adapter_bytes,) * 2 if tensor.adapter else usual_bytes
            gradients += tensor.copies * gradient_width * product(shard if zero >= 2 else tensor.gradient or shape)
            state_shape = shard if zero else tensor.gradient or shape if optimizer.like_gradient else shape
            optimizer_state += tensor.copies * optimizer_bytes(state_shape, recipe, width, tensor.hidden)
    return State(parameters, gradients, optimizer_state, adapters)


def optimizer_bytes(shape: Shape, recipe: Recipe, width: int, hidden: bool, value: Callable[[Num], int] = int) -> Num:
    """Bytes that the optimizer keeps for a tensor of `width` bytes per element: its state, and fp32 master weights if
    the framework has them. A shape may have symbols; `value` then evaluates sizes that a rule compares."""
    master = MASTER_BYTES if recipe.rules.master and recipe.parameter_bytes < 4 else 0
    optimizer = OPTIMIZERS[recipe.optimizer]
    small_size = optimizer.small_size
    size = small_size if small_size and value(product(shape)) < SMALLEST else optimizer.size
    return size(shape, master or width, hidden) + master * product(shape)


def moments(recipe: Recipe) -> str:
    """The dtype of AdamW's moments, `fp32` or `bf16`; "" for another optimizer."""
    optimizer, width = OPTIMIZERS[recipe.optimizer], 4 if recipe.rules.master else recipe.parameter_bytes
    if not optimizer.fused:
        return ""
    return "bf16" if optimizer.size((1,), width, False) == 4 else "fp32"  # bytes of two moments


def weight_bytes(tensor: RankTensor, elements: int, recipe: Recipe) -> int:
    """Bytes of `elements` elements of a weight. NF4: half a byte each, and an fp32 scale per 64; with double
    quantisation an 8-bit scale per 64, an fp32 scale per 256 scales and the mean of scales in fp32 (bitsandbytes; arXiv
    2305.14314, section 3). Frozen weights that are not quantised are in the compute dtype."""
    if tensor.adapter:
        return elements * recipe.adapter_bytes
    if tensor.learns or recipe.frozen is None:
        return elements * recipe.parameter_bytes
    if not tensor.packed or recipe.frozen in ("fp32", "bf16", "fp16"):
        return elements * (bits_of(recipe.frozen) // 8 if tensor.packed else recipe.compute_bytes)
    if recipe.frozen == "int8":
        return int(elements + 4 * ceil_div(elements, max(1, tensor.shape[-1])))
    scales = ceil_div(elements, NF4_BLOCK)
    scale_bytes = 4 * scales if recipe.frozen == "nf4" else scales + 4 * ceil_div(scales, BLOCK) + 4
    return int(ceil_div(elements, 2) + scale_bytes)


def sharers(recipe: Recipe, expert: bool) -> int:
    """The number of ranks over which data parallelism shards a tensor; for experts, those with the same experts."""
    layout = recipe.layout
    ways = layout.dp * layout.cp if recipe.zero else recipe.shards
    return max(1, ways * layout.tp // layout.expert_group) if expert else ways


def _shares(
    weights: Sequence[RankTensor], recipe: Recipe, rank: int, column: int
) -> Iterator[tuple[RankTensor, Shape]]:
    """Each tensor with the shape of the rank's shard: rows (FSDP2) or a range of its elements (nanotron), the first
    ranks with one element more. Other frameworks shard a flat buffer of all tensors, padded to equal shares, which
    counts as one tensor."""
    rows = recipe.shards > 1
    if rows or recipe.rules.by_tensor:
        for tensor in weights:
            ways = sharers(recipe, tensor.expert)
            number = (rank * recipe.layout.tp + column) // recipe.layout.expert_group if tensor.expert else rank
            yield tensor, _rows(tensor, ways, number) if rows else ((tensor.size + ways - 1 - number) // ways,)
        return
    if not recipe.zero:
        yield from ((tensor, tensor.shape) for tensor in weights)
        return
    for kind in sorted({tensor.buffer for tensor in weights}):
        size = sum(tensor.size * tensor.copies for tensor in weights if tensor.buffer == kind)
        expert, learns, packed, adapter = kind
        buffer = RankTensor((size,), 1, None, expert, False, (), learns, packed=packed, adapter=adapter)
        yield buffer, (ceil_div(size, sharers(recipe, expert)),)


def _rows(tensor: RankTensor, ways: int, rank: int) -> Shape:
    before, after = tensor.shape[: tensor.rows], tensor.shape[tensor.rows + 1 :]
    return (*before, chunk(tensor.shape[tensor.rows], ways, rank), *after)


def shard_runs(weights: Iterable[RankTensor], recipe: Recipe, column: int = 0) -> list[int]:
    """The first rank of every run of data-parallel ranks with equal shards, for tp rank `column`."""
    points, layout = {0}, recipe.layout
    for tensor in weights:
        ways, starts = sharers(recipe, tensor.expert), list[int]()
        if recipe.shards > 1:
            rows = tensor.shape[tensor.rows]
            full = rows // max(1, ceil_div(rows, ways))
            starts = [full, full + 1]
        elif recipe.rules.by_tensor and recipe.zero:
            starts = [tensor.size % ways]
        points |= {ceil_div(n * layout.expert_group - column, layout.tp) if tensor.expert else n for n in starts}
    return sorted(point for point in points if 0 <= point < sharers(recipe, False))
