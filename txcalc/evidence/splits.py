"""Structures as sums of smaller ones, so that a model that only combines known parts in a new way inherits theirs.

Embedding, layers and head of a model; the parts of a layer; a part and the norms around it; a leaf of a list, wherever
it works; a structure with another activation, and this activation. `theorems.bearing` requires theorems of all of them,
and that their figures add up.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from txcalc.description import LayerSpec, StackSpec, map_values
from txcalc.evidence.structures import (
    FRAME,
    NO_HEAD,
    WHOLE,
    Unit,
    frame_of,
    keys,
    layer_name,
    leaf,
    separable,
    single_layer,
    with_letters,
    without_operations,
)
from txcalc.ledger import walk
from txcalc.num import ceil_div
from txcalc.parts.forms import FORMS
from txcalc.parts.linear import LayerScale
from txcalc.parts.norm import NormOptions
from txcalc.parts.options import ACTIVATIONS, Raw, Table
from txcalc.parts.part import Workload
from txcalc.parts.positions import PositionsOptions

PART = "part"
UNPLACED = PositionsOptions.of({"form": "none"})
PLAIN_NORM = NormOptions.of({
    "form": "rms", "bias": False, "eps": None, "place": "pre", "parallel": "no", "final": False, "final_bias": False,
    "qk_bias": False, "offset": False, "weighted": True, "residual_scale": False, "layer_scale": False, "without": [],
    "after": [], "joint": [], "residual": None, "scalar": False,
})  # fmt: skip
WITHIN = ("form", "bias", "eps", "qk_bias", "weighted", "offset")  # options of the norms within a part
ANOTHER = "another activation"  # stands in a key for the activation that is put in
ANYWHERE = {"at": None, "keys": None, "shared": False}  # of a leaf that works at every position


class Component(NamedTuple):
    """A smaller structure and where it is in the larger one: `layer` is the number of its only layer there, None where
    that is none of the larger one's; `path` is where a listed leaf is."""

    unit: Unit
    layer: int | None
    path: str = ""


def components(unit: Unit) -> list[Component]:
    """The structures of which one is made; [] where it is made of none."""
    if unit.listed:
        table = unit.plain_piece
        fixed = table["form"] == "windows" or all(table[key] == value for key, value in ANYWHERE.items())
        return [] if fixed else [Component(leaf({**table, **ANYWHERE}), None)]
    stacks, stack = unit.plain.stacks, unit.plain.last
    if len(stacks) > 1 or not separable(stack):
        return []
    if unit.name.startswith(PART):
        return _split_off_norms(unit, stack)
    ways = {WHOLE: _split_model, FRAME: _split_frame}
    smaller_stacks = ways.get(unit.name, _split_layer)(stack)
    return [Component(with_letters(name, {"": part}, unit.description.kind), i) for name, part, i in smaller_stacks]


Smaller = Iterator[tuple[str, StackSpec, int | None]]  # the name, the stack and the number of its layer


def _split_model(stack: StackSpec) -> Smaller:
    """The frame around the layers, if there is one, and each kind of layer."""
    frame = frame_of(stack)
    if frame != single_layer(frame, "layer"):
        yield FRAME, frame, None
    yield from ((layer_name(name), single_layer(stack, name), i) for i, name in enumerate(stack.layer))


def _split_layer(stack: StackSpec) -> Smaller:
    """The parts of the only layer, one by one."""
    ((name, layer),) = stack.layer.items()
    norm, parts = layer.norm, layer.parts
    if single_layer(stack, name) == stack and len(parts) > 1 and norm.parallel == "no" and not norm.joint:
        yield from ((f"{PART} {part}", _single_part(stack, layer, part), 0) for part in parts)


def _single_part(stack: StackSpec, layer: LayerSpec, part: str) -> StackSpec:
    options, norm = layer.options(part), layer.norm
    norm = norm.replace(without=[part] if part in norm.without else [], after=[part] if part in norm.after else [])
    positions = (stack.positions, layer.positions) if options.ordered else (UNPLACED, UNPLACED)
    lone = LayerSpec([part], norm, positions[1], {options.section: options})
    return stack.replace(positions=positions[0], layer={"layer": lone}, norm=norm)


def _split_off_norms(unit: Unit, stack: StackSpec) -> list[Component]:
    """A part without the norms and scales around it, and each of those as a listed leaf; [] where nothing is around it,
    or something that cannot be listed. Norms within the part are plain, or as the layer's where that changes them."""
    (layer,) = stack.layer.values()
    (part,) = layer.parts
    options = layer.options(part)
    alike = options.stands == "" and not options.ordered  # in encoders and decoders
    role, kind = ("decoder", "decoder") if alike else (stack.role, unit.description.kind)
    entries = _entries(unit)
    for within in ((), WITHIN):
        norm = _plain_norm_with(layer.norm, within).replace(without=[part])
        if layer.norm == norm:
            return []
        bared = stack.replace(norm=norm, role=role, layer={"layer": replace(layer, norm=norm)})
        inner = with_letters(unit.name, {"": bared}, kind)
        inner_entries = _entries(inner)
        same = all(path in entries and _cost(entries[path]) == _cost(entry) for path, entry in inner_entries.items())
        around = {path: _as_listed_leaf(entry.leaf) for path, entry in entries.items() if path not in inner_entries}
        if same and all(around.values()) and _are_around(layer, stack.d_model, [*around.values()]):
            pieces = [Component(leaf(piece), None, path) for path, piece in around.items() if piece]
            return [Component(inner, 0), *pieces]
    return []


