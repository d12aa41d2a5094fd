"""`txcalc fit`: which models accelerators or a memory hold, by how much, in which format and how fast."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from txcalc.cli import options as o
from txcalc.cli.deploy import Block, Chunk, EngineOption, ReserveOption
from txcalc.errors import InputError

app = typer.Typer(rich_markup_mode=None, add_completion=False)

Memory = Annotated[str | None, o.option("--memory")]


@app.command()
def fit(
    sources: o.MaybeSources = None,
    gpu: Annotated[
        list[str] | None,
        o.option("--gpu", "Also 8xh100, 16GB@500GB/s. Repeatable."),
    ] = None,
    memory: Memory = None,
    weights: Annotated[
        str | None,
        o.option("--weights", "By default native, Q8_0, Q4_K_M, the first that fits.", several=True),
    ] = None,
    context: Annotated[int, o.length("--context", "Of the one there is.")] = 8192,
    kv: o.KvDtype = "bf16",
    block: Block = 16,
    chunk: Chunk = 8192,
    engine_: EngineOption = "none",
    reserve: ReserveOption = None,
    every: Annotated[bool, o.option("--all", "Those that do not fit too, with what they are short of.")] = False,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """Which models fit on accelerators, by how much, in which format and how fast. Without sources: the presets.

    Exit code 1: none fits.

    Example: txcalc fit qwen3-32b gpt-oss-20b --gpu 4090 --gpu 4090:2 --gpu m4-pro
    """
    from txcalc import hardware, load
    from txcalc.api.phrases import accelerators
    from txcalc.cli.output import emit
    from txcalc.planning import engine_memory
    from txcalc.planning.engine import Engine, Reserve, engine, parse_reserve
    from txcalc.planning.engine_memory import EngineMemory
    from txcalc.planning.fitting import LADDER, Card, Fit, checked_context, fits, reserved
    from txcalc.planning.weights import known_format
    from txcalc.render.fit import fit_report
    from txcalc.sources.presets import names
    from txcalc.units import parse_bytes

    if bool(gpu) == (memory is not None):
        raise InputError("fit", ["give one of --gpu and --memory"])
    checked_context(context)
    formats = [known_format(name) for name in (weights.split(",") if weights is not None else LADDER)]
    profile = engine_memory.profile(engine_)
    kept = parse_reserve(reserve) if reserve is not None else None
    if memory is not None:
        cards, kept = [Card(memory, parse_bytes(memory, "--memory"))], kept or Reserve.none()
    else:
        cards = []
        for name, number in map(accelerators, gpu or ()):
            kind = hardware.load(name)
            cards.append(Card(kind.title, kind.memory, number or 1, kind))
    models = [load(name) for name in sources or names()]
    if not sources:
        models = [model for model in models if model.spec["released"]]
    found: list[Fit] = []
    engines: dict[tuple[int, str], Engine | InputError] = {}

    def how(number: int, name: str) -> Engine:
        """A model's engine in a format; its weights are looked at once for all cards."""
        if (number, name) not in engines:
            try:
                engines[number, name] = engine(models[number], name, kv, block, chunk, kept)
            except InputError as error:
                engines[number, name] = error
        known = engines[number, name]
        if isinstance(known, InputError):
            raise known
        return known

    keep: list[int] = []
    for card in cards:
        counted = EngineMemory(profile, card.accelerator, context) if profile and card.accelerator else None
        for number, model in enumerate(models):
            for name in formats:
                try:
                    one = fits(model, replace(how(number, name), memory=counted), card.memory, context, card)
                except InputError as error:
                    one = Fit(model.name, model.params, name, context, None, None, str(error), card.name)
                found.append(one._replace(asked=name))
                if weights is None and one.fits:
                    break
        keep.append(reserved(kept or Reserve(), counted, card))
    emit(fit_report(found, cards, keep, context, weights is None, bool(sources) or every), o.chosen(format_, json_))
    if not any(one.fits for one in found):
        raise typer.Exit(1)
