"""`txcalc design`: shapes of a decoder that spend a budget of parameters or of memory."""

from __future__ import annotations

from typing import Annotated

import typer

from txcalc.cli import completion
from txcalc.cli import options as o
from txcalc.cli.deploy import ReserveOption
from txcalc.cli.fit import Memory
from txcalc.errors import InputError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def design(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A model whose kind of layers the shapes have (experts, MLA, windows, hybrids …), heads and widths "
            "growing with D; without one, Llama's.",
            autocompletion=completion.source,
            metavar="[SOURCE]",
        ),
    ] = None,
    params: Annotated[str | None, o.option("--params", "To spend.")] = None,
    memory: Memory = None,
    compute: Annotated[
        str | None,
        o.option("--compute", "To spend, by 6·N·D with N the active parameters."),
    ] = None,
    train_tokens: Annotated[
        str | None,
        o.option("--train-tokens", "D of --compute (default: 20 per parameter)."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        o.option("--set", "Of SOURCE; also an expression: F=8/3*D. Repeatable."),
    ] = None,
    weights: o.Weights = "bf16",
    vocab: Annotated[int | None, o.length("--vocab", "Rows of the vocabulary (default: 32,000).")] = None,
    ratio: Annotated[
        str | None, typer.Option(help="F/D before it is rounded up to a multiple of 256 (default: 8/3).", metavar="R")
    ] = None,
    gqa: Annotated[int | None, o.length("--gqa", "Query heads for each key/value head (default: 1).")] = None,
    head: Annotated[int | None, o.length("--head", "Width of a head (default: 128).")] = None,
    tied: Annotated[bool, typer.Option("--tied", help="One matrix for embedding and head.")] = False,
    context: Annotated[
        int | None, o.length("--context", "Counts its cache and activations too (default: weights only).")
    ] = None,
    kv: o.KvDtype = "bf16",
    reserve: ReserveOption = None,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """Shapes that spend a budget of parameters, memory or training. L, D, h, h_kv and F, on friendly multiples.

    Example: txcalc design --memory 16GB --weights fp16
    """
    from txcalc import load
    from txcalc.cli.output import emit
    from txcalc.errors import Fault
    from txcalc.planning.engine import Reserve, engine, parse_reserve
    from txcalc.planning.fitting import checked_context
    from txcalc.planning.shapes import (
        MOST_PARAMS,
        Budget,
        Family,
        Likeness,
        classics,
        designs,
        parse_ratio,
        trainable,
    )
    from txcalc.render.fit import design_report
    from txcalc.units import parse_bytes, parse_count

    if sum(given is not None for given in (params, memory, compute)) != 1:
        raise InputError("design", [f"give one of --params, --memory and {o.spelt('--compute')}"])
    if train_tokens is not None and compute is None:
        raise InputError("options", [f"--train-tokens is of {o.spelt('--compute')}"])
    plain = {"ratio": ratio, "gqa": gqa, "head": head, "vocab": vocab, "tied": tied or None}
    family: Family | Likeness
    if source is None:
        if set_:
            raise InputError(
                "options", ["--set changes a model: name one (without one, --ratio, --gqa, --head, --vocab)"]
            )
        usual = Family()
        family = Family(
            usual.vocab if vocab is None else vocab,
            usual.ratio if ratio is None else parse_ratio(ratio),
            usual.gqa if gqa is None else gqa,
            usual.d_head if head is None else head,
            tied,
        ).checked()
    else:
        if given := [f"--{name}" for name, value in plain.items() if value is not None]:
            raise InputError("options", [f"{', '.join(given)} shape a Llama: of {source} change keys with --set"])
        family = Likeness(load(source), o.changes(set_))
    kept = parse_reserve(reserve) if reserve is not None else Reserve.none()
    wanted = parse_count(params, "--params") if params is not None else None
    spent = parse_count(compute, o.spelt("--compute")) if compute is not None else None
    tokens = None
    if spent is not None:
        wanted, tokens = trainable(spent, parse_count(train_tokens, "--train-tokens") if train_tokens else None)
    if wanted is not None and not 0 < wanted <= MOST_PARAMS:
        asked = ("--params", params) if params is not None else (o.spelt("--compute"), compute)
        raise InputError("design", [Fault(*asked, f"a count from 1 to {MOST_PARAMS:,} parameters")])
    size = parse_bytes(memory, "--memory") if memory is not None else None
    if context is not None:
        checked_context(context)
    narrow = family.model(family.first, family.step()) if isinstance(family, Family) else family.base
    budget = Budget(family, engine(narrow, weights, kv, reserve=kept), context, wanted, size, spent, tokens)
    shapes = designs(budget)
    usual_shapes = classics(budget, family) if isinstance(family, Family) else []
    emit(design_report(budget, shapes, usual_shapes, params or memory or compute or ""), o.chosen(format_, json_))
