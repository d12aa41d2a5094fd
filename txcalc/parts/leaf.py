"""The base classes of parts that own formulas: of all, and of those with a recurrent state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import ClassVar, Literal, Self

from msgspec.structs import replace

from txcalc.num import Num, product, total
from txcalc.parts.kernel import Executed
from txcalc.parts.options import Table
from txcalc.parts.work import NO_CACHE, Cache, Operation, Transfer, Weight, Workload

# How planners treat a leaf: a product with its weights; a lookup table; a norm; an activation; an attention core; a
# scorer that selects keys; a collective; anything else.
Role = Literal["product", "table", "norm", "activation", "attention", "selection", "collective", "other"]


class Leaf(Executed):
    """A part that owns formulas. Subclasses are frozen Structs over numbers (ints, symbols or arrays)."""

    kind: ClassVar[str | None] = None  # what it counts as in any parent; None: its parent's kind
    parts: ClassVar[tuple[()]] = ()
    role: ClassVar[Role] = "other"
    # Initial values of its tensors in training from scratch (`initial_value`).
    initial_values: ClassVar[Mapping[str, str]] = {"weight": "normal", "bias": "zero", "sinks": "zero"}

    def describe(self) -> str:
        """A few words for the summary line of the model; "" where its parent gives them."""
        return ""

    @property
    def cache_limit(self) -> Num | None:
        """The window: the length at which its cache stops growing; None: no window."""
        return None

    @property
    def max_keys(self) -> Num | None:
        """The most keys that one of its queries sees; None: all, or it has no queries."""
        return None

    def weights(self) -> tuple[Weight, ...]:
        """The parameter tensors that it owns."""
        return ()

    def initial_value(self, weight: str) -> str:
        """The initial value of one of its tensors: zero, one or normal; "own": a rule of its own."""
        return self.initial_values.get(weight, "own")

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        """The operations of one forward pass."""
        return ()

    def saved(self, work: Workload) -> Num:
        """Elements saved for backward that no earlier leaf saves: storages that grow with B or T, without masks, ids
        and statistics."""
        return 0

    def statistics(self, work: Workload) -> Num:
        """fp32 numbers that its kernel saves for backward: a norm's means and deviations, a softmax's log-sum-exp."""
        return 0

    def cache(self, work: Workload) -> Cache:
        """Elements cached for later tokens, per sequence."""
        return NO_CACHE

    @property
    def matrix(self) -> tuple[Num, Num] | None:
        """(d_in, d_out) of the one matrix that multiplies every position; None for other leaves."""
        return None

    @property
    def columns(self) -> Num | None:
        """The width of its result; None: it has several, or none."""
        return getattr(self, "width", getattr(self, "d_out", None))

    @property
    def row(self) -> Num | None:
        """Elements of the table row that each position reads; None: all of its weights are read."""
        return None

    # Fields that change when its weights are frozen: what only the weights' gradient needs is not saved.
    when_frozen: ClassVar[Table] = {}

    @property
    def frozen(self) -> Self:
        """The same leaf with frozen weights."""
        return replace(self, **self.when_frozen) if self.when_frozen else self

    @property
    def input_kept(self) -> str:
        """Whether a linear layer saves its input for backward: "yes", "no" (another leaf saves it), "eager" (only if
        attention probabilities are stored); "" for other leaves."""
        return ""

    @property
    def tied_shapes(self) -> tuple[tuple[Num, ...], ...]:
        """Shapes of weights that it reads and another leaf owns (tied)."""
        return ()

    @property
    def shared_by(self) -> Num:
        """Number of heads that share its weights, each with a gradient of its own."""
        return 1

    @property
    def breakpoints(self) -> tuple[Num, ...]:
        """Lengths at which its cost formula changes: the ends of a window, a selection or a table."""
        return ()

    @property
    def period(self) -> Num | None:
        """The period of its cost in tokens (chunked attention); None: not periodic."""
        return None

    @property
    def length_multiple(self) -> Num | None:
        """The multiple that lengths are padded to or cut by: cost is one polynomial over lengths with the same
        remainder. None: there is no such multiple."""
        return 1

    @property
    def untied(self) -> Leaf:
        """The same leaf owning its tied weights."""
        return self

    @property
    def owning(self) -> Leaf:
        """The same leaf owning every weight that it reads: tied ones, and another layer's."""
        return self.untied

    @property
    def cache_kind(self) -> str:
        """What it caches: "tokens", an entry per token; "steps", an entry per several tokens; "source", the encoder's
        keys, once; "state", of fixed size; "nothing"."""
        return "nothing"

    def describe_cache(self) -> str:
        """What it caches, in words, and how many elements."""
        return ""

    def cache_read(self, work: Workload) -> Num:
        """Elements of the cache that one decode step reads."""
        return self.cache(work).elements

    def saved_fused(self, work: Workload) -> Num:
        """Elements saved for backward if one fused kernel computes all of it."""
        return self.saved(work)

    def dense(self, work: Workload) -> Num:
        """Elements it would cache without windows."""
        return self.cache(work).elements

    def paged(self, work: Workload, block: Num, chunk: Num) -> Num:
        """Elements in cache pages of `block` tokens, as engines allocate them, with prompts prefilled in chunks of
        `chunk`."""
        return self.cache(work).elements

    def transfers(self, work: Workload) -> tuple[Transfer, ...]:
        """Collectives of one forward pass."""
        return ()

    @property
    def leaf(self) -> Leaf:
        """Itself."""
        return self

    def leaves(self) -> Iterator[Leaf]:
        """Itself."""
        yield self

    @cached_property
    def tensors(self) -> tuple[Weight, ...]:
        """Its weights, cached."""
        return self.weights()

    @cached_property
    def params(self) -> Num:
        """Number of parameters."""
        return total([weight.size for weight in self.tensors])


class Recurrence(Leaf):
    """A leaf with a state per sequence. The state is its cache; a pass reads and writes it once."""

    cache_kind = "state"

    @property
    @abstractmethod
    def shape(self) -> tuple[Num, ...]:
        """The shape of one sequence's state."""

    @property
    def state(self) -> Num:
        """Elements of one sequence's state."""
        return product(self.shape)

    def describe_cache(self) -> str:
        return f"a state of {' · '.join(f'{size:,}' for size in self.shape)} elements"

    def cache(self, work: Workload) -> Cache:
        return Cache(0, self.state, self.state)

    def state_traffic(self, work: Workload) -> Num:
        """Elements of state that a pass reads and writes."""
        return 2 * work.batch * self.state


class RecurrentState(Recurrence):
    """A recurrent state of `elements`, without the operations that use it.

    Unit     elements of one sequence's state; no FLOPs
    Source   Peng et al. 2025 (arXiv 2503.14456), section 4: a matrix per head, and the last position
    """

    elements: Num

    @property
    def shape(self) -> tuple[Num, ...]:
        return (self.elements,)
