"""The inverse questions: which models a memory holds, and which shapes spend a budget.

The size of a decoder of equal layers is a + b·L, exactly, in parameters and in bytes. a and b come from the ledgers of
one layer and of two, L is solved in whole numbers, and every shape shown is built and checked: L fits, L + 1 does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any, NamedTuple

from txcalc.errors import Fault, InputError
from txcalc.hardware import Accelerator
from txcalc.ledger import Entry
from txcalc.model import MAX_TOKENS, Model
from txcalc.num import ceil_div
from txcalc.parts.linear import Lookup
from txcalc.planning.engine import Engine, Reserve
from txcalc.planning.engine_memory import EngineMemory, visible
from txcalc.planning.holdings import Holdings
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.roofline import Pace
from txcalc.sources import build, inline

MOST_PARAMS = 10**15


class Card(NamedTuple):
    """Accelerators of a kind, `number` of them; or a memory alone, of which there is no speed."""

    title: str
    memory: int
    number: int = 1
    accelerator: Accelerator | None = None

    @property
    def name(self) -> str:
        one = self.accelerator.name if self.accelerator else self.title
        return one if self.number == 1 else f"{self.number} × {one}"


class Fit(NamedTuple):
    """One model in one format on one kind of accelerators: bytes that the fullest of them needs and has left (below 0:
    is short of), and tokens a second of one sequence at the context, where the bandwidth is known.

    `refused` says why there is no figure; `asked` is the format's name as it was asked for.
    """

    model: str
    params: int
    weights: str
    context: int
    need: int | None
    room: int | None
    refused: str = ""
    card: str = ""
    layout: str = ""
    speed: float | None = None
    asked: str = ""

    @property
    def fits(self) -> bool:
        return self.room is not None and self.room >= 0


def checked_context(context: int) -> int:
    """A context that can be. Errors: `InputError`."""
    if not 1 <= context <= MAX_TOKENS:
        raise InputError("options", [Fault("--context", context, f"a whole number from 1 to {MAX_TOKENS:,}")])
    return context


def need(model: Model, engine: Engine, context: int) -> int:
    """Bytes of the weights, of one sequence's cache and of the largest activations, on one accelerator."""
    (stage,) = Sharding(model).stages(Layout())
    return held(Holdings(model, stage, engine), context)


def held(rank: Holdings, context: int) -> int:
    """Bytes that a rank needs for one sequence."""
    besides = max(rank.activations(context, 1).values()) + sum(rank.rest.values())
    return rank.weights_bytes + rank.pages_bytes(context) + besides


def fits(model: Model, engine: Engine, memory: int, context: int, card: Card | None = None) -> Fit:
    """A model at a context, or at its own longest where that is shorter.

    Several accelerators: tensor parallel where their link is known, else layers by turns (as llama.cpp splits them);
    the other one where the model cannot be cut so.
    """
    length = model.workload(1, min(context, model.context or context)).tokens
    weights, name, number = engine.weights.name, card.name if card else "", card.number if card else 1
    refused = Fit(model.name, model.params, weights, length, None, None, "", name)
    try:
        sharding = Sharding(model)
        layout = _split(sharding, number, bool(card and card.accelerator and card.accelerator.link))
        ranks = [Holdings(model, stage, engine, layout) for stage in sharding.stages(layout)]
        needed = max(held(rank, length) for rank in ranks)
    except InputError as error:
        return refused._replace(refused=str(error))
    room = memory - reserved(engine.reserve, engine.memory, card or Card("", memory)) - needed
    speed = None
    if room >= 0 and card and card.accelerator and ranks[0].caching:
        speed = 1 / step(model, sharding, layout, card.accelerator, engine, ranks, length)
    return refused._replace(need=needed, room=room, layout=str(layout), speed=speed)


def reserved(reserve: Reserve, memory: EngineMemory | None, card: Card) -> int:
    """Bytes of an accelerator that the engine leaves alone, and what it does not see."""
    seen = visible(card.accelerator) if memory and card.accelerator else card.memory
    return card.memory - seen + reserve.of(seen)


def _split(sharding: Sharding, number: int, linked: bool) -> Layout:
    """How a model lies on so many accelerators. Errors: `InputError` where it can be cut in neither way."""
    ways = [Layout(tp=number), Layout(pp=number)]
    for layout in ways if linked else ways[::-1]:
        if not sharding.faults(layout):
            return layout
    raise InputError(
        sharding.model.name, [f"cannot be cut over {number} accelerators", *sharding.faults(ways[not linked])]
    )


