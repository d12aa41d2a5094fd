"""`show`: the cost of one model in parameters, FLOPs, cache and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Annotated, Any

from txcalc.errors import Fault, InputError, UnknownName
from txcalc.evidence import theorems
from txcalc.evidence.known import Evidence, all_known, show_known
from txcalc.ledger import KINDS, Ledger, kind_words, walk
from txcalc.model import MAX_TOKENS, Model
from txcalc.num import ceil_div
from txcalc.planning.conventions import RuleOfThumb, rules_of_thumb, sums_of
from txcalc.planning.formats.quantised import native
from txcalc.planning.formats.weights import Format
from txcalc.planning.gradients import training_flops
from txcalc.planning.initial import InitialValues, initial_values
from txcalc.planning.memory import StateShare, cache_bytes, learning, saved_bytes, training_state, weights_bytes
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, Convention, ModelInfo, Result, WorkloadInfo, architecture, json_key
from txcalc.questions.arguments import names
from txcalc.questions.pictures import USUAL_CONTEXTS, Panel, Picture, PlotAxis, Series, between, picture_convention
from txcalc.questions.stored import CheckpointInfo, checkpoint_info
from txcalc.questions.training_step import TrainingStep, training_step
from txcalc.sources import load
from txcalc.units import short


class Params(Answer, kw_only=True):
    """Parameters, a tied weight once.

    whole   with the towers and projectors of a multimodal model; None: those are not known
    mtp     parameters of multi-token-prediction layers, which are not in the total
    """

    total: int
    active: int
    embedding: int
    by_kind: dict[str, int]
    whole: int | None
    mtp: int = 0


class ForwardFlops(Answer):
    """FLOPs of matrix products and of everything else."""

    matmul: int
    other: int


class MaskedFlops(Answer):
    """FLOPs of matrix products of the query-key pairs that the mask lets through."""

    matmul: int
    by_kind: dict[str, int]


class TrainingFlops(Answer):
    """FLOPs of matrix products, forward and backward."""

    matmul: int


class Flops(Answer, kw_only=True):
    """FLOPs of the workload; `scans`: other FLOPs of recurrent scans, by name."""

    forward: ForwardFlops
    masked: MaskedFlops
    by_kind: dict[str, int]
    training: TrainingFlops
    scans: Mapping[str, int] = {}


class Traffic(Answer):
    """Bytes if each operation reads its operands (weights in the format of `memory`) and writes its result once; and
    arithmetic intensity: FLOPs of matrix products per byte, attention as in the convention."""

    bytes: int
    flops_per_byte: float
    bytes_by_kind: dict[str, int]
    flops_per_byte_by_kind: dict[str, float]


class CacheFigures(Answer):
    """The cache of one sequence in elements and bytes; growth and constant part are None where it grows in steps."""

    elements_per_token: int | None
    constant_elements: int | None
    windows_full_at: int | None
    elements: int
    bytes: int
    bytes_per_token: int | None
    constant_bytes: int | None
    context: int  # cached tokens
    dtype: str


class NativeWeights(Answer):
    """Weights in the published format, and its source."""

    format: str
    bytes: int
    source: str


class SavedBytes(Answer):
    """Bytes of saved activations, with fused and with eager attention."""

    fused: int
    attention_matrix_kept: int


class MemoryFigures(Answer):
    """Bytes of weights, training state and saved activations; `format` of the weights, `dtype` of activations. Of a
    format with scales: its rule, and the bytes without scales if every weight were quantised."""

    weights_bytes: int
    native: NativeWeights | None
    training_state_bytes: int
    saved_bytes: SavedBytes
    format: str
    dtype: str
    training_state: tuple[StateShare, ...]
    trained_params: int
    format_rule: str = ""
    unscaled_bytes: int | None = None


class Rule(Answer):
    """A rule of thumb against the exact figure; fractions are texts."""

    what: str
    formula: str
    gives: int | str
    exact: int | str
    error: str
    relative_error: float | None


class TowerParams(Answer):
    """Parameters of a tower with its projector."""

    total: int
    by_kind: dict[str, int]


class TowerFlops(Answer):
    """FLOPs of a tower."""

    forward: ForwardFlops
    by_kind: dict[str, int]


class TowerMemory(Answer):
    """Bytes of a tower's weights."""

    weights_bytes: int
    weights_bytes_by_kind: dict[str, int]


