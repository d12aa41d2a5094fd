"""Model shapes for a budget of parameters, memory or training FLOPs.

The size of a decoder with repeating layers is exactly a + b·L, in parameters and in bytes. a and b come from the
ledgers of one and of two rounds of layers, L is solved in whole numbers, and every shape is built and checked: L fits,
and one more round does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from math import gcd, isqrt, lcm
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, field

from txcalc.description import StackSpec
from txcalc.errors import Fault, InputError
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.parts.mechanisms import ALL
from txcalc.parts.options import Raw, Table
from txcalc.planning.fitting import need
from txcalc.planning.serving.engine import EngineConfig
from txcalc.sources import build, inline
from txcalc.sources.explicit import cycle, fold_pattern, kinds_in_order, leaves, stretch
from txcalc.sources.expressions import evaluated, size_of
from txcalc.sources.spec import SECTIONS, change_keys
from txcalc.units import number_of

MOST_PARAMS = 10**15
WIDEST = 32_768
MOST_LAYERS = 512


class Family(Protocol):
    """Decoders that differ only in width and depth. Depths are `first` plus any number of rounds of `round` layers."""

    @property
    def first(self) -> int: ...
    @property
    def round(self) -> int: ...
    def model(self, layers: int, width: int) -> Model: ...
    def step(self) -> int: ...
    def widths(self) -> range: ...
    def built(self, layers: int, width: int) -> Raw: ...
    def describe(self) -> list[str]: ...
    def data(self) -> Raw: ...


class DesignFamily(Struct, frozen=True):
    """Decoders like Llama: gated feed-forward, RMSNorm, rotary positions, no biases.

    vocab    V, rows of the embedding and of the head
    ratio    F/D; F is rounded up to a multiple of `multiple`
    gqa      query heads per key/value head
    d_head   width of a head
    tied     one matrix for embedding and head
    """

    vocab: int = 32_000
    ratio: Fraction = Fraction(8, 3)
    gqa: int = 1
    d_head: int = 128
    tied: bool = False
    multiple: int = 256
    first: int = 1
    round: int = 1

    def checked(self) -> DesignFamily:
        """The family. Errors: `InputError` with every size out of range."""
        limits = ("vocab", self.vocab, 10**9), ("gqa", self.gqa, 1024), ("head", self.d_head, 4096)
        faults: list[Fault | str] = [
            Fault(name, value, f"a whole number from 1 to {limit:,}")
            for name, value, limit in limits
            if not 1 <= value <= limit
        ]
        if not 0 < self.ratio <= 64:
            faults.append(Fault("ratio", str(self.ratio), "F/D, above 0 and up to 64"))
        if not faults and self.step() > WIDEST:
            multiple = f"256, head = {self.d_head} and gqa = {self.gqa}"
            faults.append(f"the least multiple of {multiple} is D = {self.step():,}, more than the {WIDEST:,} tried")
        if faults:
            raise InputError("design", faults)
        return self

    def d_ff(self, width: int) -> int:
        return ceil_div(ceil_div(width * self.ratio.numerator, self.ratio.denominator), self.multiple) * self.multiple

    def text(self, layers: int, width: int) -> str:
        """The inline description of a member."""
        heads = width // self.d_head
        words = f"D={width} L={layers} h={heads} h_kv={heads // self.gqa} d_h={self.d_head} F={self.d_ff(width)} gated"
        return f"{words} V={self.vocab} {'tied' if self.tied else 'untied'}"

    def built(self, layers: int, width: int) -> Raw:
        """`Shape.inline` or `Shape.changes`, from which a member is built."""
        return {"inline": self.text(layers, width)}

    def describe(self) -> list[str]:
        """The common sizes of all members, in words."""
        groups = f"GQA with {self.gqa} query heads per KV head" if self.gqa > 1 else "MHA"
        return [
            f"V = {self.vocab:,}{' (tied)' if self.tied else ''}; F = {self.ratio}·D, rounded up to a multiple of "
            f"{self.multiple}; head size {self.d_head}, {groups}; "
            f"D a multiple of {self.step()}"
        ]

    def data(self) -> Raw:
        sizes = {"vocab": self.vocab, "ratio": str(self.ratio), "gqa": self.gqa}
        return sizes | {"d_head": self.d_head, "tied": self.tied}

    def model(self, layers: int, width: int) -> Model:
        return build(*inline.read(self.text(layers, width)), spelling=inline.SPELLING)

    def step(self) -> int:
        """The divisor of all widths: whole groups of heads, and 256, a tile of matrix products."""
        return lcm(256, self.d_head * self.gqa)

    def widths(self) -> range:
        return range(self.step(), WIDEST + 1, self.step())


# Widths that grow with D are rounded up to multiples of 64, or of the largest power of two that divides the model's.
TILE = 64


class ScaledModel(Struct, frozen=True, dict=True):
    """Decoders with the layers of a model: the number of heads and widths grow with D, everything else is unchanged
    (vocabulary, width of a head, experts, low ranks, windows, the order of the layers).

    `sizes` are additional changes by key: numbers, or expressions in the shape's own sizes (`F=8/3*D`).
    Errors: `InputError` if the model is no decoder.
    """

    base: Model
    sizes: Table = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.base.description.kind != "decoder":
            raise InputError(self.base.name, ["is not a decoder: a design has one stack of layers"])
        for key in ("D", "L", "d_model", "n_layers"):
            if key in self.sizes:
                raise InputError("options", [f"{key} cannot be set: the design searches for it"])

    @property
    def stack(self) -> StackSpec:
        return self.base.description.last

    @cached_property
    def order(self) -> list[str]:
        return kinds_in_order(self.stack)

    @cached_property
    def repeats(self) -> bool:
        return len(cycle(self.order)) < len(self.order) or len(self.order) == 1

    @property
    def first(self) -> int:
        """One round; for an order that does not repeat, all layers up to the first of its last kind, which repeats."""
        if self.repeats:
            return len(cycle(self.order))
        return next(i for i in range(len(self.order), 1, -1) if self.order[i - 2] != self.order[-1])

    @property
    def round(self) -> int:
        return len(cycle(self.order)) if self.repeats else 1

    def step(self) -> int:
        """The divisor of all D: whole tiles, and whole heads in proportion."""
        width: int = self.stack.d_model
        heads = [value for path, value in leaves(self.base.raw).items() if _grows(path) == "heads"]
        return lcm(TILE, *(width // gcd(width, number) for number in heads))

    def widths(self) -> range:
        step = self.step()
        if step > WIDEST:
            raise InputError("design", [f"whole heads need a multiple of D = {step:,}, more than the {WIDEST:,} tried"])
        return range(step, WIDEST + 1, step)

    def changes(self, layers: int, width: int) -> Raw:
        """The changes that make a shape of the model: values by dotted path."""
        base: int = self.stack.d_model
        values: Raw = {"d_model": width, "n_layers": layers}
        for path, value in leaves(self.base.raw).items():
            if value and _grows(path) == "heads":
                values[path] = ceil_div(value * width, base)
            elif value and _grows(path) == "width":
                tile = gcd(value, TILE)
                values[path] = ceil_div(value * width, base * tile) * tile
        for name, layer in self.stack.layer.items():
            for section, table in layer.tables.items():
                if _grows(f"{section}.d_head") == "head":
                    options = (self.base.raw.get("layer") or {}).get(name, {})
                    path = f"layer.{name}.{section}" if section in options else section
                    values.setdefault(f"{path}.d_head", table.get("d_head"))
        if not self.repeats:
            values["pattern"] = fold_pattern(stretch(self.order, layers))
        raw = change_keys(self.base.raw, values)
        sizes, _ = evaluated(raw, self.sizes)
        return {**values, **sizes}

    def built(self, layers: int, width: int) -> Raw:
        return {"changes": self.changes(layers, width)}

    def describe(self) -> list[str]:
        depths = f"L = {self.first:,}" if self.round == self.first else f"L from {self.first:,} on"
        rounds = f"; {depths}, in rounds of {self.round:,}" if self.round > 1 else ""
        return [
            f"layers of {self.base.name}, scaled: heads and widths grow with D, all else is kept",
            f"D a multiple of {self.step():,}; other widths multiples of {TILE}, where the model's are{rounds}",
            *([", ".join(f"{key} = {value}" for key, value in self.sizes.items())] if self.sizes else []),
        ]

    def data(self) -> Raw:
        return {"like": self.base.name, "sizes": dict(self.sizes), "multiple": self.step(), "round": self.round}

    def model(self, layers: int, width: int) -> Model:
        raw = change_keys(self.base.raw, self.changes(layers, width))
        raw.pop("undescribed_tower_params", None)  # towers fit only the original model
        for key in ("params", "active", "published"):
            raw.pop(key, None)
        return build(raw, self.base.origin)


def _grows(path: str) -> str:
    """How a key of a table grows with the model's width (`Letter.grows`)."""
    *_, section, key = ["", *path.split(".")]
    field = SECTIONS[section].get(key) if section in ALL else None
    return field.letter.grows if field and field.letter else ""


