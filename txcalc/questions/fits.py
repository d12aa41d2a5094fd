"""Which models fit: `fit`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from txcalc.errors import Fault, InputError
from txcalc.questions.arguments import length, models, names
from txcalc.questions.options import Length, Names
from txcalc.questions.results import Record, Result
from txcalc.sources import build

if TYPE_CHECKING:
    from txcalc.model import Model
    from txcalc.planning.fitting import ModelFit
    from txcalc.sources import Source


class Cards(Record):
    """Accelerators of a kind, or a bare memory size; bytes of each, and the reserve."""

    name: str
    number: int
    memory_bytes: int
    reserve_bytes: int


class Fitting(Record):
    """A model in a weight format on accelerators: bytes needed, free or missing on the fullest; None where `refused`
    says why. `asked`: the format as requested."""

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
    in_ram: str | None
    ram_free_bytes: int | None
    refused: str | None


class Fit(Result):
    """Which models fit; `memory_bytes` and `reserve_bytes` are those of the first kind of accelerators."""

    memory_bytes: int
    reserve_bytes: int
    context: int
    cards: list[Cards]
    rows: list[Fitting]


def fit(
    *sources: Source,
    gpu: Names = (),
    memory: str | None = None,
    weights: Names | None = None,
    context: Length = 8192,
    kv: str = "bf16",
    block: Length = 16,
    chunk: Length = 8192,
    engine: str = "none",
    reserve: str | None = None,
    ram: str | None = None,
    text_only: bool = False,
    every: bool = False,
) -> Fit:
    """Which models fit on accelerators (`gpu`: NAME, NAME:N, `16GB@500GB/s`) or in a `memory` (`16GB`), with how much
    room, in which format and how fast; without sources the presets.

    `weights`: formats to try, each by itself; by default the first of native, Q8_0 and Q4_K_M that fits. `ram`
    (`"64GB@80GB/s"`): host RAM that llama.cpp may use where a card is too small. `text_only`: without the towers of
    multimodal models. `every`: the table lists what does not fit too.

    `failed`: none fits. Errors: `InputError`, `UnknownName`.

    >>> import txcalc
    >>> found = txcalc.fit("qwen3-32b", gpu="4090", context="4k")
    >>> [(row.weights, row.fits) for row in found.rows]
    [('bf16', False), ('Q8_0', False), ('Q4_K_M', True)]
    """
    from txcalc import hardware
    from txcalc.planning.fitting import LADDER, CardSet, FitRequest, ModelFits, checked_context, reserved
    from txcalc.planning.formats.names import known_format
    from txcalc.planning.serving.engine import Reserve, parse_reserve, reserve_of
    from txcalc.planning.serving.engine_memory import EngineMemory
    from txcalc.planning.serving.engine_profiles import offloading, profile as profiled
    from txcalc.planning.serving.offload import parse_offload
    from txcalc.questions.phrases import accelerators
    from txcalc.render.fit import fit_report
    from txcalc.sources.presets import every as presets, is_own
    from txcalc.units import bits_of, parse_bytes

    if bool(gpu) == (memory is not None):
        raise InputError("fit", ["give one of --gpu and --memory"])
    long = checked_context(length(context, "--context"))
    formats = [*dict.fromkeys(known_format(name) for name in (LADDER if weights is None else names(weights)))]
    host = parse_offload(ram, None, None, None)
    profile = profiled(offloading(engine) if host else engine)
    bits_of(kv, "--kv")  # refused here where there is no such dtype
    kept = parse_reserve(reserve) if reserve is not None else None
    cards = []
    if memory is not None:
        cards, kept = [CardSet(memory, parse_bytes(memory, "--memory"))], kept or Reserve.none()
    for name, number in map(accelerators, names(gpu)):
        if re.fullmatch(r"[\d.]+\s*[kmgt]i?b", name.strip(), re.I):
            expected = "a name, or a size and a bandwidth with their units (16GB@500GB/s)"
            raise InputError("--gpu", [Fault("--gpu", name, expected, f"for a size alone: --memory {name}")])
        known = hardware.load(name)
        card = CardSet(known.title, known.memory, number or 1, known)
        cards += [] if card.name in [each.name for each in cards] else [card]  # one given twice is one column
    tried: Iterable[Model] = models(sources, text_only)
    if not sources:  # one after the other, and none is kept
        offered = (known for known in presets() if known[0].get("released", True))
        built = (build(*known, written=is_own(known)) for known in offered)
        tried = (model.language() if text_only else model for model in built)
    ask = FitRequest(kv, length(block, "--block"), length(chunk, "--chunk"), kept, long, formats, weights is None, host)
    kinds = [card.accelerator for card in cards]
    counted = [EngineMemory(profile, kind, long) if profile and kind else None for kind in kinds]
    keep = [reserved(kept or reserve_of(memory), memory, card) for memory, card in zip(counted, cards, strict=True)]
    rows: list[list[ModelFit]] = [[] for _ in cards]
    left: list[tuple[str, str]] = []
    for model in tried:
        fits = ModelFits(model, ask)
        for row, card, engine_memory in zip(rows, cards, counted, strict=True):
            row += fits.on(card, engine_memory)
        left += [(model.name, note) for note in model.left_out]
    found = [*chain(*rows)]
    held = {one.model for one in found if one.fits or sources or every}  # what the table shows
    apart = [note for name, note in left if name in held]
    if profile and profile.newest:
        apart.insert(0, f"memory is as {profile} keeps it ({profile.newest})")
    told = fit_report(found, cards, keep, long, weights is None, bool(sources) or every, apart)
    return Fit(lambda _: told, failed=not any(one.fits for one in found))
