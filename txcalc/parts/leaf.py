"""A part that owns formulas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from txcalc.num import total
from txcalc.parts.frozen import once
from txcalc.parts.kernel import Executed
from txcalc.parts.work import NO_CACHE, Cache, Operation, Transfer, Weight, Workload

# What a leaf is to those who plan: a product of what it reads with its weights; a table, of which rows are looked up; a
# norm; an activation; attention's core; what selects the keys of one; what ranks send each other; anything else.
Role = Literal["product", "table", "norm", "activation", "attention", "selection", "collective", "other"]


class Leaf(Executed):
    """A part that owns formulas. Subclasses are frozen dataclasses over numbers; all fields are set when it is made."""

    kind: ClassVar[str | None] = None  # under which it is counted wherever it stands; None: its parent's
    parts: ClassVar[tuple[()]] = ()
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
        """The multiple of positions that others are filled up to, or cut by: of lengths with one remainder the cost is
        one polynomial; None: of no such lengths."""
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
    def tensors(self) -> tuple[Weight, ...]:
        """Its weights, made once."""
        return self.weights()

    @once
    def params(self) -> Any:
        """The elements of its weights."""
        return total([weight.size for weight in self.tensors])