# D/L of Llama 7B and 70B is 128 and 102; it has little effect (Kaplan et al. 2020, arXiv 2001.08361, figure 5).
SHAPE = 128
RULE = f"D/L nearest to {SHAPE} (in ratio), then nearest to the budget, then least cache per token"


def parse_ratio(text: str) -> Fraction:
    """F/D as `3.5` or `8/3`."""
    try:
        ratio = Fraction(text.strip()) if len(text) < 20 else None
    except (ValueError, ZeroDivisionError):
        ratio = None
    if ratio is None:
        raise InputError("--ratio", [Fault("--ratio", text, "F/D such as 3.5 or 8/3")])
    return ratio


class Shape(Struct, frozen=True, omit_defaults=True):
    """A decoder of a family, its figures, and its inline description, or its changes of a model.

    spare   parameters or bytes left of the budget; below 0: exceeded
    """

    layers: int
    width: int
    heads: int | None
    kv_heads: int | None
    d_ff: int | None
    params: int
    active: int
    bytes: int
    cache_per_token: int
    spare: int
    fits: bool
    inline: str | None = None
    changes: dict[str, Any] | None = None
    train_flops: int | None = None


class Line(NamedTuple):
    """The cost of the first depth, and of each round of layers."""

    start: int
    slope: int

    def at(self, rounds: int) -> int:
        return self.start + self.slope * rounds


