"""`kv`: the KV cache over contexts, batches and formats, and the cost of generating without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from txcalc.errors import InputError
from txcalc.evidence.known import Evidence
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.parts.leaf import Recurrence
from txcalc.planning.generation import Generation, generations, laws
from txcalc.planning.memory import cross_cache, dense_cache
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, ModelInfo, Result, json_key
from txcalc.questions.arguments import length, lengths, maybe, names, optional_lengths
from txcalc.questions.pictures import MAX_LINES, Mark, Panel, Picture, PlotAxis, Series, between
from txcalc.sources import load
from txcalc.units import cache_bits_of, number_of

MEASURED = (1 << 10, 1 << 12, 1 << 13)  # default contexts with --via
CONTEXTS = (1 << 10, 1 << 12, 1 << 13, 1 << 15, 1 << 17, 1 << 20)  # default; up to the model's context


class CacheRow(Answer):
    """The cache of a batch at one context."""

    context: int  # cached tokens per sequence
    batch: int
    dtype: str
    bytes: int
    dense_bytes: int | None  # if every attention layer cached every token; None: measured
    cross_bytes: int | None = None  # of these the encoder's; None without an encoder of its own length


class CacheGrowth(Answer):
    """How the cache of one sequence grows at the longest context; None where it grows in steps of several tokens."""

    elements_per_token: int | None
    constant_elements: int | None  # full windows, states, the encoder's part
    windows_full_at: int | None  # tokens
    bytes_per_token: int | None
    constant_bytes: int | None

    @classmethod
    def of(cls, per_token: int | None, constant: int | None, windows_full_at: int | None, dtype: str) -> Self:
        """The growth in elements, and in bytes of a dtype."""
        growth = cls(per_token, constant, windows_full_at, None, None)
        return cls(per_token, constant, windows_full_at, *growth.in_bytes(dtype))

    def in_bytes(self, dtype: str, batch: int = 1) -> list[int | None]:
        """Bytes per token, and constant bytes, of a batch in a dtype."""
        bits, numbers = batch * cache_bits_of(dtype), (self.elements_per_token, self.constant_elements)
        return [None if number is None else ceil_div(number * bits, 8) for number in numbers]


class GenerationConvention(Answer):
    """The conventions of passes without a cache."""

    attention: str
    logits: str
    mla: str | None


class GenerationCost(Answer, kw_only=True):
    """The cost of generating with and without a cache; `formulas` in n tokens at the end, which hold from `start`."""

    prompt: int
    convention: GenerationConvention
    rows: tuple[Generation, ...]
    formulas: dict[str, str]
    start: int = json_key("from")


class Kv(Result, tag_field="schema", tag="txcalc/kv/1", kw_only=True):
    """The KV cache over contexts, batches and dtypes.

    source    encoder positions; None without an encoder of its own length, or if there are as many as tokens
    holds     the cache of each kind of layer
    known     how its figures are known, where they are measured
    """

    model: ModelInfo
    source: int | None
    cache: CacheGrowth
    holds: tuple[str, ...]
    rows: tuple[CacheRow, ...]
    generation: GenerationCost | None = None
    notes: tuple[str, ...]
    known: Evidence | None = None


@o.Question(
    "txcalc kv gemma-3-27b --context 8k,128k --kv bf16,fp8",
    takes=("--set", "--ignore"),
    draws=True,
    first=("--context", "--batch", "--kv", "--set", "--without-cache", "--plot"),
    examples=("What a cache saves: txcalc kv gpt2 --without-cache",),
)
def kv(
    source: o.SourceArgument,
    context: Annotated[o.Lengths | None, o.CONTEXTS.with_help("Several: 4k,32k,128k.")] = None,
    batch: Annotated[o.Lengths, o.BATCH._replace(value="N,…", parse=None)] = (1, 8, 64),
    kv: Annotated[o.Names, o.KV.with_help("Several: bf16,fp8.", value="TYPE,…")] = "bf16",
    *,
    source_tokens: Annotated[o.Length | None, o.SOURCE_TOKENS.with_help("Default: as many as tokens.")] = None,
    without_cache: Annotated[
        bool, o.Option("Also the cost of generating up to each context, with and without a cache.")
    ] = False,
    prompt: Annotated[o.Length, o.PROMPT.with_help("Used with --without-cache.")] = 1,
    attention: Annotated[o.Attention, o.ATTENTION.with_help("Used with --without-cache.")] = "dense",
    via: Annotated[Literal["transformers"] | None, o.VIA] = None,
) -> Kv:
    """The KV cache in bytes over contexts, batches and dtypes. A sliding window caches at most its width, a
    recurrent layer only its state; --without-cache adds the cost of generating without a cache.

    Errors: `InputError` (an encoder has no cache), `UnknownName`.

    >>> import txcalc
    >>> [row.bytes for row in txcalc.kv("llama-3.1-8b", ["8k", "128k"], batch=1).rows]
    [1073741824, 17179869184]
    """
    encoder_tokens = maybe(source_tokens, "--source-tokens", length)
    if via:
        if without_cache:
            raise InputError("options", ["--without-cache does not work with --via transformers (drop it)"])
        tokens = optional_lengths(context, "--context") or list(MEASURED)
        return measured_cache(source, tokens, lengths(batch, "--batch"), names(kv), encoder_tokens)
    model = load(source)
    if not model.entries.total("cache"):
        raise InputError(model.name, ["has no cache"])
    contexts = optional_lengths(context, "--context") or default_contexts(model.context)
    batches = lengths(batch, "--batch")
    dtypes = names(kv)
    for name in dtypes:
        model.cache_bits(name)
    for sequences in batches:
        model.workload(batch=sequences)
    ledgers = [model.ledger(tokens=tokens, source=encoder_tokens) for tokens in contexts]
    start = min(lengths([prompt], "--prompt"))
    if not without_cache and (prompt != 1 or attention != "dense"):
        raise InputError("options", ["--prompt and --attention need --without-cache"])
    sources = {ledger.work.source for ledger in ledgers} if model.has_encoder_apart else set()
    notes = model.all_notes
    if any(isinstance(entry.leaf, Recurrence) for entry in model.entries):
        notes.append(f"recurrent states are in {' or '.join(dtypes)} like the rest; engines keep some in fp32 (deploy)")
    if model.context and max(contexts) > model.context:
        notes.append(f"{max(contexts):,} tokens exceed its context of {model.context:,}")
    return Kv(
        model=ModelInfo.of(model),
        source=sources.pop() if len(sources) == 1 else None,
        cache=CacheGrowth.of(*ledgers[-1].cache_now[:2], ledgers[-1].full_at, dtypes[0]),
        holds=holders(ledgers[-1]),
        rows=cache_rows(ledgers, batches, dtypes, model.has_encoder_apart),
        generation=generation_cost(model, contexts, start, attention) if without_cache else None,
        notes=tuple(notes),
        draw=lambda: picture(model, contexts, batches, dtypes, encoder_tokens),
    )


def measured_cache(
    source: object, contexts: Sequence[int], batches: Sequence[int], dtypes: Sequence[str], source_tokens: int | None
) -> Kv:
    """The cache of transformers' own module, measured."""
    from txcalc.questions.show_via import memory

    module = memory(source, contexts, source_tokens)
    if not any(elements for elements, _ in module.caches):
        raise InputError(module.model.name, ["has no cache"])
    rows = [
        CacheRow(tokens, sequences, dtype, ceil_div(elements * sequences * cache_bits_of(dtype), 8), None)
        for dtype in dtypes
        for tokens, (elements, _) in zip(contexts, module.caches, strict=True)
        for sequences in batches
    ]
    # A part is fixed if two lengths agree on it: windows and compressed caches may still fill at the longest.
    fixed = [elements - tokens * step for tokens, (elements, step) in zip(contexts, module.caches, strict=True)]
    constant = fixed[-1] if len(fixed) > 1 and fixed[-2] == fixed[-1] else None
    growth = CacheGrowth.of(module.caches[-1][1], constant, None, dtypes[0])
    scaled = [dtype for dtype in dtypes if cache_bits_of(dtype) % 1]
    notes = [*module.notes, *(f"{dtype}: whether its blocks divide the heads is not checked" for dtype in scaled)]
    return Kv(
        model=module.model, source=source_tokens, cache=growth, holds=(), rows=tuple(rows), notes=tuple(notes),
        known=module.known,
    )  # fmt: skip


