"""Structures: a model without its sizes, so that what is proved of one holds for every model that has it.

A structure is a resolved description with letters for its sizes: mechanisms, flags and forms, and which sizes are equal
or derived (h = h_kv·g, an even rotary width). A model has one for its frame (embedding, final norm, head) and one for
each kind of layer; one for the whole where layers read each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import count, islice
from math import isqrt
from typing import Any, NamedTuple

from msgspec.structs import replace

from txcalc.description import Description, LayerSpec, StackSpec, as_tables, map_values
from txcalc.model import Model
from txcalc.num import whole
from txcalc.parts.attention import AttentionOptions
from txcalc.parts.embedding import EmbeddingOptions
from txcalc.parts.feedforward import FeedForwardOptions
from txcalc.parts.forms import FORMS
from txcalc.parts.head import HeadOptions
from txcalc.parts.mixers.pieces import Pieces
from txcalc.parts.options import FreeSize, Options, Raw, Table
from txcalc.parts.positions import DisentangledPositions, PositionsOptions
from txcalc.sources.assemble import assemble
from txcalc.sources.spec import SECTIONS, real

# The tables of a stack whose sizes have letters of their own; other tables are the layers'.
STACK = ("embedding", "head", "lora", "features", "vision", "audio")
ANY = {"theta": 10000.0, "eps": None}  # numbers that change no shape and no operator
# Values that every structure's key includes for a table, also where its form has no such keys: earlier versions had
# them in all forms, and stored theorems must keep their keys.
NAMED: dict[str, Raw] = {
    "positions": {"theta": 10000.0, "buckets": 32, "distance": 128, "terms": ["c2p", "p2c"]},
    "head": {"transform_bias": True, "pool": "first"},
}
LEAF, FRAME, WHOLE = "leaf", "frame", "whole"
SIZED = "at its sizes"
NO_HEAD = HeadOptions.of({
    "form": "none", "pooler": False, "pairs": None, "pool": "first", "tied": False, "norm": False, "pool_norm": False,
})  # fmt: skip
ONE = {"name": LEAF, "kind": "other", "times": 1, "runs": 1}  # of a leaf that stands for all copies
WAVES = ("sinusoidal", "relative-projection")  # sines and cosines of as many angles each


class Size(NamedTuple):
    """A sum of products of parameters: 2·r + s is ((2, ("r",)), (1, ("s",)))."""

    terms: tuple[tuple[int, tuple[str, ...]], ...]

    def over(self, values: Table) -> Any:
        """The size at parameters: ints, symbols, or anything that adds and multiplies."""
        result: Any = 0
        for number, factors in self.terms:
            product: Any = number
            for factor in factors:
                product = product * values[factor]
            result = result + product
        return result

    def __str__(self) -> str:
        return " + ".join("·".join((*([str(n)] if n != 1 else []), *factors)) for n, factors in self.terms)


def fingerprint(content: object) -> str:
    """The first 16 digits of the SHA-256 of what JSON can hold."""
    return sha256(json.dumps(content, sort_keys=True))[:16]


def sha256(text: str) -> str:
    """The SHA-256 of a text, in hexadecimal digits."""
    return str(_sha256()(text.encode()).hexdigest())


def keys(unit: Unit, word: str, words: Iterable[str]) -> dict[str, str]:
    """The keys of a structure with `word` replaced by each of `words`; its content is written out once for all."""
    text = json.dumps(_compact(unit.content), sort_keys=True)
    return {name: sha256(text.replace(f'"{word}"', f'"{name}"'))[:16] for name in words}


@cache
def _sha256() -> Any:
    """Python's own, as `random` takes it: hashlib loads OpenSSL, which takes longer than all that is looked up here."""
    for name in ("_sha2", "_sha256"):  # from 3.12 on, and before
        with suppress(ImportError):
            return import_module(name).sha256
    return import_module("hashlib").sha256


