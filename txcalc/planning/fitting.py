"""Which models fit on accelerators, by how much and how fast (`txcalc fit`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from msgspec.structs import replace

from txcalc.errors import Fault, InputError
from txcalc.hardware import Accelerator
from txcalc.model import MAX_TOKENS, Model
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.serving.engine import EngineConfig, Reserve, engine, with_engine
from txcalc.planning.serving.engine_memory import EngineMemory, visible
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.serving.offload import Offload, OffloadRequest, divides
from txcalc.planning.serving.rank_memory import RankBytes


class CardSet(NamedTuple):
    """Accelerators of one kind and their number; or a memory alone, without a speed."""

    title: str
    memory: int
    number: int = 1
    accelerator: Accelerator | None = None

    @property
    def apart(self) -> bool:
        """Whether it has memory of its own, apart from the host's."""
        return self.accelerator is not None and not self.accelerator.unified

    @property
    def name(self) -> str:
        one = self.accelerator.name if self.accelerator else self.title
        return one if self.number == 1 else f"{self.number} × {one}"


class ModelFit(NamedTuple):
    """One model in one format on one set of accelerators, with one sequence at a context.

    need, room   bytes that the fullest accelerator needs and has left (below 0: lacks); None: `refused` says why
    speed        tokens per second of the sequence; None: the bandwidth is not known
    asked        the format's name as the user gave it
    in_ram, ram  what is in the host's RAM, and the bytes left there (below 0: lacking)
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
    in_ram: str = ""
    ram: int | None = None

    @property
    def fits(self) -> bool:
        return self.room is not None and self.room >= 0 and (self.ram is None or self.ram >= 0)


def checked_context(context: int) -> int:
    """A context that can be. Errors: `InputError`."""
    if not 1 <= context <= MAX_TOKENS:
        raise InputError("options", [Fault("--context", context, f"a whole number from 1 to {MAX_TOKENS:,}")])
    return context


def need(model: Model, engine: EngineConfig, context: int) -> int:
    """Bytes of the weights, one sequence's cache and the peak activations, on one accelerator."""
    (stage,) = Sharding(model).stages(Layout())
    return held(RankBytes(model, stage, engine), context)


def held(rank: RankBytes, context: int) -> int:
    """Bytes that a rank needs for one sequence."""
    besides = max(rank.activations(context, 1).values()) + sum(rank.rest.values())
    return rank.weights_bytes + rank.pages_bytes(context) + besides


class FormatFits:
    """One model in one format with one sequence at a context, or at its own longest where that is shorter; `on` any
    accelerators. `whole`: the model's ranks where nothing is in RAM, shared by its formats."""

    def __init__(self, model: Model, engine: EngineConfig, context: int, whole: Sharding | None = None) -> None:
        self.model, self.engine = model, engine
        self.length = model.workload(1, min(context, model.context or context)).tokens
        self.sharding = whole if whole and not engine.offload else Sharding(model, False, engine.offload)
        self.known: dict[Layout, tuple[str, list[RankBytes], int]] = {}

    def on(self, card: CardSet, timed: bool = True) -> ModelFit:
        """Several accelerators: tensor parallel where their link is known, else by layers, as llama.cpp splits them;
        the other way where the model cannot be split so. `timed`: with its speed."""
        model, engine, offload, one = self.model, self.engine, self.engine.offload, card.accelerator
        host = offload.host if offload else None
        name, asked, params = engine.weights.name, engine.asked, model.params
        try:
            layout = self._laid(_split(self.sharding, card.number, bool(one and one.link)))
        except InputError as error:
            return ModelFit(model.name, params, name, self.length, None, None, str(error), card.name, asked=asked)
        said, ranks, needed = self.known[layout]
        room = card.memory - reserved(engine.reserve, engine.memory, card) - needed
        in_ram, left = "", None
        if offload and host:
            in_ram = str(offload)
            left = host.memory - sum(rank.ram(self.length, 1) * rank.stage.copies for rank in ranks)
        known, taken = not (offload and offload.asked) or (host and host.bandwidth), None
        if timed and known and room >= 0 and (left is None or left >= 0) and one and ranks[0].caching:
            taken = step(model, self.sharding, layout, one, engine, self.length)
        speed = 1 / taken if taken else None
        size = model.name, params, name, self.length, needed, room
        return ModelFit(*size, "", card.name, said, speed, asked, in_ram, left)

    def _laid(self, ways: Iterable[Layout]) -> Layout:
        """The first layout that the format and the engine support, with what its fullest rank needs `known`. Errors:
        `InputError`, the first layout's, where there is none."""
        refused: InputError | None = None
        for layout in ways:
            try:
                if layout not in self.known:
                    stages = self.sharding.stages(layout)
                    ranks = [RankBytes(self.model, stage, self.engine, layout) for stage in stages]
                    self.known[layout] = str(layout), ranks, max(held(rank, self.length) for rank in ranks)
                return layout
            except InputError as error:
                refused = refused or error
        assert refused is not None
        raise refused


