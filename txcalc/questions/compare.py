"""`compare`: models side by side, with ratios to the first.

What a model lacks (a cache, positions past its learned table) is None, never a zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Annotated, Any, Literal

from msgspec.structs import replace

from txcalc.errors import InputError
from txcalc.ledger import Ledger
from txcalc.model import MAX_TOKENS, Model
from txcalc.num import ceil_div
from txcalc.planning.crossover import CrossoverRule, RuleCrossover, crossovers, lengths as prefills_of
from txcalc.planning.matching import MatchedModel, Near, match_size
from txcalc.planning.memory import cache_bytes, weights_bytes
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, Convention, ModelInfo, Result
from txcalc.questions.arguments import optional_lengths, source_list
from txcalc.questions.crossover import MAIN_RULES
from txcalc.questions.phrases import must_change, parse_changes
from txcalc.questions.pictures import USUAL_CONTEXTS, Panel, Picture, PlotAxis, Series, between, picture_convention
from txcalc.sources import load

MAX_MODELS = 8  # compared at once


class CompareConvention(Convention, kw_only=True):
    """The conventions of the figures, and their formats."""

    dtype: str
    kv_dtype: str

    @property
    def flops(self) -> str:
        """The quantity that counts: of all query-key pairs, or of those that the mask lets through."""
        return "flops_masked" if self.attention == "masked" else "flops"

    @property
    def latents(self) -> str:
        return self.mla or "expanded"

    def ledger(self, model: Model, tokens: int = 1) -> Ledger:
        """A prefill of one sequence."""
        dtypes = {"dtype": self.dtype, "kv_dtype": self.kv_dtype}
        return model.ledger(tokens=tokens, logits=self.logits, mla=self.latents, **dtypes)


class CompareWorkload(Answer):
    """One sequence, at several lengths."""

    batch: int
    past: int
    contexts: tuple[int, ...]


class ComparedQuantity(Answer, kw_only=True):
    """One quantity of all models, None where a model lacks it.

    tokens    length of the prefill or the cache; None if it has none
    flops     of a mean per token: FLOPs of the whole prefill
    of        of a part of a whole: that whole; then there are no ratios
    ratios    to the first model
    never     whether a model has no such length; its value is None
    """

    quantity: str
    tokens: int | None
    values: tuple[int | float | None, ...]
    flops: tuple[int | None, ...] | None = None
    of: tuple[int | None, ...] | None = None
    ratios: tuple[float | None, ...] | None = None
    never: tuple[bool, ...] | None = None

    @property
    def plotted(self) -> tuple[Any, ...]:
        """The values; of a part of a whole, as percentages."""
        wholes = self.of or [100] * len(self.values)
        return tuple(
            value and Fraction(100 * value) / Fraction(whole or 1)
            for value, whole in zip(self.values, wholes, strict=True)
        )


class MatchedSize(Answer):
    """The size that brings a model closest to the budget, how far it is from it, and the sizes on both sides."""

    name: str
    value: int
    difference: int
    below: Near | None
    above: Near | None


class Match(Answer):
    """The first model's budget, and the size `by` adjusted in the others; FLOPs and caches at a length."""

    quantity: str
    by: str
    tokens: int | None
    budget: int
    models: tuple[MatchedSize, ...]


class Compare(Result, tag_field="schema", tag="txcalc/compare/1", kw_only=True):
    """Models side by side; `match` if they were brought to one budget."""

    models: tuple[ModelInfo, ...]
    convention: CompareConvention
    workload: CompareWorkload
    rows: tuple[ComparedQuantity, ...]
    match: Match | None = None
    notes: tuple[str, ...]

    def _rows(self) -> list[dict[str, Any]]:
        """One row per quantity, length and model."""
        return [
            {
                "quantity": row.quantity,
                "tokens": row.tokens,
                "model": model.name,
                "value": row.values[i],
                "ratio": row.ratios[i] if row.ratios else None,
            }
            for row in self.rows
            for i, model in enumerate(self.models)
        ]


