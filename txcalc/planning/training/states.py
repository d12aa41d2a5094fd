"""Parameters, gradients and optimizer state of one rank: how a framework cuts a tensor, what an optimizer keeps.

Sizes are exact integers of one tensor at a time, for nobody cuts a sum: 128,256 rows over 1,024 ranks are 126 for most
ranks, 108 for one, and nothing for the last 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from txcalc.num import ceil_div, product
from txcalc.planning.training.optimizers import BLOCK, OPTIMIZERS, SMALLEST, Shape
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import StagePiece
from txcalc.units import bits_of

NF4_BLOCK = 64


class RankTensor(NamedTuple):
    """A weight as one rank of tp (and ep) holds it, before anything is sharded by data.

    copies    equal ones
    axis      the dimension that tp splits; None: it has all of it
    expert    one of the routed experts'
    hidden    a matrix between hidden vectors, which Muon turns: no table, no head, no norm
    group     the layers that hold it, of those that share it the first; () where no layer does
    reads     layers that share it
    learns    it has a gradient
    packed    a frozen matrix in a block, which may be quantised
    adapter   one of an adapter's two
    gradient  the shape of that, where it is not the weight's
    kind      what its part counts as
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

    @property
    def like(self) -> tuple[bool, bool, bool, bool]:
        """What tensors of one flat buffer have in common."""
        return self.expert, self.learns, self.packed, self.adapter

    @property
    def size(self) -> int:
        return product(self.shape)  # type: ignore[no-any-return]


def tensors(piece: StagePiece, recipe: Recipe, rank: int = 0) -> Iterator[RankTensor]:
    """The weights of a piece on rank number `rank` of tp. FSDP2 (DTensor) cuts a dimension like `torch.chunk`: what
    does not divide leaves less, or nothing, for the last; the other frameworks pad, and all hold the same."""
    exact = recipe.rules.dtensor
    # torch 2.13: the gradient of a table whose rows tp splits comes out whole, on every rank, and stays so until FSDP
    # reduces it; without FSDP it is kept so, unless it is the output layer's too, whose gradient it joins.
    tied = any(held.entry.leaf.untied is not held.entry.leaf for held in piece.leaves)
    inflated = exact and recipe.shards == 1 and not tied
    for held in (*piece.leaves, *piece.beside):
        # Beside adapters, towers are frozen as all else is, and stay as published (bitsandbytes told to skip them).
        fixed = recipe.frozen is not None and held.beside
        reads = len(held.layers) if held.shared else 1
        group = held.layers[:1] if held.shared else held.layers
        for own, whole, axis in held.axes():
            shape = own
            if exact and axis is not None and not held.entry.routed:
                shape = (*own[:axis], chunk(whole[axis], recipe.layout.tp, rank), *own[axis + 1 :])
            table = inflated and axis == 0 and held.entry.leaf.row is not None
            hidden = len(own) == 2 and bool(held.layers) and held.entry.kind != "norm"
            times, expert = held.entry.times, held.entry.routed
            made = RankTensor(shape, times, axis, expert, hidden, group, gradient=whole if table else None, reads=reads)
            learns, adapter = held.entry.gradient in ("both", "weights"), held.entry.kind == "adapters"
            learns = learns and not fixed
            packed = hidden and not learns and not held.beside
            yield made._replace(learns=learns, adapter=adapter, packed=packed, kind=held.entry.kind)