class Unit(NamedTuple):
    """A part of a model that has a theorem of its own: the description of that part alone, with `Size`s for its sizes;
    and the model's value of each parameter. `piece` is the table of a listed leaf."""

    name: str
    description: Description
    values: dict[str, int]
    piece: Raw | None = None

    @property
    def content(self) -> Raw:
        """The description and the piece as plain tables."""
        result: Raw = as_tables(self.description)
        if self.piece is not None:
            result[LEAF] = self.piece
        return result | {SIZED: True} if self.name == SIZED else result

    @property
    def key(self) -> str:
        """The key of its structure. Options that are absent are left out, so that a new option changes no key."""
        return fingerprint(_compact(self.content))

    def over(self, values: Table) -> Any:
        """The tree of parts at other sizes."""
        if self.piece is not None:
            return Pieces(pieces=(_substitute(self.piece, values) | ONE,))
        return assemble(map_values(self.description, lambda _, value: _substitute(value, values)))

    @property
    def plain(self) -> Description:
        """The description at the model's own sizes."""
        return map_values(self.description, lambda _, value: _substitute(value, self.values))

    @property
    def plain_piece(self) -> Raw:
        """The table of a listed leaf at the model's own sizes."""
        piece: Raw = _substitute(self.piece, self.values)
        return piece

    @property
    def listed(self) -> bool:
        """Whether it is a listed leaf."""
        return self.piece is not None