@o.Question(
    "txcalc compare llama-3.1-8b qwen3-8b gemma-2-9b",
    takes=("--ignore",),
    draws=True,
    first=("--set", "--context", "--attention", "--dtype", "--kv", "--match", "--by", "--plot"),
    examples=("Variants with equal parameters: txcalc compare gpt2 --set h_kv=1 --match params --by F",),
)
def compare(
    *sources: o.SourcesArgument,
    context: Annotated[o.Lengths | None, o.CONTEXTS.with_help("Lengths of prefills and caches: 1k,8k,32k.")] = None,
    variants: Annotated[
        Sequence[Mapping[str, Any] | str],
        o.SET.with_help("Each --set is a variant of the first model. Repeatable.", repeats=True),
    ] = (),
    match: Annotated[
        Literal["params", "flops", "cache"] | None,
        o.Option("Give every further model the first one's budget, by adjusting the size --by.", group="Model"),
    ] = None,
    by: Annotated[
        str | None,
        o.Option("The size that --match adjusts: F, L, D, h_kv …", "KEY", "Model", completes="key_alone"),
    ] = None,
    dtype: Annotated[str, o.DTYPE] = "bf16",
    kv: Annotated[str, o.KV] = "bf16",
    attention: Annotated[
        o.Attention | None, o.ATTENTION.with_help("Default: masked where a model has windows.")
    ] = None,
    logits: Annotated[o.Logits, o.LOGITS] = "all",
    mla: Annotated[o.Mla, o.MLA] = "expanded",
) -> Compare:
    """Compare two to eight models: parameters, FLOPs and cache over lengths, with ratios to the first. Also variants of
    one model, models matched to one budget, and where attention exceeds the feed-forward.

    In Python: several arguments, or one list of models. Errors: `InputError`, `UnknownName`, `MissingExtra`.

    >>> import txcalc
    >>> answer = txcalc.compare("llama-3.1-8b", txcalc.load("llama-3.1-8b", h_kv=4), context="8k")
    >>> answer.rows[0].values
    (8030261248, 7896043520)
    """
    if (match is None) != (by is None):
        pair = "what is equal, and the size that makes it so (--match params --by F)"
        raise InputError("options", [f"--match and --by go together: {pair}"])
    model_sources = source_list(sources)
    number = len(model_sources) + len(variants)
    if not (2 <= number <= MAX_MODELS and model_sources):
        raise InputError("compare", [f"{number} given, expected 2 to {MAX_MODELS} models, or variants of one by --set"])
    models = [load(source) for source in model_sources]
    models += [variant(models[0], changes) for changes in variants]
    lengths = optional_lengths(context, "--context")
    contexts = lengths or default_contexts(models)
    windows = any(model.has_windows for model in models)
    attention = attention or ("masked" if windows else "dense")
    work = models[0].workload(logits=logits, mla=mla)
    convention = CompareConvention.of(models, work, attention, dtype=dtype, kv_dtype=kv)
    budget = None
    # A short prompt would not see what a window saves.
    length = contexts[0] if lengths else (max if windows else min)(contexts, default=1)
    if match is not None and by is not None:
        matches = [equal_budget(model, models[0], match, by, length, convention) for model in models[1:]]
        models[1:] = [rename(match.model, {by: match.best.value}) for match in matches]
        sizes = tuple(
            MatchedSize(match.model.name, match.best.value, match.best.difference, match.below, match.above)
            for match in matches
        )
        budget = Match(match, by, None if match == "params" else length, matches[0].budget, sizes)
    return Compare(
        models=tuple(map(ModelInfo.of, models)),
        convention=convention,
        workload=CompareWorkload(1, 0, tuple(contexts)),
        rows=tuple(quantities(models, contexts, convention)),
        match=budget,
        notes=tuple(notes(models, contexts)),
        draw=lambda: picture(models, contexts, convention),
    )


NEVER = "never"  # the value of a length that does not exist
Ledgers = Sequence[Ledger | None]  # one per model; None where the length does not apply


def variant(model: Model, changes: Mapping[str, object] | str) -> Model:
    """A model with changes, named by them. Errors: `InputError`, also where they change nothing."""
    keys = parse_changes([changes]) if isinstance(changes, str) else changes
    changed = load(model, keys)
    must_change([changed], keys)
    return rename(changed, keys)


def rename(model: Model, changes: Mapping[str, object]) -> Model:
    """A model named by its changes, without the note of them."""
    name = " ".join([model.name, *(f"{key}={value}" for key, value in changes.items())])
    return replace(model, name=name, notes=tuple(note for note in model.notes if note != model.changed))


def equal_budget(
    model: Model, first: Model, quantity: str, by: str, tokens: int, convention: CompareConvention
) -> MatchedModel:
    """The model with the size `by` at which it spends what the first does: parameters, FLOPs of a prefill of `tokens`,
    or cached elements."""

    def cost(candidate: Model) -> int:
        if quantity == "params":
            return candidate.params
        counted = "cache" if quantity == "cache" else convention.flops
        return convention.ledger(candidate, tokens).total(counted)

    return match_size(model, by, cost(first), cost)