def step(
    model: Model,
    sharding: Sharding,
    layout: Layout,
    accelerator: Accelerator,
    engine: Engine,
    ranks: list[Holdings],
    context: int,
) -> float:
    """Seconds of a token of one sequence: achievable, by the roofline; where a peak or the link is not known, the time
    that its reads take at the share of the bandwidth that kernels reach, stages of layers one after the other."""
    try:
        return Pace(model, sharding, layout, accelerator, engine).step(1, context).achievable
    except InputError:
        share, seconds = accelerator.efficiency.memory, 0.0
        tied = bool(next(reversed(model.spec["stacks"].values()))["head"]["tied"])
        for rank in ranks:
            read = sum(size * float(_passed(entry, tied)) for entry, size in rank.weights) + rank.pages_bytes(context)
            seconds += read / accelerator.bandwidth / share * rank.stage.copies
        return seconds


def _passed(entry: Entry, tied: bool) -> Fraction:
    """The share of an entry's weights that one token reads: its experts of all, one row of a table that is no head."""
    if isinstance(entry.leaf, Lookup):
        return Fraction(1) if tied and entry.steps[-1].name == "tokens" else Fraction(1, entry.leaf.rows)
    return min(Fraction(1), Fraction(entry.runs) / entry.times) if entry.routed else Fraction(1)


# Formats that are tried in turn where none is asked for: as published, and what files are commonly made of.
LADDER = ("native", "Q8_0", "Q4_K_M")


def best(found: Iterable[Fit]) -> Fit:
    """Of one model on one card in several formats, the first that fits; or the one that is least short."""
    every = list(found)
    known = [fit for fit in every if fit.room is not None]
    inside = next((fit for fit in every if fit.fits), None)
    return inside or max(known, key=lambda fit: fit.room or 0, default=every[0])


