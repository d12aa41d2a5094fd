"""`show --via transformers`: the measured cost of transformers' own module of a config.json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from txcalc.errors import Fault, InputError, MissingExtra, TxcalcError
from txcalc.evidence.known import Evidence
from txcalc.notation import as_text
from txcalc.num import ceil_div
from txcalc.questions.answers import Answer, Convention, ModelInfo, Result, SourceInfo, WorkloadInfo, json_key
from txcalc.units import bits_of

CACHE_DTYPE = "bf16"  # whatever the weights' format


class ViaParams(Answer):
    """Unique parameters, of a multimodal model those of its language model; `whole`: of the whole class."""

    total: int
    active: None
    embedding: None
    by_kind: None
    whole: int | None


class ViaForward(Answer):
    """FLOPs of a forward pass; None where they could not be measured."""

    matmul: int | None
    other: None


class ViaMasked(Answer):
    """Masked FLOPs, which are not measured."""

    matmul: None


class ViaFlops(Answer):
    """FLOPs of the workload."""

    forward: ViaForward
    masked: ViaMasked
    by_kind: None


class ViaCache(Answer):
    """The cache of one sequence; None where transformers makes none."""

    elements_per_token: int | None
    constant_elements: int | None
    windows_full_at: None
    elements: int | None
    bytes: int | None


class ViaMemory(Answer):
    """Bytes of the weights at a dtype."""

    weights_bytes: int
    dtype: str


class MeasuredModule(Answer, kw_only=True):
    """A module's parameters and FLOPs without its submodules'."""

    path: str
    class_: str = json_key("class")
    params: int
    flops: int | None
    formula: str | None


class MeasuredClass(Answer, kw_only=True):
    """The class of transformers that was built, module by module.

    formula       FLOPs of a forward pass in B, T and T_src, for `domain`; None: they hold for these sizes only
    not_counted   operators without a count, with the number of runs
    """

    class_: str = json_key("class")
    library: str
    formula: str | None
    domain: str | None
    not_counted: dict[str, int]
    rows: tuple[MeasuredModule, ...]

    @property
    def params(self) -> int:
        """Of all modules."""
        return sum(module.params for module in self.rows)


class ShowVia(Result, tag_field="schema", tag="txcalc/show/1", kw_only=True):
    """The cost of transformers' own module; None: figures that need a description (kinds of parts, masked FLOPs)."""

    model: SourceInfo
    workload: WorkloadInfo
    convention: Convention
    params: ViaParams
    flops: ViaFlops
    cache: ViaCache
    memory: ViaMemory
    sums: None
    traffic: None
    rules: None
    published: None
    architecture: None
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    known: dict[str, Evidence | None]
    measured: MeasuredClass

    @property
    def view(self) -> str:
        return "show_via"


def show_via(
    source: str, *, batch: int, tokens: int, source_tokens: int | None, dtype: str, ignore: Sequence[str] = ()
) -> ShowVia:
    """Builds transformers' module of a config.json on the meta device and measures it. Errors: `InputError` where it
    cannot be built or sizes are missing, `MissingExtra`."""
    bits = bits_of(dtype)
    data, where, name = read_config(source)
    from txcalc.sources import huggingface
    from txcalc.verification.transformers_cost import measure

    ignored: Sequence[str] = ()
    if ignore:
        data, ignored = huggingface.drop_keys(data, where, ignore)
    module = measure(data, where, batch, tokens, source_tokens)
    evidence = known_of(module)
    batch, tokens, encoder_tokens = module.sizes
    rows = tuple(
        MeasuredModule(
            path=part.path, class_=part.kind, params=part.params, flops=part.flops, formula=text(part.formula)
        )
        for part in module.parts
    )
    measured = MeasuredClass(
        class_=module.cls,
        library=f"transformers {module.library}",
        formula=text(module.formula),
        domain=module.domain or None,
        not_counted=dict(module.uncounted),
        rows=rows,
    )
    return ShowVia(
        model=SourceInfo(name or data["model_type"], None, where, data["model_type"]),
        workload=WorkloadInfo(batch=batch, tokens=tokens, past=0, source=encoder_tokens),
        convention=Convention(flops_per_mac=2, attention="dense", logits="all", mla=None),
        params=ViaParams(module.params, None, None, None, module.total_params),
        flops=ViaFlops(ViaForward(module.flops, None), ViaMasked(None), None),
        cache=cache_of(module),
        memory=ViaMemory(ceil_div(module.params * bits, 8), dtype),
        sums=None,
        traffic=None,
        rules=None,
        published=None,
        architecture=None,
        assumptions=tuple(module.assumptions),
        notes=(*notes(module), *ignored, *comparison(data, where, name, module)),
        known={
            name: None if figure is None else evidence
            for name, figure in (("params", module.params), ("flops", module.flops), ("cache", module.cache))
        },
        measured=measured,
    )