def default_contexts(models: Sequence[Model]) -> list[int]:
    """1k, 8k, 32k and 128k as far as the longest model goes, and the shortest model's own context."""
    growing = [model for model in models if not model.fixed_length]
    contexts = [model.context for model in growing if model.context]
    longest = max(contexts, default=0) if len(contexts) == len(growing) else USUAL_CONTEXTS[-1]
    return sorted({*(length for length in USUAL_CONTEXTS if length <= longest), *([min(contexts)] if contexts else [])})


def quantities(
    models: Sequence[Model], contexts: Sequence[int], convention: CompareConvention
) -> list[ComparedQuantity]:
    """Every quantity, in the order in which it is shown; what no model has is left out."""
    flops = convention.flops
    single = [convention.ledger(model) for model in models]
    images = [ledger if model.fixed_length else None for model, ledger in zip(models, single, strict=True)]
    prefills: list[tuple[int | None, Ledgers]] = [(None, images)]
    for tokens in contexts:
        reached = [convention.ledger(model, tokens) if model.reaches(tokens) else None for model in models]
        prefills.append((tokens, reached))
    rows = [
        compared_row("params", None, [ledger.total("params") for ledger in single]),
        compared_row("active", None, [ledger.total("active") for ledger in single]),
        compared_row("weights_bytes", None, [weights_bytes(ledger) for ledger in single]),
    ]
    rows += [flops_per_token("flops_per_token", flops, *prefill) for prefill in prefills]
    if any(model.has_windows for model in models):  # by the other convention too
        way, other = ("dense", "flops") if flops == "flops_masked" else ("masked", "flops_masked")
        rows += [flops_per_token(f"flops_per_token_{way}", other, *prefill) for prefill in prefills]
    rows += [attention_core(flops, *prefill) for prefill in prefills]
    rows += [
        compared_row("cache_bytes", tokens, [(ledger and cache_bytes(ledger)) or None for ledger in at])
        for tokens, at in prefills
    ]
    longest = [
        next((at[i] for _, at in reversed(prefills) if at[i]), None) or ledger for i, ledger in enumerate(single)
    ]
    growth = [ledger.cache_now.growth if ledger.total("cache") else None for ledger in longest]
    # An encoder that is as long as the context caches more with every token.
    grows = [model.has_encoder_apart and model.workload(tokens=2).source == 2 for model in models]
    constant = [
        None if number is None or coupled else ledger.cache_now.constant
        for number, coupled, ledger in zip(growth, grows, longest, strict=True)
    ]
    for term, elements in (("growth", growth), ("constant", constant)):
        sizes = [
            None if n is None else ceil_div(n * ledger.bits[2], 8) for n, ledger in zip(elements, single, strict=True)
        ]
        rows.append(compared_row(f"cache_{term}_bytes", None, sizes))
    rows += crossover_lengths(models, convention)
    return [row for row in rows if row.never or any(value is not None for value in row.values)]


def flops_per_token(name: str, quantity: str, tokens: int | None, at: Ledgers) -> ComparedQuantity:
    """FLOPs per token, averaged over the prefill."""
    values = [ledger and Fraction(ledger.total(quantity), ledger.work.tokens) for ledger in at]
    return compared_row(name, tokens, values)


def attention_core(quantity: str, tokens: int | None, at: Ledgers) -> ComparedQuantity:
    """FLOPs of scores and values, of those of the whole prefill."""
    core = [ledger and ledger.by_kind(quantity).get("attention_core") for ledger in at]
    return compared_row("attention_core_flops", tokens, core, [ledger and ledger.total(quantity) for ledger in at])


def crossover_lengths(models: Sequence[Model], convention: CompareConvention) -> list[ComparedQuantity]:
    """Where the attention core exceeds the feed-forward, and all linear layers; None of a model whose cost is no
    polynomial of the length."""
    by_rule: list[dict[CrossoverRule, RuleCrossover]] = []
    for model in models:
        answers: list[RuleCrossover] = []
        if not model.fixed_length:
            with suppress(InputError):
                answers = crossovers(prefills_of(model, None, convention.logits, convention.latents))
        by_rule.append({length.rule: length for length in answers if length.attention == convention.attention})
    rows = []
    for rule in MAIN_RULES:
        lengths = [lengths_of.get(rule) for lengths_of in by_rule]
        values = [None if length is None or length.one_sided else length.tokens or NEVER for length in lengths]
        rows.append(compared_row(f"crossover: {rule.name}", None, values))
    return rows


