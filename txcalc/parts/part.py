"""What every part is: a leaf that owns formulas, or a composite that only lists its children.

One rule: arithmetic only. A formula here uses `+ - *` and the helpers of `num`, so that the same line gives an exact
int, a symbolic expression or a sweep. Elements are counted here; bits and bytes come later (`units`, `ledger`).

Letters: B batch · T new tokens · S keys attended to (past + T) · D d_model · h heads · h_kv key/value heads · d_h head
width · F feed-forward width · V vocabulary · E experts · k experts per token · W window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from txcalc.num import Num, product, total
from txcalc.parts.frozen import once
from txcalc.parts.kernel import Executed

if TYPE_CHECKING:
    from txcalc.parts.collectives import Transfer
    from txcalc.parts.model import Stack
    from txcalc.parts.sharding import Ways


class Workload(NamedTuple):
    """What is asked of a model, and the conventions under which it is counted.

    batch, tokens   B sequences of T new tokens each (decoder positions, in an encoder–decoder)
    past            tokens already in the cache
    source          encoder positions
    decoding        True in a decode step: the encoder and the cross-attention's K and V are not computed again
    last_logits     logits for the last position only
    absorbed        MLA without expanding its latents (the decode kernels' form)
    keep_scores     the attention matrix is stored for backward (eager), not recomputed (flash-like)
    """

    batch: Any
    tokens: Any
    past: Any
    source: Any
    decoding: bool = False
    last_logits: bool = False
    absorbed: bool = False
    keep_scores: bool = False

    @property
    def positions(self) -> Any:
        """B·T, the rows of every linear layer."""
        return self.batch * self.tokens

    @property
    def keys(self) -> Any:
        """S = past + T."""
        return self.past + self.tokens


# Where a child works: each function turns its parent's workload into its own, or None when it has nothing to do.
Stream = Callable[[Workload], Workload | None]


def everywhere(work: Workload) -> Workload:
    """At every new token."""
    return work


def on_source(work: Workload) -> Workload | None:
    """At every encoder position, once: not in a decode step."""
    return None if work.decoding else work._replace(tokens=work.source, past=0)


def on_all_keys(work: Workload) -> Workload:
    """At every position attended to, the cached ones computed again (MLA expanded); new tokens only when absorbed."""
    return work if work.absorbed else work._replace(tokens=work.keys)


def on_logits(work: Workload) -> Workload:
    """At the positions that get logits."""
    return work._replace(tokens=1) if work.last_logits else work


def on_one(work: Workload) -> Workload:
    """Once a sequence: a pooler, a classifier."""
    return work._replace(tokens=1)


class Weight(NamedTuple):
    """One tensor of parameters."""

    name: str
    shape: tuple[Any, ...]

    @property
    def size(self) -> Any:
        return product(self.shape)


class Traffic(NamedTuple):
    """Elements that an operation moves to and from memory, each tensor once; weights and cache have their own dtype."""

    weights: Any = 0
    activations: Any = 0
    cache: Any = 0


class MatMul(NamedTuple):
    """`count` products of an (m × k) by a (k × n) matrix; a mask leaves `visible` of each (None: all)."""

    name: str
    count: Any
    m: Any
    k: Any
    n: Any
    traffic: Traffic
    kind: str = "matmul"
    visible: Any = None

    @property
    def flops(self) -> Any:
        """FLOPs, two per multiply-add, of the dense product."""
        return 2 * self.count * self.m * self.k * self.n

    @property
    def flops_masked(self) -> Any:
        """FLOPs of what the mask leaves."""
        return self.flops if self.visible is None else 2 * self.count * self.visible

    @property
    def flops_other(self) -> Any:
        return 0


class Elementwise(NamedTuple):
    """`elements` results at `cost` FLOPs each (the table is `COST`); never part of the headline FLOPs."""

    name: str
    elements: Any
    cost: int
    traffic: Traffic
    kind: str = "elementwise"

    @property
    def flops_other(self) -> Any:
        return self.elements * self.cost

    @property
    def flops(self) -> Any:
        return 0

    @property
    def flops_masked(self) -> Any:
        return 0


Operation = MatMul | Elementwise

# FLOPs an element of what is not a matrix product, each a plain count of its textbook formula (an exp is one).
COST = {
    "add": 1,  # residual, bias, position, scale
    "layer_norm": 7,  # mean, subtract, square, mean, scale, weight, bias
    "layer_norm_nobias": 6,
    "rms_norm": 4,  # square, mean, scale, weight
    "softmax": 5,  # scale, subtract the maximum, exp, sum, divide
    "rotary": 3,  # two multiplies and an add
    "relu": 1,
    "relu2": 2,  # relu, square
    "gelu": 5,  # 0.5·x·(1 + erf(x/√2)): scale, erf, add, two multiplies
    "gelu_tanh": 9,  # 0.5·x·(1 + tanh(c·(x + a·x³)))
    "quick_gelu": 4,  # x·sigmoid(1.702·x)
    "silu": 4,  # x·sigmoid(x): negate, exp, add, divide
    "clamped_silu": 8,  # gpt-oss: x·sigmoid(1.702·x) on clamped operands, up + 1
    "sigmoid": 3,
    "tanh": 1,
    "softplus": 2,
    "xielu": 6,  # α·(exp(x) − 1 − x) + β·x: exp, two subtractions, two multiplies, an add
    "cut": 6,  # square, two means, deviation from the mean, cut-off, relu
    "none": 0,
}


class Cache(NamedTuple):
    """Elements kept for later tokens, of one sequence.

    growth     what each further token adds once every window is full
    constant   full windows, recurrent states, the cross-attention's K and V
    held       exactly what is there at past + T
    """

    growth: Any = 0
    constant: Any = 0
    held: Any = 0


NO_CACHE = Cache()

# What a leaf is to those who plan: a product of what it reads with its weights; a table, of which rows are looked up; a
# norm; an activation; attention's core; what selects the keys of one; what ranks send each other; anything else.
Role = Literal["product", "table", "norm", "activation", "attention", "selection", "collective", "other"]


class Leaf(Executed):
    """A part that owns formulas. Subclasses are frozen dataclasses over numbers; all fields are set when it is made."""

    kind: ClassVar[str | None] = None  # under which it is counted wherever it stands; None: its parent's
    parts: ClassVar[tuple[Child, ...]] = ()
    role: ClassVar[Role] = "other"
    # What a tensor of it has where it is trained from nothing: zero, one, or normal numbers; else by a rule of its own.
    begins: ClassVar[Mapping[str, str]] = {"weight": "normal", "bias": "zero", "sinks": "zero"}

    def describe(self) -> str:
        """What it is, in a line about the model; "" where the part it stands in says it."""
        return ""

    @property
    def fills(self) -> Any:
        """Tokens after which what it keeps grows no more, of a window; None: never, or it keeps none."""
        return None

    def weights(self) -> tuple[Weight, ...]:
        """Every tensor of parameters it owns."""
        return ()

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        """What it computes in one forward pass."""
        return ()

    def saved(self, work: Workload) -> Any:
        """Elements it is the first to keep for backward (storages that grow with B or T; no masks, ids, statistics)."""
        return 0

    def statistics(self, work: Workload) -> Any:
        """Numbers in fp32 that its kernel keeps of each row for backward: means, deviations, a softmax's log-sum."""
        return 0

    def cache(self, work: Workload) -> Cache:
        """What it keeps for later tokens."""
        return NO_CACHE

    @property
    def matrix(self) -> tuple[Any, Any] | None:
        """Inputs and outputs of the one matrix by which it multiplies every position; None: it does something else."""
        return None

    @property
    def row(self) -> Any:
        """Elements of the one row of its table that a position reads; None: all of its weights are read."""
        return None

    # What is said of the same with weights that nobody learns: what backward needs for their gradient is not kept.
    unlearnt: ClassVar[Mapping[str, Any]] = {}

    @property
    def frozen(self) -> Self:
        """The same with weights that nobody learns."""
        return replace(self, **self.unlearnt) if self.unlearnt else self  # type: ignore[type-var]

    @property
    def input_kept(self) -> str:
        """Where a linear layer's input is kept for backward: "yes", here; "no", before; "eager": with the matrix."""
        return ""

    @property
    def elsewhere(self) -> tuple[tuple[Any, ...], ...]:
        """The shapes of weights that it reads and another leaf owns."""
        return ()

    @property
    def shared_by(self) -> Any:
        """How many heads share its weights, each with a gradient of its own for them."""
        return 1

    @property
    def turns(self) -> tuple[Any, ...]:
        """Lengths at which its cost goes on in another way: the end of a window, of a selection, of a table."""
        return ()

    @property
    def period(self) -> Any:
        """After how many tokens its cost repeats itself; None: it does not."""
        return None

    @property
    def filled(self) -> Any:
        """The multiple of positions that it computes: others are filled up to it."""
        return 1

    @property
    def untied(self) -> Leaf:
        """The same with weights of its own: what is read here, wherever it is held."""
        return self

    @property
    def holds(self) -> str:
        """What it holds for later tokens: "tokens", something for each; "steps", for so many at a time; "source", the
        encoder's, once; "state", of one size whatever the length; "nothing"."""
        return "nothing"

    def kept(self) -> str:
        """What it keeps, in words, and how many elements."""
        return ""

    def cache_read(self, work: Workload) -> Any:
        """Elements of what it keeps that one step reads."""
        return self.cache(work).held

    def saved_fused(self, work: Workload) -> Any:
        """Elements that it is the first to keep where one kernel does all of it."""
        return self.saved(work)

    def dense(self, work: Workload) -> Any:
        """Elements it would keep if no window ever dropped a token."""
        return self.cache(work).held

    def paged(self, work: Workload, block: Any, chunk: Any) -> Any:
        """Elements of the pages of `block` tokens that an engine gives it, where prompts come in chunks of `chunk`."""
        return self.cache(work).held

    def transfers(self, work: Workload) -> tuple[Transfer, ...]:
        """What it sends to other ranks and receives from them in one forward pass."""
        return ()

    @property
    def leaf(self) -> Leaf:
        """Itself."""
        return self

    def leaves(self) -> Iterator[Leaf]:
        """Itself."""
        yield self

    @once
    def params(self) -> Any:
        """The elements of its weights."""
        return total([weight.size for weight in self.weights()])


Gradient = Literal["both", "weights", "input", "none"]


class Child(NamedTuple):
    """A part under its parent.

    times     how many copies, each with its own weights (equal ones are folded)
    runs      how many of them each token passes; `times` unless weights are shared (ALBERT) or routed (experts)
    routed    its copies are experts: `runs` of them are active
    indices   the copies' numbers in the path `name.0`, `name.1`, …; None: no number
    on        where it works
    kind      what its leaves are counted as, unless they say otherwise (`forced`: whatever they say)
    gradient  what the model's loss gives one of: "both", its input and its weights; "weights" alone, where the input is
              data that nobody learns (a picture, sinusoids); "input" alone, of frozen weights; "none", nothing in it
    """

    name: str
    part: Part
    times: Any = 1
    runs: Any = None
    routed: bool = False
    indices: Sequence[int] | None = None
    on: Stream = everywhere
    kind: str | None = None
    forced: bool = False
    gradient: Gradient = "both"


def optional(name: str, part: Part | None, **more: Any) -> Iterator[Child]:
    """A child that may not be there."""
    if part is not None:
        yield Child(name, part, **more)


class Composite:
    """A part that is only its children, and says which share of them a rank has."""

    def children(self) -> Iterator[Child]:
        """The children, in the order in which they compute."""
        raise NotImplementedError

    @once
    def parts(self) -> tuple[Child, ...]:
        """The children, made once."""
        return tuple(self.children())

    leaf: ClassVar[None] = None
    on_stream: ClassVar[bool] = False  # what it has of its own stands beside the residual stream, whole on every rank

    def leaves(self) -> Iterator[Leaf]:
        """Every leaf of it, equal copies once."""
        for child in self.parts:
            yield from child.part.leaves()

    @property
    def fixed(self) -> Any:
        """Positions that are part of the model, whatever is asked, as of a picture; None: as many as are asked for."""
        return None

    def describe(self) -> str:
        """What it is, in a line about the model; "" where its leaves say it."""
        return ""

    @property
    def halves(self) -> Mapping[str, Stack]:
        """The stacks it is made of, in the order in which they compute, by what their paths begin with."""
        return {}

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The same without the paths."""
        return tuple(self.halves.values())

    @property
    def alone(self) -> Stack | None:
        """The stack that it is, where it is one and nothing else."""
        return None

    def with_stacks(self, change: Callable[[Stack], Stack]) -> Self:
        """The same with each of its stacks changed."""
        return self

    def at_length(self, positions: Any) -> Self:
        """The same over so many positions, where their number is part of it."""
        return self

    def alive(self) -> Any:
        """Elements a token that a step without backward has alive in it at its peak."""
        return 0

    @property
    def cuttable(self) -> bool:
        """Whether a pipeline may cut before and after it: it reads the part before it alone."""
        return True

    @property
    def complete(self) -> bool:
        """Whether a rank's share gives the whole result: else a summand of it, which is joined outside."""
        return False

    def shard(self, ways: Ways) -> Self:
        """A share on one rank: of stacks theirs, else fewer heads, columns, experts; `ways` hears what prevents it."""
        if self.halves:
            return self.with_stacks(lambda stack: stack.shard(ways))
        ways.whole(type(self).__name__)
        return self


Part = Leaf | Composite


def elementwise(name: str, elements: Num, cost: str, reads: Num, writes: Num, weights: Num = 0) -> Elementwise:
    """`elements` results at `COST[cost]` each, reading and writing so many elements."""
    return Elementwise(name, elements, COST[cost], Traffic(weights=weights, activations=reads + writes))
