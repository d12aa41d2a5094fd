"""`txcalc kv`: what the cache holds."""

from __future__ import annotations

from typing import Annotated

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)

CONTEXTS = (1 << 10, 1 << 12, 1 << 13, 1 << 15, 1 << 17, 1 << 20)  # as far as the model goes, and its own


@app.command()
def kv(
    source: o.Source,
    contexts: Annotated[
        str | None,
        typer.Option("--contexts", "--tokens", help="Tokens held, past and new: 4k,32k,128k.", metavar="N,…"),
    ] = None,
    batches: Annotated[
        str, typer.Option("--batches", "--batch", help="Sequences, all of the same length.", metavar="N,…")
    ] = "1,8,64",
    kv_dtypes: Annotated[
        str, typer.Option("--kv-dtypes", "--kv-dtype", help="Dtypes of the cache: bf16,fp8.", metavar="TYPE,…")
    ] = "bf16",
    set_: o.Set = None,
    ignore: o.Ignore = None,
    source_length: o.SourceLength = None,
    without_cache: Annotated[
        bool,
        typer.Option("--without-cache", help="What writing so many tokens costs with the cache, and without it."),
    ] = False,
    prompt: Annotated[int, o.length("--prompt", "Tokens of the first pass of --without-cache.")] = 1,
    attention: o.Attention = "dense",
    format_: o.Format = "table",
    json_: o.Json = False,
    plot: o.Plot = None,
) -> None:
    """The KV cache over contexts, batches and dtypes. Windows and recurrent states are charged for what they hold;
    --without-cache adds what a whole generation costs without it.

    Example: txcalc kv gemma-3-27b --contexts 8k,128k --kv-dtypes bf16,fp8
    """
    from txcalc import load
    from txcalc.cli.output import emit
    from txcalc.errors import InputError
    from txcalc.render.kv import report, with_generation
    from txcalc.units import bits_of

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen)
    model = load(source, o.changes(set_), ignore=ignore or ())
    if not model.ledger().total("cache"):
        raise InputError(model.name, ["has no cache: an encoder keeps nothing for later tokens"])
    lengths = o.numbers(contexts, "--contexts") if contexts else _usual(model.context)
    sequences = o.numbers(batches, "--batches")
    dtypes = [name.strip() for name in kv_dtypes.split(",")]
    for name in dtypes:
        bits_of(name)
    for number in sequences:
        model.workload(batch=number)
    told = report(model, [model.ledger(tokens=length, source=source_length) for length in lengths], sequences, dtypes)
    if without_cache:
        from txcalc.planning.generation import generations, laws

        found = generations(model, lengths, prompt, attention)
        told = with_generation(model, told, found, laws(model, prompt, attention), attention)
    elif prompt != 1 or attention != "dense":
        raise InputError("options", ["--prompt and --attention are of a generation: add --without-cache"])
    emit(
        told,
        chosen,
        place,
        lambda plots: plots.kv(model, lengths, sequences, dtypes, source_length),
    )


def _usual(context: int | None) -> list[int]:
    own = [] if context is None else [context]
    return sorted({length for length in CONTEXTS if context is None or length < context} | set(own))
