"""Leaves one by one, each where it works: what a published model has that no other part says.

They are counted and have no module: what holds them is *modelled*, however exactly it agrees with transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

from txcalc.num import ceil_div, exact_div, product
from txcalc.parts.cores import AttentionCore, CachedCore
from txcalc.parts.frozen import frozen
from txcalc.parts.linear import Activation, LayerScale, Linear, Lookup, Shift, Sum, Unused, linear
from txcalc.parts.norm import Norm
from txcalc.parts.options import ACTIVATIONS, REQUIRED, Mechanism, Place, key, numbered, pieces
from txcalc.parts.part import (
    Child,
    Composite,
    Leaf,
    MatMul,
    Operation,
    Stream,
    Traffic,
    Weight,
    Workload,
    elementwise,
    everywhere,
    on_source,
)
from txcalc.parts.positions import Rotary
from txcalc.parts.recurrence import Recurrence
from txcalc.parts.sharding import Ways
from txcalc.parts.spans import Apart, Causal, Cross, Full, Span


@final
@frozen
class Filter(Leaf):
    """A convolution of any kind over what comes out: `taps` of all its dimensions, in `groups` of channels.

    Shapes   W (c_out, c_in/groups, taps), y (B, T, c_out); of every output it reads `stride` inputs that are new
    Unit     FLOPs 2·B·T·taps·c_out·c_in/groups
    Kept     its input
    Source   Baevski et al. 2020 (arXiv 2006.11477), section 2: over samples, and in place of positions
    """

    role = "product"
    c_in: Any
    c_out: Any
    taps: Any
    groups: int
    stride: Any
    bias: bool

    def weights(self) -> tuple[Weight, ...]:
        weight = Weight("weight", (self.c_out, exact_div(self.c_in, self.groups), self.taps))
        return (weight, Weight("bias", (self.c_out,))) if self.bias else (weight,)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, (one, *_) = work.positions, self.weights()
        fan_in, made = product(one.shape[1:]), exact_div(self.c_out, self.groups)
        moved = Traffic(one.size, rows * (self.stride * self.c_in + self.c_out))
        found = MatMul("convolution", self.groups, rows, fan_in, made, moved, "convolution")
        return (found, elementwise("bias", rows * self.c_out, "add", 0, 0, self.c_out)) if self.bias else (found,)

    def saved(self, work: Workload) -> Any:
        return work.positions * self.stride * self.c_in


@final
@frozen
class Scores(CachedCore):
    """How well each query of a few heads meets every key before it, by the best of which blocks of keys are selected.

    Shapes   q (B, T, h, d), k (B, S, d), scores (B, T, h, S)
    Unit     FLOPs 2·B·T·S·h·d
    Counts   the full T×S rectangle, `flops_masked` the pairs before the selection; cache d elements a token
    Omits    the maximum of a block and choosing the best, which only compare
    Kept     nothing: a selection gets no gradient
    Source   MiniMax 2026, MiniMax-M3
    """

    role = "selection"
    n_heads: Any
    width: Any
    span: Span

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        heads, keys, tokens = work.batch * self.n_heads, self.span.keys(work), work.tokens
        moved = self.span.moved(heads * tokens * self.width, work.batch * keys * self.width)
        pairs = self.span.visible(work) * self.width
        return (MatMul("scores", heads, tokens, self.width, keys, moved, "attention", pairs),)

    @property
    def token(self) -> Any:
        return self.width

    def kept(self) -> str:
        return self.span.kept("an index key", f"{self.width:,}")


@final
@frozen
class MatrixProduct(Leaf):
    """Products of what was computed alone, without weights: of each head a row of every position and a matrix.

    Shapes   x (B, h, T, d_in), m (B, h, d_in, d_out), y (B, h, T, d_out)
    Unit     FLOPs 2·B·T·h·d_in·d_out
    Kept     its rows; the matrix is another leaf's result
    Source   Xiong et al. 2021 (arXiv 2102.03902), section 3: keys and queries beside a fixed number of landmarks
    """

    role = "product"
    kind = "attention_core"
    n_heads: Any
    d_in: Any
    d_out: Any

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        heads = work.batch * self.n_heads
        rows, matrix = work.tokens * (self.d_in + self.d_out), self.d_in * self.d_out
        moved = Traffic(0, heads * (rows + matrix))
        return (MatMul("product", heads, work.tokens, self.d_in, self.d_out, moved),)

    def saved(self, work: Workload) -> Any:
        return work.positions * self.n_heads * self.d_in


@final
@frozen
class Remembered(Recurrence):
    """A state of so many elements that a recurrence keeps, whatever it computes with it.

    Unit     elements of one sequence's state; no FLOPs
    Source   Peng et al. 2025 (arXiv 2503.14456), section 4: a matrix of each head, and the last position
    """

    elements: Any

    @property
    def state(self) -> Any:
        return self.elements

    def kept(self) -> str:
        return f"a state of {self.elements:,} elements"


def _linear(bias: bool, groups: int, d_in: int, d_out: int) -> Leaf:
    return linear(d_in, d_out, bias=bias)


def _grouped(bias: bool, groups: int, d_in: int, d_out: int) -> Leaf:
    return linear(d_in, d_out, bias=bias, groups=groups)


def _layer_norm(bias: bool, groups: int, width: int) -> Leaf:
    return Norm(width=width, form="layer", bias=bias, eps=None, groups=groups)


def _rms_norm(bias: bool, groups: int, width: int) -> Leaf:
    return Norm(width=width, form="rms", bias=False, eps=None, groups=groups)


def _norm_again(bias: bool, groups: int, width: int) -> Leaf:
    return Norm(width=width, form="layer", bias=bias, eps=None, groups=groups, borrowed=True)


def _attention(bias: bool, groups: int, heads: int, d_qk: int, d_v: int, span: Span | None = None) -> Leaf:
    sizes = {"n_heads": heads, "n_kv_heads": exact_div(heads, groups), "d_qk": d_qk, "d_v": d_v}
    return AttentionCore(**sizes, span=Full() if span is None else span, biased=bias)


def _causal(bias: bool, groups: int, heads: int, d_qk: int, d_v: int) -> Leaf:
    return _attention(bias, groups, heads, d_qk, d_v, Causal())


def _crossed(bias: bool, groups: int, heads: int, d_qk: int, d_v: int) -> Leaf:
    return _attention(bias, groups, heads, d_qk, d_v, Cross())


def _windows(bias: bool, groups: int, heads: int, d_qk: int, d_v: int, window: int) -> Leaf:
    return _attention(bias, groups, heads, d_qk, d_v, Apart(window=window))


def _filter(bias: bool, groups: int, c_in: int, c_out: int, taps: int, stride: int) -> Leaf:
    return Filter(c_in=c_in, c_out=c_out, taps=taps, groups=groups, stride=stride, bias=bias)


def _activation(form: str) -> Callable[..., Leaf]:
    return lambda bias, groups, width: Activation(width=width, form=form, gated=False)


# What makes a leaf of `bias`, `groups` and the sizes that `options.PIECES` names.
FORMS: Final[dict[str, Callable[..., Leaf]]] = {
    "linear": _linear,
    "grouped": _grouped,
    "tied": lambda bias, groups, d_in, d_out: Linear(d_in=d_in, d_out=d_out, bias=False, tied=True),
    "scale": lambda bias, groups, width: LayerScale(width=width),
    "shift": lambda bias, groups, width: Shift(width=width),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "norm_again": _norm_again,
    "table": lambda bias, groups, rows, width: Lookup(rows=rows, width=width, added=bias),
    "held": lambda bias, groups, elements: Unused(d_in=elements, d_out=1, bias=False),
    "convolution": _filter,
    "attention": _attention,
    "causal": _causal,
    "crossed": _crossed,
    "windows": _windows,
    "index": lambda bias, groups, n_heads, width: Scores(n_heads=n_heads, width=width, span=Causal()),
    "state": lambda bias, groups, elements: Remembered(elements=elements),
    "product": lambda bias, groups, heads, d_in, d_out: MatrixProduct(n_heads=heads, d_in=d_in, d_out=d_out),
    "rotary": lambda bias, groups, heads, dims: Rotary(heads=heads, dims=dims, theta=None, width=dims),
    "sum": lambda bias, groups, width: Sum(width=width, sums=groups),
    **{form: _activation(form) for form in ACTIVATIONS},
}


def _where(at: Any) -> Stream:
    """Everywhere, at the encoder's positions, or at ⌈(a·T + b)/c⌉."""
    if at is None or at == "source":
        return everywhere if at is None else on_source
    a, b, c = at

    def on(work: Workload) -> Workload:
        return work._replace(tokens=ceil_div(work.tokens * a + b, c), past=0)

    return on


