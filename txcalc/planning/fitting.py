"""Which models fit on accelerators, by how much and how fast (`txcalc fit`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from txcalc.errors import Fault, InputError
from txcalc.hardware import Accelerator
from txcalc.model import MAX_TOKENS, Model
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.serving.deployment import Planner, choices, with_offload
from txcalc.planning.serving.engine import EngineConfig, Reserve, engine as engine_config, on_accelerator
from txcalc.planning.serving.engine_memory import EngineMemory
from txcalc.planning.serving.engine_profiles import engines_for, is_personal
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.serving.offload import OffloadRequest, is_single_decoder
from txcalc.planning.serving.points import Slo, request
from txcalc.planning.serving.rank_memory import RankBytes
from txcalc.planning.serving.sizing import Sizing


class CardSet(NamedTuple):
    """Accelerators of one kind and their number; `bare`: only a memory size, without a speed."""

    accelerator: Accelerator
    number: int = 1
    bare: bool = False

    @property
    def name(self) -> str:
        name = self.accelerator.name
        return name if self.number == 1 else f"{self.number} × {name}"


class ModelFit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model in one format on one set of accelerators, with one sequence at a context.

    asked            the format's name as the user gave it
    need_bytes       bytes that the fullest accelerator needs; `room_bytes`: bytes left on it (below 0: missing)
    short_bytes      bytes missing on it or in RAM; None, as the two before, if `refused`
    tokens_per_s     of the sequence; None if the bandwidth is not known
    in_ram           the part of the model in host RAM; `ram_free_bytes`: bytes left there (below 0: missing)
    best             whether it is the format to choose of several for the model on these accelerators
    engine           the engine whose memory this is, if one is named or is the format's default
    kind             the model's: decoder, encoder …
    listed           a language model that an engine runs; --all and CSV include others
    known            for a measured module, how and where the figures are known
    """

    model: str
    params: int
    weights: str
    asked: str
    gpu: str
    layout: str
    context: int
    fits: bool
    need_bytes: int | None
    room_bytes: int | None
    short_bytes: int | None
    tokens_per_s: float | None
    in_ram: str | None = None
    ram_free_bytes: int | None = None
    refused: str | None = None
    best: bool = False
    engine: str = ""
    kind: str = ""
    listed: bool = True
    known: dict[str, str] | None = None

    @classmethod
    def refusal(cls, model: Model, weights: str, asked: str, gpu: str, context: int, why: str) -> ModelFit:
        return cls(
            model=model.name, params=model.params, weights=weights, asked=asked, gpu=gpu, layout="", context=context,
            fits=False, need_bytes=None, room_bytes=None, short_bytes=None, tokens_per_s=None, refused=why,
            kind=model.kind, listed=_is_usual(model),
        )  # fmt: skip


def _is_usual(model: Model) -> bool:
    """Whether the table has a model without --all."""
    return model.kind in ("decoder", "recurrent", "hybrid") and bool(engines_for(model))


def shortage(room: int, ram_free: int | None) -> int:
    """Bytes missing on an accelerator or in RAM, from the bytes left on both; 0 if it fits."""
    return max(0, -room, -(ram_free or 0))


def checked_context(context: int) -> int:
    """The context. Errors: `InputError` if it is out of range."""
    if not 1 <= context <= MAX_TOKENS:
        raise InputError("options", [Fault("--context", context, f"a whole number from 1 to {MAX_TOKENS:,}")])
    return context


def need(model: Model, engine: EngineConfig, context: int) -> int:
    """Bytes of the weights, one sequence's cache and the peak activations, on one accelerator."""
    (stage,) = Sharding(model).stages(Layout())
    return needed_bytes(RankBytes(model, stage, engine), context)


def needed_bytes(rank: RankBytes, context: int) -> int:
    """Bytes that a rank needs for one sequence."""
    temporaries = max(rank.activations(context, 1).values()) + sum(rank.overheads.values())
    return rank.weights_bytes + rank.pages_bytes(context) + temporaries


