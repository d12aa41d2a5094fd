"""The leaves that every model is made of: linear layer, lookup table, activation, convolution, residual sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from txcalc.num import exact_div
from txcalc.parts.frozen import frozen
from txcalc.parts.part import COST, Elementwise, Leaf, MatMul, Operation, Traffic, Weight, Workload, elementwise


@frozen
class Linear(Leaf):
    """y = x·Wᵀ + b.

    Shapes   x (B, T, d_in), W (d_out, d_in), y (B, T, d_out)
    Unit     FLOPs, two per multiply-add: 2·B·T·d_in·d_out
    Counts   a tied weight once, where it is first used: `tied` ones are multiplied here and owned elsewhere, and so is
             the bias of a `borrowed` layer
    Omits    the bias from the headline FLOPs (1 per output, under other)
    Source   Kaplan et al. 2020 (arXiv 2001.08361), table 1
    """

    unlearnt: ClassVar[Mapping[str, Any]] = {"learns": False}
    role = "product"
    d_in: Any
    d_out: Any
    bias: bool
    # Its input is kept for backward: "yes"; "no", another leaf before it keeps the same tensor; "eager", only when the
    # attention matrix is kept, for otherwise the fused kernel already keeps its own output.
    keeps: str = "yes"
    tied: bool = False
    borrowed: bool = False
    learns: bool = True  # its weights have a gradient, for which the input is kept
    moves = True
    computes = "all"

    def weights(self) -> tuple[Weight, ...]:
        if self.borrowed:
            return ()
        weight = () if self.tied else (Weight("weight", (self.d_out, self.d_in)),)
        return (*weight, Weight("bias", (self.d_out,))) if self.bias else weight

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows = work.positions
        moved = Traffic(self.d_in * self.d_out, rows * (self.d_in + self.d_out))
        product = MatMul("product", 1, rows, self.d_in, self.d_out, moved)
        if not self.bias:
            return (product,)
        return product, elementwise("bias", rows * self.d_out, "add", 0, 0, self.d_out)

    @property
    def matrix(self) -> tuple[Any, Any]:
        return self.d_in, self.d_out

    @property
    def input_kept(self) -> str:
        return self.keeps

    @property
    def elsewhere(self) -> tuple[tuple[Any, ...], ...]:
        return ((self.d_out, self.d_in), (self.d_out,)) if self.tied else ()

    @property
    def untied(self) -> Linear:
        return replace(self, tied=False) if self.tied else self

    def saved(self, work: Workload) -> Any:
        kept = self.learns and (self.keeps == "yes" or (self.keeps == "eager" and work.keep_scores))
        return work.positions * self.d_in if kept else 0


@frozen
class BlockLinear(Leaf):
    """One linear layer per head, side by side: y = x·W + b of each head by itself.

    Shapes   x and y (B, T, h, d), W (h, d, d), b (h, d)
    Unit     FLOPs, two per multiply-add: 2·B·T·h·d²; the bias 1 per output, under other
    Kept     x, unless another leaf before it keeps the same tensor
    Source   De et al. 2024 (arXiv 2402.19427), section 2.4
    """

    unlearnt: ClassVar[Mapping[str, Any]] = {"keeps": False}
    n_heads: Any
    width: Any
    keeps: bool = True

    def weights(self) -> tuple[Weight, ...]:
        return Weight("weight", (self.n_heads, self.width, self.width)), Weight("bias", (self.n_heads, self.width))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, inner = work.positions, self.n_heads * self.width
        moved = Traffic(inner * self.width, 2 * rows * inner)
        product = MatMul("product", self.n_heads, rows, self.width, self.width, moved)
        return product, elementwise("bias", rows * inner, "add", 0, 0, inner)

    def saved(self, work: Workload) -> Any:
        return work.positions * self.n_heads * self.width if self.keeps else 0


@frozen
class GroupedLinear(Leaf):
    """y = x·Wᵀ + b in `groups`: each reads its own share of x, `d_in` wide, and makes `d_out` of y.

    Shapes   x (B, T, groups·d_in), W (groups·d_out, d_in), y (B, T, groups·d_out)
    Unit     FLOPs, two per multiply-add: 2·B·T·groups·d_in·d_out; the bias 1 per output, under other
    Kept     x, as a linear layer's (`keeps`)
    Source   Iandola et al. 2020 (arXiv 2006.11316), section 3: a grouped convolution of one tap
    """

    unlearnt: ClassVar[Mapping[str, Any]] = {"keeps": "no"}
    groups: Any
    d_in: Any
    d_out: Any
    bias: bool
    keeps: str = "yes"
    blocks: ClassVar[bool] = True

    def weights(self) -> tuple[Weight, ...]:
        outputs = self.groups * self.d_out
        weight = Weight("weight", (outputs, self.d_in))
        return (weight, Weight("bias", (outputs,))) if self.bias else (weight,)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, outputs = work.positions, self.groups * self.d_out
        moved = Traffic(outputs * self.d_in, rows * (self.groups * self.d_in + outputs))
        product = MatMul("product", self.groups, rows, self.d_in, self.d_out, moved)
        return (product, elementwise("bias", rows * outputs, "add", 0, 0, outputs)) if self.bias else (product,)

    def saved(self, work: Workload) -> Any:
        kept = self.keeps == "yes" or (self.keeps == "eager" and work.keep_scores)
        return work.positions * self.groups * self.d_in if kept else 0


def linear(
    d_in: Any, d_out: Any, *, bias: bool, keeps: str = "yes", groups: int | None = None, borrowed: bool = False
) -> Linear | GroupedLinear:
    """A linear layer, in groups where it has them."""
    if groups is None:
        return Linear(d_in=d_in, d_out=d_out, bias=bias, keeps=keeps, borrowed=borrowed)
    width = {"d_in": exact_div(d_in, groups), "d_out": exact_div(d_out, groups)}
    return GroupedLinear(groups=groups, **width, bias=bias, keeps=keeps)


@frozen
class Lookup(Leaf):
    """A table of `rows` vectors, one fetched at each position: tokens, learned positions, token types, class token.

    Shapes   ids (B, T), table (rows, width), y (B, T, width)
    Unit     no multiply-add; 1 FLOP per element where the result is `added` to what is there already
    Source   GPT-2 (Radford et al. 2019), section 2.3
    """

    role = "table"
    rows: Any
    width: Any
    added: bool = False
    tied: bool = False

    @property
    def row(self) -> Any:
        return self.width

    @property
    def moves(self) -> bool:
        return not self.added

    @property
    def elsewhere(self) -> tuple[tuple[Any, ...], ...]:
        return ((self.rows, self.width),) if self.tied else ()

    def weights(self) -> tuple[Weight, ...]:
        return () if self.tied else (Weight("weight", (self.rows, self.width)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        cost = "add" if self.added else "none"
        return (Elementwise("lookup", elements, COST[cost], Traffic(elements, elements)),)


# Activations whose operators, one by one, are what their kernel does.
ONE_BY_ONE = frozenset({"relu", "relu2", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "softplus", "none"})
# What backward needs of an activation: its input, or its own result (which the next product then need not keep again).
SAVES_RESULT = frozenset({"relu", "sigmoid", "tanh"})


@frozen
class Activation(Leaf):
    """act(gate), and its product with `up` where the feed-forward is gated. `sparsity`: first all but so many of the
    gate's elements are cut to 0, by their mean and deviation (Gemma-3n). xIELU learns how steep each side of it is.

    Shapes   gate, up and y (B, T, width); xIELU's α of both signs (1,)
    Unit     FLOPs under other: `COST[form]` per element, 1 for the product, and 6 where gates are cut
    Counts   kept for backward: gate (or act(gate) for ReLU); gated: act(gate) and up as well; cut: what is left;
             clamped: what the clamp leaves of each
    Source   Shazeer 2020 (arXiv 2002.05202); Huang and Schlag 2024 (arXiv 2411.13010) for xIELU
    """

    role = "activation"
    width: Any
    form: str
    gated: bool
    sparsity: float | None = None

    @property
    def moves(self) -> bool:
        return self.form in ONE_BY_ONE and self.sparsity is None

    @property
    def computes(self) -> str:
        return "all" if self.moves else ""

    def rows_kept(self, work: Workload) -> Any:
        """The mean and deviation by which gates are cut."""
        return 0 if self.sparsity is None else 1

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("positive", (1,)), Weight("negative", (1,))) if self.form == "xielu" else ()

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        act = elementwise("activation", elements, self.form, elements, elements, self.params)
        cut = elementwise("cut", elements, "cut", elements, elements)
        return (
            *((cut,) if self.sparsity is not None else ()),
            act,
            *((elementwise("gate", elements, "add", 2 * elements, elements),) if self.gated else ()),
        )

    def on_chip(self, work: Workload) -> Any:
        """The gate's activation, which is written and read again for the product."""
        return 2 * work.positions * self.width if self.gated else 0

    def saved(self, work: Workload) -> Any:
        elements = work.positions * self.width
        own = 0 if self.form == "none" or (self.form in SAVES_RESULT and self.gated) else elements
        # Of a cut the gate, and what is left of it where no activation keeps its input.
        left = 2 * elements if self.form in SAVES_RESULT or self.form == "relu2" else elements
        own = own if self.sparsity is None else own + left
        own = own + 2 * elements if self.gated else own
        clamped = 2 * elements if self.gated else elements
        return own + clamped if self.form == "clamped_silu" else own

    @property
    def keeps_result(self) -> bool:
        """Whether what it gives is kept for backward: a reader of it keeps nothing more."""
        return self.form in SAVES_RESULT

    def saved_fused(self, work: Workload) -> Any:
        """What one kernel for the activation and its product keeps: its operands."""
        elements = work.positions * self.width
        return 2 * elements if self.gated else elements