class DesignBudget(Struct, frozen=True):
    """The budget of a design: parameters; or bytes of an accelerator, with an engine and a context; or `flops` of
    training, 6·N·D: then `params` are the active parameters N that they allow with D = `tokens`."""

    family: Family
    engine: EngineConfig
    context: int | None = None
    params: int | None = None
    memory: int | None = None
    flops: int | None = None
    tokens: int | None = None

    def spent(self, model: Model) -> int:
        """Parameters, or bytes of the weights and, with a context, of one sequence's cache and activations."""
        if self.params is not None:
            return model.params if self.flops is None else model.active
        return self.size(model)

    def size(self, model: Model) -> int:
        if self.context is not None:
            return need(model, self.engine, self.context)
        return sum(self.engine.weights.bytes_of(entry) for entry in model.ledger())

    @property
    def total(self) -> int:
        if self.params is not None:
            return self.params
        assert self.memory is not None
        return self.memory - self.engine.reserve.of(self.memory)

    def line(self, width: int) -> Line:
        """The cost as a function of the rounds after the first depth."""
        depths = (self.family.first, self.family.first + self.family.round)
        first, second = (self.spent(self.family.model(layers, width)) for layers in depths)
        return Line(first, second - first)

    def shape(self, layers: int, width: int) -> Shape:
        """The shape with all its figures."""
        model = self.family.model(layers, width)
        growth: Any = model.ledger().cache_terms.growth
        spare = self.total - self.spent(model)
        return Shape(
            layers,
            width,
            _size(model, "h"),
            _size(model, "h_kv"),
            _size(model, "F"),
            model.params,
            model.active,
            self.size(model),
            ceil_div(growth * self.engine.cache_bits, 8),
            spare,
            fits=spare >= 0,
            **self.family.built(layers, width),
            train_flops=None if self.tokens is None else 6 * model.active * self.tokens,
        )