class Tower(Answer, kw_only=True):
    """A tower with its projector, for the workload's batch; `grid`: the sides of its positions."""

    tokens: int
    params: TowerParams
    flops: TowerFlops
    memory: TowerMemory
    known: dict[str, Evidence]
    grid: tuple[int, int] | None = None


class ConventionTerm(Answer):
    """A term as a published convention counts it, as txcalc does, and why they differ."""

    name: str
    theirs: int
    ours: int
    why: str
    difference: int


class CountedByConvention(Answer):
    """FLOPs (or bytes) by a published convention, term by term."""

    name: str
    counts: str
    formula: str
    source: str
    theirs: int
    ours: int
    terms: tuple[ConventionTerm, ...]


class Show(Result, tag_field="schema", tag="txcalc/show/1", kw_only=True):
    """The cost of one model.

    sums             parameters without embedding and head, of the blocks, of their feed-forward
    architecture     norms, activations, positions and F/D in one line
    changed          whether the description was changed since it was read
    default_tokens   whether the length was the default
    has_windows      whether masked FLOPs are much fewer than dense ones
    detail           whether the printed text has every table
    train            whether it has memory of training
    """

    model: ModelInfo
    workload: WorkloadInfo
    convention: Convention
    params: Params
    flops: Flops
    cache: CacheFigures
    memory: MemoryFigures
    traffic: Traffic
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    known: dict[str, Evidence]
    checkpoint: CheckpointInfo | None = None
    sums: dict[str, int]
    rules: tuple[Rule, ...]
    published: str | None
    towers: Mapping[str, Tower] = {}
    as_: CountedByConvention | None = json_key("as", None)
    conventions: tuple[CountedByConvention, ...] = ()
    initial: tuple[InitialValues, ...] = ()
    training: TrainingStep | None = None
    architecture: str
    checkpoint_summary: str = ""
    changed: bool = False
    default_tokens: bool = False
    has_windows: bool = False
    detail: bool = False
    train: bool = False

    def _rows(self) -> list[dict[str, Any]]:
        params, flops = self.params.by_kind, self.flops.by_kind
        return [
            {"part": kind, "params": params.get(kind, 0), "flops": flops.get(kind, 0)} for kind in {**params, **flops}
        ]