def chunk(number: int, ways: int, rank: int) -> int:
    """Rows of the rank-th piece that `torch.chunk` makes: all as large as the first, the last ones smaller or empty."""
    each = -(-number // ways)
    return max(0, min(each, number - rank * each))


def level(number: int, ways: int, rank: int) -> int:
    """Elements of the rank-th of pieces that differ by one at most, the larger ones first."""
    return number // ways + (1 if rank < number % ways else 0)


class State(NamedTuple):
    """Bytes a rank holds for good; `adapters` are parameters too, and not among the others."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    adapters: int = 0

    def __add__(self, other: object) -> State:
        assert isinstance(other, State)
        return State(*(a + b for a, b in zip(self, other, strict=True)))


def states(held: Sequence[RankTensor], recipe: Recipe, shard: int, column: int = 0) -> State:
    """Of all tensors of a rank, the shard-th of those that share them and the column-th of tp."""
    optimizer = OPTIMIZERS[recipe.optimizer]
    zero = recipe.zero_stage
    parameters = gradients = beside = adapters = 0
    for tensor, mine in _cuts(held, recipe, shard, column):
        whole = tensor.shape
        size = tensor.copies * stored(tensor, product(mine if zero == 3 else whole), recipe)
        parameters, adapters = (parameters, adapters + size) if tensor.adapter else (parameters + size, adapters)
        if tensor.learns:
            kept = recipe.adapter_bytes if tensor.adapter else recipe.gradient_bytes
            width = recipe.adapter_bytes if tensor.adapter else recipe.parameter_bytes
            gradients += tensor.copies * kept * product(mine if zero >= 2 else tensor.gradient or whole)
            own = mine if zero else tensor.gradient or whole if optimizer.like_gradient else whole
            beside += tensor.copies * kept_for(own, recipe, width, tensor.hidden)
    return State(parameters, gradients, beside, adapters)


def kept_for(shape: Shape, recipe: Recipe, width: int, hidden: bool, value: Callable[[Any], int] = int) -> Any:
    """What the optimizer keeps for a tensor of `width` bytes per element: its state, and weights in fp32 beside
    narrower ones where the framework holds these. A shape may be of letters, whose `value` is asked where a rule
    needs it."""
    master, optimizer = 4 if recipe.rules.master and recipe.parameter_bytes < 4 else 0, OPTIMIZERS[recipe.optimizer]
    small = (value(product(shape)) < SMALLEST,) if optimizer.blockwise else ()
    return optimizer.size(shape, master or width, hidden, *small) + master * product(shape)


def stored(tensor: RankTensor, elements: int, recipe: Recipe) -> int:
    """Bytes of so many elements of a weight. NF4: two in a byte, an fp32 scale for 64; with double quantisation a byte
    for each scale, an fp32 for 256 of them, and one for their mean (bitsandbytes; arXiv 2305.14314, section 3). What is
    not quantised beside quantised matrices is in the dtype of the products."""
    if tensor.adapter:
        return elements * recipe.adapter_bytes
    if tensor.learns or recipe.frozen is None:
        return elements * recipe.parameter_bytes
    if not tensor.packed or recipe.frozen in ("fp32", "bf16", "fp16"):
        return elements * (bits_of(recipe.frozen) // 8 if tensor.packed else recipe.compute_bytes)
    if recipe.frozen == "int8":
        return int(elements + 4 * ceil_div(elements, max(1, tensor.shape[-1])))
    scales = ceil_div(elements, NF4_BLOCK)
    once = recipe.frozen == "nf4"
    return int(ceil_div(elements, 2) + (4 * scales if once else scales + 4 * ceil_div(scales, BLOCK) + 4))


def sharers(recipe: Recipe, expert: bool) -> int:
    """Ranks among which the data-parallel group splits a tensor: for experts those that hold the same experts."""
    layout = recipe.layout
    ways = layout.dp * layout.cp if recipe.zero else recipe.shards
    return max(1, ways * layout.tp // layout.expert_group) if expert else ways


def _cuts(held: Sequence[RankTensor], recipe: Recipe, shard: int, column: int) -> Iterator[tuple[RankTensor, Shape]]:
    """Each tensor with what the shard-th rank has of it: rows (FSDP2) or a run of its elements (nanotron). The others
    cut one flat buffer of all, padded to whole pieces: all its tensors are one."""
    rows = recipe.shards > 1
    if rows or recipe.rules.by_tensor:
        for tensor in held:
            ways = sharers(recipe, tensor.expert)
            own = (shard * recipe.layout.tp + column) // recipe.layout.expert_group if tensor.expert else shard
            cut = chunk(tensor.shape[0], ways, own) if rows else level(tensor.size, ways, own)
            yield tensor, (cut, *tensor.shape[1:]) if rows else (cut,)
        return
    if not recipe.zero:
        yield from ((tensor, tensor.shape) for tensor in held)
        return
    for kind in sorted({tensor.like for tensor in held}):
        size = sum(tensor.size * tensor.copies for tensor in held if tensor.like == kind)
        expert, learns, packed, adapter = kind
        made = RankTensor((size,), 1, None, expert, False, (), learns, packed=packed, adapter=adapter)
        yield made, (ceil_div(size, sharers(recipe, expert)),)


def turns(held: Iterable[RankTensor], recipe: Recipe, column: int = 0) -> list[int]:
    """The first rank of every run of sharing ranks, the column-th of tp each, that hold alike."""
    most, points, layout = sharers(recipe, False), {0}, recipe.layout
    for tensor in held:
        ways, cuts = sharers(recipe, tensor.expert), list[int]()
        if recipe.shards > 1:
            rows = tensor.shape[0]
            full = rows // max(1, -(-rows // ways))
            cuts = [full, full + 1]
        elif recipe.rules.by_tensor and recipe.zero:
            cuts = [tensor.size % ways]
        points |= {ceil_div(cut * layout.expert_group - column, layout.tp) if tensor.expert else cut for cut in cuts}
    return sorted(point for point in points if 0 <= point < most)
