"""Pieces: leaves that a description lists one by one, their forms and the keys of their tables.

Nothing here is a formula.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from txcalc.num import divides, exact_div
from txcalc.parts.convolution import Filter
from txcalc.parts.cores import AttentionCore, MatrixProduct, Scores, StateCache
from txcalc.parts.leaf import RecurrentState
from txcalc.parts.linear import Activation, LayerScale, Linear, Lookup, Shift, Sum, Unused, linear
from txcalc.parts.linear_attention import GatedScan
from txcalc.parts.norm import Norm
from txcalc.parts.options import ACTIVATIONS, LEAF_KINDS, MAX_SIZE, Raw, Table, Wrong, count, flag, one_of, size, text
from txcalc.parts.part import Leaf
from txcalc.parts.positions import Rotary
from txcalc.parts.spans import (
    Causal,
    CausalUncached,
    Cross,
    CrossUncached,
    Full,
    SeparateWindows,
    Span,
    Window,
)


def _norm(form: str, borrowed: bool = False) -> Callable[..., Leaf]:
    def make(bias: bool, groups: int, width: int) -> Leaf:
        biased = bias and form == "layer"
        return Norm(width=width, form=form, bias=biased, eps=None, groups=groups, borrowed=borrowed)

    return make


def _attention(span: Span) -> Callable[..., Leaf]:
    def make(bias: bool, groups: int, heads: int, d_qk: int, d_v: int) -> Leaf:
        sizes: Raw = {"n_heads": heads, "n_kv_heads": exact_div(heads, groups), "d_qk": d_qk, "d_v": d_v}
        return AttentionCore(**sizes, span=span, biased=bias)

    return make


def _windowed(span: Callable[..., Span]) -> Callable[..., Leaf]:
    return lambda bias, groups, *sizes: _attention(span(window=sizes[-1]))(bias, groups, *sizes[:-1])


def _filter(bias: bool, groups: int, c_in: int, c_out: int, taps: int, stride: int) -> Leaf:
    return Filter(c_in=c_in, c_out=c_out, taps=taps, groups=groups, stride=stride, bias=bias)


def _activation(form: str) -> Callable[..., Leaf]:
    return lambda bias, groups, width: Activation(width=width, form=form, gated=False)


class Form(NamedTuple):
    """A form of piece: the names of its `sizes`, a constructor from `bias`, `groups` and sizes, whether `bias` applies,
    and the sizes that `groups` must divide (None: `groups` does not apply)."""

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
    "rms_again": Form(("width",), _norm("rms", borrowed=True), False, ()),
    "table": Form(
        ("rows", "width"), lambda bias, groups, rows, width: Lookup(rows=rows, width=width, added=bias), True
    ),
    "held": Form(("elements",), lambda bias, groups, elements: Unused(d_in=elements, d_out=1, bias=False)),
    "convolution": Form(("c_in", "c_out", "taps", "stride"), _filter, True, ("c_in", "c_out")),
    "attention": Form(_CORE, _attention(Full()), True, ("n_heads",)),
    "causal": Form(_CORE, _attention(Causal()), True, ("n_heads",)),
    "once": Form(_CORE, _attention(CausalUncached()), True, ("n_heads",)),
    "window": Form((*_CORE, "window"), _windowed(Window), True, ("n_heads",)),
    "crossed": Form(_CORE, _attention(Cross()), True, ("n_heads",)),
    "reading": Form(_CORE, _attention(CrossUncached()), True, ("n_heads",)),
    "windows": Form((*_CORE, "window"), _windowed(SeparateWindows), True, ("n_heads",)),
    "index": Form(
        ("n_heads", "width"), lambda bias, groups, heads, width: Scores(n_heads=heads, width=width, span=Causal())
    ),
    "state": Form(("elements",), lambda bias, groups, elements: RecurrentState(elements=elements)),
    "gated_scan": Form(
        ("n_heads", "d_key", "d_value"),
        lambda bias, groups, heads, keys, values: GatedScan(n_heads=heads, d_key=keys, d_value=values),
    ),
    "stored": Form(("width",), lambda bias, groups, width: StateCache(width=width, span=Causal())),
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
KEYED: Final = ("reading", "scores")  # `keys` gives the number of their keys
CROSSING: Final = ("crossed",)  # they attend to the encoder's positions
BORROWED: Final = ("tied", "norm_again", "rms_again")  # their weights belong to another piece


def pieces(value: object) -> list[Raw]:
    """A list of leaves, each a table.

    name, form, sizes, bias, groups   `FORMS` lists the forms and their sizes
    at         positions for T tokens: [a, b, c] is ⌈(a·T + b)/c⌉, [a, b, c, m] m times that, "source" the encoder's;
               absent: T
    keys       keys attended to, the same of S = past + T, or "batch": every sequence of the batch
    shared     runs once for all sequences
    times      copies with weights of their own; `runs` is how often each runs, 0 where it is only stored
    least      shortest text in tokens for which this holds
    kind       what it counts as
    """
    if not isinstance(value, list) or not all(isinstance(piece, Mapping) for piece in value):
        raise Wrong("a list of tables, each a piece")
    leaves = [_piece(piece) for piece in value]
    if twice := [name for name, times in Counter(piece["name"] for piece in leaves).items() if times > 1]:
        raise Wrong(f"pieces of different names: several are {twice[0]!r}")
    return leaves


_KEYS: Final = ("name", "form", "sizes", "bias", "groups", "at", "keys", "shared", "times", "runs", "least", "kind")


def _piece(piece: Table) -> Raw:
    form, sizes, at, keys = (piece.get(name) for name in ("form", "sizes", "at", "keys"))
    if not isinstance(form, str) or form not in FORMS or not isinstance(sizes, list) or not {*_KEYS} >= {*piece}:
        raise Wrong(f"pieces of {', '.join(_KEYS)}, whose form is one of {', '.join(FORMS)}")
    names, _, biased, divided = FORMS[form]
    if len(sizes) != len(names):
        raise Wrong(f"{', '.join(names)} as sizes of a piece {form!r}")
    leaf = {key: size(piece.get(key, 1)) for key in ("groups", "times", "least")}
    leaf["runs"] = count(piece.get("runs", 1))
    leaf |= {"name": text(piece.get("name")), "form": form, "sizes": [size(number) for number in sizes], "at": at}
    leaf |= {"bias": flag(piece.get("bias", biased and form != "table")), "shared": flag(piece.get("shared", False))}
    leaf |= {"kind": one_of(*LEAF_KINDS)(piece.get("kind", "other")), "keys": keys}
    if leaf["bias"] and not biased:
        raise Wrong(f"no bias of a piece {form!r}, which has none")
    if divided is None and leaf["groups"] != 1:
        raise Wrong(f"no groups of a piece {form!r}, which has none")
    for name, number in zip(names, leaf["sizes"], strict=True):
        if name in (divided or ()) and not divides(leaf["groups"], number):
            raise Wrong(f"as groups of a piece {form!r} a divisor of {name} = {number}")
    if at not in (None, "source") and not _valid_positions(at):
        raise Wrong(
            "'source', [a, b, c] or [a, b, c, m] as at: whole numbers, a from 0, c, m from 1, b from 1 where a is 0"
        )
    per_sequence = form == "scores" and keys == "batch" and at is None
    if (form in KEYED) != (keys is not None) or not (keys is None or per_sequence or _valid_positions(keys)):
        keyed = " or ".join(map(repr, KEYED))
        raise Wrong(f"[a, b, c] as keys of a piece {keyed}, whole numbers as in at, or 'batch' of scores without at")
    return leaf


def _valid_positions(at: object) -> bool:
    """Whether m·⌈(a·T + b)/c⌉ is a valid number of positions for some T."""
    if not isinstance(at, list) or len(at) not in (3, 4) or not all(type(number) is int for number in at):
        return False
    a, b, c, *m = at
    return bool(a >= 0 and min([c, *m]) > 0 and a + max(b, 0) > 0 and max(a, abs(b), c, *m) <= MAX_SIZE)


def steps(piece: Table) -> list[str]:
    """The keys by which a piece changes its workload, in the order in which they apply."""
    met, at = piece["keys"], piece["at"]
    changes = {"source": at == "source", "keys": isinstance(met, list), "batch": met == "batch"}
    changes |= {"at": isinstance(at, list), "shared": piece["shared"]}
    return [name for name, is_so in changes.items() if is_so]


def crosses(pieces: Any) -> str:
    """The first piece that reads the encoder's positions; "": none."""
    return next((piece["name"] for piece in pieces if piece["at"] == "source" or piece["form"] in CROSSING), "")