class _Parameters:
    """The parameters of one structure: a size that is another's multiple, or even, is so by construction; equal values
    of one letter are one parameter, since constructors may rely on it."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    def parameter(self, letter: str, value: int) -> Size:
        if value < 2:  # a size of 1 broadcasts: it is a structure of its own
            return _constant(value)
        names = (letter if i == 1 else f"{letter}{i}" for i in range(1, 100))
        name = next(n for n in names if self.values.setdefault(n, value) == value)
        return Size(((1, (name,)),))

    def remainder(self, letter: str, value: int) -> Size:
        """The difference of a size from a smaller one, even by construction where it is even."""
        if value % 2 or value < 4:
            return self.parameter(letter, value)
        return _times(_constant(2), self.parameter(f"{letter}/2", value // 2))

    def size(self, section: str, key: str, value: int, table: Options) -> Size:
        letter = _letters(section)[key]
        if of := letter.of:
            least = table.get(of)
            if whole(least) and least > 1 and value % least == 0:
                base = self.size(section, of, least, table)
                return base if value == least else _times(base, self.parameter(f"{section}.{key}/{of}", value // least))
        if (part := letter.contains) and (contained := table.get(part)) < value:
            base = self.size(section, part, contained, table)
            return _plus(base, self.remainder(f"{section}.{key}-{part}", value - contained))
        if letter.chosen and whole(count := table.get(letter.chosen)) and count > 1:
            base = self.parameter(f"{section}.{letter.chosen}", count)
            return base if value == count else _plus(base, self.parameter(f"{section}.idle", value - count))
        if isinstance(table, StackSpec) and (heads := _direct(table)) and key == "d_model":
            sides = {"n_heads": heads.n_heads, "d_head": heads.d_head}
            if sides["n_heads"] * sides["d_head"] == value:
                return _times(*(self.size("attention", side, number, heads) for side, number in sides.items()))
        name = letter.same or (f"{section}.{key}" if section else key)
        if letter.even and value == 2:  # nothing less is even
            return _constant(value)
        divisor = _divisor(section, key, table)
        if divisor > 1 and value % divisor == 0 and value > divisor:
            return _times(_constant(divisor), self.parameter(f"{name}/{divisor}", value // divisor))
        return self.parameter(name, value)


@cache
def _letters(section: str) -> dict[str, FreeSize]:
    """The sizes of a table over which theorems hold; the other sizes are part of the structure."""
    return {key: field.letter for key, field in SECTIONS[section].items() if field.letter}


def _divisor(section: str, key: str, table: Options) -> int:
    """The divisor that a size must have: 2 for rotated halves, or the number of parts that it is cut into."""
    if _letters(section)[key].even:
        return 2
    if (section, key) == ("positions", "rows"):
        return 2 if table.get("form") == "disentangled" else 1
    if isinstance(table, StackSpec) and key == "d_model":
        return 2 if table.positions.form in WAVES else 1
    divisor = _letters(section)[key].cut
    return int(table.get(divisor) or 1) if divisor else 1


def _direct(stack: StackSpec) -> AttentionOptions | None:
    """Attention without o, whose heads together are as wide as the model."""
    return next((attention for attention in stack.attentions if attention.direct), None)


def _constant(value: int) -> Size:
    return Size(((value, ()),))


def _times(left: Size, right: Size) -> Size:
    return Size(tuple((a * b, (*x, *y)) for a, x in left.terms for b, y in right.terms))


def _plus(left: Size, right: Size) -> Size:
    return Size((*left.terms, *right.terms))


def units(model: Model) -> list[Unit]:
    """The structures of a model, each once."""
    return list({unit.key: unit for unit in pieces(model)}.values())


def with_numbers(model: Model) -> Unit:
    """A whole model as a structure in which every size is a number; evidence for this model alone is stored under its
    key."""
    stacks = {half: map_values(stack.replace(pattern=None), _plain) for half, stack in model.description.stacks.items()}
    return Unit(SIZED, Description.joined(model.description.kind, stacks), {})


def listed_leaves(model: Model) -> Iterator[Table]:
    """The leaves that a description lists one by one."""
    for stack in model.stacks:
        yield from stack.around
        for layer in stack.layer.values():
            yield from layer.leaves


def pieces(model: Model) -> list[Unit]:
    """A model's frame and each kind of its layers, or the whole where these are not separable; and each listed leaf.
    Structures without any other leaf are left out."""
    if leaves := [leaf(piece) for piece in listed_leaves(model)]:
        return [unit for unit in _parts(model) if any(True for _ in unit.over(unit.values).leaves())] + leaves
    return _parts(model)


def _parts(model: Model) -> list[Unit]:
    description = model.description
    stacks, kind = {half: _without_listed_leaves(stack) for half, stack in description.stacks.items()}, description.kind
    if len(stacks) > 1 or not _splits_first(description.last):
        return [with_letters(WHOLE, {half: _thin(stack) for half, stack in stacks.items()}, kind)]
    stack = stacks[""]
    around = stack.vocab_size is not None or stack.norm.final
    frame = with_letters(FRAME, {"": frame_of(stack)}, kind) if around else None
    layers = [with_letters(layer_name(name), {"": single_layer(stack, name)}, kind) for name in stack.layer]
    return [*([frame] if frame else []), *layers]


def layer_name(name: str) -> str:
    """The name of the structure of a kind of layer."""
    return "layer" if name == "layer" else f"layer {name}"


def _without_listed_leaves(stack: StackSpec) -> StackSpec:
    """A stack without the leaves that it lists."""
    layers = dict(stack.layer)
    for name, layer in layers.items():
        if "pieces" in layer.parts:
            layers[name] = replace(layer, tables={**layer.tables, "pieces": layer.options("pieces").replace(leaves=[])})
    return stack.replace(around=[], layer=layers)


def leaf(piece: Table) -> Unit:
    """A leaf with a letter for each of its sizes, and for the numbers of `at` and `keys`. Its copies and runs belong to
    the list: the ledger multiplies by them, as by the number of layers."""
    naming, (names, _, _, divided) = _Parameters(), FORMS[piece["form"]]

    def letter(name: str, value: int) -> Size:
        size = naming.parameter(f"{LEAF}.{name}", abs(value))
        return _times(_constant(-1), size) if value < 0 else size

    def positions(name: str) -> Any:
        at = piece[name]
        return [letter(f"{name}.{i}", number) for i, number in enumerate(at)] if isinstance(at, list) else at

    groups = letter("groups", piece["groups"])
    sizes = [
        _times(groups, letter(name, size // piece["groups"])) if name in (divided or ()) else letter(name, size)
        for name, size in zip(names, piece["sizes"], strict=True)
    ]
    table = {name: piece[name] for name in ("form", "bias", "shared")} | {"groups": groups, "sizes": sizes}
    table |= {name: positions(name) for name in ("at", "keys")}
    return Unit(f"{LEAF} {piece['form']}", Description.joined(LEAF, {}), naming.values, table)


def _splits_first(stack: StackSpec) -> bool:
    """Whether layers and frame of a stack have theorems of their own first."""
    return separable(stack) and not (stack.vision or stack.audio or stack.around) and stack.head.form in ("lm", "none")


def separable(stack: StackSpec) -> bool:
    """Whether layers and frame of a stack read nothing of each other but the residual stream."""
    shared = any(attention.kv_from is not None for attention in stack.attentions)
    odd = stack.streams is not None or stack.contacts or stack.features or stack.shared_layers or shared
    odd = odd or any(layer.tables.keys() & {"layer_input", "shared"} for layer in stack.layer.values())
    form = stack.positions.form
    tables = form in ("relative", "disentangled") or (form == "rotary" and stack.positions.get("rows") is not None)
    return not odd and not tables and stack.head.get("pool") != "attention"


def _thin(stack: StackSpec) -> StackSpec:
    """One layer of each kind, in the order in which they come; and the number of all if a figure depends on it."""
    groups = [(name, (i,)) for i, (name, _) in enumerate(stack.groups)]
    if stack.tables("layer_input") or stack.contacts:
        return stack.replace(groups=groups, n_layers=len(groups), whole_layers=stack.n_layers)
    return stack.replace(groups=groups, n_layers=len(groups))


def _single(stack: StackSpec, layer: LayerSpec) -> StackSpec:
    """A stack of one layer, without options that concern all layers."""
    positions = without_rotation(stack.positions)
    return stack.replace(layer={"layer": layer}, groups=[("layer", (0,))], n_layers=1, length=None, positions=positions)


def frame_of(stack: StackSpec) -> StackSpec:
    """The frame around one plain feed-forward instead of the layers, with their activation, which a head may read."""
    first = next(iter(stack.layer.values())).feed_forward
    plain = FeedForwardOptions.of({
        "activation": first.activation if first else "gelu", "bias": False, "d_ff": 7 * 64,
        "down_bias": False, "gated": False, "inner_norm": False, "sparsity": None,
    })  # fmt: skip
    norm = stack.norm.replace(joint=[], after=[], without=[], parallel="no", place="pre")
    layer = LayerSpec(["feed_forward"], norm, without_rotation(stack.positions), {"feed_forward": plain})
    return _single(stack, layer).replace(laurel=None, lora=None)


def single_layer(stack: StackSpec, name: str) -> StackSpec:
    """One layer of a kind, of a model without a vocabulary."""
    layer = stack.layer[name]
    return _single(stack, replace(layer, norm=layer.norm.replace(final=False))).replace(
        norm=stack.norm.replace(final=False),
        head=NO_HEAD,
        embedding=without_operations(stack.embedding),
        **dict.fromkeys(("vocab_size", "vision", "audio", "idle")),
    )


def without_rotation(places: PositionsOptions) -> PositionsOptions:
    """The positions of layers without heads to rotate."""
    return places.replace(rotary_dims=None) if "rotary_dims" in places.declared else places


def without_operations(embedding: EmbeddingOptions) -> EmbeddingOptions:
    """An embedding without any operation."""
    nothing = dict.fromkeys(("types", "rank", "scale"))
    return embedding.replace(**nothing, tables=[], norm=False, early=False, shared=True, extra=0)


def with_letters(name: str, stacks: Mapping[str, StackSpec], kind: str) -> Unit:
    """The structure of a description."""
    naming = _Parameters()
    description = Description.joined(kind, {half: _stack_with_letters(stack, naming) for half, stack in stacks.items()})
    return Unit(name, description, naming.values)


def _stack_with_letters(stack: StackSpec, naming: _Parameters) -> StackSpec:
    """A stack with `Size`s, and without what costs nothing: floats, the layers' pattern."""
    result = stack.replace(pattern=None, **_sizes("", stack, _letters(""), naming))
    if stack.whole_layers is not None and whole(stack.whole_layers):  # recorded numbers stay
        result = result.replace(whole_layers=naming.parameter("n_layers", stack.whole_layers))
    for section in (*STACK, "positions"):
        table: Options | None = vars(stack)[section]
        if section == "vision" and stack.projector and stack.projector.steps:
            continue  # steps read so many positions of the picture
        if table is not None:
            letters = ("rows",) if section == "positions" else _letters(section)
            result = result.replace(**{section: table.replace(**_sizes(section, table, letters, naming))})
    tables = [[naming.parameter("embedding.tables", rows), reads] for rows, reads in stack.embedding.tables]
    layers = {name: _lettered_layer(layer, naming) for name, layer in stack.layer.items()}
    return map_values(result.replace(embedding=result.embedding.replace(tables=tables), layer=layers), _plain)