def default_contexts(context: int | None) -> list[int]:
    """`CONTEXTS` below the model's context, and the model's."""
    last = [] if context is None else [context]
    return sorted({length for length in CONTEXTS if context is None or length < context} | set(last))


def cache_rows(
    ledgers: Sequence[Ledger], batches: Sequence[int], dtypes: Sequence[str], encoder: bool
) -> tuple[CacheRow, ...]:
    """One row per dtype, context (a ledger of one sequence) and batch; `encoder`: with the encoder's cache."""
    rows = []
    for dtype in dtypes:
        bits = cache_bits_of(dtype)
        for ledger in ledgers:
            elements, dense, cross = ledger.total("cache"), dense_cache(ledger), cross_cache(ledger)
            for batch in batches:
                sizes = [ceil_div(number * batch * bits, 8) for number in (elements, dense, cross)]
                cross_bytes = sizes[2] if encoder else None
                rows.append(CacheRow(ledger.work.keys, batch, dtype, sizes[0], sizes[1], cross_bytes))
    return tuple(rows)


def holders(ledger: Ledger) -> tuple[str, ...]:
    """The cache of each kind of layer."""
    layers: dict[str, int] = {}
    for entry in ledger:
        if entry.cache:
            per_token, constant, _ = entry.leaf.cache(entry.work or ledger.work)
            default = f"{entry.leaf.label}: {per_token:,} elements per token and {constant:,} more"
            cached = entry.leaf.describe_cache() or default
            layers[cached] = layers.get(cached, 0) + entry.runs
    return tuple(f"each of {number_of('layer', number)} caches {cached}" for cached, number in layers.items())