@o.Question(
    "txcalc show llama-3.1-8b --tokens 2k",
    takes=("--set", "--lora", "--ignore"),
    draws=True,
    first=("--tokens", "--batch", "--past", "--weights", "--kv", "--set", "--train", "--detail"),
    examples=("A decode step at a context of 8k: txcalc show llama-3.1-8b --tokens 1 --past 8k",),
)
def show(
    source: o.SourceArgument,
    *,
    batch: Annotated[o.Length, o.BATCH] = 1,
    tokens: Annotated[
        o.Length | None, o.TOKENS.with_help("Default: the context, at most 2,048; 1 with --past.")
    ] = None,
    past: Annotated[o.Length, o.PAST] = 0,
    source_tokens: Annotated[
        o.Length | None,
        o.SOURCE_TOKENS.with_help(
            "Default: as many as tokens. For images of any size: tokens per image (default: 256)."
        ),
    ] = None,
    dtype: Annotated[str, o.DTYPE] = "bf16",
    kv: Annotated[str, o.KV] = "bf16",
    attention: Annotated[
        o.Attention | None, o.ATTENTION.with_help("Default: dense (masked in plots of models with windows).")
    ] = None,
    logits: Annotated[o.Logits, o.LOGITS] = "all",
    mla: Annotated[o.Mla, o.MLA] = "expanded",
    weights: Annotated[str | None, o.WEIGHTS.with_help("Default: --dtype.")] = None,
    conventions: Annotated[
        o.Names,
        o.CONVENTIONS._replace(
            help="FLOPs by published conventions, compared term by term: 2n, 6n, palm, chinchilla, megatron, "
            "megatron-lm, megatron-model, llm-foundry, nanotron, nanogpt, torchtitan, llama-3, transformers; or "
            "activation bytes by korthikanti. Repeatable, or separated by commas."
        ),
    ] = (),
    initial: Annotated[bool, o.Option("Also show the initialisation of every parameter.", group="Model")] = False,
    recompute: Annotated[str | None, o.RECOMPUTE] = None,
    optimizer: Annotated[str | None, o.OPTIMIZER] = None,
    layout: Annotated[str | None, o.LAYOUT.with_help("Also show a training step of the rank with most memory.")] = None,
    detail: Annotated[bool, o.DETAIL.with_help("One is the arithmetic intensity of each part.")] = False,
    train: Annotated[bool, o.Option("Also show the memory of training.")] = False,
) -> Show:
    """What a model costs: parameters, FLOPs, cache and memory, and how wrong the rules of thumb are.

    Errors: `InputError` with every fault at once, `UnknownName`, `MissingExtra`.

    >>> import txcalc
    >>> answer = txcalc.show("llama-3.1-8b", tokens="2k")
    >>> answer.params.total, answer.flops.forward.matmul
    (8030261248, 32938104193024)
    """
    from txcalc.planning.formats.names import stored_narrow, weights_of

    sizes = {"batch": batch, "tokens": tokens, "past": past, "source": source_tokens}
    mend = "txcalc.sweep and model.ledger take arrays"
    if arrays := [Fault(name, n, "one number", mend) for name, n in sizes.items() if getattr(n, "shape", ())]:
        raise InputError("workload", arrays)
    model = load(source)
    form = weights_of(model, weights or dtype) if weights or stored_narrow(dtype) else None
    dtype = "bf16" if form and stored_narrow(dtype) else dtype  # of activations
    drawn = attention or ("masked" if model.has_windows else "dense")
    attention = attention or "dense"
    default_tokens = tokens is None and past == 0
    if tokens is None:
        tokens = model.usual_tokens if default_tokens else 1
    encoder_tokens = None if model.reads_any_size else source_tokens  # else they are the towers'
    settings: Any = {"logits": logits, "mla": mla, "dtype": dtype, "kv_dtype": kv}
    ledger = model.ledger(batch, tokens, past, encoder_tokens, **settings)
    keeping_scores = model.ledger(batch, tokens, past, encoder_tokens, keep_scores=True, **settings)
    towers = model.tower_ledgers(ledger, source_tokens, dtype)
    counted: tuple[CountedByConvention, ...] = ()
    if conventions:
        counted = tuple(counted_by_conventions(names(conventions), model, ledger, keeping_scores, attention))
    step = None
    if recompute is not None or optimizer is not None or layout is not None:
        step = training_step(model, ledger, recompute, optimizer, layout, dtype)
    evidence = show_known(model, ledger, keeping_scores)
    return Show(
        model=ModelInfo.of(model),
        workload=WorkloadInfo.of(model, ledger),
        convention=Convention.of([model], ledger.work, attention),
        params=params_of(model, ledger),
        flops=flops_of(ledger),
        cache=cache_figures(ledger, kv),
        memory=memory_figures(model, ledger, keeping_scores, form, dtype, step),
        traffic=traffic_of(ledger, "flops_masked" if attention == "masked" else "flops", form),
        assumptions=model.assumptions,
        notes=tuple(dict.fromkeys([*notes(model, ledger, evidence, default_tokens), *(step.notes if step else ())])),
        known=evidence,
        checkpoint=checkpoint_info(model.checkpoint.stored, model.checkpoint) if model.checkpoint else None,
        checkpoint_summary=model.checkpoint.summary() if model.checkpoint and model.checkpoint.agrees else "",
        sums=dict(zip(("non_embedding", "blocks", "feed_forward"), sums_of(ledger).values(), strict=True)),
        rules=tuple(map(rule, rules_of_thumb(model, ledger))),
        published=model.description.published,
        towers={name: tower(model.towers[name], ledger) for name, ledger in towers.items()},
        as_=counted[0] if counted else None,
        conventions=counted,
        initial=initial_values(model) if initial else (),
        training=step,
        architecture=architecture(model),
        changed=bool(model.changed),
        default_tokens=default_tokens and not model.fixed_length,
        has_windows=model.has_windows,
        detail=detail,
        train=train,
        draw=lambda: picture(model, ledger, drawn),
    )


def params_of(model: Model, ledger: Ledger) -> Params:
    by_kind = ledger.by_kind("params")
    return Params(
        total=ledger.total("params"),
        active=ledger.total("active"),
        embedding=by_kind.get("embedding", 0),
        by_kind=by_kind,
        whole=model.total_params,
        mtp=model.predictors,
    )


def flops_of(ledger: Ledger) -> Flops:
    scans: dict[str, int] = {}
    for entry in ledger:
        for operation in entry.operations:
            if operation.kind == "scan":
                scans[operation.name] = scans.get(operation.name, 0) + operation.flops_other * entry.runs
    return Flops(
        forward=ForwardFlops(ledger.total("flops"), ledger.total("flops_other")),
        masked=MaskedFlops(ledger.total("flops_masked"), ledger.by_kind("flops_masked")),
        by_kind=ledger.by_kind("flops"),
        training=TrainingFlops(training_flops(ledger)),
        scans=scans,
    )


