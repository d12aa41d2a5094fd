"""Sweeps: the part tree over NumPy arrays, millions of points per second, every printed figure an exact integer.

A grid is walked in blocks that fit the CPU cache. Axes that are constant in a block are plain ints, the others arrays;
the formulas do not know the difference. Where an axis decides on structure (layers of each kind, decode step or not,
shared experts or none), blocks are split so that it is constant.

Arrays hold float64, exact while every figure is below 2^53. A figure beyond is computed again in int64, whose sums and
products are exact modulo 2^64; the float gives the missing multiple of 2^64. Where that fails too (or a wrapped number
would be divided), arrays of Python ints are used, slowly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from txcalc.errors import Fault, InputError, MissingExtra, UnknownName
from txcalc.ledger import KINDS, QUANTITIES, Ledger
from txcalc.model import Model
from txcalc.sources import spec
from txcalc.sources.assemble import assemble
from txcalc.sources.expressions import Expression, Unreadable, nearest, size_field, size_of
from txcalc.sources.resolve import resolve
from txcalc.symbols import BY_LETTER
from txcalc.units import bits_of, cache_bits_of, parse_tokens

try:
    import numpy as np
except ImportError:
    raise MissingExtra("a sweep", "numpy", "sweep") from None

BLOCK = 1 << 14  # configurations at a time: a float64 column of 128 KiB, so that a formula's operands stay in the cache
MAX_POINTS = 10**8
MAX_STREAMED = 10**12  # into a Parquet file

# Axes of the workload, by the letters and words people use for them.
WORDS = {"B": "batch", "T": "tokens", "P": "past", "T_src": "source"}
WORKLOAD = {**WORDS, **{word: word for word in WORDS.values()}}
# Bytes of a quantity in elements, at the dtype of weights (0), activations (1) or cache (2).
BYTES = {"weights_bytes": ("params", 0), "saved_bytes": ("saved", 1), "cache_bytes": ("cache", 2)}
COLUMNS = {
    **{name: what for name, what in QUANTITIES.items() if name != "sent"},  # a sweep has no layout
    "weights_bytes": "bytes of all parameters at --dtype",
    "saved_bytes": "saved activations, bytes at --dtype",
    "cache_bytes": "cache bytes per sequence at --kv",
}

# float64: a figure below 2^49 has 16 times the room it needs for the largest number on its way (elements × bits), and
# keys below 2^26 have an exact square. int64: keys below 2^31 have one, and the float is right to a part in 2^20.
FLOAT_FIGURE, FLOAT_KEYS = 2.0**49, 2**26
WRAPPED_FIGURE, WRAPPED_KEYS = 2.0**80, 2**31


class Residues(np.ndarray[Any, Any]):
    """int64 numbers that are valid modulo 2^64 only."""


class SweepAxis(NamedTuple):
    """One `--over`: its name as written, and its values in order."""

    name: str
    values: Sequence[int]

    def take(self, places: Any) -> Any:
        """The values at these places, int64."""
        if isinstance(self.values, range):
            return self.values.start + self.values.step * places
        return np.array(self.values, dtype=np.int64)[places]


_EXAMPLE = "T=1k:1M:2x, D=512:4096:+512 or h=8,16,32"


def parse_axis(text: str) -> SweepAxis:
    """`NAME=a:b:2x` (geometric, b included), `NAME=a:b:+s` (arithmetic) or `NAME=1,2,4`."""
    name, equals, grid = (piece.strip() for piece in text.partition("="))
    if not equals or not name or not grid:
        raise InputError("--over", [Fault("--over", text, "AXIS=GRID", _EXAMPLE)])
    where = f"--over {name}"
    if ":" not in grid:
        return SweepAxis(name, tuple(parse_tokens(item, where) for item in grid.split(",")))
    pieces = grid.split(":")
    if len(pieces) != 3:
        raise InputError(where, [Fault("grid", grid, "start:stop:step", _EXAMPLE)])
    first, last = (parse_tokens(piece, where) for piece in pieces[:2])
    factor = re.fullmatch(r"\s*(\d{1,9})\s*[x×]\s*", pieces[2], re.ASCII)
    step = int(factor[1]) if factor else parse_tokens(pieces[2].strip().removeprefix("+"), where)
    if first > last:
        raise InputError(where, [Fault("grid", grid, "a start that is not above its stop")])
    if factor and (step < 2 or first < 1):
        raise InputError(where, [Fault("grid", grid, "a factor of 2 or more, from 1 or more")])
    if step < 1:
        raise InputError(where, [Fault("grid", grid, "a step above 0")])
    if not factor:
        count = (last - first) // step + 1
        if count > MAX_POINTS:
            raise InputError(where, [Fault("grid", f"{count:,} points", f"at most {MAX_POINTS:,}")])
        return SweepAxis(name, range(first, last + 1, step))
    values = [first]
    while values[-1] * step <= last:
        values.append(values[-1] * step)
    return SweepAxis(name, tuple(values))


class Follower:
    """A size that is an expression in others, of which some vary before it: its own at each point, rounded to the
    nearest whole number."""

    def __init__(self, name: str, expression: Expression, base: Model, before: Sequence[str]) -> None:
        self.name, self.expression = name, expression
        keys = [None if other in WORKLOAD else spec.letter_path(other, base.raw) for other in before]
        paths = {word: spec.letter_path(word, base.raw) for word in expression.names}
        self._columns = {word: keys.index(path) for word, path in paths.items() if path in keys}
        self._fixed = {word: size_of(base.raw, word) for word in paths if word not in self._columns}
        self.uneven = False

    def take(self, columns: Sequence[Any]) -> Any:
        """Its values at the points of a block, int64, computed exactly and once for each combination of sizes."""
        words, read = list(self._columns), [columns[i] for i in self._columns.values()]
        if not read:
            return np.full(len(columns[0]), self._at({}), dtype=np.int64)
        distinct, place = np.unique(np.stack(read), axis=1, return_inverse=True)
        values = [self._at(dict(zip(words, map(int, point), strict=True))) for point in distinct.T]
        return np.array(values, dtype=np.int64)[place.reshape(-1)]

    def _at(self, sizes: Mapping[str, int]) -> int:
        values = {**self._fixed, **sizes}
        try:
            value = self.expression.evaluate(values.__getitem__)
        except Unreadable as error:
            raise InputError("options", [f"{self.name} = {self.expression.text} {error}"]) from None
        self.uneven |= value.denominator != 1
        whole = int(nearest(value))
        if abs(whole) >= 2**62:
            raise InputError("options", [f"{self.name} = {self.expression.text} is {whole:,}, more than any size"])
        return whole


class Sweep:
    """Figures of one model over a grid of its description and its workload.

    `axes` vary the last fastest; `follow` are sizes that are expressions in them. `quantities` are `COLUMNS`, or one of
    them of one kind of part: `params.attention`; `work` what of the workload does not vary (and its conventions, as
    `Model.ledger` takes them). Iterating gives blocks of columns, the axes' and the followers' first: arrays of int64,
    or of Python ints where a number needs more. `places` are what these vary: a workload's field or a dotted key;
    `first` is the ledger of the first point.
    """

    def __init__(
        self,
        base: Model,
        axes: Sequence[SweepAxis],
        quantities: Sequence[str],
        work: Mapping[str, Any] | None = None,
        follow: Mapping[str, Expression] | None = None,
        most: int = MAX_POINTS,
    ) -> None:
        self.base, self.axes, self.quantities, self.work = base, tuple(axes), tuple(quantities), dict(work or {})
        for quantity in self.quantities:
            what, _, kind = quantity.partition(".")
            if what not in COLUMNS:
                raise UnknownName("sweep", "quantity", quantity, list(COLUMNS), f"one of {', '.join(COLUMNS)}")
            if kind and kind not in KINDS:
                raise UnknownName("sweep", "kind of part", kind, KINDS, f"one of {', '.join(KINDS)}")
        self.points = prod(len(axis.values) for axis in self.axes)
        if self.points > most:
            sizes = " × ".join(f"{len(axis.values):,}" for axis in self.axes)
            raise InputError("sweep", [Fault("grid", f"{sizes} = {self.points:,} points", f"at most {most:,}")])
        self.names = [axis.name for axis in self.axes]
        self._kinds = [self._kind(axis.name, _extremes(axis.values)) for axis in self.axes]
        self.followers: list[Follower] = []
        for name, expression in (follow or {}).items():
            self.followers.append(Follower(name, expression, base, self.names))
            self._kinds.append(self._kind(name, ()))
            self.names.append(name)
        self.places = [place for place, _ in self._kinds]
        for first, second in pairwise(sorted(self.places)):
            if first == second:
                raise InputError("sweep", [f"{first} is swept twice"])
        self._last_model: tuple[object, Model] | None = None
        self.first = self._end(0)

    def __iter__(self) -> Iterator[list[Any]]:
        # glibc keeps as much freed memory as the largest array freed so far had (up to 32 MiB), and returns the rest to
        # the system: without this the arrays of every block are paged in again, which doubles the time.
        np.empty(30 << 20, dtype=np.uint8)
        yield from self.between(0, self.points)

    def between(self, first: int, last: int) -> Iterator[list[Any]]:
        """The blocks of the points from `first` up to `last`."""
        for start in range(first, last, BLOCK):
            place = np.arange(start, min(start + BLOCK, last))
            columns: list[Any] = []
            for axis in reversed(self.axes):
                above = place // len(axis.values)  # NumPy divides by a scalar faster than it takes remainders
                columns.insert(0, axis.take(place - above * len(axis.values)))
                place = above
            yield self.at(columns)

    def at(self, axes: list[Any]) -> list[Any]:
        """All columns of points, from those of the axes."""
        columns = self._followed(axes)
        return [*columns, *self._split(columns)]

    def _followed(self, columns: list[Any]) -> list[object]:
        """The axes' columns, then those of the sizes that follow them."""
        for follower in self.followers:
            columns = [*columns, follower.take(columns)]
        return columns

    def _end(self, i: int) -> Ledger:
        return self._ledger(self._followed([np.array([axis.values[i]]) for axis in self.axes]), np.float64)

    def by_kind(self) -> tuple[str, ...]:
        """The quantities apart by kind of part, kinds that are in neither the first point nor the last left out."""
        names, last = list[str](), self._end(-1)
        for quantity in self.quantities:
            what = BYTES[quantity][0] if quantity in BYTES else quantity
            there = {kind for ledger in (self.first, last) for kind in ledger.by_kind(what)}
            names += [f"{quantity}.{kind}" for kind in KINDS if kind in there]
        return tuple(names)

    def _kind(self, name: str, extremes: Sequence[int]) -> tuple[str, str]:
        """Where an axis stands (a workload's field, or a dotted key), and what of it decides on structure: "value" all
        of it, "zero" whether it is 0, "" nothing."""
        if name in WORKLOAD:
            place = WORKLOAD[name]
            for value in extremes:
                lengths: dict[str, Any] = {place: value}
                self.base.workload(**lengths)
            return place, "zero" if place == "past" else ""
        if name == "S":
            raise InputError("--over S", ["S is past + T: sweep T or P"])
        try:
            path = spec.letter_path(name, self.base.raw)
        except UnknownName as error:
            names = [*WORKLOAD, *(letter for letter, symbol in BY_LETTER.items() if symbol.key)]
            hint = "B, T, P, D, L, h, h_kv, F, V, or another size by its key, such as attention.window"
            raise UnknownName(f"--over {name}", "axis", error.name, names, hint) from None
        field = size_field(path)
        if field is None:
            raise InputError(f"--over {name}", [f"{path} is not a size of a description, and cannot be swept"])
        for value in extremes:
            try:
                field.check(value)
            except spec.Wrong as wrong:
                raise InputError(f"--over {name}", [Fault(path, value, wrong.expected)]) from None
        patterned = any(stack.pattern for stack in self.base.stacks)
        if field.check is spec.layers and patterned:
            return path, "value"
        return path, "zero" if field.check is spec.count else ""

    def _split(self, columns: list[Any]) -> list[object]:
        """Figures of a block, cut into parts of one structure each and put together again."""
        keys = [c if kind == "value" else c > 0 for c, (_, kind) in zip(columns, self._kinds, strict=True) if kind]
        if all((key == key[0]).all() for key in keys):
            return self._figures(columns)
        part = np.unique(np.stack(keys), axis=1, return_inverse=True)[1].ravel()  # which NumPy 2.0 gives an axis more
        order = np.argsort(part, kind="stable")
        cuts = np.flatnonzero(np.diff(part[order])) + 1
        parts = [self._figures([column[points] for column in columns]) for points in np.split(order, cuts)]
        back = np.argsort(order)
        return [np.concatenate(column)[back] for column in zip(*parts, strict=True)]

    def _figures(self, columns: list[Any]) -> list[Any]:
        """Figures of configurations of one structure, exact."""
        ledgers: dict[Any, Ledger] = {}

        def read(quantity: str, dtype: object) -> Any:
            if dtype not in ledgers:
                ledgers[dtype] = self._ledger(columns, dtype)
            return _total(ledgers[dtype], quantity)

        def exact(quantity: str) -> Any:
            rough = read(quantity, np.float64)
            if isinstance(rough, int):
                return np.full(len(columns[0]), rough, dtype=np.int64 if rough < 2**63 else object)
            keys, largest = np.max(ledgers[np.float64].work.keys), rough.max()
            if keys < FLOAT_KEYS and largest < FLOAT_FIGURE:
                return rough.astype(np.int64)
            if keys < WRAPPED_KEYS and largest < WRAPPED_FIGURE and quantity.partition(".")[0] != "bytes":
                try:
                    return _unwrap(read(quantity, np.int64), rough)
                except OverflowError:  # a constant of the model needs more than 63 bits
                    pass
            return read(quantity, object)

        def bytes_of(quantity: str, which: int) -> Any:
            elements = exact(quantity)
            wide = elements.dtype == object or elements.max() >= 2**56
            bits = (elements.astype(object) if wide else elements) * self._bits[which]
            return -(-bits // 8)

        def figure(quantity: str) -> Any:
            what, dot, kind = quantity.partition(".")
            if what not in BYTES:
                return exact(quantity)
            elements, which = BYTES[what]
            return bytes_of(elements + dot + kind, which)

        return [figure(quantity) for quantity in self.quantities]

    @property
    def _bits(self) -> tuple[int, int, int]:
        weight = bits_of(self.work.get("dtype", "bf16"))
        return weight, weight, cache_bits_of(self.work.get("kv_dtype", "bf16"))

    def _ledger(self, columns: list[Any], dtype: object) -> Ledger:
        """The ledger of a block; an invalid combination of sizes is found by halving, and named."""
        changes, work = {}, dict(self.work)
        for name, (place, _), column in zip(self.names, self._kinds, columns, strict=True):
            value = int(column[0]) if (column == column[0]).all() else _fitting_column(column, dtype)
            if name in WORKLOAD:
                work[place] = value
            else:
                changes[name] = value
        size = len(columns[0])
        try:
            return self._model(changes).ledger(**work, decoding=bool(np.any(work.get("past", 0))))
        except (InputError, ValueError) as error:
            if size == 1:
                sizes = ", ".join(f"{name} = {int(c[0]):,}" for name, c in zip(self.names, columns, strict=True))
                faults = error.faults if isinstance(error, InputError) else [str(error)]
                raise InputError(f"{self.base.name} at {sizes}", faults) from None
            for half in (slice(0, size // 2), slice(size // 2, size)):
                self._ledger([column[half] for column in columns], dtype)
            raise

    def _model(self, changes: Mapping[str, Any]) -> Model:
        """The model with these keys changed; the last one is kept where nothing varies within a block."""
        key = tuple(changes.values()) if all(type(value) is int for value in changes.values()) else None
        if self._last_model and key is not None and self._last_model[0] == key:
            return self._last_model[1]
        model = self.base
        if changes:
            raw = spec.change_keys(self.base.raw, changes)
            names = dict(zip(self.places, self.names, strict=True))
            resolved = resolve(raw, self.base.origin, names)
            model = Model(self.base.name, assemble(resolved), raw, resolved, self.base.origin)
        self._last_model = (key, model)
        return model


def _extremes(values: Sequence[int]) -> tuple[int, int]:
    ends = (values[0], values[-1]) if isinstance(values, range) else values
    return min(ends), max(ends)


def _total(ledger: Ledger, quantity: str) -> object:
    """A quantity, or that of one kind of part: `params.attention`."""
    what, _, kind = quantity.partition(".")
    return ledger.by_kind(what).get(kind, 0) if kind else ledger.total(what)


def _fitting_column(column: Any, dtype: Any) -> object:
    return column.view(Residues) if dtype is np.int64 else column.astype(dtype)


def meaning(quantity: str) -> str:
    """What a column holds."""
    what, _, kind = quantity.partition(".")
    return f"{COLUMNS[what]}: of {kind.replace('_', ' ')}" if kind else COLUMNS[what]


def _unwrap(residue: Any, rough: Any) -> object:
    """The numbers near `rough` that are `residue` modulo 2^64."""
    residue = residue.view(np.ndarray)
    missing = np.rint((rough - residue) / 2.0**64).astype(np.int64)
    return residue if not missing.any() else residue.astype(object) + missing.astype(object) * 2**64
