"""Leaves one by one, each where it works: what a published model has that no other part says.

They are counted and have no module: what holds them is *modelled*, however exactly it agrees with transformers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, final

from txcalc.num import ceil_div, divides, exact_div, maximum, product
from txcalc.parts.cores import AttentionCore, CachedCore
from txcalc.parts.frozen import frozen
from txcalc.parts.linear import Activation, LayerScale, Linear, Lookup, Shift, Sum, Unused, linear
from txcalc.parts.norm import Norm
from txcalc.parts.options import (
    ACTIVATIONS,
    LEAF_KINDS,
    MAX_SIZE,
    REQUIRED,
    Mechanism,
    Place,
    Wrong,
    flag,
    key,
    numbered,
    one_of,
    size,
    text,
)
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
from txcalc.parts.spans import Apart, Causal, Cross, Full, Reading, Span


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

    Shapes   x (B, h, T, d_in), m (B, h, d_in, d_out), y (B, h, T, d_out); d_out None: as many as there are keys
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
        heads, made = work.batch * self.n_heads, work.source if self.d_out is None else self.d_out
        moved = Traffic(0, heads * (work.tokens * (self.d_in + made) + self.d_in * made))
        return (MatMul("product", heads, work.tokens, self.d_in, made, moved),)

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


@final
@frozen
class Stored(CachedCore):
    """What is kept of every token that is neither key nor value: a layer's input, of which both are made again.

    Unit     elements of a token; no FLOPs
    Source   Kitaev et al. 2020 (arXiv 2001.04451), section 2: keys are the queries, of texts in chunks
    """

    width: Any
    span: Span

    @property
    def token(self) -> Any:
        return self.width

    def kept(self) -> str:
        return self.span.kept("a state", f"{self.width:,}")


def _norm(form: str, borrowed: bool = False) -> Callable[..., Leaf]:
    def make(bias: bool, groups: int, width: int) -> Leaf:
        own = bias and form == "layer"
        return Norm(width=width, form=form, bias=own, eps=None, groups=groups, borrowed=borrowed)

    return make


def _attention(span: Span) -> Callable[..., Leaf]:
    def make(bias: bool, groups: int, heads: int, d_qk: int, d_v: int) -> Leaf:
        sizes = {"n_heads": heads, "n_kv_heads": exact_div(heads, groups), "d_qk": d_qk, "d_v": d_v}
        return AttentionCore(**sizes, span=span, biased=bias)

    return make


def _windows(bias: bool, groups: int, heads: int, d_qk: int, d_v: int, window: int) -> Leaf:
    return _attention(Apart(window=window))(bias, groups, heads, d_qk, d_v)


def _filter(bias: bool, groups: int, c_in: int, c_out: int, taps: int, stride: int) -> Leaf:
    return Filter(c_in=c_in, c_out=c_out, taps=taps, groups=groups, stride=stride, bias=bias)


def _activation(form: str) -> Callable[..., Leaf]:
    return lambda bias, groups, width: Activation(width=width, form=form, gated=False)


class Form(NamedTuple):
    """What a piece may be: the names of its `sizes`, what makes a leaf of `bias`, `groups` and these, whether it reads
    `bias`, and which sizes its `groups` divide (None: it reads none)."""

    sizes: tuple[str, ...]
    make: Callable[..., Leaf]
    bias: bool = False
    groups: tuple[str, ...] | None = None


_CORE: Final = ("n_heads", "d_qk", "d_v")
FORMS: Final[dict[str, Form]] = {
    "linear": Form(("d_in", "d_out"), lambda bias, groups, d_in, d_out: linear(d_in, d_out, bias=bias), True),
    "grouped": Form(
        ("d_in", "d_out"),
        lambda bias, groups, d_in, d_out: linear(d_in, d_out, bias=bias, groups=groups),
        True,
        ("d_in", "d_out"),
    ),
    "tied": Form(
        ("d_in", "d_out"), lambda bias, groups, d_in, d_out: Linear(d_in=d_in, d_out=d_out, bias=False, tied=True)
    ),
    "scale": Form(("width",), lambda bias, groups, width: LayerScale(width=width)),
    "shift": Form(("width",), lambda bias, groups, width: Shift(width=width)),
    "layer_norm": Form(("width",), _norm("layer"), True, ()),
    "rms_norm": Form(("width",), _norm("rms"), False, ()),
    "norm_again": Form(("width",), _norm("layer", borrowed=True), True, ()),
    "table": Form(
        ("rows", "width"), lambda bias, groups, rows, width: Lookup(rows=rows, width=width, added=bias), True
    ),
    "held": Form(("elements",), lambda bias, groups, elements: Unused(d_in=elements, d_out=1, bias=False)),
    "convolution": Form(("c_in", "c_out", "taps", "stride"), _filter, True, ("c_in", "c_out")),
    "attention": Form(_CORE, _attention(Full()), True, ("n_heads",)),
    "causal": Form(_CORE, _attention(Causal()), True, ("n_heads",)),
    "crossed": Form(_CORE, _attention(Cross()), True, ("n_heads",)),
    "reading": Form(_CORE, _attention(Reading()), True, ("n_heads",)),
    "windows": Form((*_CORE, "window"), _windows, True, ("n_heads",)),
    "index": Form(
        ("n_heads", "width"), lambda bias, groups, heads, width: Scores(n_heads=heads, width=width, span=Causal())
    ),
    "state": Form(("elements",), lambda bias, groups, elements: Remembered(elements=elements)),
    "stored": Form(("width",), lambda bias, groups, width: Stored(width=width, span=Causal())),
    "product": Form(
        ("n_heads", "d_in", "d_out"),
        lambda bias, groups, heads, d_in, d_out: MatrixProduct(n_heads=heads, d_in=d_in, d_out=d_out),
    ),
    "scores": Form(
        ("n_heads", "width"), lambda bias, groups, heads, width: MatrixProduct(n_heads=heads, d_in=width, d_out=None)
    ),
    "rotary": Form(
        ("heads", "dims"), lambda bias, groups, heads, dims: Rotary(heads=heads, dims=dims, theta=None, width=dims)
    ),
    "sum": Form(("width",), lambda bias, groups, width: Sum(width=width, sums=groups), False, ()),
    **{form: Form(("width",), _activation(form)) for form in ACTIVATIONS},
}
KEYED: Final = ("reading", "scores")  # they meet as many keys as `keys` says
CROSSING: Final = ("crossed",)  # they meet the encoder's positions


def pieces(value: Any) -> list[dict[str, Any]]:
    """Leaves, each a table of `name`, `form`, `sizes` (`FORMS` names them), `bias`, `groups`, `at`, `keys`, `shared`,
    `times`, `runs` and `kind`. One works at ⌈(a·T + b)/c⌉ positions for T of the stack's, where `at` is [a, b, c], at
    the encoder's where it is "source", else at each, and meets `keys`, said so of S, past and new; with `shared` it
    works once for all sequences. `times` is how many there are, each with weights of its own, `runs` how often each
    runs."""
    if not isinstance(value, list) or not all(isinstance(piece, Mapping) for piece in value):
        raise Wrong("a list of tables, each a piece")
    found = [_piece(piece) for piece in value]
    if twice := [name for name, times in Counter(piece["name"] for piece in found).items() if times > 1]:
        raise Wrong(f"pieces of different names: several are {twice[0]!r}")
    return found


_KEYS: Final = ("name", "form", "sizes", "bias", "groups", "at", "keys", "shared", "times", "runs", "kind")


def _piece(piece: Mapping[str, Any]) -> dict[str, Any]:
    form, sizes, at, keys = (piece.get(name) for name in ("form", "sizes", "at", "keys"))
    if not isinstance(form, str) or form not in FORMS or not isinstance(sizes, list) or not {*_KEYS} >= {*piece}:
        raise Wrong(f"pieces of {', '.join(_KEYS)}, whose form is one of {', '.join(FORMS)}")
    names, _, biased, divided = FORMS[form]
    if len(sizes) != len(names):
        raise Wrong(f"{', '.join(names)} as sizes of a piece {form!r}")
    found = {key: size(piece.get(key, 1)) for key in ("groups", "times", "runs")}
    found |= {"name": text(piece.get("name")), "form": form, "sizes": [size(number) for number in sizes], "at": at}
    found |= {"bias": flag(piece.get("bias", biased and form != "table")), "shared": flag(piece.get("shared", False))}
    found |= {"kind": one_of(*LEAF_KINDS)(piece.get("kind", "other")), "keys": keys}
    if found["bias"] and not biased:
        raise Wrong(f"no bias of a piece {form!r}, which has none")
    if divided is None and found["groups"] != 1:
        raise Wrong(f"no groups of a piece {form!r}, which has none")
    for name, number in zip(names, found["sizes"], strict=True):
        if name in (divided or ()) and not divides(found["groups"], number):
            raise Wrong(f"as groups of a piece {form!r} a divisor of {name} = {number}")
    if at not in (None, "source") and not _somewhere(at):
        raise Wrong("'source' or [a, b, c] as at: whole numbers, a from 0, c from 1, b from 1 where a is 0")
    if (form in KEYED) != (keys is not None) or not (keys is None or _somewhere(keys)):
        raise Wrong(
            f"[a, b, c] as keys of a piece {' or '.join(map(repr, KEYED))}, whole numbers as in at, and no other's"
        )
    return found


def _somewhere(at: Any) -> bool:
    """Whether ⌈(a·T + b)/c⌉ is a number of positions of some T."""
    if not isinstance(at, list) or [type(number) for number in at] != [int] * 3:
        return False
    a, b, c = at
    return bool(a >= 0 and c > 0 and a + max(b, 0) > 0 and max(a, abs(b), c) <= MAX_SIZE)


def crosses(pieces: Any) -> str:
    """The first piece that reads an encoder's positions; "": none does."""
    return next((one["name"] for one in pieces if one["at"] == "source" or one["form"] in CROSSING), "")


