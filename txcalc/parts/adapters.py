"""Low-rank adapters on frozen weights (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from txcalc.num import Num
from txcalc.parts.linear import Linear, Sum
from txcalc.parts.options import REQUIRED, Options, key, letter, texts
from txcalc.parts.part import Child, Composite, Gradient, everywhere


class Adapters(NamedTuple):
    """The rank of a block's adapters and the names of the linear layers that have one ("all": every one)."""

    rank: Num
    modules: tuple[str, ...]

    def at(self, child: Child) -> bool:
        """Whether a child has an adapter: not where it runs at other positions than the block (MLA's kv_b, whose
        product may be absorbed)."""
        adapted = child.name in self.modules or "all" in self.modules
        return adapted and type(child.part) is Linear and child.on is everywhere and child.gradient != "none"


class KeptInput(NamedTuple):
    """The unsaved input of a frozen linear layer: its width, and `keeps` of the trainable layer."""

    width: Num
    keeps: str


def adaptable(part: Composite) -> list[str]:
    """Names of the linear layers in a tree's blocks that have or could have an adapter."""
    names: dict[str, None] = {}
    for child in part.parts:
        if isinstance(child.part, LowRank):
            names[child.name] = None
        elif isinstance(child.part, Composite):
            names |= dict.fromkeys(adaptable(child.part))
        elif isinstance(part, Frozen) and part.adapters and Adapters(1, ("all",)).at(child):
            names[child.name] = None
    return list(names)


class LowRank(Composite):
    """y = W·x + b + s·B·A·x with trainable A (r, d_in) and B (d_out, r), and frozen W and b.

    Counts   backward: for W the input's gradient alone, for A and B both; a tp rank has all of A and its rows of B, or
             its columns of A and all of B
    Kept     x, once for all adapters that read it, and A·x
    Source   Hu et al. 2021 (arXiv 2106.09685), section 4.1
    """

    base: Linear
    rank: Num
    keeps: str
    data: bool = False  # x is data without a gradient

    def children(self) -> Iterator[Child]:
        yield Child("base", self.base, gradient="none" if self.data else "input", duty="base")
        down = Linear(d_in=self.base.d_in, d_out=self.rank, bias=False, keeps=self.keeps)
        yield Child("lora_a", down, kind="adapters", gradient="weights" if self.data else "both", duty="adapts")
        yield Child("lora_b", Linear(d_in=self.rank, d_out=self.base.d_out, bias=False), kind="adapters")
        yield Child("lora_sum", Sum(width=self.base.d_out, sums=2), kind="adapters")


class Frozen(Composite):
    """A part with frozen weights, except for adapters of its linear layers.

    `before`: inputs of earlier frozen layers that nothing has saved yet.
    """

    part: Composite
    adapters: Adapters | None = None
    before: tuple[KeptInput, ...] = ()
    detached: bool = False  # no gradient reaches it

    @cached_property
    def content(self) -> tuple[tuple[Child, ...], tuple[KeptInput, ...]]:
        """The children, and the inputs that nothing in it saves."""
        return freeze(self.part.parts, self.adapters, self.before, self.detached)

    def children(self) -> Iterator[Child]:
        yield from self.content[0]


def freeze(
    children: Iterable[Child], adapters: Adapters | None, before: tuple[KeptInput, ...] = (), detached: bool = False
) -> tuple[tuple[Child, ...], tuple[KeptInput, ...]]:
    """The children with frozen weights and adapters, and the inputs of linear layers that nothing saves.

    A frozen layer saves no input; the first adapter that reads a tensor saves it.
    """
    frozen, inputs = list[Child](), list[KeptInput]()
    for child in children:
        part, data = child.part, child.gradient == "weights"
        if isinstance(part, Composite):
            learns = None if child.gradient == "none" else adapters
            inner = Frozen(part=part, adapters=learns, before=(*inputs, *before), detached=detached)
            frozen.append(child._replace(part=inner))
            before = inner.content[1]
            inputs = []
            continue
        keeps = "no"
        if type(part) is Linear:
            if part.keeps != "no":
                inputs.append(KeptInput(part.d_in, part.keeps))
            if adapters is not None and adapters.at(child):
                keeps, inputs, before = kept_input(part.d_in, inputs, before)
                frozen.append(
                    child._replace(
                        part=LowRank(base=part.frozen, rank=adapters.rank, keeps=keeps, data=data), gradient="both"
                    )
                )
                continue
        gradient: Gradient = "none" if detached or data or child.gradient == "none" else "input"
        frozen.append(child._replace(part=part.frozen, gradient=gradient))
    return tuple(frozen), (*inputs, *before)


def around(children: Iterable[Child]) -> Iterator[Child]:
    """The children with everything outside the layers frozen; no gradient reaches the embedding."""
    for child in children:
        if child.duty == "layer":
            yield child
        elif isinstance(child.part, Composite):
            yield child._replace(part=Frozen(part=child.part, detached=child.name == "embedding"))
        else:
            yield child._replace(part=child.part.frozen, gradient="input")


def kept_input(
    width: Num, inputs: list[KeptInput], before: tuple[KeptInput, ...]
) -> tuple[str, list[KeptInput], tuple[KeptInput, ...]]:
    """How an adapter saves its input: as the first unsaved tensor of that width says; and the tensors still unsaved."""
    for i, reading in enumerate(inputs):
        if _same(reading.width, width):
            return reading.keeps, [*inputs[:i], *inputs[i + 1 :]], before
    for i, reading in enumerate(before):
        if _same(reading.width, width):
            return reading.keeps, inputs, (*before[:i], *before[i + 1 :])
    return "no", inputs, before


def _same(first: Num, second: Num) -> bool:
    """Whether two widths are equal: ints by value, symbols and arrays by identity."""
    return first is second or (type(first) is int and type(second) is int and first == second)


class LoraOptions(Options, section="lora"):
    rank: Num = letter(REQUIRED, "LoRA rank of the adapters")
    modules: list[str] = key(texts, ["q", "v"], "linear layers of a block with an adapter, by name; ['all']: every one")

    def build(self) -> Adapters:
        """The adapters of every block."""
        return Adapters(self.rank, tuple(self.modules))