def traffic_of(ledger: Ledger, flops: str, form: Format | None) -> Traffic:
    """With weights in a format, or at the ledger's dtype."""
    exact: dict[str, Fraction | int] = {**ledger.by_kind("bytes")}
    for entry in ledger if form else ():
        if form and (weights := entry.traffic.weights) and entry.owner.leaf.tensors:
            exact[entry.kind] += weights * (form.bits_per_element(entry.owner) - ledger.bits[0]) / 8
    moved, spent = {kind: ceil(number) for kind, number in exact.items()}, ledger.by_kind(flops)
    return Traffic(
        bytes=sum(moved.values()),
        flops_per_byte=sum(spent.values()) / sum(moved.values()),
        bytes_by_kind=moved,
        flops_per_byte_by_kind={kind: spent.get(kind, 0) / number for kind, number in moved.items() if number},
    )


def cache_figures(ledger: Ledger, dtype: str) -> CacheFigures:
    cache = ledger.cache_now
    per_token, constant = (None if n is None else ceil_div(n * ledger.bits[2], 8) for n in cache[:2])
    return CacheFigures(
        elements_per_token=cache.growth,
        constant_elements=cache.constant,
        windows_full_at=ledger.full_at,
        elements=cache.elements,
        bytes=cache_bytes(ledger),
        bytes_per_token=per_token,
        constant_bytes=constant,
        context=ledger.work.keys,
        dtype=dtype,
    )


def memory_figures(
    model: Model, ledger: Ledger, keeping_scores: Ledger, form: Format | None, dtype: str, step: TrainingStep | None
) -> MemoryFigures:
    """Memory with weights in a format, or the ledger's dtype; training state of `step`, or of mixed-precision AdamW."""
    try:
        published_format = native(model)
        published = NativeWeights(
            published_format.name, weights_bytes(ledger, published_format), published_format.source
        )
    except InputError:  # unknown quantisation method
        published = None
    trained = learning(ledger)
    state = training_state(ledger.total("params"), trained)
    if step:
        state = (
            StateShare("training weights", None, step.parameters_bytes),
            StateShare("gradients", None, step.gradients_bytes),
            StateShare(f"optimizer state ({step.optimizer})", None, step.optimizer_bytes),
        )
    saved = SavedBytes(saved_bytes(ledger), saved_bytes(keeping_scores))
    whole = sum(part.bytes for part in state)
    format_ = form.name if form else dtype
    rule, unscaled = "", None
    if form and form.bits != form.wide:
        rule = "; ".join(filter(None, (form.source, form.left_wide(ledger))))
        unscaled = ceil_div(ledger.total("params") * form.bits, 8)
    weights = weights_bytes(ledger, form)
    return MemoryFigures(weights, published, whole, saved, format_, dtype, state, trained, rule, unscaled)


def rule(thumb: RuleOfThumb) -> Rule:
    """A rule with its error."""
    gives, exact = (number.numerator if number.denominator == 1 else str(number) for number in map(Fraction, thumb[2:]))
    if not thumb.truth:
        return Rule(thumb.what, thumb.formula, gives, exact, "", None)
    off = Fraction(thumb.gives) / Fraction(thumb.truth) - 1
    text = "exact" if off == 0 else f"{float(100 * off):+.2f} %".replace("-", "−")
    return Rule(thumb.what, thumb.formula, gives, exact, text, float(off))


def tower(model: Model, ledger: Ledger) -> Tower:
    by_kind = ledger.by_kind("params")
    sizes = {kind: ceil_div(number * ledger.bits[0], 8) for kind, number in by_kind.items()}
    spans = ((entry.leaf.mask_span, entry.work) for entry in ledger if entry.leaf.mask_span and entry.work)
    return Tower(
        tokens=ledger.work.tokens,
        params=TowerParams(ledger.total("params"), by_kind),
        flops=TowerFlops(ForwardFlops(ledger.total("flops"), ledger.total("flops_other")), ledger.by_kind("flops")),
        memory=TowerMemory(weights_bytes(ledger), sizes),
        known=all_known(model, {"params": "params", "flops": "flops"}, ledger),
        grid=next(filter(None, (span.grid(work) for span, work in spans)), None),
    )


