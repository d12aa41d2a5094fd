"""What a model costs, and how models compare: `show`, `compare`, `diff`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from txcalc.api.arguments import Length, Lengths, Names, models, names, one, some
from txcalc.api.results import Known, Record, Result
from txcalc.api.trainings import TrainingStep, conventions_of, with_step
from txcalc.errors import InputError
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.planning.terms import Convention
    from txcalc.sources import Source

Attention = Literal["dense", "masked"]
Logits = Literal["all", "last"]
Mla = Literal["expanded", "absorbed"]

MOST = 8  # models side by side


class Named(Record):
    """A model, and where it comes from."""

    name: str
    kind: str
    source: str | None
    model_type: str | None
    context: int | None
    params: int | None


class Workload(Record):
    """Sequences, new tokens of each, tokens in the cache; encoder positions where there is an encoder apart."""

    batch: int
    tokens: int | None
    past: int
    source: int | None
    contexts: list[int] | None


class Conventions(Record):
    """What is counted, and how."""

    flops_per_mac: int | None
    attention: str | None
    logits: str | None
    mla: str | None
    dtype: str | None
    kv_dtype: str | None
    experts_read: str | None


class Params(Record):
    """Parameters, a tied weight once; `whole` with the towers of a multimodal model, `mtp` of prediction layers."""

    total: int
    active: int
    embedding: int
    by_kind: dict[str, int]
    whole: int | None
    mtp: int | None


class Forward(Record):
    """FLOPs of matrix products, and of all else."""

    matmul: int
    other: int


class Matmul(Record):
    """FLOPs of matrix products."""

    matmul: int


class Flops(Record):
    """FLOPs of the workload: dense attention, masked attention, forward and backward."""

    forward: Forward
    masked: Matmul
    by_kind: dict[str, int]
    training: Matmul


class CacheFigures(Record):
    """Elements of one sequence's cache, and its bytes; no growth and no constant part where it grows in steps."""

    elements_per_token: int | None
    constant_elements: int | None
    elements: int
    bytes: int
    windows_full_at: int | None


class Native(Record):
    """The weights as published."""

    format: str
    bytes: int


class SavedBytes(Record):
    """Bytes kept for backward."""

    fused: int
    attention_matrix_kept: int


class MemoryFigures(Record):
    """Bytes of weights, of the training state, and kept for backward."""

    weights_bytes: int
    native: Native | None
    training_state_bytes: int
    saved_bytes: SavedBytes


class CountedTerm(Record):
    """What one source counts of a part, what txcalc does, and why they differ."""

    name: str
    theirs: int
    ours: int
    why: str
    difference: int


class CountedElsewhere(Record):
    """FLOPs (or bytes) as another source counts them, term by term."""

    name: str
    counts: str
    formula: str
    source: str
    theirs: int
    ours: int
    terms: list[CountedTerm]


class Rule(Record):
    """A rule of thumb beside the exact figure, and how far it is off; fractions are texts."""

    what: str
    formula: str
    gives: int | str
    exact: int | str
    error: str
    relative_error: float | None


class Initial(Record):
    """Parameters that begin alike: of which parts, by which rule, how many, and their standard deviation."""

    parts: list[str]
    rule: str
    params: int
    deviation: float | None


class Show(Result):
    """What one model is and costs."""

    model: Named
    workload: Workload
    convention: Conventions
    params: Params
    flops: Flops
    cache: CacheFigures
    memory: MemoryFigures
    sums: dict[str, int]
    rules: list[Rule]
    published: str | None
    assumptions: list[str]
    notes: list[str]
    known: dict[str, Known]
    checkpoint: dict[str, Any] | None
    as_: CountedElsewhere | None
    conventions: list[CountedElsewhere] | None
    initial: list[Initial] | None
    towers: dict[str, Any] | None
    training: TrainingStep | None

    def _rows(self) -> list[dict[str, Any]]:
        params, flops = self.params.by_kind, self.flops.by_kind
        return [
            {"part": kind, "params": params.get(kind, 0), "flops": flops.get(kind, 0)} for kind in {**params, **flops}
        ]


