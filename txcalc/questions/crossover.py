"""`crossover`: the lengths from which attention costs more than the rest, and the cache more than the weights."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any

from txcalc.errors import InputError, MissingExtra
from txcalc.ledger import walk
from txcalc.model import MAX_TOKENS, Model
from txcalc.planning.crossover import RULES, Prefills, RuleCrossover, balances, crossovers, lengths as prefills_of
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, ModelInfo, Result
from txcalc.questions.arguments import length, maybe, source_list
from txcalc.questions.pictures import MAX_MODELS, Mark, Panel, Picture, PlotAxis, Series, between, picture_convention
from txcalc.sources import load


class Crossing(Answer):
    """The smallest length for which the inequality of a rule holds; None: never, and `why`. `formula` is
    the closed form in letters, `latex` the same in LaTeX."""

    model: str
    rule: str
    attention: str
    formula: str | None
    tokens: int | None
    why: str = ""
    latex: str | None = None


class CacheCrossing(Answer):
    """The context from which a decode step of a batch reads at least as much cache as weights; None: never."""

    model: str
    batch: int
    context: int | None
    weights_bytes: int
    cache_bytes: int | None


class ClassicCrossing(Answer):
    """The crossover length of a rule for the textbook block, plain and gated, in letters."""

    rule: str
    attention: str
    plain: str | None
    gated: str | None
    plain_latex: str | None = None
    gated_latex: str | None = None


class CrossoverConvention(Answer):
    """What the lengths hold for."""

    logits: str
    mla: str | None
    dtype: str
    kv_dtype: str
    experts_read: str


class Crossover(Result, tag_field="schema", tag="txcalc/crossover/1", kw_only=True):
    """Where attention exceeds the feed-forward, and the cache the weights. `rows` has each rule of each model.

    windowed   names of the models with windows, to which the masked lengths apply
    detail     whether the printed text has closed forms, and the cache by batch
    """

    convention: CrossoverConvention
    models: tuple[ModelInfo, ...]
    windowed: tuple[str, ...]
    rows: tuple[Crossing, ...]
    cache: tuple[CacheCrossing, ...]
    classic: tuple[ClassicCrossing, ...] = ()
    detail: bool = False
    notes: tuple[str, ...]


@o.Question(
    "txcalc crossover llama-3.1-8b gemma-3-27b",
    takes=("--set", "--ignore"),
    draws=True,
    first=("--set", "--dtype", "--kv", "--detail", "--plot"),
)
def crossover(
    *sources: o.SourcesArgument,
    source_tokens: Annotated[o.Length | None, o.SOURCE_TOKENS.with_help("Default: as many as tokens.")] = None,
    dtype: Annotated[str, o.DTYPE] = "bf16",
    kv: Annotated[str, o.KV] = "bf16",
    logits: Annotated[o.Logits, o.LOGITS] = "all",
    mla: Annotated[o.Mla, o.MLA] = "expanded",
    formulas: Annotated[bool, o.Option("Closed forms in letters (SymPy, half a second).", group="Workload")] = True,
    detail: Annotated[bool, o.DETAIL] = False,
) -> Crossover:
    """The exact length from which attention costs more than the feed-forward, under each common definition; and the
    context from which a decode step reads more cache than weights.

    Errors: `InputError`, `UnknownName`.

    >>> import txcalc
    >>> txcalc.crossover("llama-3.1-8b", formulas=False).rows[0].tokens
    21504
    """
    model_sources = source_list(sources)
    if not model_sources:
        raise InputError("crossover", ["expected one or more models"])
    encoder_tokens = maybe(source_tokens, "--source-tokens", length)
    prefills = [prefills_of(load(source), encoder_tokens, logits, mla) for source in model_sources]
    lengths = [crossovers(prefill) for prefill in prefills]
    forms: list[Sequence[Any]] = [[None] * len(of_model) for of_model in lengths]
    classic: tuple[ClassicCrossing, ...] = ()
    notes = []
    if formulas:
        try:
            from txcalc.algebra.crossings import classic_forms, closed_forms
        except MissingExtra as missing:
            notes.append(f"no closed forms: {missing}")
        else:
            forms = [closed_forms(*pair) for pair in zip(prefills, lengths, strict=True)]
            classic = classic_crossings(classic_forms(False), classic_forms(True))
    models = [prefill.model for prefill in prefills]
    latent = mla if any(model.has_latents for model in models) else None
    notes += [
        f"{model.name}: includes lengths beyond its context of {model.context:,}"
        for model, rows in zip(models, lengths, strict=True)
        if model.context and any(row.tokens and row.tokens > model.context for row in rows)
    ]
    return Crossover(
        convention=CrossoverConvention(logits, latent, dtype, kv, "min(E, k·batch)"),
        models=tuple(map(ModelInfo.of, models)),
        windowed=tuple(model.name for model in models if model.has_windows),
        rows=tuple(
            crossing(model, row, form)
            for model, of_model, closed in zip(models, lengths, forms, strict=True)
            for row, form in zip(of_model, closed, strict=True)
        ),
        cache=tuple(
            CacheCrossing(prefill.model.name, *row) for prefill in prefills for row in balances(prefill, dtype, kv)
        ),
        classic=classic,
        detail=detail,
        notes=(*notes, *(note for model in models for note in model.notes)),
        draw=lambda: picture(prefills, lengths, logits, mla),
    )


def crossing(model: Model, row: RuleCrossover, form: Any) -> Crossing:
    """A rule's length; `form`: its closed form, or None."""
    text, latex = (form.write(), form.latex()) if form else (None, None)
    return Crossing(model.name, row.rule.name, row.attention, text, row.tokens, row.why, latex)


