"""The vocabulary of the formulas: workload, weights, operations, cache and transfers.

One rule: arithmetic only. A formula uses `+ - *` and the helpers of `num`, so that the same line gives an exact int, a
symbolic expression or an array over a sweep. Elements are counted here; bits and bytes come later (`units`, `ledger`).

Letters: B batch · T new tokens · S keys attended to (past + T) · D d_model · h heads · h_kv key/value heads · d_h head
width · F feed-forward width · V vocabulary · E experts · k experts per token · W window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from txcalc.num import Num, product


class Workload(NamedTuple):
    """The size of one forward pass, and the conventions under which it is counted.

    batch, tokens   B sequences of T new tokens each (decoder positions in an encoder–decoder)
    past            tokens already in the cache
    source          encoder positions
    decoding        True in a decode step: the encoder and the cross-attention's K and V are not computed again
    last_logits     logits for the last position only
    absorbed        MLA without expanding its latents (the form of decode kernels)
    keep_scores     backward reads stored attention probabilities (eager) instead of recomputing them (FlashAttention)
    """

    batch: Num
    tokens: Num
    past: Num
    source: Num
    decoding: bool = False
    last_logits: bool = False
    absorbed: bool = False
    keep_scores: bool = False

    @property
    def positions(self) -> Num:
        """B·T, the rows of every linear layer."""
        return self.batch * self.tokens

    @property
    def keys(self) -> Num:
        """S = past + T."""
        return self.past + self.tokens


NO_SOURCE: Any = None  # `source` of a workload without an encoder, whose parts never read it

# A stream maps the parent's workload to a child's; None: the child does not run.
Stream = Callable[[Workload], Workload | None]


def along(streams: Iterable[Stream], work: Workload) -> Workload | None:
    """The workload after all streams; None: the part does not run."""
    here: Workload | None = work
    for stream in streams:
        here = None if here is None else stream(here)
    return here


def everywhere(work: Workload) -> Workload:
    """All new tokens."""
    return work


def on_source(work: Workload) -> Workload | None:
    """All encoder positions, in the first pass only: None in a decode step."""
    return None if work.decoding else work._replace(tokens=work.source, past=0)


def on_logits(work: Workload) -> Workload:
    """The positions for which logits are computed."""
    return work._replace(tokens=1) if work.last_logits else work


def on_batch(work: Workload) -> Workload:
    """The sequences of the batch as positions of a single one: contrastive products of all with all."""
    return work._replace(batch=1, tokens=work.batch, source=work.batch)


def on_one(work: Workload) -> Workload:
    """One position per sequence: a pooler, a classifier."""
    return work._replace(tokens=1)


class Weight(NamedTuple):
    """One parameter tensor."""

    name: str
    shape: tuple[Num, ...]

    @property
    def size(self) -> Num:
        return product(self.shape)


class Traffic(NamedTuple):
    """Elements that an operation reads and writes, each tensor once; weights and cache have dtypes of their own."""

    weights: Num = 0
    activations: Num = 0
    cache: Num = 0


class MatMul(NamedTuple):
    """`count` products of an (m × k) by a (k × n) matrix; the mask leaves `visible` of each m × n (None: no mask)."""

    name: str
    count: Num  # type: ignore[assignment]  # a tuple has a method `count`
    m: Num
    k: Num
    n: Num
    traffic: Traffic
    kind: str = "matmul"
    visible: Num | None = None

    @property
    def flops(self) -> Num:
        """FLOPs of the dense product, two per multiply-add."""
        return 2 * self.count * self.m * self.k * self.n

    @property
    def flops_masked(self) -> Num:
        """FLOPs of the query-key pairs that the mask lets through."""
        return self.flops if self.visible is None else 2 * self.count * self.visible

    @property
    def flops_other(self) -> Num:
        return 0


class Elementwise(NamedTuple):
    """`elements` results at `cost` FLOPs each (see `COST`); never part of the headline FLOPs."""

    name: str
    elements: Num
    cost: int
    traffic: Traffic
    kind: str = "elementwise"

    @property
    def flops_other(self) -> Num:
        return self.elements * self.cost

    @property
    def flops(self) -> Num:
        return 0

    @property
    def flops_masked(self) -> Num:
        return 0


Operation = MatMul | Elementwise

# FLOPs per element outside of matrix products: the operations of the textbook formula, an exp counted as one.
COST = {
    "add": 1,  # residual, bias, position, scale
    "layer_norm": 7,  # mean, subtract, square, mean, scale, weight, bias
    "layer_norm_nobias": 6,
    "rms_norm": 4,  # square, mean, scale, weight
    "softmax": 5,  # scale, subtract the maximum, exp, sum, divide
    "rotary": 3,  # two multiplies and an add
    "relu": 1,
    "relu2": 2,  # relu, square
    "relu6": 2,  # the larger of 0, the smaller of 6
    "gelu": 5,  # 0.5·x·(1 + erf(x/√2)): scale, erf, add, two multiplies
    "gelu_tanh": 9,  # 0.5·x·(1 + tanh(c·(x + a·x³)))
    "quick_gelu": 4,  # x·sigmoid(1.702·x)
    "silu": 4,  # x·sigmoid(x): negate, exp, add, divide
    "clamped_silu": 8,  # gpt-oss: x·sigmoid(1.702·x) on clamped operands, up + 1
    "hard_swish": 5,  # x·min(max(x + 3, 0), 6)/6
    "sigmoid": 3,
    "tanh": 1,
    "softplus": 2,
    "xielu": 6,  # α·(exp(x) − 1 − x) + β·x: exp, two subtractions, two multiplies, an add
    "cut": 6,  # activation sparsity: square, two means, deviation from the mean, threshold, relu
    "none": 0,
}


def elementwise(name: str, elements: Num, cost: str, reads: Num, writes: Num, weights: Num = 0) -> Elementwise:
    """`elements` results at `COST[cost]` FLOPs each, with the elements read and written."""
    return Elementwise(name, elements, COST[cost], Traffic(weights=weights, activations=reads + writes))


class Cache(NamedTuple):
    """Elements cached per sequence.

    growth     per further token, once every window is full
    constant   full windows, recurrent states, the cross-attention's K and V
    elements   exactly what is cached after past + T tokens
    """

    growth: Num = 0
    constant: Num = 0
    elements: Num = 0


NO_CACHE = Cache()


class Axis(NamedTuple):
    """One axis of a layout (tp, ep, …) and its number of ranks."""

    name: str
    size: Num


class Transfer(NamedTuple):
    """One collective of a forward pass, as one rank sees it.

    kind             all_reduce, all_gather, reduce_scatter, all_to_all, send or receive
    axis             the ranks that take part
    message          elements of the whole tensor
    sent, received   elements that this rank sends and receives
    narrow           whether it may be sent in the (narrower) dtype of the products that read it
    choices          experts per token, of an all-to-all
    """

    kind: str
    axis: Axis
    message: Num
    sent: Num
    received: Num
    narrow: bool = False
    choices: Num = 0