def fits_with_ram(model: Model, engine: EngineConfig, asked: OffloadRequest, context: int, card: CardSet) -> ModelFit:
    """The same with as little in RAM as makes it fit."""

    def of(offload: Offload, timed: bool = False) -> ModelFit:
        return FormatFits(model, replace(engine, offload=offload), context).on(card, timed)

    def holds(offload: Offload) -> bool:
        return (room := of(offload).room) is not None and room >= 0

    return of(asked.of(model, holds), timed=True)


def reserved(reserve: Reserve, memory: EngineMemory | None, card: CardSet) -> int:
    """Bytes of an accelerator that the engine reserves, or that it or the GPU of a unified memory does not see."""
    one = card.accelerator
    seen = visible(one) if one and (memory or one.unified) else card.memory
    return card.memory - seen + reserve.of(seen)


def _split(sharding: Sharding, number: int, linked: bool) -> Iterator[Layout]:
    """Layouts of a model on `number` accelerators, best first. Errors: `InputError` if there is none."""
    best, *others = _ways(number, sharding.has_experts, linked)
    first = sharding.faults(best)
    if not first:
        yield best
    yield from (left := [layout for layout in others if not sharding.faults(layout)])
    if first and not left:
        raise InputError(sharding.model.name, [f"cannot be cut over {number} accelerators", *first])


@cache
def _ways(number: int, experts: bool, linked: bool) -> list[Layout]:
    """Tensor parallel, the same with expert parallelism, and by layers; without a link in reverse order."""
    ways = [Layout(tp=number), *([Layout(tp=number, ep=number)] if experts else []), Layout(pp=number)]
    return ways if linked else ways[::-1]


def step(
    model: Model, sharding: Sharding, layout: Layout, accelerator: Accelerator, engine: EngineConfig, context: int
) -> float | None:
    """Seconds of a decode step of one sequence, achievable by the roofline. Without a known peak, arithmetic is not
    counted; None without a known link."""
    for counted in (True, False):
        known = accelerator if counted else replace(accelerator, peaks=dict.fromkeys(("fp32", "bf16", "fp16"), 10**24))
        try:
            return LayoutTime(model, sharding, layout, known, engine).step(1, context).achievable
        except InputError:
            continue
    return None


class FitRequest(NamedTuple):
    """The request for every model on every card; `ladder`: stop at the first format that fits."""

    kv: str
    block: int
    chunk: int
    reserve: Reserve | None
    context: int
    formats: Sequence[str]
    ladder: bool
    host: OffloadRequest | None


class ModelFits:
    """A model on one card after the other; what is the same on all of them is made once."""

    def __init__(self, model: Model, asked: FitRequest) -> None:
        self.model, self.asked, self.sharding = model, asked, Sharding(model)
        self.host = asked.host if asked.host and divides(model) else None
        self.known: dict[str, FormatFits | InputError] = {}

    def within(self, name: str) -> FormatFits:
        """The model in a format without a named engine, the same for all cards. Errors: `InputError`."""
        if name not in self.known:
            asked = self.asked
            try:
                plain = engine(self.model, name, asked.kv, asked.block, asked.chunk, asked.reserve)
                self.known[name] = FormatFits(self.model, plain, asked.context, self.sharding)
            except InputError as error:
                self.known[name] = error
        known = self.known[name]
        if isinstance(known, InputError):
            raise known
        return known

    def on(self, card: CardSet, memory: EngineMemory | None) -> list[ModelFit]:
        """The model on a card in every format, offloading to RAM where needed and possible."""
        model, asked = self.model, self.asked
        found = []
        for name in asked.formats:
            try:
                here = self.within(name)
                if memory:
                    own = with_engine(here.engine, model, memory, asked.reserve)
                    here = FormatFits(model, own, asked.context, here.sharding)
                one = here.on(card)
                if self.host and card.apart and not one.fits:
                    one = fits_with_ram(model, here.engine, self.host, asked.context, card)
            except InputError as error:
                size = model.name, model.params, name, asked.context, None, None
                one = ModelFit(*size, str(error), card.name, asked=name)
            found.append(one)
            if asked.ladder and one.fits and not one.in_ram:
                break
        return found


# Formats that are tried in turn unless some are given: as published, and those of most .gguf files.
LADDER = ("native", "Q8_0", "Q4_K_M")


def best(found: Iterable[ModelFit]) -> ModelFit:
    """Of one model on one card in several formats, the first that fits without RAM; else the one that leaves most RAM;
    else the one that lacks least."""
    every = list(found)
    inside = [fit for fit in every if fit.fits]
    if alone := next((fit for fit in inside if not fit.in_ram), None):
        return alone
    known = inside or [fit for fit in every if fit.room is not None]
    return max(known, key=lambda fit: (fit.room if fit.ram is None else fit.ram) or 0, default=every[0])
