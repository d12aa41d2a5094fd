"""`fit`: which models fit on accelerators, in which format, with how much room and how fast."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec.structs import asdict, replace

from txcalc.errors import Fault, InputError
from txcalc.hardware import Accelerator, load as load_accelerator
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.planning.fitting import (
    LADDER,
    CardSet,
    FitRequest,
    ModelFit,
    ModelFits,
    best,
    checked_context,
    shortage,
)
from txcalc.planning.formats.names import known_format
from txcalc.planning.serving.engine import CHUNK, Reserve, parse_reserve, reserve_of, step_faults
from txcalc.planning.serving.engine_memory import EngineMemory
from txcalc.planning.serving.engine_profiles import offloading, personal_engine, profile as profile_of
from txcalc.planning.serving.offload import parse_offload
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, Result
from txcalc.questions.arguments import length, maybe, models, names
from txcalc.questions.phrases import parse_accelerators
from txcalc.sources import build
from txcalc.sources.presets import all_presets as every_preset, is_users
from txcalc.units import bits_of, cache_bits_of, iec, parse_bytes

if TYPE_CHECKING:
    from txcalc.questions.show_via import Memory

MOST_REFUSALS = 3  # notes on formats that are refused


class Cards(Answer):
    """Accelerators of a kind, or a bare memory size; bytes of each, and the reserve.

    engine          the engine of all rows, whose reserve it is; "": some rows are of none
    visible_bytes   memory that a process can use; `more`: how to get more
    """

    name: str
    number: int
    memory_bytes: int
    reserve_bytes: int
    title: str
    engine: str = ""
    visible_bytes: int = 0
    more: str = ""


class Fit(Result, tag_field="schema", tag="txcalc/fit/1", kw_only=True):
    """Which models fit; `memory_bytes` and `reserve_bytes` are those of the first kind of accelerators.

    formats         as requested
    in_turn         formats are tried in turn, up to the first that fits
    only_fits       the table has only models that fit
    engine_label    the engine's name in texts
    """

    memory_bytes: int
    reserve_bytes: int
    context: int
    cards: tuple[Cards, ...]
    rows: tuple[ModelFit, ...]
    formats: tuple[str, ...]
    in_turn: bool
    only_fits: bool
    engine_label: str = ""
    notes: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether none fits."""
        return not any(row.fits for row in self.rows)

    @property
    def one_row_per_card(self) -> bool:
        """Whether the table shows the best format alone."""
        return self.in_turn or len(self.cards) > 1