def generation_cost(model: Model, contexts: Sequence[int], prompt: int, attention: str) -> GenerationCost:
    """Generating up to each context after a prompt, one pass per token, with a cache and without."""
    polynomials = dict(zip(("flops", "flops_without_cache"), laws(model, prompt, attention) or (), strict=False))
    computed = prompt * (prompt - 1) // 2  # positions of a prompt, which one pass computes
    less = f" − {computed}" if computed else ""
    formulas = {
        "kv_computed": "n",
        "kv_computed_without_cache": f"n·(n + 1)/2{less}",
        "kv_redundant": f"n·(n − 1)/2{less}",
        **{name: law.text() for name, law in polynomials.items()},
    }
    return GenerationCost(
        prompt=prompt,
        convention=GenerationConvention(attention, "last", "absorbed" if model.has_latents else None),
        rows=tuple(generations(model, contexts, prompt, attention)),
        formulas=formulas,
        start=max([prompt, *(law.start for law in polynomials.values())]),
    )


def picture(
    model: Model, contexts: Sequence[int], batches: Sequence[int], dtypes: Sequence[str], source: int | None
) -> Picture:
    """Cache bytes against the context, one line per batch and dtype, and the cache without windows."""
    low, high = min(contexts), max(contexts)
    low = low if low < high else max(1, high // 64)
    ledgers = [model.ledger(tokens=n, source=source) for n in between(low, high, contexts)]
    rows = cache_rows(ledgers, batches, dtypes, model.has_encoder_apart)
    series: list[Series] = []
    for dtype in dtypes:
        for batch in batches:
            line = [row for row in rows if (row.dtype, row.batch) == (dtype, batch)]
            xs, of = [row.context for row in line], len({other.of for other in series})
            label = f"{dtype}, {'1 sequence' if batch == 1 else f'{batch:,} sequences'}"
            ys = [row.bytes or None for row in line]
            series.append(Series(label, xs, ys, of, marked=frozenset(contexts)))
            if any(row.bytes != row.dense_bytes for row in line):
                series.append(
                    Series(f"{label}: full attention", xs, [row.dense_bytes for row in line], of, dashed=True)
                )
    if len(series) > 2 * MAX_LINES:
        raise InputError("--plot", [f"{len(series)} lines are more than can be told apart ({2 * MAX_LINES})"])
    marks = []
    if model.context and low <= model.context <= high:
        marks.append(Mark(f"trained context: {model.context:,}", model.context))
    x, y = PlotAxis("context (tokens)", "tokens", 2), PlotAxis("KV cache of the batch", "bytes", 2)
    dashed = any(line.dashed for line in series)
    convention = "full attention: every attention layer caches every token" if dashed else ""
    return Picture(f"KV cache of {model.name}", convention, [Panel("", x, y, series, marks)])