@frozen
class Sum(Leaf):
    """Additions of whole vectors with no weight: the residual sums of a block, or a fixed position added.

    Unit     1 FLOP per element and sum, under other
    Source   He et al. 2015 (arXiv 1512.03385)
    """

    launched = False
    width: Any
    sums: int
    moves = True
    computes = "all"

    @property
    def additions(self) -> Any:
        return self.sums

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width * self.sums
        return (elementwise("sum", elements, "add", 2 * elements, elements),)


@frozen
class LearnedScale(Leaf):
    """y = w·x, element by element: a learned factor for each of `rows` (experts), of which a token meets `used`.

    Shapes   w (rows,), x and y (B, T, used)
    Unit     1 FLOP per element, under other
    Kept     x, for the factors' gradient
    Source   Fedus et al. 2021 (arXiv 2101.03961), section 2.1 (an expert's factor)
    """

    unlearnt: ClassVar[Mapping[str, Any]] = {"keeps": False}
    rows: Any
    used: Any
    keeps: bool = True

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("weight", (self.rows,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.used
        return (elementwise("scale", elements, "add", elements, elements, self.rows),)

    def saved(self, work: Workload) -> Any:
        return work.positions * self.used if self.keeps else 0


@frozen
class Shift(Leaf):
    """x + b, with a learned b for every channel: a bias by itself.

    Shapes   x and y (B, T, width), b (width)
    Unit     FLOPs under other: 1 per element
    Kept     nothing
    Source   JetMoE (arXiv 2404.07413): of the sum of the chosen experts
    """

    width: Any

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("weight", (self.width,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        return (elementwise("shift", elements, "add", elements, elements, self.width),)


@frozen
class Vector(Leaf):
    """A single learned vector put before the sequence: a ViT's class token.

    Shapes   (width,)
    Unit     no arithmetic
    Source   Dosovitskiy et al. 2020 (arXiv 2010.11929), section 3.1
    """

    width: Any

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("weight", (self.width,)),)


@frozen
class Unused(Leaf):
    """A linear layer, or without `bias` a table, that a forward pass does not run: its parameters are held, learnt by
    no gradient of the result.

    Shapes   W (d_out, d_in), b (d_out)
    Unit     no arithmetic, nothing moved or kept
    Source   Rao et al. 2021 (bioRxiv 2020.12.15.422761): contacts from attention weights, asked for apart
    """

    d_in: Any
    d_out: Any
    bias: bool = True
    idle = True

    def weights(self) -> tuple[Weight, ...]:
        weight = Weight("weight", (self.d_out, self.d_in))
        return (weight, Weight("bias", (self.d_out,))) if self.bias else (weight,)


@frozen
class LayerScale(Leaf):
    """x·λ, with a learned λ for every channel: what a branch adds to the residual stream, made small at first.

    Shapes   x and y (B, T, width), λ (width)
    Unit     FLOPs under other: 1 per element
    Kept     x, for λ's gradient, unless another leaf keeps it
    Source   Touvron et al. 2021 (arXiv 2103.17239), section 2
    """

    unlearnt: ClassVar[Mapping[str, Any]] = {"keeps": False}
    kind = "other"
    begins: ClassVar[Mapping[str, str]] = {"weight": "one"}
    width: Any
    # Its input is kept for backward; False: another leaf keeps the same tensor.
    keeps: bool = True

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("weight", (self.width,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        return (elementwise("scale", elements, "add", elements, elements, self.width),)

    def saved(self, work: Workload) -> Any:
        return work.positions * self.width if self.keeps else 0
