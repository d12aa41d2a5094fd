"""The inverse questions: which models fit, and which shapes meet a budget: `fit`, `design`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from txcalc.errors import Fault, InputError
from txcalc.questions.arguments import count, length, models, names
from txcalc.questions.options import Length, Names
from txcalc.questions.results import Record, Result
from txcalc.sources import build, load

if TYPE_CHECKING:
    from txcalc.model import Model
    from txcalc.planning.fitting import ModelFit
    from txcalc.planning.shapes import DesignFamily, Likeness
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


class Spend(Record):
    """A budget: parameters, bytes of memory (with the cache of a context), or training FLOPs."""

    params: int | None
    memory_bytes: int | None
    context: int | None
    flops: int | None
    tokens: int | None


class Kind(Record):
    """The family of shapes: Llama's sizes, or a model to scale and its changes."""

    vocab: int | None
    ratio: str | None
    gqa: int | None
    d_head: int | None
    tied: bool | None
    like: str | None
    sizes: dict[str, Any] | None
    multiple: int | None
    round: int | None


class Shape(Record):
    """A shape, its distance from the budget (`spare` parameters or bytes, signed), and how to build it: an inline
    description, or changes of a model."""

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
    inline: str | None
    changes: dict[str, Any] | None
    train_flops: int | None


class Design(Result):
    """Shapes that meet a budget, best first by a rule; `classic`: well-known ones."""

    budget: Spend
    weights: str
    family: Kind
    rule: str
    rows: list[Shape]
    classic: list[Shape]


def design(
    source: Source | None = None,
    *,
    params: Length | float | None = None,
    memory: str | None = None,
    compute: Length | float | None = None,
    train_tokens: Length | float | None = None,
    changes: Mapping[str, Any] | None = None,
    weights: str = "bf16",
    vocab: Length | None = None,
    ratio: float | str | None = None,
    gqa: int | None = None,
    head: Length | None = None,
    tied: bool = False,
    context: Length | None = None,
    kv: str = "bf16",
    reserve: str | None = None,
) -> Design:
    """Decoder shapes for a budget of parameters (`8e9`, `"8B"`), memory (`"16GB"`) or training FLOPs (6·N·D, N the
    active parameters): layers, width, heads and feed-forward on hardware-friendly multiples.

    With a `source`: that model, with `changes`, at other numbers of layers and widths; its heads and F grow with D.
    Without one, Llama's architecture by `vocab`, `ratio` (F/D), `gqa` (query heads per key/value head), `head` (width
    per head) and `tied`.
    Errors: `InputError`, `UnknownName`.

    >>> import txcalc
    >>> best = txcalc.design(params="8B").rows[0]
    >>> txcalc.load(best.inline).params == best.params
    True
    """
    from txcalc.planning.fitting import checked_context
    from txcalc.planning.serving.engine import Reserve, engine, parse_reserve
    from txcalc.planning.shapes import MOST_PARAMS, DesignBudget, DesignFamily, classics, designs, trainable
    from txcalc.render.design import design_report
    from txcalc.units import parse_bytes

    given = [value for value in (params, memory, compute) if value is not None]
    if len(given) != 1:
        raise InputError("design", ["give one of --params, --memory and --compute"])
    if train_tokens is not None and compute is None:
        raise InputError("options", ["--train-tokens needs --compute"])
    plain = {"ratio": ratio, "gqa": gqa, "head": head, "vocab": vocab, "tied": tied or None}
    family = _family(source, changes or {}, {name: value for name, value in plain.items() if value is not None})
    kept = parse_reserve(reserve) if reserve is not None else Reserve.none()
    wanted = count(params, "--params") if params is not None else None
    spent = count(compute, "--compute") if compute is not None else None
    tokens = None
    if spent is not None:
        wanted, tokens = trainable(spent, count(train_tokens, "--train-tokens") if train_tokens else None)
    if wanted is not None and not 0 < wanted <= MOST_PARAMS:
        flag, what = ("--params", "a count of") if params is not None else ("--compute", "what trains")
        raise InputError("design", [Fault(flag, given[0], f"{what} 1 to {MOST_PARAMS:,} parameters")])
    size = parse_bytes(memory, "--memory") if memory is not None else None
    long = checked_context(length(context, "--context")) if context is not None else None
    narrow = family.model(family.first, family.step()) if isinstance(family, DesignFamily) else family.base
    budget = DesignBudget(family, engine(narrow, weights, kv, reserve=kept), long, wanted, size, spent, tokens)
    usual = classics(budget, family) if isinstance(family, DesignFamily) else []
    told = design_report(budget, designs(budget), usual, str(given[0]))
    return Design(lambda _: told)


def _family(source: Source | None, changes: Mapping[str, Any], plain: Mapping[str, Any]) -> DesignFamily | Likeness:
    """Llama's family, or a model's. Errors: `InputError`."""
    from txcalc.planning.shapes import DesignFamily, Likeness, parse_ratio

    if source is not None:
        if plain:
            said = ", ".join(f"--{name}" for name in plain)
            of = source if isinstance(source, str) else "a model"
            raise InputError("options", [f"{said} apply to a Llama-like family: change {of} with --set"])
        return Likeness(load(source), changes)
    if changes:
        raise InputError("options", ["--set needs a model (without one: --ratio, --gqa, --head, --vocab)"])
    usual = DesignFamily()
    return DesignFamily(
        length(plain.get("vocab", usual.vocab), "--vocab"),
        parse_ratio(str(plain["ratio"])) if "ratio" in plain else usual.ratio,
        length(plain.get("gqa", usual.gqa), "--gqa"),
        length(plain.get("head", usual.d_head), "--head"),
        "tied" in plain,
    ).checked()