def classic_crossings(plain: Sequence[object], gated: Sequence[Any]) -> tuple[ClassicCrossing, ...]:
    """The closed forms of the textbook block: of every rule, dense and masked."""
    names = [(rule.name, attention) for rule in RULES for attention in ("dense", "masked")]
    forms = zip(names, plain, gated, strict=True)
    return tuple(
        ClassicCrossing(*name, *(form and form.write() for form in both), *(form and form.latex() for form in both))
        for name, *both in forms
    )


MAIN_RULES = (RULES[0], RULES[3])  # whose crossovers `compare` lists and the plot marks


def picture(prefills: Sequence[Prefills], lengths: Sequence[Sequence[RuleCrossover]], logits: str, mla: str) -> Picture:
    """FLOPs per token of both sides of a rule against the length, and their crossovers."""
    if len(prefills) > MAX_MODELS:
        raise InputError("--plot", [f"{len(prefills)} models are more than a picture holds ({MAX_MODELS})"])
    crossings = [row.tokens for rows in lengths for row in rows if row.rule in MAIN_RULES and row.tokens]
    low = max(1, min([128, *(n // 4 for n in crossings)]))
    high = min(MAX_TOKENS, max([1 << 15, *(4 * n for n in crossings)]))
    panels = [sides_panel(*pair, low, high) for pair in zip(prefills, lengths, strict=True)]
    models = [prefill.model for prefill in prefills]
    caption = picture_convention(models, "forward FLOPs of a prefill by its length", logits, mla)
    return Picture("Attention against the feed-forward", caption, panels)


def sides_panel(prefills: Prefills, lengths: Sequence[RuleCrossover], low: int, high: int) -> Panel:
    """Both sides of the main rules for one model, over lengths that all models share."""
    marked = [(length, length.tokens) for length in lengths if length.rule in MAIN_RULES and length.tokens]
    xs = between(low, high, [tokens for _, tokens in marked])
    costs = {
        quantity: {n: walk(prefills.model.root, prefills.at(n)).by_kind(quantity) for n in xs}
        for quantity in ("flops", "flops_masked")
    }

    def side(rule: int, which: int, attention: str, tokens: int) -> Fraction:
        quantity = "flops_masked" if attention == "masked" else "flops"
        return Fraction(MAIN_RULES[rule].sides(costs[quantity][tokens])[which], tokens)

    lines = (  # label, rule, side, attention, colour
        ("scores + values, dense", 0, 0, "dense", 0),
        ("scores + values, masked", 0, 0, "masked", 0),
        ("feed-forward", 0, 1, "dense", 1),
        ("every linear layer but the head", 1, 1, "dense", 2),
    )
    series = [
        Series(label, xs, ys, colour, attention == "masked")
        for label, rule, which, attention, colour in lines
        if any(ys := [side(rule, which, attention, n) or None for n in xs])
    ]
    marks = [
        Mark(
            f"{tokens:,}: {length.rule.name}, {length.attention}",
            tokens,
            side(MAIN_RULES.index(length.rule), 0, length.attention, tokens),
        )
        for length, tokens in marked
    ]
    x, y = PlotAxis("length T (tokens)", "tokens", 2), PlotAxis("FLOPs per token", log=10)
    return Panel(prefills.model.name, x, y, series, marks)