@dataclass(frozen=True)
class Family:
    """Decoders that differ in width and depth only: gated feed-forward, RMSNorm, rotary, no biases, as Llama's.

    vocab    V, rows of the embedding and of the head
    ratio    F/D, then rounded up to a multiple of `multiple`
    gqa      query heads for each key/value head
    d_head   width of a head
    tied     one matrix for embedding and head
    """

    vocab: int = 32_000
    ratio: Fraction = Fraction(8, 3)
    gqa: int = 1
    d_head: int = 128
    tied: bool = False
    multiple: int = 256

    def checked(self) -> Family:
        """Itself. Errors: `InputError` with every size that cannot be."""
        faults: list[Fault | str] = [
            Fault(name, value, f"a whole number from 1 to {most:,}")
            for name, value, most in (
                ("vocab", self.vocab, 10**9),
                ("gqa", self.gqa, 1024),
                ("head", self.d_head, 4096),
            )
            if not 1 <= value <= most
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
        return ceil_div(ceil_div(width * self.ratio.numerator, self.ratio.denominator), self.multiple) * self.multiple  # type: ignore[no-any-return]

    def text(self, layers: int, width: int) -> str:
        """The inline description of one of them."""
        heads = width // self.d_head
        words = f"D={width} L={layers} h={heads} h_kv={heads // self.gqa} d_h={self.d_head} F={self.d_ff(width)}"
        return f"{words} V={self.vocab} {'tied' if self.tied else 'untied'}"

    def model(self, layers: int, width: int) -> Model:
        return build(*inline.read(self.text(layers, width)), spelling=inline.SPELLING)

    def step(self) -> int:
        """What a width must be a multiple of: whole groups of heads, and 256, a tile of matrix products."""
        return lcm(256, self.d_head * self.gqa)

    def widths(self) -> range:
        return range(self.step(), WIDEST + 1, self.step())


WIDEST = 32_768
MOST_LAYERS = 512
# D/L of Llama 7B and 70B is 128 and 102; Kaplan et al. 2020 (arXiv 2001.08361, figure 5) find that it matters little.
SHAPE = 128
RULE = f"D/L nearest to {SHAPE} (by factor), then nearest to the budget, then least cache a token"


def parse_ratio(text: str) -> Fraction:
    """F/D as `3.5` or `8/3`."""
    try:
        ratio = Fraction(text.strip()) if len(text) < 20 else None
    except (ValueError, ZeroDivisionError):
        ratio = None
    if ratio is None:
        raise InputError("--ratio", [Fault("--ratio", text, "F/D such as 3.5 or 8/3")])
    return ratio


class Shape(NamedTuple):
    """A decoder of a family, its figures, and how far from the budget: parameters or bytes left over, with a sign."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    d_ff: int
    params: int
    bytes: int
    cache_per_token: int
    spare: int

    @property
    def fits(self) -> bool:
        return self.spare >= 0


class Line(NamedTuple):
    """a + b·L."""

    start: int
    slope: int

    def at(self, layers: int) -> int:
        return self.start + self.slope * layers


@dataclass(frozen=True)
class Budget:
    """What a design may spend: parameters, or the bytes of an accelerator with an engine and a context."""

    family: Family
    engine: Engine
    context: int | None = None
    params: int | None = None
    memory: int | None = None

    def spent(self, model: Model) -> int:
        """Parameters, or bytes: of the weights, and with a context of one sequence's cache and activations too."""
        if self.params is not None:
            return model.params
        return self.size(model)

    def size(self, model: Model) -> int:
        """Bytes of a model under this budget."""
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
        """What is spent as a function of L."""
        one, two = (self.spent(self.family.model(layers, width)) for layers in (1, 2))
        return Line(2 * one - two, two - one)

    def shape(self, layers: int, width: int) -> Shape:
        """A shape, built, with all its figures."""
        model = self.family.model(layers, width)
        growth: Any = model.ledger().cache_terms.growth
        heads = width // self.family.d_head
        return Shape(
            layers,
            width,
            heads,
            heads // self.family.gqa,
            self.family.d_ff(width),
            model.params,
            self.size(model),
            ceil_div(growth * self.engine.cache_bits, 8),
            self.total - self.spent(model),
        )


def designs(budget: Budget, most: int = 10) -> list[Shape]:
    """The shapes that spend a budget, best first by `RULE`.

    Of memory: for every width the most layers that fit. Of parameters: for every width the depth nearest to them, those
    within 5 % (or the nearest one).
    Errors: `InputError` where not one layer of the narrowest fits.
    """
    found = list(_depths(budget))
    if not found:
        raise InputError("design", [f"not one layer of D = {budget.family.step()} fits into {budget.total:,}"])
    if budget.params is not None:
        near = [item for item in found if abs(item[2]) * 20 <= budget.total]
        found = near or [min(found, key=lambda item: abs(item[2]))]
    found.sort(key=lambda item: (_aspect(item[0], item[1]), abs(item[2])))
    shapes = [budget.shape(layers, width) for layers, width, _ in found[: 2 * most]]
    shapes.sort(key=lambda s: (_aspect(s.layers, s.width), abs(s.spare), s.cache_per_token))
    return shapes[:most]


def _aspect(layers: int, width: int) -> Fraction:
    """How far D/L is from `SHAPE`, as a factor of at least 1."""
    shape = Fraction(width, layers * SHAPE)
    return max(shape, 1 / shape)


def _depths(budget: Budget) -> Iterator[tuple[int, int, int]]:
    """Layers, width and what is left, for every width."""
    for width in budget.family.widths():
        line = budget.line(width)
        left = budget.total - line.start
        if left < line.slope and budget.params is None:
            return  # wider ones are larger still
        deep = left // line.slope
        near = [deep, deep + 1] if budget.params is not None else [deep]
        depths = [layers for layers in near if 1 <= layers <= MOST_LAYERS]
        if not depths:
            if left < 0:
                return
            continue
        layers = min(depths, key=lambda n: abs(budget.total - line.at(n)))
        yield layers, width, budget.total - line.at(layers)


# Depth and width of GPT-2 small, medium and GPT-3 XL, and of Llama 7B, 13B, 33B, 65B.
CLASSIC = ((12, 768), (24, 1024), (24, 2048), (32, 4096), (40, 5120), (60, 6656), (80, 8192))


def classics(budget: Budget) -> list[Shape]:
    """The shapes everybody knows, in this family: which of them fit."""
    return [budget.shape(*shape) for shape in CLASSIC if shape[1] % (budget.family.d_head * budget.family.gqa) == 0]


def boundary(shapes: Iterable[Shape]) -> tuple[Shape | None, Shape | None]:
    """The largest that fits and the smallest that does not."""
    by_size = sorted(shapes, key=lambda s: s.spare, reverse=True)
    inside, outside = [s for s in by_size if s.fits], [s for s in by_size if not s.fits]
    return (inside[-1] if inside else None), (outside[0] if outside else None)
