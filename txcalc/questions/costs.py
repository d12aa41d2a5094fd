"""What a model costs, and how models compare: `show`, `compare`, `diff`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.questions.arguments import names, one
from txcalc.questions.options import Length, Names
from txcalc.questions.results import Known, Record, Result
from txcalc.questions.training_step import TrainingStep, training_step
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.planning.terms import Convention
    from txcalc.sources import Source

Attention = Literal["dense", "masked"]
Logits = Literal["all", "last"]
Mla = Literal["expanded", "absorbed"]

MOST = 8  # models compared at once


class Named(Record):
    """A model and its source."""

    name: str
    kind: str
    source: str | None
    model_type: str | None
    context: int | None
    params: int | None


class AskedWorkload(Record):
    """The workload: sequences, new tokens per sequence, cached tokens, encoder positions."""

    batch: int
    tokens: int | None
    past: int
    source: int | None
    contexts: list[int] | None


class Conventions(Record):
    """The conventions of the figures."""

    flops_per_mac: int | None
    attention: str | None
    logits: str | None
    mla: str | None
    dtype: str | None
    kv_dtype: str | None
    experts_read: str | None


class Params(Record):
    """Parameters, a tied weight once; `whole`: with the towers of a multimodal model; `mtp`: of multi-token-prediction
    layers."""

    total: int
    active: int
    embedding: int
    by_kind: dict[str, int]
    whole: int | None
    mtp: int | None


class Forward(Record):
    """FLOPs of matrix products and of everything else."""

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
    """The cache of one sequence in elements and bytes; growth and constant part are None where it grows in steps."""

    elements_per_token: int | None
    constant_elements: int | None
    elements: int
    bytes: int
    windows_full_at: int | None


class Native(Record):
    """Weights in the published format."""

    format: str
    bytes: int


class SavedBytes(Record):
    """Bytes of saved activations."""

    fused: int
    attention_matrix_kept: int


class MemoryFigures(Record):
    """Bytes of weights, training state and saved activations."""

    weights_bytes: int
    native: Native | None
    training_state_bytes: int
    saved_bytes: SavedBytes


class CountedTerm(Record):
    """A term as a published convention counts it, as txcalc does, and why they differ."""

    name: str
    theirs: int
    ours: int
    why: str
    difference: int


class CountedElsewhere(Record):
    """FLOPs (or bytes) by a published convention, term by term."""

    name: str
    counts: str
    formula: str
    source: str
    theirs: int
    ours: int
    terms: list[CountedTerm]


class Rule(Record):
    """A rule of thumb against the exact figure; fractions are texts."""

    what: str
    formula: str
    gives: int | str
    exact: int | str
    error: str
    relative_error: float | None


class Initial(Record):
    """Parameters with the same initialisation: their parts, the rule, their number and standard deviation."""

    parts: list[str]
    rule: str
    params: int
    deviation: float | None


class Show(Result):
    """What one model costs."""

    model: Named
    workload: AskedWorkload
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
    """What a model costs: parameters, FLOPs, cache and memory, with the error of the common rules of thumb.

    `batch` sequences of `tokens` new tokens each (default: the context, at most 2,048; 1 after cached ones) after
    `past` cached ones. `source_length`: encoder positions, or tokens of a vision or audio tower. `weights`: a weight
    format instead of `dtype` (native: as published). `conventions`: FLOPs as others count them (palm, …). `initial`:
    initialisation of the parameters. `recompute`, `optimizer`, `layout`: a training step too, part by part, on its
    fullest rank (as in `train`).
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
    dtype = "bf16" if form and stored_narrow(dtype) else dtype  # of activations
    asked: Any = {"logits": logits, "mla": mla, "dtype": dtype, "kv_dtype": kv_dtype}
    usual = tokens is None and past == 0
    tokens = (model.usual_tokens if usual else 1) if tokens is None else tokens
    seen = source_length
    source_length = None if model.reads_any_size else source_length  # else it is the towers' tokens
    ledger = model.ledger(batch, tokens, past, source_length, **asked)
    towers = model.tower_ledgers(ledger, seen, dtype)
    kept = model.ledger(batch, tokens, past, source_length, keep_scores=True, **asked)
    found = report(model, ledger, kept, attention, dtype, kv_dtype, form, usual, towers)
    if conventions:
        from txcalc.render.further import beside

        found = beside(found, list(_counted(names(conventions), model, ledger, kept, attention)), ledger)
    found = with_initial(found, model) if initial else found
    if (recompute, optimizer, layout) != (None, None, None):
        from txcalc.render.training_step import with_step

        found = with_step(found, training_step(model, ledger, recompute, optimizer, layout, dtype))
    return Show(lambda _: found, lambda plots: plots.show(model, ledger, attention))


def _counted(asked: Sequence[str], model: Model, ledger: Ledger, kept: Ledger, attention: str) -> Iterator[Convention]:
    """The requested conventions. Errors: `UnknownName`; `InputError` where one cannot describe the model."""
    from txcalc.planning.activations import korthikanti
    from txcalc.planning.conventions import CONVENTIONS, known_conventions

    for name in known_conventions(asked, "korthikanti"):
        yield korthikanti(model, kept) if name == "korthikanti" else CONVENTIONS[name](model, ledger, attention, 1)
