"""Structures as sums of smaller ones, so that a model that only combines known parts in a new way inherits theirs.

Embedding, layers and head of a model; the parts of a layer; a part and the norms around it; a leaf of a list, wherever
it works; a structure with another activation, and this activation. `theorems.bearing` asks for their theorems, and that
their figures are its own.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, NamedTuple

from txcalc.evidence.structures import (
    FRAME,
    LEAF,
    NO_HEAD,
    WHOLE,
    Unit,
    bare,
    called,
    framed,
    keys,
    leaf,
    lettered,
    separable,
    without,
)
from txcalc.ledger import walk
from txcalc.num import ceil_div
from txcalc.parts.forms import FORMS
from txcalc.parts.mechanisms import section_of
from txcalc.parts.options import ACTIVATIONS, Raw, Table
from txcalc.parts.part import Workload
from txcalc.parts.place import mechanism

PART = "part"
UNPLACED = {"form": "none"}
PLAIN_NORM = {
    "form": "rms", "bias": False, "eps": None, "place": "pre", "parallel": "no", "final": False, "final_bias": False,
    "qk_bias": False, "offset": False, "weighted": True, "residual_scale": False, "layer_scale": False, "without": [],
    "after": [], "joint": [], "residual": None, "scalar": False,
}  # fmt: skip
WITHIN = ("form", "bias", "eps", "qk_bias", "weighted", "offset")  # what norms within a part are like
ANOTHER = "another activation"  # what a key is written with, before it is one
ANYWHERE = {"at": None, "keys": None, "shared": False}  # of a leaf that works at every position


class Component(NamedTuple):
    """A smaller structure and where it is in the larger one: `layer` is the number of its only layer there, None where
    that is none of the larger one's; `path` is where a listed leaf is."""

    unit: Unit
    layer: int | None
    path: str = ""


def smaller(unit: Unit) -> list[Component]:
    """The structures of which one is made; [] where it is made of none."""
    if unit.listed:
        said = unit.plain[LEAF]
        fixed = said["form"] == "windows" or all(said[key] == value for key, value in ANYWHERE.items())
        return [] if fixed else [Component(leaf({**said, **ANYWHERE}), None)]
    stacks = unit.plain["stacks"]
    if len(stacks) > 1 or not separable(stacks[""]):
        return []
    if unit.name.startswith(PART):
        return _unnormed(unit, stacks[""])
    ways = {WHOLE: _apart, FRAME: _ends}
    made = ways.get(unit.name, _parts)(stacks[""])
    return [Component(lettered(name, {"": table}, unit.spec["kind"]), i) for name, table, i in made]


Found = Iterator[tuple[str, Table, int | None]]  # the name, the stack and the number of its layer


def _apart(stack: Table) -> Found:
    """What is around the layers, if anything is, and each kind of these."""
    frame = framed(stack)
    if frame != bare(frame, "layer"):
        yield FRAME, frame, None
    yield from ((called(each), bare(stack, each), i) for i, each in enumerate(stack["layer"]))


def _parts(stack: Table) -> Found:
    """The parts of the only layer, one by one."""
    ((name, layer),) = stack["layer"].items()
    norm, parts = layer["norm"], layer["parts"]
    if bare(stack, name) == stack and len(parts) > 1 and norm["parallel"] == "no" and not norm["joint"]:
        yield from ((f"{PART} {part}", _alone(stack, layer, part), 0) for part in parts)


def _alone(stack: Table, layer: Table, part: str) -> Table:
    """One part of the only layer."""
    own = section_of(part, layer)
    kept = {key: value for key, value in layer.items() if key == own or key in ("norm", "positions")}
    for key in ("without", "after"):
        kept["norm"] = {**kept["norm"], key: [one for one in layer["norm"][key] if one == part]}
    if not mechanism(part, layer).ordered:
        kept["positions"] = UNPLACED
    places = {"positions": stack["positions"] if kept["positions"] is not UNPLACED else UNPLACED}
    return {**stack, **places, "layer": {"layer": {**kept, "parts": [part]}}, "norm": kept["norm"]}


def _unnormed(unit: Unit, stack: Table) -> list[Component]:
    """A part without the norms and scales around it, and each of those as a listed leaf; [] where nothing is around it,
    or something that no list has. Norms within the part are plain, or as the layer's where that changes them."""
    (layer,) = stack["layer"].values()
    (part,) = layer["parts"]
    alike = mechanism(part, layer).stands == "" and not mechanism(part, layer).ordered  # in encoders and decoders
    role, kind = ("decoder", "decoder") if alike else (stack["role"], unit.spec["kind"])
    entries = _entries(unit)
    for within in ((), WITHIN):
        norm = PLAIN_NORM | {key: layer["norm"][key] for key in within} | {"without": [part]}
        if layer["norm"] == norm:
            return []
        bared = {**stack, "norm": norm, "role": role, "layer": {"layer": {**layer, "norm": norm}}}
        inner = lettered(unit.name, {"": bared}, kind)
        kept = _entries(inner)
        same = all(path in entries and _cost(entries[path]) == _cost(entry) for path, entry in kept.items())
        around = {path: _listed(entry.leaf) for path, entry in entries.items() if path not in kept}
        if same and all(around.values()):
            return [Component(inner, 0), *(Component(leaf(made), None, path) for path, made in around.items() if made)]
    return []