def show(
    source: Source,
    *,
    batch: Length = 1,
    tokens: Length | None = None,
    past: Length = 0,
    source_length: Length | None = None,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    attention: Attention = "dense",
    logits: Logits = "all",
    mla: Mla = "expanded",
    weights: str | None = None,
    conventions: Names = (),
    initial: bool = False,
    recompute: str | None = None,
    optimizer: str | None = None,
    layout: str | None = None,
) -> Show:
    """What a model costs: parameters, FLOPs, cache and memory, and how wrong the rules of thumb are.

    `batch` sequences of `tokens` new tokens each (by default all of its context, at most 2,048; after cached ones, 1),
    after `past` cached ones; `source_length` positions of an encoder apart, or tokens of a tower. `weights`: a format
    (native: as published), not `dtype`. `conventions` of others (palm …); `initial`: what parameters begin with.
    `recompute`, `optimizer`, `layout`: as of `train`, also a training step by part, on its fullest rank.
    Errors: `InputError` with every fault at once, `UnknownName`, `MissingExtra`.

    >>> import txcalc
    >>> found = txcalc.show("llama-3.1-8b", tokens="2k")
    >>> found.params.total, found.flops.forward.matmul
    (8030261248, 32938104193024)
    """
    from txcalc.planning.formats.names import stored_narrow, weights_of
    from txcalc.render.show import report, with_initial

    one(batch=batch, tokens=tokens, past=past, source=source_length)
    model = load(source)
    form = weights_of(model, weights or dtype) if weights or stored_narrow(dtype) else None
    dtype = "bf16" if form and stored_narrow(dtype) else dtype  # what activations are in
    asked: Any = {"logits": logits, "mla": mla, "dtype": dtype, "kv_dtype": kv_dtype}
    usual = tokens is None and past == 0
    tokens = (model.usual_tokens if usual else 1) if tokens is None else tokens
    seen = source_length
    source_length = None if model.reads_any_size else source_length  # then it is what towers make
    ledger = model.ledger(batch, tokens, past, source_length, **asked)
    towers = model.tower_ledgers(ledger, seen, dtype)
    kept = model.ledger(batch, tokens, past, source_length, keep_scores=True, **asked)
    found = report(model, ledger, kept, attention, dtype, kv_dtype, form, usual, towers)
    if conventions:
        from txcalc.render.further import beside

        found = beside(found, list(_counted(names(conventions), model, ledger, kept, attention)), ledger)
    found = with_initial(found, model) if initial else found
    found = with_step(found, model, ledger, recompute, optimizer, layout, dtype)
    return Show(lambda _: found, lambda plots: plots.show(model, ledger, attention))


def _counted(asked: Sequence[str], model: Model, ledger: Ledger, kept: Ledger, attention: str) -> Iterator[Convention]:
    """The conventions asked for, each once. Errors: `UnknownName`; `InputError` where one cannot describe the model."""
    from txcalc.planning.activations import korthikanti
    from txcalc.planning.conventions import CONVENTIONS

    for name in conventions_of(asked, "korthikanti"):
        yield korthikanti(model, kept) if name == "korthikanti" else CONVENTIONS[name](model, ledger, attention, 1)


class Compared(Record):
    """One quantity of all models, None where a model lacks it; `ratios` to the first, or a share of what is in `of`."""

    quantity: str
    tokens: int | None
    values: list[int | float | None]
    ratios: list[float | None] | None
    flops: list[int | None] | None
    of: list[int | None] | None
    never: list[bool] | None


class Neighbour(Record):
    """A size, and how far its model is from the budget."""

    value: int
    difference: int


class Matched(Record):
    """The size that brings a model nearest to the budget, by how much it misses it, and the sizes on both sides."""

    name: str
    value: int
    difference: int
    below: Neighbour | None
    above: Neighbour | None


class Match(Record):
    """The budget of the first model, by which size the others were brought to it; FLOPs and caches at a length."""

    quantity: str
    by: str
    tokens: int | None
    budget: int
    models: list[Matched]


class Compare(Result):
    """Models side by side; `match` where they were brought to one budget."""

    models: list[Named]
    convention: Conventions
    workload: Workload
    rows: list[Compared]
    match: Match | None

    def _rows(self) -> list[dict[str, Any]]:
        """A row for each quantity, length and model."""
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