def _size(model: Model, letter: str) -> int | None:
    """A size that is equal in all layers that have it; None if there is none, or several."""
    try:
        size: int = size_of(model.raw, letter)
        return size
    except InputError:
        return None


TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022 (arXiv 2203.15556), table 3


def trainable(flops: int, tokens: int | None) -> tuple[int, int]:
    """N and D that spend `flops` of training by 6·N·D: N for the given tokens, or D = 20·N."""
    if tokens is not None:
        return flops // (6 * tokens), tokens
    number = isqrt(flops // (6 * TOKENS_PER_PARAMETER))
    return number, TOKENS_PER_PARAMETER * number


def designs(budget: DesignBudget, most: int = 10) -> list[Shape]:
    """The `most` best shapes for a budget, by `RULE`.

    For memory: for every width the most layers that fit. For parameters: for every width the nearest depth, if within
    5 % of the budget (or the nearest of all).
    Errors: `InputError` if not even one layer of the smallest width fits.
    """
    candidates = list(_depths(budget))
    if not candidates:
        least, width = budget.family.first, budget.family.step()
        given = number_of("byte" if budget.params is None else "parameter", budget.total)
        raise InputError("design", [f"{given} cannot hold {number_of('layer', least)} of D = {width}"])
    if budget.params is not None:
        near = [item for item in candidates if abs(item[2]) * 20 <= budget.total]
        candidates = near or [min(candidates, key=lambda item: abs(item[2]))]
    candidates.sort(key=lambda item: (_aspect(item[0], item[1]), abs(item[2])))
    shapes = [budget.shape(layers, width) for layers, width, _ in candidates[: 2 * most]]
    shapes.sort(key=lambda s: (_aspect(s.layers, s.width), abs(s.spare), s.cache_per_token))
    return shapes[:most]


def _aspect(layers: int, width: int) -> Fraction:
    """The ratio of D/L to `SHAPE`, or its inverse, at least 1."""
    shape = Fraction(width, layers * SHAPE)
    return max(shape, 1 / shape)


def _depths(budget: DesignBudget) -> Iterator[tuple[int, int, int]]:
    """Layers, width and what remains of the budget, for every width."""
    family, refused, possible = budget.family, None, False
    max_rounds = (MOST_LAYERS - family.first) // family.round
    for width in family.widths():
        try:
            line = budget.line(width)
        except InputError as error:
            refused = error  # a fixed size is incompatible with this width
            continue
        possible = True
        spare = budget.total - line.start
        if spare < 0 and budget.params is None:
            return  # larger widths cost more
        deepest = spare // line.slope
        depths = [deepest, deepest + 1] if budget.params is not None else [deepest]
        rounds = [number for number in depths if 0 <= number <= max_rounds]
        if not rounds:
            if spare < 0:
                return
            continue
        number = min(rounds, key=lambda n: abs(budget.total - line.at(n)))
        yield family.first + number * family.round, width, budget.total - line.at(number)
    if refused and not possible:
        raise refused


# Depth and width of GPT-2 small, medium and GPT-3 XL, and of Llama 7B, 13B, 33B, 65B.
CLASSIC = ((12, 768), (24, 1024), (24, 2048), (32, 4096), (40, 5120), (60, 6656), (80, 8192))


def classics(budget: DesignBudget, family: DesignFamily) -> list[Shape]:
    """The shapes of `CLASSIC` in this family."""
    return [budget.shape(*shape) for shape in CLASSIC if shape[1] % (family.d_head * family.gqa) == 0]