@o.Question(
    "txcalc fit qwen3-32b gpt-oss-20b --gpu 4090 --gpu 4090:2 --gpu m4-pro",
    first=("--gpu", "--memory", "--weights", "--context", "--engine", "--ram", "--all"),
    examples=("What runs on a card: txcalc fit --gpu 4090",),
)
def fit(
    *sources: o.OptionalSources,
    gpu: Annotated[
        str | Accelerator | Sequence[str | Accelerator],
        o.GPU.with_help("8xh100 is understood too. Repeatable.", repeats=True),
    ] = (),
    memory: Annotated[str | None, o.MEMORY] = None,
    weights: Annotated[
        o.Names | None, o.WEIGHTS.with_help("Default: the first of native, Q8_0, Q4_K_M that fits.", value="FORMAT,…")
    ] = None,
    context: Annotated[o.Length, o.CONTEXT.with_help("One sequence of this length is cached.")] = 8192,
    kv: Annotated[str, o.KV] = "bf16",
    block: Annotated[o.Length, o.BLOCK] = 16,
    chunk: Annotated[o.Length | None, o.CHUNK.with_help("Default: 8192, or the engine's own.")] = None,
    engine: Annotated[
        str | None,
        o.ENGINE.with_help(
            "Default: llama.cpp for GGUF formats, and on a GeForce, a Radeon RX or unified memory for all formats "
            "that it runs; otherwise none."
        ),
    ] = None,
    reserve: Annotated[
        str | None, o.RESERVE.with_help("Default: the engine's own, or 10%; none with --memory.")
    ] = None,
    ram: Annotated[str | None, o.RAM] = None,
    text_only: Annotated[bool, o.TEXT_ONLY] = False,
    every: Annotated[bool, o.EVERY_PRESET.with_help("Also list what does not fit, and by how much.")] = False,
    via: Annotated[Literal["transformers"] | None, o.VIA] = None,
) -> Fit:
    """Which models fit on accelerators, in which format, with how much room and how fast. Without sources: the presets.

    Exit code 1: none fits.

    In Python: `gpu` (NAME, NAME:N, `16GB@500GB/s`, an `Accelerator`) or `memory` (`16GB`). `weights`: formats to try,
    each by itself. `ram`: where a card is too small. `failed`: none fits.

    Errors: `InputError`, `UnknownName`.

    >>> import txcalc
    >>> [(row.weights, row.fits) for row in txcalc.fit("qwen3-32b", gpu="4090", context="4k").rows]
    [('bf16', False), ('Q8_0', False), ('Q4_K_M', True)]
    """
    kinds = [gpu] if isinstance(gpu, str | Accelerator) else list(gpu)
    if kinds and memory is not None:
        raise InputError("fit", ["--gpu and --memory exclude each other"])
    if not kinds and memory is None:
        raise InputError("fit", ["give --gpu or --memory. Example: txcalc fit --gpu rtx-4090"])
    tokens = checked_context(length(context, "--context"))
    ladder = ("bf16",) if via else LADDER
    formats = tuple(dict.fromkeys(known_format(name) for name in (ladder if weights is None else names(weights))))
    host = parse_offload(ram, None, None, None)
    if via and (host or engine not in (None, "none") or not sources):
        raise InputError("options", ["--via transformers needs a config.json, without --engine and --ram"])
    engine_named = engine is not None or host is not None or via is not None
    name = "none" if engine is None else engine
    profile = profile_of(offloading(name) if host else name) if engine_named else personal_engine()
    steps = maybe(chunk, "--chunk", length)
    cache_bits_of(kv)  # refused here where there is no such dtype
    given_reserve = parse_reserve(reserve) if reserve is not None else None
    if memory is not None:
        bare = Accelerator(memory, memory, parse_bytes(memory, "--memory"), 1, {}, None, None, {})  # of no vendor
        cards = [CardSet(bare, bare=True)]
        given_reserve = given_reserve or Reserve.none()
    else:
        sets = [cards for kind in kinds for cards in card_sets(kind)]
        cards = list({card.name: card for card in sets}.values())  # one given twice is one column
    numbers = length(block, "--block"), CHUNK if steps is None else steps
    if faults := step_faults(*numbers):
        raise InputError("fit", faults)
    request = FitRequest(engine_named, kv, *numbers, given_reserve, tokens, formats, weights is None, host)
    engines = [EngineMemory(profile, card.accelerator, tokens, None, steps) if profile else None for card in cards]
    rows: list[list[ModelFit]] = [[] for _ in cards]
    left_out: list[tuple[str, str]] = []
    for source in sources if via else ():
        from txcalc.questions.show_via import memory as measured_memory

        module = measured_memory(source, [tokens])
        for row, card in zip(rows, cards, strict=True):
            of_formats = [_fit_measured(module, card, form, request) for form in formats]
            row += [replace(form, best=form is best(of_formats)) for form in of_formats]
        left_out += [(module.model.name, note) for note in module.notes]
    for model in () if via else models(sources, text_only) if sources else presets(text_only):
        fits = ModelFits(model, request)
        for row, card, memory_there in zip(rows, cards, engines, strict=True):
            row += fits.on(card, memory_there)
        left_out += [(model.name, note) for note in model.left_out]
    listed = {row.model for row in chain(*rows) if row.fits or sources or every}
    notes = [f"memory is as {profile} keeps it ({profile.newest})"] if profile and profile.newest else []
    notes += [caution for card in cards if not card.bare for caution in card.accelerator.cautions]
    if memory is not None:
        size = f"--memory {memory} is {iec(cards[0].accelerator.memory)}, all of it for the model"
        sold = "" if "i" in memory else f"; cards sold with {memory} may have {memory.replace('B', 'iB')}"
        notes.append(f"{size}{sold}; the driver or system keeps some, and so may an engine (--gpu NAME counts it)")
    notes += [note for model_name, note in left_out if model_name in listed]
    best_alone = weights is None or len(cards) > 1
    printed_rows = [[row for row in of_card if row.best or not best_alone] for of_card in rows]
    notes += refusals([*chain(*printed_rows)])
    columns = []
    for card, memory_there, of_card in zip(cards, engines, printed_rows, strict=True):
        accelerator = card.accelerator
        if not (engine_named or all(row.engine or row.refused for row in of_card)):  # some rows are of no engine
            memory_there = None
        reserves = [accelerator.memory - r.need_bytes - r.room_bytes for r in of_card if r.need_bytes and r.room_bytes]
        available = (given_reserve or reserve_of(memory_there)).available(accelerator)
        column = Cards(
            name=card.name,
            number=card.number,
            memory_bytes=accelerator.memory,
            reserve_bytes=max(reserves, default=accelerator.memory - available),
            title=accelerator.title,
            engine=str(memory_there.profile) if memory_there else "",
            visible_bytes=accelerator.visible,
            more=accelerator.gives_more,
        )
        columns.append(column)
    return Fit(
        memory_bytes=columns[0].memory_bytes,
        reserve_bytes=columns[0].reserve_bytes,
        context=tokens,
        cards=tuple(columns),
        rows=tuple(chain(*rows)),
        formats=formats,
        in_turn=weights is None,
        only_fits=not (sources or every),
        engine_label=profile.label if profile else "",
        notes=tuple(notes),
    )


