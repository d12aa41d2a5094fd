"""`diff`: how two models differ, and what each difference costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import structs

from txcalc.num import ceil_div
from txcalc.planning.differences import CostChange, KeyDifference, cost, differences
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, ModelInfo, Result, WorkloadInfo, json_key
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.sources import Source

OtherArgument = Annotated["Source", o.Argument("The model that it is compared with.", "OTHER", "source")]


class CacheChange(Answer):
    """The change of one sequence's cache by a difference."""

    elements_per_token: int
    bytes_per_token: int
    constant_elements: int


class Change(Answer):
    """The cost that a difference adds to the first model; None: it cannot be counted alone."""

    params: int | None
    flops: int | None
    flops_per_token: int | float | None
    cache: CacheChange | None


class Difference(Answer):
    """A key in which two models differ, its values, and what it alone adds; or `why` that is not counted."""

    key: str
    letter: str | None
    from_: Any = json_key("from")
    to: Any
    params: int | None
    flops: int | None
    flops_per_token: int | float | None
    cache: CacheChange | None
    why: str | None


class DiffConvention(Answer):
    """The conventions of the costs."""

    flops_per_mac: int
    attention: str
    kv_dtype: str


class Diff(Result, tag_field="schema", tag="txcalc/diff/1", kw_only=True):
    """How two models differ, and what each difference costs."""

    rows_key: ClassVar[str] = "differences"

    models: tuple[ModelInfo, ...]
    workload: WorkloadInfo
    convention: DiffConvention
    differences: tuple[Difference, ...]
    whole: Change
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]


@o.Question("txcalc diff llama-3.1-8b qwen3-8b --tokens 2k", takes=("--ignore",))
def diff(
    source: o.SourceArgument,
    other: OtherArgument,
    *,
    batch: Annotated[o.Length, o.BATCH] = 1,
    tokens: Annotated[o.Length, o.TOKENS] = 1,
    past: Annotated[o.Length, o.PAST] = 0,
    source_tokens: Annotated[o.Length | None, o.SOURCE_TOKENS.with_help("Default: as many as tokens.")] = None,
    kv: Annotated[str, o.KV] = "bf16",
    attention: Annotated[o.Attention, o.ATTENTION] = "dense",
) -> Diff:
    """How two models differ, and what each difference costs in parameters, FLOPs and cache.

    Errors: `InputError`, `UnknownName`, `MissingExtra`.

    >>> import txcalc
    >>> answer = txcalc.diff("llama-3.1-8b", "qwen3-8b")
    >>> answer.whole.params == txcalc.load("qwen3-8b").params - txcalc.load("llama-3.1-8b").params
    True
    """
    models = load(source), load(other)
    workload: dict[str, Any] = {"batch": batch, "tokens": tokens, "past": past, "kv_dtype": kv}
    encoder: dict[str, Any] = {} if source_tokens is None else {"source": source_tokens}
    before = models[0].ledger(**workload, **encoder)
    after = models[1].ledger(**workload, **(encoder if models[1].has_encoder_apart else {}))
    flops = "flops_masked" if attention == "masked" else "flops"
    bits = before.bits[2]
    return Diff(
        models=tuple(structs.replace(ModelInfo.of(model), source=model.origin) for model in models),
        workload=WorkloadInfo.of(models[0], before),
        convention=DiffConvention(2, attention, kv),
        differences=tuple(
            difference(change, bits) for change in differences(models[0], models[1], workload | encoder, flops)
        ),
        whole=change(cost(before, after, flops), bits),
        assumptions=tuple(f"{model.name}: {line}" for model in models for line in model.assumptions),
        notes=tuple(f"{model.name}: {line}" for model in models for line in model.notes),
    )


def difference(key_difference: KeyDifference, bits: int) -> Difference:
    """One difference; `bits` per cached element."""
    costs = structs.asdict(change(key_difference.cost, bits))
    values = key_difference.left, key_difference.right
    return Difference(
        key_difference.key, key_difference.letter or None, *values, **costs, why=key_difference.why or None
    )


def change(cost: CostChange | None, bits: int) -> Change:
    """The cost of a difference; `bits` per cached element."""
    if cost is None:
        return Change(None, None, None, None)
    mean = cost.flops_per_token
    # rounded away from zero, as the cache itself is rounded up
    size = ceil_div(abs(cost.growth) * bits, 8) * (1 if cost.growth >= 0 else -1)
    cache = CacheChange(cost.growth, size, cost.constant)
    per_token = mean.numerator if mean.denominator == 1 else float(mean)
    return Change(cost.params, cost.flops, per_token, cache)