class FormatFits:
    """One model in one format with one sequence of a length. `whole`: the sharding without offloading, which formats
    share."""

    def __init__(self, model: Model, engine: EngineConfig, length: int, whole: Sharding | None = None) -> None:
        self.model, self.engine, self.length = model, engine, length
        self.sharding = whole if whole and not engine.offload else Sharding(model, False, engine.offload)
        self.single: tuple[list[RankBytes], int] | None = None  # of one accelerator, which kinds of them share

    def on(self, card: CardSet) -> ModelFit:
        """The fit on a set of accelerators, in the layout that `deploy` takes for one user."""
        model, engine, offload, kind = self.model, self.engine, self.engine.offload, card.accelerator
        host = offload.host if offload else None
        name = engine.weights.name
        try:
            layout, ranks, needed = self._in_best_layout(card)
        except InputError as error:
            return ModelFit.refusal(model, name, engine.weights_name, card.name, self.length, str(error))
        room = engine.reserve.available(kind) - needed
        ram_free = None
        if host:
            ram_free = host.memory - sum(rank.ram(self.length, 1) * rank.stage.copies for rank in ranks)
        short = shortage(room, ram_free)
        bandwidth_known, seconds = not (offload and offload.cuts) or (host and host.bandwidth), None
        if bandwidth_known and not short and not card.bare and ranks[0].caching:
            seconds = step(model, self.sharding, layout.replica, kind, engine, self.length)
        return ModelFit(
            model=model.name,
            params=model.params,
            weights=name,
            asked=engine.weights_name,
            gpu=card.name,
            layout=str(layout),
            context=self.length,
            fits=not short,
            need_bytes=needed,
            room_bytes=room,
            short_bytes=short,
            tokens_per_s=1 / seconds if seconds else None,
            in_ram=str(offload) if host else None,
            ram_free_bytes=ram_free,
            engine=str(engine.memory.profile) if engine.memory else "",
            kind=model.kind,
            listed=_is_usual(model),
        )

    def _in_best_layout(self, card: CardSet) -> tuple[Layout, list[RankBytes], int]:
        """The layout, a rank of each of its stages, and the bytes that the fullest needs. Errors: `InputError`."""
        if card.number > 1:
            planner = Planner(self.model, card.accelerator, self.engine)
            sizing = Sizing(planner, request(self.length), self.length, 1, Slo(), {})
            layouts = sizing.ranked(card.number) or choices(planner, card.number, self.length, 1, {})
            ranks = list(planner.ranks(layouts[0].layout))
            return layouts[0].layout, ranks, max(needed_bytes(rank, self.length) for rank in ranks)
        if self.single is None:
            ranks = [RankBytes(self.model, stage, self.engine) for stage in self.sharding.stages(Layout())]
            self.single = ranks, needed_bytes(ranks[0], self.length)
        return Layout(), *self.single


def step(
    model: Model, sharding: Sharding, layout: Layout, accelerator: Accelerator, engine: EngineConfig, context: int
) -> float | None:
    """Seconds of a decode step of one sequence, achievable by the roofline. Without a known peak, arithmetic is not
    counted; None without a known link."""
    without_arithmetic = replace(accelerator, peaks=dict.fromkeys(("fp32", "bf16", "fp16"), 10**24))
    for candidate in (accelerator, without_arithmetic):
        try:
            return LayoutTime(model, sharding, layout, candidate, engine).step(1, context).achievable
        except InputError:
            continue
    return None


class FitRequest(NamedTuple):
    """The options that hold for every model and card.

    engine_named   whether an engine is named, or none
    ladder         stop at the first format that fits
    """

    engine_named: bool
    kv: str
    block: int
    chunk: int
    reserve: Reserve | None
    context: int
    formats: Sequence[str]
    ladder: bool
    host: OffloadRequest | None


class ModelFits:
    """A model on several cards, with one sequence at a context, or at the model's longest if that is shorter; what does
    not depend on the card is computed once."""

    def __init__(self, model: Model, request: FitRequest) -> None:
        self.model, self.request, self.sharding = model, request, Sharding(model)
        self.length = model.workload(1, min(request.context, model.context or request.context)).tokens
        self.host = request.host if request.host and is_single_decoder(model) else None
        self.by_format: dict[str, FormatFits | InputError] = {}

    def within(self, name: str) -> FormatFits:
        """The model in a format without a named engine, for all cards. Errors: `InputError`."""
        if name not in self.by_format:
            request = self.request
            try:
                plain = engine_config(self.model, name, request.kv, request.block, request.chunk, request.reserve)
                self.by_format[name] = FormatFits(self.model, plain, self.length, self.sharding)
            except InputError as error:
                self.by_format[name] = error
        fits = self.by_format[name]
        if isinstance(fits, InputError):
            raise fits
        return fits

    def on(self, card: CardSet, memory: EngineMemory | None) -> list[ModelFit]:
        """The model on a card in every format, offloading to RAM if needed and possible; `memory`: of the named engine,
        or of one that is the default of some formats."""
        personal, discrete = is_personal(card.accelerator), not (card.bare or card.accelerator.unified)
        model, request = self.model, self.request
        fits = []
        for name in request.formats:
            try:
                format_fits = self.within(name)
                engine_named = request.engine_named
                config = on_accelerator(format_fits.engine, model, memory, request.reserve, engine_named, personal)
                if config is not format_fits.engine:
                    format_fits = FormatFits(model, config, self.length, format_fits.sharding)
                fit = format_fits.on(card)
                if self.host and discrete and not fit.fits:
                    engine = with_offload(
                        self.host, model, card.accelerator, format_fits.engine, card.number, self.length, 1
                    )
                    fit = FormatFits(model, engine, self.length).on(card)
            except InputError as error:
                fit = ModelFit.refusal(model, name, name, card.name, self.length, str(error))
            fits.append(fit)
            if request.ladder and fit.fits and not fit.in_ram:
                break
        choice = best(fits)
        return [replace(fit, best=True) if fit is choice else fit for fit in fits]


# Formats to try in turn by default: as published, and those of most .gguf files.
LADDER = ("native", "Q8_0", "Q4_K_M")


def best(fits: Sequence[ModelFit]) -> ModelFit:
    """The best of several formats for one model on one card: the first that fits without RAM; else the one that leaves
    the most RAM; else the one with the fewest missing bytes."""
    fitting = [fit for fit in fits if fit.fits]
    if without_ram := next((fit for fit in fitting if not fit.in_ram), None):
        return without_ram
    if fitting:
        return max(fitting, key=lambda fit: fit.ram_free_bytes or 0)
    counted = [fit for fit in fits if fit.short_bytes is not None]
    return min(counted, key=lambda fit: fit.short_bytes or 0, default=fits[0])