def _fit_measured(module: Memory, card: CardSet, weights: str, request: FitRequest) -> ModelFit:
    """Parameters and cache of transformers' own module on one accelerator."""
    fit = ModelFit(
        model=module.model.name, params=module.model.params, weights=weights, asked=weights, gpu=card.name, layout="",
        context=request.context, fits=False, need_bytes=None, room_bytes=None, short_bytes=None, tokens_per_s=None,
        known=asdict(module.known),
    )  # fmt: skip
    if card.number > 1:
        return replace(fit, refused="--via transformers measures one GPU")
    try:
        width = bits_of(weights)
        if width < 16:
            raise InputError("--weights", [f"the matrices and scales that {weights} stores are not measured (bf16)"])
        bits = module.model.params * width, module.caches[0][0] * cache_bits_of(request.kv)
    except InputError as error:
        return replace(fit, refused=str(error))
    need = sum(ceil_div(number, 8) for number in bits)
    room = (request.reserve or Reserve()).available(card.accelerator) - need
    return replace(
        fit, layout="one GPU", fits=room >= 0, need_bytes=need, room_bytes=room, short_bytes=shortage(room, None)
    )


def card_sets(kind: str | Accelerator) -> Iterable[CardSet]:
    """Accelerators of a kind, or of several after each other. Errors: `InputError`, `UnknownName`."""
    if isinstance(kind, Accelerator):
        yield CardSet(kind)
        return
    for name, number in map(parse_accelerators, names(kind)):
        if re.fullmatch(r"[\d.]+\s*[kmgt]i?b", name.strip(), re.I):
            expected = "a name, or a size and a bandwidth with their units (16GB@500GB/s)"
            raise InputError("--gpu", [Fault("--gpu", name, expected, f"for a size alone: --memory {name}")])
        yield CardSet(load_accelerator(name), number or 1)


def presets(text_only: bool) -> Iterable[Model]:
    """The presets that are released, one after the other: none is kept."""
    for preset in every_preset():
        if preset[0].get("released", True):
            model = build(*preset, written=is_users(preset))
            yield model.language() if text_only else model


def refusals(rows: Sequence[ModelFit]) -> list[str]:
    """Why rows have no figures: the first few reasons."""
    notes = list(dict.fromkeys(f"{row.model} as {row.weights}: {row.refused}" for row in rows if row.refused))
    if len(notes) <= MOST_REFUSALS:
        return notes
    remaining = len(notes) - MOST_REFUSALS
    return [*notes[:MOST_REFUSALS], f"and {remaining} more are refused for similar reasons"]
