"""`txcalc design`: shapes of a decoder that spend a budget of parameters or of memory."""

from __future__ import annotations

from typing import Annotated

import typer

from txcalc.cli import options as o
from txcalc.cli.deploy import Kv, ReserveOption, Weights
from txcalc.cli.fit import Memory
from txcalc.errors import InputError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def design(
    params: Annotated[str | None, typer.Option(help="Parameters to spend: 8B.", metavar="COUNT")] = None,
    memory: Memory = None,
    weights: Weights = "bf16",
    vocab: Annotated[int, o.length("--vocab", "Rows of the vocabulary.")] = 32_000,
    ratio: Annotated[str, typer.Option(help="F/D before it is rounded up to a multiple of 256.", metavar="R")] = "8/3",
    gqa: Annotated[int, o.length("--gqa", "Query heads for each key/value head.")] = 1,
    head: Annotated[int, o.length("--head", "Width of a head.")] = 128,
    tied: Annotated[bool, typer.Option("--tied", help="One matrix for embedding and head.")] = False,
    context: Annotated[
        int | None, o.length("--context", "Count a sequence's cache and activations too (default: weights only).")
    ] = None,
    kv: Kv = "bf16",
    reserve: ReserveOption = None,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """Shapes that spend a budget of parameters or memory. L, D, h, h_kv and F, on hardware-friendly multiples.

    Example: txcalc design --memory 16GB --weights fp16
    """
    from txcalc.cli.output import emit
    from txcalc.errors import Fault
    from txcalc.planning.engine import Reserve, engine, parse_reserve
    from txcalc.planning.fitting import (
        MOST_PARAMS,
        Budget,
        Family,
        checked_context,
        classics,
        designs,
        parse_ratio,
    )
    from txcalc.render.fit import design_report
    from txcalc.units import parse_bytes, parse_count

    if (params is None) == (memory is None):
        raise InputError("design", ["give one of --params and --memory"])
    family = Family(vocab, parse_ratio(ratio), gqa, head, tied).checked()
    kept = parse_reserve(reserve) if reserve is not None else Reserve.none()
    wanted = parse_count(params, "--params") if params is not None else None
    if wanted is not None and not 0 < wanted <= MOST_PARAMS:
        raise InputError("design", [Fault("--params", params, f"a count from 1 to {MOST_PARAMS:,}")])
    size = parse_bytes(memory, "--memory") if memory is not None else None
    if context is not None:
        checked_context(context)
    narrow = family.model(1, family.step())
    budget = Budget(family, engine(narrow, weights, kv, reserve=kept), context, wanted, size)
    shapes = designs(budget)
    emit(design_report(budget, shapes, classics(budget), params or memory or ""), o.chosen(format_, json_))