def _lettered_layer(layer: LayerSpec, naming: _Parameters) -> LayerSpec:
    tables = dict(layer.tables)
    for section, table in tables.items():
        tables[section] = table.replace(**_sizes(section, table, _letters(section), naming, layer))
    norm = layer.norm.replace(**_sizes("norm", layer.norm, _letters("norm"), naming))
    places = layer.positions
    places = places.replace(**_sizes("positions", places, _letters("positions"), naming, layer))
    return replace(layer, norm=norm, positions=places, tables=tables)


def _sizes(
    section: str, table: Options, keys: Iterable[str], naming: _Parameters, layer: LayerSpec | None = None
) -> Raw:
    """The `Size`s of a table, and one value for all numbers that cost nothing."""
    numbers = {key: value for key, value in table.values().items() if whole(value)}
    sizes: Raw = {key: naming.size(section, key, numbers[key], table) for key in keys if numbers.get(key, 0) > 0}
    if isinstance(table, AttentionOptions) and layer and "d_head" in sizes:
        places, width = layer.positions, numbers["d_head"]
        rotated = places.get("rotary_dims")
        if whole(rotated) and 2 <= rotated < width:  # part of a head, so that there is a rest
            base = naming.size("positions", "rotary_dims", rotated, places)
            sizes["d_head"] = _plus(base, naming.remainder("attention.d_head-rotary", width - rotated))
    if isinstance(table, DisentangledPositions) and 2 * table.distance == table.rows:
        sizes["distance"] = naming.parameter("positions.rows/2", numbers["distance"])  # a row for each on either side
    if section == "positions" and "side" in numbers:
        sizes["side"] = naming.parameter("vision.image/patch", numbers["side"])
    heads = layer.attention if section == "positions" and layer else None
    if "rotary_dims" in sizes and heads and whole(heads.d_head) and numbers["rotary_dims"] == heads.d_head:
        sizes["rotary_dims"] = naming.size("attention", "d_head", heads.d_head, heads)
    reals = [key for key, field in SECTIONS[section].items() if field.check is real]
    sizes |= {key: 0.5 for key in reals if numbers.get(key, 0) > 1}
    return sizes | {"scale": None} if section in ("attention", "latent") else sizes