def compared_row(
    quantity: str, tokens: int | None, values: Sequence[Any], whole: Sequence[Any] | None = None
) -> ComparedQuantity:
    """A row of values: numbers, None where a model lacks the quantity, or `NEVER`; `whole`: of a part. A mean per token
    is a fraction; `flops`: its total."""
    never = tuple(value == NEVER for value in values)
    mean = quantity.startswith("flops_per_token") and tokens is not None
    return ComparedQuantity(
        quantity=quantity,
        tokens=tokens,
        values=tuple(None if value == NEVER else plain(value) for value in values),
        flops=tuple(value and int(value * tokens) for value in values) if mean else None,
        of=tuple(whole) if whole else None,
        ratios=None if whole else tuple(ratio(values[0], value) for value in values),
        never=never if any(never) else None,
    )


def plain(value: Any) -> int | float | None:
    """A fraction as a whole number or a float."""
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    return value  # type: ignore[no-any-return]


def ratio(first: Any, value: Any) -> float | None:
    """One model's value to the first's, where both are numbers."""
    if not first or value is None or NEVER in (first, value):
        return None
    return float(Fraction(value) / Fraction(first))


def notes(models: Sequence[Model], contexts: Sequence[int]) -> list[str]:
    """What is assumed of the models, and which lengths are not theirs."""
    lines = []
    for model in models:
        lines += [f"{model.name}: {note}" for note in model.all_notes]
        if any(not model.reaches(tokens) for tokens in contexts) and not model.fixed_length:
            lines.append(f"{model.name}: lengths beyond its position table are left out")
        elif model.context and max(contexts, default=0) > model.context:
            lines.append(f"{model.name}: includes lengths beyond its context of {model.context:,} (grey on a terminal)")
    return lines


def picture(models: Sequence[Model], contexts: Sequence[int], convention: CompareConvention) -> Picture:
    """Parameters as bars; FLOPs per token, the share of attention in them and cache against the length, a line for each
    model."""
    low, high = min(contexts, default=0), max(contexts, default=0)
    xs = between(low if low < high else max(1, high // 64), high, contexts) if high else []  # images have none
    rows = quantities(models, xs, convention)
    names = [model.name for model in models]

    by_name = {row.quantity: row.values for row in rows if row.tokens is None}
    parameters = [
        Series(label, names, by_name[quantity], of)
        for of, (quantity, label) in enumerate((("params", "parameters"), ("active", "active per token")))
    ]
    if parameters[0].ys == parameters[1].ys:
        del parameters[1]
    panels = [Panel("", PlotAxis(""), PlotAxis("parameters, each once"), parameters, kind="bars")]
    x = PlotAxis("length (tokens)", "tokens", 2)
    for quantity, y in (
        ("flops_per_token", PlotAxis("FLOPs per token of a prefill", log=10)),
        ("attention_core_flops", PlotAxis("scores and values, % of FLOPs", "sizes")),
        ("cache_bytes", PlotAxis(f"cache of one sequence, {convention.kv_dtype}", "bytes", 2)),
    ):
        at = {row.tokens: row.plotted for row in rows if row.quantity == quantity and row.tokens}
        series = [line for i, model in enumerate(models) for line in model_lines(model, i, at, contexts)]
        if series:
            panels.append(Panel("", x, y, series))
    what = f"one sequence; FLOPs of {convention.attention} attention"
    caption = picture_convention(models, what, convention.logits, convention.latents)
    return Picture(f"{len(models)} models side by side", f"{caption}; dashed: beyond a model's context", panels)


def model_lines(model: Model, i: int, at: Mapping[int, Sequence[object]], marked: Sequence[int]) -> list[Series]:
    """A model's line, dashed beyond its own context."""
    points = [(n, at[n][i]) for n in sorted(at) if at[n][i]]
    end = model.context or MAX_TOKENS
    within, beyond = [p for p in points if p[0] <= end], [p for p in points if p[0] > end]
    beyond = [*within[-1:], *beyond] if beyond else []
    lines: list[Series] = []
    for line, dashed in ((within, False), (beyond, True)):
        if line:
            xs, ys = zip(*line, strict=True)
            lines.append(Series("" if lines else model.name, xs, ys, i, dashed, frozenset(marked)))
    return lines