def counted_by_conventions(
    requested: Sequence[str], model: Model, ledger: Ledger, keeping_scores: Ledger, attention: str
) -> Iterator[CountedByConvention]:
    """The requested conventions. Errors: `UnknownName`; `InputError` where one cannot describe the model."""
    from txcalc.planning.conventions import CONVENTIONS, korthikanti

    names = [*CONVENTIONS, "korthikanti"]
    for name in requested:
        if name not in names:
            raise UnknownName("--as", "convention", name, names, f"one of {', '.join(names)}")
    for name in dict.fromkeys(requested):
        theirs = CONVENTIONS.get(name)
        count = theirs(model, ledger, attention, 1) if theirs else korthikanti(model, keeping_scores)
        terms = tuple(ConventionTerm(*term, term.theirs - term.ours) for term in count.terms)
        yield CountedByConvention(
            count.name, count.counts, count.formula, count.source, count.theirs, count.ours, terms
        )


def notes(model: Model, ledger: Ledger, evidence: Mapping[str, Evidence], default_tokens: bool) -> Iterator[str]:
    work, params = ledger.work, ledger.total("params")
    yield from model.notes
    if model.description.params not in (None, params) and not model.notes:
        yield f"its description expects {model.description.params:,} parameters"
    if model.context and work.past + work.tokens > model.context and not model.fixed_length:
        yield f"{work.past + work.tokens:,} positions exceed its context of {model.context:,}"
    if model.fixed_length and not default_tokens:
        yield "the model fixes the number of positions: --tokens is ignored"
    if not model.fixed_length and model.has_encoder_apart and model.reads_no_ids and model.kind != "audio":
        yield "the model fixes the picture's positions: --source-tokens is ignored"
    if model.has_latents and work.past and work.tokens == 1 and not work.absorbed:
        flops = model.ledger(work.batch, 1, work.past, mla="absorbed").total("flops") // work.batch
        yield f"each step expands all latents; as engines decode (--mla absorbed), {short(flops)} FLOPs per token"
    yield from theorems.theorems().notes
    if evidence["params"].how not in ("proved", "listed", "measured"):
        parts = [part for unit in theorems.units(model) for part in theorems.missing(unit)]
        if reasons := [f"{part.name}: {theorems.obstacle(part)}" for part in parts]:
            yield f"not proved: {'; '.join(reasons)} (txcalc prove tries to prove it)"


def picture(model: Model, ledger: Ledger, attention: str) -> Picture:
    """Bars of parameters and FLOPs by kind of part; and FLOPs per token over the length of a prefill, stacked by kind,
    unless an encoder has a length of its own."""
    work = ledger.work
    quantity = "flops_masked" if attention == "masked" else "flops"
    panels = []
    for what, name, axis in (
        ("params", "parameters", "parameters, each once"),
        (quantity, "FLOPs", f"FLOPs of a forward pass, {attention} attention"),
    ):
        parts = ledger.by_kind(what)
        bars = Series(name, [kind_words(kind) for kind in parts], list(parts.values()))
        panels.append(Panel("", PlotAxis(""), PlotAxis(axis), [bars], kind="bars"))
    longest = max(work.tokens, min(model.context or USUAL_CONTEXTS[-1], MAX_TOKENS))
    if longest > 1 and not model.fixed_length and not model.has_encoder_apart:
        first = USUAL_CONTEXTS[0] if longest > USUAL_CONTEXTS[0] else max(1, longest // 64)
        xs = between(first, longest, [work.tokens])
        prefill = work._replace(batch=1, past=0, decoding=False)
        costs = [walk(model.root, prefill._replace(tokens=n)).by_kind(quantity) for n in xs]
        layers: list[Series] = []
        for kind in [kind for kind in KINDS if any(kind in cost for cost in costs)]:
            ys = [Fraction(cost.get(kind, 0), n) for cost, n in zip(costs, xs, strict=True)]
            layers.append(Series(kind_words(kind), xs, ys, len(layers)))
        x, y = PlotAxis("length of a prefill (tokens)", "tokens", 2), PlotAxis("FLOPs per token")
        panels.append(Panel(f"FLOPs per token, {attention} attention", x, y, layers, kind="stack"))
    sizes = f"batch {work.batch:,}, tokens {work.tokens:,}, past {work.past:,}"
    logits, mla = "last" if work.last_logits else "all", "absorbed" if work.absorbed else "expanded"
    return Picture(model.name, picture_convention([model], sizes, logits, mla), panels)