def _plain(key: str, value: object) -> object:
    """A value with one number for all that are no sizes: a scale, a base of rotary angles, the ε of a norm."""
    if key in ANY:
        return ANY[key]
    if isinstance(value, dict):
        return {name: _plain(name, item) for name, item in value.items()}
    if isinstance(value, float):
        return 0.5
    if isinstance(value, list):
        return [_plain("", item) for item in value]
    if isinstance(value, tuple | range) and not isinstance(value, Size):
        return tuple(_plain("", item) for item in value)
    return value


def _compact(value: object, section: str = "") -> object:
    """A description without what is off or absent; `Size`s as they are written."""
    if isinstance(value, Size):
        return str(value)
    if isinstance(value, dict):
        off: tuple[Any, ...] = (None, False, "none", "no", [], {})
        present = ((key, item) for key, item in value.items() if item is not None and item is not False)
        values = (
            (key, {**NAMED[key], **item} if key in NAMED and isinstance(item, dict) else item) for key, item in present
        )
        return {
            key: text
            for key, item in values
            if (text := _compact(item, key)) not in off or (text == "none" and key in _choosing(section))
        }
    if isinstance(value, list | tuple):
        return [_compact(item) for item in value]
    return value


@cache
def _choosing(section: str) -> list[str]:
    """The keys of a table for which "none" differs from an absent value."""
    keys = SECTIONS.get(section, {}).items()
    return [key for key, field in keys if field.default is None and "none" in getattr(field.check, "choices", ())]


def _substitute(value: object, values: Table) -> Any:
    if isinstance(value, Size):
        return value.over(values)
    if isinstance(value, dict):
        return {key: _substitute(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, values) for item in value]
    return value


def probe(unit: Unit) -> dict[str, int]:
    """Sizes at which modules are run: a prime of its own for each parameter, the smallest for a listed window, so that
    sequences are longer than the window."""
    return _primes(unit, 11)


# Where a probe's primes begin; its batch, tokens and encoder positions.
PROBES = ((11, (2, 7, 5)), (5003, (3, 17, 13)), (1_000_003, (19, 29, 23)))


def probes(unit: Unit) -> Iterator[tuple[dict[str, int], tuple[int, int, int]]]:
    """Sizes at which formulas over different letters are compared, each with batch, tokens and encoder positions."""
    return ((_primes(unit, start), lengths) for start, lengths in PROBES)


def _primes(unit: Unit, start: int) -> dict[str, int]:
    names = sorted(unit.values, key=lambda name: (name != f"{LEAF}.window", name))
    return dict(zip(names, primes_from(start, len(names)), strict=True))


@cache
def primes_from(start: int, number: int) -> tuple[int, ...]:
    return tuple(islice((n for n in count(start) if all(n % d for d in range(2, isqrt(n) + 1))), number))