def read_config(source: object) -> tuple[Any, str, str]:
    """A config.json, its place and name. Errors: `InputError`, `MissingExtra`."""
    from importlib.util import find_spec

    if not find_spec("transformers"):
        raise MissingExtra("--via transformers", "transformers", "transformers")
    from txcalc.sources import hub, huggingface

    if not isinstance(source, str):
        raise InputError("--via", [Fault("source", source, "a config.json, its folder or hf:org/name")])
    return hub.fetch_config(hub.repository(source)) if source.startswith("hf:") else huggingface.parsed_file(source)


def known_of(measured: Any) -> Evidence:
    return Evidence("measured", f"{measured.cls} of transformers {measured.library} on meta")


class Memory(NamedTuple):
    """Measured on transformers' own module: parameters, and elements of one sequence's cache at some lengths, each with
    those that the next token adds."""

    model: ModelInfo
    known: Evidence
    caches: tuple[tuple[int, int], ...]
    notes: list[str]


def memory(source: object, lengths: Sequence[int], source_tokens: int | None = None) -> Memory:
    """Errors: `InputError`, `MissingExtra`."""
    data, where, name = read_config(source)
    from txcalc.verification.transformers_cost import measure

    modules = [measure(data, where, 1, tokens, source_tokens, formulas=False) for tokens in lengths]
    first, model_type = modules[0], data["model_type"]
    if first.cache_why:
        raise InputError(where, [f"transformers' cache could not be measured: {first.cache_why}"])
    evidence = known_of(first)
    info = ModelInfo(name or model_type, "", None, where, model_type, first.params, (evidence.where,))
    caches = ((cache.elements, cache.next_token) if (cache := module.cache) else (0, 0) for module in modules)
    return Memory(info, evidence, tuple(caches), [f"assumed {line}" for line in first.assumptions])


def text(formula: object) -> str | None:
    return None if formula is None else as_text(formula)


def cache_of(measured: Any) -> ViaCache:
    if (cache := measured.cache) is None:
        return ViaCache(None, None, None, None, None)
    constant = cache.elements - measured.sizes[1] * cache.next_token
    size = ceil_div(cache.elements * bits_of(CACHE_DTYPE), 8)
    return ViaCache(cache.next_token, constant, None, cache.elements, size)


def notes(measured: Any) -> Iterator[str]:
    yield "every figure is measured on transformers' module; kinds of parts and masked attention are not known"
    yield from (f"assumed {line}" for line in measured.assumptions)
    if measured.cache is None and not measured.cache_why:
        yield "a forward pass leaves no cache"
    if measured.cache_why:
        yield f"the cache could not be measured: {measured.cache_why}"
    if measured.flops is None:
        yield f"FLOPs could not be measured: {measured.why}"
    elif measured.formula is None:
        yield f"FLOPs hold for these sizes only, without a formula: {measured.points}"
    if measured.total_params is not None:
        yield (
            f"multimodal: only the language model is counted, of {measured.total_params:,} parameters in all; "
            "FLOPs are for text without pictures or sound"
        )
    if measured.uncounted:
        operators = ", ".join(f"{operator} (× {times:,})" for operator, times in sorted(measured.uncounted.items()))
        yield f"not counted, though they may cost FLOPs: {operators}"


def comparison(data: object, where: str, name: str, measured: Any) -> list[str]:
    """A note that compares txcalc's own description of the config, if it can read that."""
    from txcalc.sources import build, huggingface

    try:
        model = build(*huggingface.describe(data, where, name))
        ledger = model.ledger(measured.sizes[0], measured.sizes[1], 0, measured.sizes[2])
    except TxcalcError:
        return []
    pairs = ("parameters", ledger.total("params"), measured.params), ("FLOPs", ledger.total("flops"), measured.flops)
    same = [
        f"{word} differ ({ours:,} there)" if ours != theirs else f"{word} are the same"
        for word, ours, theirs in pairs
        if theirs is not None
    ]
    return [f"compared with txcalc's own description of this config: {', '.join(same)}"]