def _entries(unit: Unit) -> Raw:
    """The leaves of a part by path, at a length."""
    return {entry.path: entry for entry in walk(unit.over(unit.values), Workload(2, 7, 0, 5))}


def _cost(entry: Any) -> tuple[Any, Any]:
    return entry.params, entry.flops


def _listed(part: object) -> Table | None:
    """A norm or a scale as a list has it."""
    groups, width = getattr(part, "groups", 1), getattr(part, "width", 1)
    for form, bias in (("rms_norm", False), ("layer_norm", False), ("layer_norm", True), ("scale", False)):
        made = FORMS[form].make(bias, groups, width)
        if type(made) is type(part) and made.weights() == part.weights():
            return {"form": form, "bias": bias, "groups": groups, "sizes": [width], **ANYWHERE}
    return None


def _ends(stack: Table) -> Found:
    """What is before the layers of a frame, what is behind them, and what no token runs through."""
    embedding, norm, idle = stack["embedding"], stack["norm"], stack["idle"]
    inner = PLAIN_NORM | {key: norm[key] for key in WITHIN}
    if stack["vocab_size"] is not None or stack["vision"] or stack["audio"]:
        before = {**stack, "head": NO_HEAD, "norm": inner if embedding["norm"] else PLAIN_NORM}
        yield "embedding", _around({**before, "idle": None}), None
    if norm["final"] or stack["head"] | {"tied": False} != NO_HEAD:
        shared = {key: embedding[key] for key in ("extra", "rank", "early")}  # with a head that is tied, or as wide
        behind = {**stack, "embedding": without(embedding) | shared, "positions": UNPLACED}
        behind["norm"] = inner | {key: norm[key] for key in ("final", "final_bias")}
        yield "head", _around(behind | dict.fromkeys(("vision", "audio", "idle"))), None
    if idle is not None:
        yield "idle", _around({**bare(stack, "layer"), "norm": PLAIN_NORM, "idle": idle}), None


def _around(stack: Table) -> Table:
    """A stack around one plain feed-forward, which is not the model's; only a masked-LM head reads its activation."""
    (layer,) = framed(stack)["layer"].values()
    if stack["head"]["form"] != "masked-lm":
        layer["feed_forward"]["activation"] = "gelu"
    return {**framed(stack), "layer": {"layer": {**layer, "norm": PLAIN_NORM}}}


def others(unit: Unit, known: Container[str]) -> Iterator[list[Unit]]:
    """The structure with another activation instead of one of its own, if its key is known, and that one as a leaf."""
    for active in sorted(_active(unit.spec)):
        forms = [form for form in ACTIVATIONS if form not in (active, "none")]
        found = keys(_with(unit.spec, active, ANOTHER), ANOTHER, forms)
        if active != "none":  # a key may say nothing in the place of this one
            found["none"] = _instead(unit, active, "none")[0].key
        yield from (_instead(unit, active, form) for form, key in found.items() if key in known)


def usual(unit: Unit) -> list[Unit]:
    """The same with the first of all activations, if it has one other than this; else []."""
    unusual = sorted(_active(unit.spec) - {ACTIVATIONS[0]})
    return _instead(unit, unusual[0], ACTIVATIONS[0]) if len(unusual) == 1 else []


def _instead(unit: Unit, active: str, other: str) -> list[Unit]:
    """The structure with another activation in the place of one, and this one as a leaf."""
    alone = leaf({"form": active, "sizes": [1024], "bias": False, "groups": 1, **ANYWHERE})
    return [unit._replace(spec=_with(unit.spec, active, other)), alone]


def _active(value: object) -> set[str]:
    """The activations of a description."""
    if not isinstance(value, dict):
        return set()
    inner = (_active(item) for item in value.values())
    return set().union(*inner, [value[key] for key in ("activation", "transform") if value.get(key) in ACTIVATIONS])


def _with(value: object, active: str, other: str) -> Any:
    """A description with another activation in the place of one."""
    if not isinstance(value, dict):
        return value
    changed = {key: other for key in ("activation", "transform") if value.get(key) == active}
    return {key: changed.get(key, _with(item, active, other)) for key, item in value.items()}


def where(said: Table, batch: int, tokens: int, source: int) -> tuple[int, int, int]:
    """Batch, positions and keys of a listed leaf, for those of a text."""
    if said["keys"] == "batch":
        batch, tokens, source = 1, batch, batch
    elif said["keys"] is not None:
        source = _number(said["keys"], tokens)
    if said["at"] is not None:
        tokens = source if said["at"] == "source" else _number(said["at"], tokens)
    return (1 if said["shared"] else batch), tokens, source


def _number(at: list[int], tokens: int) -> int:
    a, b, c, m = (*at, 1)[:4]
    return int(ceil_div(max(0, a * tokens + b), c) * m)