def compare(
    *sources: Source,
    contexts: Lengths | None = None,
    variants: Sequence[Mapping[str, Any]] = (),
    match: Literal["params", "flops", "cache"] | None = None,
    by: str | None = None,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    attention: Attention = "dense",
    logits: Logits = "all",
    mla: Mla = "expanded",
) -> Compare:
    """Two to eight models side by side: parameters, FLOPs per token and cache at lengths, where attention overtakes.

    `contexts`: tokens of prefills and caches (default: 1k, 8k, 32k, 128k as far as the models go). `variants`: changes
    of the first model, a further one each. `match`: every further model has the first one's budget, by the size `by`.
    Errors: `InputError`, `UnknownName`, `MissingExtra`.

    >>> import txcalc
    >>> found = txcalc.compare("llama-3.1-8b", txcalc.load("llama-3.1-8b", h_kv=4), contexts="8k")
    >>> found.rows[0].values
    [8030261248, 7896043520]
    """
    from txcalc.render.compare import Comparison, EqualBudget, called, report, usual_contexts

    if (match is None) != (by is None):
        raise InputError(
            "options",
            ["--match and --by go together: what is equal, and the size that makes it so (--match params --by F)"],
        )
    if not (2 <= (given := len(sources) + len(variants)) <= MOST and sources):
        raise InputError("compare", [f"{given} given, expected 2 to {MOST} models, or variants of one by --set"])
    compared = models(sources)
    compared += [called(load(compared[0], changes), changes) for changes in variants]
    wanted = some(contexts, "--context")
    at = wanted or usual_contexts(compared)
    asked = Comparison(at, dtype, kv_dtype, attention, logits, mla)
    told = None
    if match is not None and by is not None:
        budget = EqualBudget(match, by, at[0] if wanted else min(at, default=1), asked)
        compared, told = budget.met(compared)
    found = report(compared, asked, told)
    return Compare(lambda _: found, lambda plots: plots.compare(compared, asked))


class CacheTerms(Record):
    """Elements of one sequence's cache: what a further token adds, and what is held whatever the length."""

    elements_per_token: int
    constant_elements: int
    bytes_per_token: int | None
    windows_full_at: int | None


class Changed(Record):
    """What a difference adds to the first model, per workload; None where it cannot be counted alone."""

    params: int | None
    flops: int | None
    flops_per_token: int | float | None
    cache: CacheTerms | None


class Difference(Changed):
    """A key in which two models differ, from one's value to the other's, and what it alone adds."""

    key: str
    letter: str | None
    from_: Any
    to: Any
    why: str | None


class Diff(Result):
    """In what two models differ, and what each difference costs."""

    models: list[Named]
    workload: Workload
    convention: Conventions
    differences: list[Difference]
    whole: Changed
    assumptions: list[str]
    notes: list[str]

    def _rows(self) -> list[dict[str, Any]]:
        return [row.to_dict() for row in self.differences]


def diff(
    source: Source,
    other: Source,
    *,
    batch: Length = 1,
    tokens: Length = 1,
    past: Length = 0,
    source_length: Length | None = None,
    kv_dtype: str = "bf16",
    attention: Attention = "dense",
) -> Diff:
    """In what two models differ, and what each difference costs: in parameters, FLOPs and cache, each alone.

    Errors: `InputError`, `UnknownName`, `MissingExtra`.

    >>> import txcalc
    >>> found = txcalc.diff("llama-3.1-8b", "qwen3-8b")
    >>> found.whole.params == txcalc.load("qwen3-8b").params - txcalc.load("llama-3.1-8b").params
    True
    """
    from txcalc.planning.differences import differences
    from txcalc.render.diff import report

    one, two = load(source), load(other)
    work: dict[str, Any] = {"batch": batch, "tokens": tokens, "past": past, "kv_dtype": kv_dtype}
    apart: dict[str, Any] = {} if source_length is None else {"source": source_length}
    mine = one.ledger(**work, **apart)
    theirs = two.ledger(**work, **(apart if two.has_encoder_apart else {}))
    found = differences(one, two, {**work, **apart}, "flops_masked" if attention == "masked" else "flops")
    told = report(one, two, found, mine, theirs, attention, kv_dtype)
    return Diff(lambda _: told)