def _as_said(on: Stream, leaf: Any) -> Stream:
    return on


def _within(on: Stream, leaf: Any) -> Stream:
    """In each window by itself."""

    def there(work: Workload) -> Workload | None:
        found = on(work)
        inside: Workload | None = None if found is None else leaf.span.at(found)
        return inside

    return there


PLACED: Final[dict[str, Callable[[Stream, Any], Stream]]] = {"windows": _within}


@final
@frozen
class Pieces(Composite):
    """Leaves by their names; the order in which they are listed is that in which they compute."""

    pieces: tuple[Mapping[str, Any], ...]
    cuttable = False

    def describe(self) -> str:
        return "pieces of its own"

    def children(self) -> Iterator[Child]:
        for piece in self.pieces:
            leaf = FORMS[piece["form"]](piece["bias"], piece["groups"], *piece["sizes"])
            times, on = piece["times"], _where(piece["at"])
            placed: Callable[[Stream, Any], Stream] = PLACED.get(piece["form"], _as_said)
            copies = {"times": times, "runs": times * piece["runs"], "indices": numbered(times)}
            yield Child(piece["name"], leaf, **copies, kind=piece["kind"], on=placed(on, leaf))

    def shard(self, ways: Ways) -> Pieces:
        """Whole on every rank."""
        ways.whole("list of pieces")
        return self


@final
@frozen
class PiecesOptions(Mechanism):
    """`[pieces]`"""

    section = "pieces"
    kind = "other"
    stands = ""
    sums = 0
    leaves: Any = key(pieces, REQUIRED, "what it is made of, leaf by leaf: tables of name, form, sizes, …")

    def build(self, place: Place) -> Pieces:
        return Pieces(pieces=tuple(self.leaves))