def _positions(tokens: Any, at: list[int]) -> Any:
    """⌈(a·T + b)/c⌉, none of a text that is too short for one."""
    a, b, c = at
    found = tokens * a + b
    return ceil_div(found if a + b > 0 else maximum(0, found), c)


def _stream(piece: Mapping[str, Any], leaf: Any) -> Stream:
    """Where a piece works: `pieces` says how."""
    at, keys, shared = piece["at"], piece["keys"], piece["shared"]

    def on(work: Workload) -> Workload | None:
        found = on_source(work) if at == "source" else work
        if found is None:
            return None
        if keys is not None:
            found = found._replace(source=_positions(work.keys, keys))
        if isinstance(at, list):
            found = found._replace(tokens=_positions(work.tokens, at), past=0)
        if shared:
            found = found._replace(batch=1)
        return leaf.span.at(found) if piece["form"] == "windows" else found

    return everywhere if (at, keys, shared) == (None, None, False) and piece["form"] != "windows" else on


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
            leaf = FORMS[piece["form"]].make(piece["bias"], piece["groups"], *piece["sizes"])
            times = piece["times"]
            copies = {"times": times, "runs": times * piece["runs"], "indices": numbered(times)}
            yield Child(piece["name"], leaf, **copies, kind=piece["kind"], on=_stream(piece, leaf))

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
