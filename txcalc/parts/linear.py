"""The common leaves: linear layers, lookup table, activation, residual sum, scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec.structs import replace

from txcalc.num import Num, exact_div
from txcalc.parts.options import Table
from txcalc.parts.part import COST, Elementwise, Leaf, MatMul, Operation, Traffic, Weight, Workload, elementwise


class Linear(Leaf):
    """y = x·Wᵀ + b.

    Shapes   x (B, T, d_in), W (d_out, d_in), y (B, T, d_out)
    Unit     FLOPs, two per multiply-add: 2·B·T·d_in·d_out
    Counts   a tied weight once, where it is first used: `tied` weights are multiplied here and owned by another leaf;
             a `borrowed` layer owns neither weight nor bias
    Omits    the bias from the headline FLOPs (1 per output, under other)
    Source   Kaplan et al. 2020 (arXiv 2001.08361), table 1
    """

    when_frozen: ClassVar[Table] = {"learns": False}
    role = "product"
    d_in: Num
    d_out: Num
    bias: bool
    # Whether its input is saved for backward: "yes"; "no": an earlier leaf saves the same tensor; "eager": only if the
    # attention probabilities are stored; otherwise the fused kernel has saved its own output.
    keeps: str = "yes"
    tied: bool = False
    borrowed: bool = False
    learns: bool = True  # its weights have a gradient, which needs the saved input
    traffic_exact = True
    operators_exact = "all"

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
    def matrix(self) -> tuple[Num, Num]:
        return self.d_in, self.d_out

    @property
    def input_kept(self) -> str:
        return self.keeps

    @property
    def tied_shapes(self) -> tuple[tuple[Num, ...], ...]:
        return ((self.d_out, self.d_in), (self.d_out,)) if self.tied else ()

    @property
    def untied(self) -> Linear:
        return replace(self, tied=False) if self.tied else self

    @property
    def owning(self) -> Linear:
        return replace(self, tied=False, borrowed=False) if self.tied or self.borrowed else self

    def saved(self, work: Workload) -> Num:
        saves_input = self.learns and (self.keeps == "yes" or (self.keeps == "eager" and work.keep_scores))
        return work.positions * self.d_in if saves_input else 0


class BlockLinear(Leaf):
    """A block-diagonal linear layer: y = x·W + b of each head by itself.

    Shapes   x and y (B, T, h, d), W (h, d, d), b (h, d)
    Unit     FLOPs, two per multiply-add: 2·B·T·h·d²; the bias 1 per output, under other
    Kept     x, unless an earlier leaf saves the same tensor
    Source   De et al. 2024 (arXiv 2402.19427), section 2.4
    """

    when_frozen: ClassVar[Table] = {"keeps": False}
    n_heads: Num
    width: Num
    keeps: bool = True

    def weights(self) -> tuple[Weight, ...]:
        return Weight("weight", (self.n_heads, self.width, self.width)), Weight("bias", (self.n_heads, self.width))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, inner = work.positions, self.n_heads * self.width
        moved = Traffic(inner * self.width, 2 * rows * inner)
        product = MatMul("product", self.n_heads, rows, self.width, self.width, moved)
        return product, elementwise("bias", rows * inner, "add", 0, 0, inner)

    def saved(self, work: Workload) -> Num:
        return work.positions * self.n_heads * self.width if self.keeps else 0


class GroupedLinear(Leaf):
    """y = x·Wᵀ + b in `groups`: each maps its own `d_in` inputs to `d_out` outputs.

    Shapes   x (B, T, groups·d_in), W (groups·d_out, d_in), y (B, T, groups·d_out)
    Unit     FLOPs, two per multiply-add: 2·B·T·groups·d_in·d_out; the bias 1 per output, under other
    Kept     x, as in `Linear`
    Source   Iandola et al. 2020 (arXiv 2006.11316), section 3: a grouped convolution with one tap
    """

    when_frozen: ClassVar[Table] = {"keeps": "no"}
    groups: Num
    d_in: Num
    d_out: Num
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

    def saved(self, work: Workload) -> Num:
        saves_input = self.keeps == "yes" or (self.keeps == "eager" and work.keep_scores)
        return work.positions * self.groups * self.d_in if saves_input else 0


def linear(
    d_in: Num, d_out: Num, *, bias: bool, keeps: str = "yes", groups: int | None = None, borrowed: bool = False
) -> Linear | GroupedLinear:
    """A linear layer, grouped if `groups` is given."""
    if groups is None:
        return Linear(d_in=d_in, d_out=d_out, bias=bias, keeps=keeps, borrowed=borrowed)
    width = {"d_in": exact_div(d_in, groups), "d_out": exact_div(d_out, groups)}
    return GroupedLinear(groups=groups, **width, bias=bias, keeps=keeps)


class Lookup(Leaf):
    """A table of `rows` vectors, one read per position: tokens, learned positions, token types.

    Shapes   ids (B, T), table (rows, width), y (B, T, width)
    Unit     no multiply-add; 1 FLOP per element where the result is `added` to an embedding
    Source   GPT-2 (Radford et al. 2019), section 2.3
    """

    role = "table"
    rows: Num
    width: Num
    added: bool = False
    tied: bool = False

    @property
    def row(self) -> Num:
        return self.width

    @property
    def traffic_exact(self) -> bool:
        return not self.added

    @property
    def tied_shapes(self) -> tuple[tuple[Num, ...], ...]:
        return ((self.rows, self.width),) if self.tied else ()

    def weights(self) -> tuple[Weight, ...]:
        return () if self.tied else (Weight("weight", (self.rows, self.width)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        cost = "add" if self.added else "none"
        return (Elementwise("lookup", elements, COST[cost], Traffic(elements, elements)),)


# Activations whose separate operators compute what their kernel does.
ONE_BY_ONE = frozenset({"relu", "relu2", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "softplus", "none"})
# Backward reads the result of these, not the input; the product that follows then saves nothing more.
SAVES_RESULT = frozenset({"relu", "sigmoid", "tanh"})


class Activation(Leaf):
    """act(gate), times `up` where the feed-forward is gated. With `sparsity` that share of the gate is first zeroed by
    a threshold from its mean and deviation (Gemma-3n). xIELU learns a slope for each side.

    Shapes   gate, up and y (B, T, width); xIELU's two α (1,)
    Unit     FLOPs under other: `COST[form]` per element, 1 for the product with up, 6 for sparsity
    Kept     gate (for ReLU act(gate)); gated: act(gate) and up as well; with sparsity the thresholded gate; clamped:
             both clamped operands
    Source   Shazeer 2020 (arXiv 2002.05202); Huang and Schlag 2024 (arXiv 2411.13010) for xIELU
    """

    role = "activation"
    width: Num
    form: str
    gated: bool
    sparsity: float | None = None

    @property
    def traffic_exact(self) -> bool:
        return self.form in ONE_BY_ONE and self.sparsity is None

    @property
    def operators_exact(self) -> str:
        return "all" if self.traffic_exact else ""

    @property
    def of_all(self) -> str:
        return "" if self.sparsity is None else "gates that are cut by their mean and deviation"

    def rows_kept(self, work: Workload) -> Num:
        """The threshold of activation sparsity."""
        return 0 if self.sparsity is None else 1

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("positive", (1,)), Weight("negative", (1,))) if self.form == "xielu" else ()

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        act = elementwise("activation", elements, self.form, elements, elements, self.params)
        clamp = elementwise("cut", elements, "cut", elements, elements)
        return (
            *((clamp,) if self.sparsity is not None else ()),
            act,
            *((elementwise("gate", elements, "add", 2 * elements, elements),) if self.gated else ()),
        )

    def on_chip(self, work: Workload) -> Num:
        """act(gate), written and read again for the product."""
        return 2 * work.positions * self.width if self.gated else 0

    def saved(self, work: Workload) -> Num:
        elements = work.positions * self.width
        saved = 0 if self.form == "none" or (self.form in SAVES_RESULT and self.gated) else elements
        # Sparsity saves the gate, and the thresholded gate unless the activation saves its input.
        elements_saved = 2 * elements if self.form in SAVES_RESULT or self.form == "relu2" else elements
        saved = saved if self.sparsity is None else saved + elements_saved
        saved = saved + 2 * elements if self.gated else saved
        clamped = 2 * elements if self.gated else elements
        return saved + clamped if self.form == "clamped_silu" else saved

    @property
    def keeps_result(self) -> bool:
        """Whether its result is saved for backward, so that the next leaf need not save it."""
        return self.form in SAVES_RESULT

    def saved_fused(self, work: Workload) -> Num:
        """A fused kernel of activation and product saves its operands."""
        elements = work.positions * self.width
        return 2 * elements if self.gated else elements


class Sum(Leaf):
    """Additions of whole vectors without weights: residual sums, a fixed position embedding.

    Unit     1 FLOP per element and sum, under other
    Source   He et al. 2015 (arXiv 1512.03385)
    """

    launched = False
    width: Num
    sums: int
    traffic_exact = True
    operators_exact = "all"

    @property
    def additions(self) -> Num:
        return self.sums

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width * self.sums
        return (elementwise("sum", elements, "add", 2 * elements, elements),)


class LearnedScale(Leaf):
    """y = w·x: a learned factor for each of `rows` experts, of which a token uses `used`.

    Shapes   w (rows,), x and y (B, T, used)
    Unit     1 FLOP per element, under other
    Kept     x, for the factors' gradient
    Source   Fedus et al. 2021 (arXiv 2101.03961), section 2.1 (an expert's factor)
    """

    when_frozen: ClassVar[Table] = {"keeps": False}
    rows: Num
    used: Num
    keeps: bool = True

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("weight", (self.rows,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.used
        return (elementwise("scale", elements, "add", elements, elements, self.rows),)

    def saved(self, work: Workload) -> Num:
        return work.positions * self.used if self.keeps else 0


class Shift(Leaf):
    """x + b: a bias by itself.

    Shapes   x and y (B, T, width), b (width)
    Unit     FLOPs under other: 1 per element
    Kept     nothing
    Source   JetMoE (arXiv 2404.07413): bias of the sum over the chosen experts
    """

    width: Num

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("weight", (self.width,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        return (elementwise("shift", elements, "add", elements, elements, self.width),)


class Vector(Leaf):
    """A learned vector prepended to the sequence: a ViT's class token.

    Shapes   (width,)
    Unit     no arithmetic
    Source   Dosovitskiy et al. 2020 (arXiv 2010.11929), section 3.1
    """

    width: Num

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("weight", (self.width,)),)


class Unused(Leaf):
    """Parameters that the forward pass does not use: a linear layer, or a table without `bias`. They are stored and get
    no gradient.

    Shapes   W (d_out, d_in), b (d_out)
    Unit     no arithmetic, nothing moved or saved
    Source   Rao et al. 2021 (bioRxiv 2020.12.15.422761): ESM's contact regression, which is a separate call
    """

    d_in: Num
    d_out: Num
    bias: bool = True
    idle = True

    def weights(self) -> tuple[Weight, ...]:
        weight = Weight("weight", (self.d_out, self.d_in))
        return (weight, Weight("bias", (self.d_out,))) if self.bias else (weight,)


class LayerScale(Leaf):
    """x·λ with a learned λ per channel: scales what a branch adds to the residual stream (LayerScale).

    Shapes   x and y (B, T, width), λ (width)
    Unit     FLOPs under other: 1 per element
    Kept     x, for λ's gradient, unless an earlier leaf saves it
    Source   Touvron et al. 2021 (arXiv 2103.17239), section 2
    """

    when_frozen: ClassVar[Table] = {"keeps": False}
    kind = "other"
    initial_values: ClassVar[Mapping[str, str]] = {"weight": "one"}
    width: Num
    # Whether its input is saved for backward; False: an earlier leaf saves the same tensor.
    keeps: bool = True

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("weight", (self.width,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        return (elementwise("scale", elements, "add", elements, elements, self.width),)

    def saved(self, work: Workload) -> Num:
        return work.positions * self.width if self.keeps else 0