def _are_around(layer: LayerSpec, d_model: int, leaves: Sequence[Table | None]) -> bool:
    """Whether these are the norms and scales that the description puts around the only part of a layer."""
    norm, (part,) = layer.norm, layer.parts
    before, after = norm.place in ("pre", "sandwich"), norm.place in ("post", "after", "sandwich") or part in norm.after
    norms = 0 if part in norm.without else before + after
    scale = _as_listed_leaf(LayerScale(width=d_model))
    expected = [_as_listed_leaf(norm.over(d_model))] * norms + [scale] * (norm.layer_scale + norm.residual_scale)
    return all(leaves.count(leaf) == expected.count(leaf) for leaf in [*leaves, *expected])


def _plain_norm_with(norm: NormOptions, keys: Sequence[str]) -> NormOptions:
    """A plain norm with these keys of another."""
    return PLAIN_NORM.replace(**{key: getattr(norm, key) for key in keys})


def _entries(unit: Unit) -> Raw:
    """The leaves of a part by path, at a length."""
    return {entry.path: entry for entry in walk(unit.over(unit.values), Workload(2, 7, 0, 5))}


def _cost(entry: Any) -> tuple[Any, Any]:
    return entry.params, entry.flops


def _as_listed_leaf(part: object) -> Table | None:
    """A norm or a scale as a listed leaf; None for other parts."""
    groups, width = getattr(part, "groups", 1), getattr(part, "width", 1)
    for form, bias in (("rms_norm", False), ("layer_norm", False), ("layer_norm", True), ("scale", False)):
        norm = FORMS[form].make(bias, groups, width)
        if type(norm) is type(part) and norm.weights() == part.weights():
            return {"form": form, "bias": bias, "groups": groups, "sizes": [width], **ANYWHERE}
    return None


def _split_frame(stack: StackSpec) -> Smaller:
    """The pieces of a frame: before the layers, after them, and parameters that no token uses."""
    embedding, norm, idle = stack.embedding, stack.norm, stack.idle
    inner = _plain_norm_with(norm, WITHIN)
    if stack.vocab_size is not None or stack.vision or stack.audio:
        yield "embedding", _plain_frame(stack.replace(head=NO_HEAD, norm=inner if embedding.norm else PLAIN_NORM)), None
    if norm.final or stack.head.replace(tied=False) != NO_HEAD:
        # With a head that is tied, or as wide.
        shared = without_operations(embedding).replace(
            extra=embedding.extra, rank=embedding.rank, early=embedding.early
        )
        last = inner.replace(final=norm.final, final_bias=norm.final_bias)
        head = stack.replace(embedding=shared, positions=UNPLACED, norm=last, vision=None, audio=None)
        yield "head", _plain_frame(head), None
    if idle is not None:
        yield "idle", _plain_frame(single_layer(stack, "layer").replace(norm=PLAIN_NORM)).replace(idle=idle), None


def _plain_frame(stack: StackSpec) -> StackSpec:
    """A stack around one plain feed-forward, which is not the model's; only a masked-LM head reads its activation."""
    frame = frame_of(stack)
    (layer,) = frame.layer.values()
    plain = layer.options("feed_forward")
    plain = plain if stack.head.form == "masked-lm" else plain.replace(activation="gelu")
    return frame.replace(layer={"layer": replace(layer, norm=PLAIN_NORM, tables={"feed_forward": plain})}, idle=None)


def candidates(unit: Unit, known: Container[str]) -> Iterator[list[Unit]]:
    """The structure with another activation instead of one of its own, if its key is known, and that one as a leaf."""
    for active in sorted(_activations(unit.content)):
        forms = [form for form in ACTIVATIONS if form not in (active, "none")]
        key_of = keys(_replace_activation(unit, active, ANOTHER), ANOTHER, forms)
        if active != "none":  # a key may omit the activation "none"
            key_of["none"] = _swap_activation(unit, active, "none")[0].key
        yield from (_swap_activation(unit, active, form) for form, key in key_of.items() if key in known)


def with_first_activation(unit: Unit) -> list[Unit]:
    """The structure with the first of `ACTIVATIONS`, and its own as a leaf, if it has one other activation; else []."""
    others = sorted(_activations(unit.content) - {ACTIVATIONS[0]})
    return _swap_activation(unit, others[0], ACTIVATIONS[0]) if len(others) == 1 else []


def _swap_activation(unit: Unit, active: str, other: str) -> list[Unit]:
    """The structure with activation `other` in place of `active`, and `active` as a leaf."""
    activation = leaf({"form": active, "sizes": [1024], "bias": False, "groups": 1, **ANYWHERE})
    return [_replace_activation(unit, active, other), activation]


def _activations(value: object) -> set[str]:
    if not isinstance(value, dict):
        return set()
    inner = (_activations(item) for item in value.values())
    return set().union(*inner, [value[key] for key in ("activation", "transform") if value.get(key) in ACTIVATIONS])


def _replace_activation(unit: Unit, active: str, other: str) -> Unit:
    def changed(key: str, value: object) -> object:
        return other if key in ("activation", "transform") and value == active else value

    return unit._replace(description=map_values(unit.description, changed))


def workload_at(piece: Table, batch: int, tokens: int, source: int) -> tuple[int, int, int]:
    """Batch, positions and keys of a listed leaf, for batch, tokens and encoder positions of a workload."""
    if piece["keys"] == "batch":
        batch, tokens, source = 1, batch, batch
    elif piece["keys"] is not None:
        source = _number(piece["keys"], tokens)
    if piece["at"] is not None:
        tokens = source if piece["at"] == "source" else _number(piece["at"], tokens)
    return (1 if piece["shared"] else batch), tokens, source


def _number(at: list[int], tokens: int) -> int:
    a, b, c, m = (*at, 1)[:4]
    return int(ceil_div(max(0, a * tokens + b), c) * m)
