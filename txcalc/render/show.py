"""The report of `txcalc show`."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from txcalc.errors import InputError
from txcalc.evidence import theorems
from txcalc.evidence.known import Evidence, all_known
from txcalc.ledger import KINDS, Ledger
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.planning.formats.quantised import native
from txcalc.planning.formats.weights import Format
from txcalc.planning.gradients import training_flops
from txcalc.planning.initial import initial
from txcalc.planning.memory import cache_bytes, learning, saved_bytes, training_state, weights_bytes
from txcalc.planning.rules import RuleOfThumb, rules_of_thumb, sums_of
from txcalc.questions.model_info import make, summary
from txcalc.render.report import DataReport, Table, TableCell, cell, error, percent, rounded
from txcalc.units import iec, short

SHORT = TableCell("", "short")  # heading of figures that repeat the exact ones
SUMS = ("non_embedding", "blocks", "feed_forward")  # JSON keys of `sums_of`


def convention(model: Model, ledger: Ledger, attention: str) -> str:
    """The conventions, for a header."""
    work = ledger.work
    words = ["2 FLOPs per multiply-add", f"{attention} attention", f"{'last' if work.last_logits else 'all'} logits"]
    if model.has_latents:
        words.append(f"MLA {'absorbed' if work.absorbed else 'expanded'}")
    return "; ".join(words)


def workload(model: Model, ledger: Ledger) -> dict[str, Any]:
    """The workload in JSON; `source` only with an encoder of its own length."""
    work = ledger.work
    source = work.source if model.has_encoder_apart else None
    return {"batch": work.batch, "tokens": work.tokens, "past": work.past, "source": source}


def data(model: Model, ledger: Ledger, form: Format | None = None) -> dict[str, Any]:
    """The JSON of `show`; weights in a format, or at the ledger's dtype."""
    work, cache = ledger.work, ledger.cache_now
    params = ledger.by_kind("params")
    flops = ledger.by_kind("flops")
    return {
        "schema": "txcalc/show/1",
        "model": {
            "name": model.name,
            "kind": model.kind,
            "source": model.spec["source"] or model.origin,
            "model_type": model.spec["model_type"] or None,
        },
        "workload": workload(model, ledger),
        "convention": {
            "flops_per_mac": 2,
            "attention": "dense",
            "logits": "last" if work.last_logits else "all",
            "mla": ("absorbed" if work.absorbed else "expanded") if model.has_latents else None,
        },
        "params": {
            "total": ledger.total("params"),
            "active": ledger.total("active"),
            "embedding": params.get("embedding", 0),
            "by_kind": params,
            **({"whole": model.whole} if model.spec["multimodal"] else {}),
            **({"mtp": model.predictors} if model.predictors else {}),
        },
        "flops": {
            "forward": {"matmul": ledger.total("flops"), "other": ledger.total("flops_other")},
            "masked": {"matmul": ledger.total("flops_masked")},
            "by_kind": flops,
        },
        "cache": {
            "elements_per_token": cache.growth,
            "constant_elements": cache.constant,
            "windows_full_at": ledger.full_at,
            "elements": cache.held,
            "bytes": cache_bytes(ledger),
        },
        "memory": {"weights_bytes": weights_bytes(ledger, form)},
        "assumptions": list(model.assumptions),
        "notes": list(model.notes),
    }


def with_initial(found: DataReport, model: Model) -> DataReport:
    """Adds the initialisation of every parameter in training from scratch."""
    each = initial(model)
    rows = [
        (
            ", ".join(one.parts),
            one.rule,
            TableCell(one.deviation, "" if one.deviation is None else f"{one.deviation:.4g}"),
            one.params,
        )
        for one in each
    ]
    table = Table("Initialisation", ("weights", "rule", "σ", "parameters"), rows, left=frozenset({0, 1}))
    return replace(
        found, data={**found.data, "initial": [one._asdict() for one in each]}, tables=[*found.tables, table]
    )


def report(
    model: Model,
    ledger: Ledger,
    kept: Ledger,
    attention: str,
    dtype: str,
    kv_dtype: str,
    form: Format | None = None,
    usual: bool = False,
    towers: Mapping[str, Ledger] | None = None,
) -> DataReport:
    """The whole report.

    kept     the ledger with attention probabilities stored for backward
    form     weight format, if not the dtype
    usual    the default length was chosen
    towers   ledgers of the towers
    """
    work = ledger.work
    places = workload(model, ledger)
    said = ", ".join(f"{name} {value:,}" for name, value in places.items() if value is not None)
    said += _default(model, work.tokens) if usual and not model.fixed_length else ""
    header = [*summary(model), make(model), *_whole(model), said, convention(model, ledger, attention)]
    if model.spec["published"] and not model.changed:
        header.append(f"published: {model.spec['published']}")
    facts = data(model, ledger, form)
    facts["convention"]["attention"] = attention
    known = _known(model, ledger)
    facts["known"] = {quantity: found._asdict() for quantity, found in known.items()}
    rows = _weights(model, ledger, dtype, form, known["params"], facts)
    seen = {name: all_known(model.towers[name], {"params": "params", "flops": "flops"}) for name in towers or {}}
    tables = [
        _parts(ledger, "flops" if attention == "dense" else "flops_masked", known),
        *(_tower(name, own, ledger, dtype, seen[name]["flops"]) for name, own in (towers or {}).items()),
        _params(ledger, known["params"]),
        _flops(model, ledger, attention, known),
        _memory(ledger, kv_dtype, kept, known, rows),
        _rules(model, ledger),
    ]
    if model.checkpoint:
        from txcalc.render import checkpoint

        facts["checkpoint"] = checkpoint.data(model.checkpoint.held, model.checkpoint)
        header += [model.checkpoint.summary()] if model.checkpoint.agrees else []  # else it is a note
        tables += checkpoint.tables(model.checkpoint)
    facts["memory"]["training_state_bytes"] = sum(
        share.bytes for share in training_state(facts["params"]["total"], learning(ledger))
    )
    facts["memory"]["saved_bytes"] = {"fused": saved_bytes(ledger), "attention_matrix_kept": saved_bytes(kept)}
    facts["sums"] = dict(zip(SUMS, sums_of(ledger).values(), strict=True))
    facts["rules"] = [_rule_data(rule) for rule in rules_of_thumb(model, ledger)]
    facts["published"] = model.spec["published"]
    if towers:
        facts["towers"] = {name: _tower_data(own, seen[name]) for name, own in towers.items()}
    facts["flops"]["training"] = {"matmul": training_flops(ledger)}
    notes = [*(f"assumed {assumption}" for assumption in model.assumptions), *model.notes]
    if model.spec["params"] not in (None, facts["params"]["total"]) and not model.notes:
        notes.append(f"its description expects {model.spec['params']:,} parameters")
    if model.context and work.past + work.tokens > model.context and not model.fixed_length:
        notes.append(f"{work.past + work.tokens:,} positions exceed its context of {model.context:,}")
    if model.fixed_length:
        notes.append("the model fixes the number of positions: --tokens is ignored")
    elif model.has_encoder_apart and model.reads_no_ids and model.kind != "audio":
        notes.append("the model fixes the picture's positions: --source-tokens is ignored")
    notes += _unproved(model, known)
    return DataReport(facts, tables, header, notes)


def _default(model: Model, tokens: int) -> str:
    """How the default length was chosen."""
    if model.context is None or tokens > model.context:
        return f" (default {tokens:,})"
    return f" (default; context {model.context:,})"


def _unproved(model: Model, known: Mapping[str, Evidence]) -> list[str]:
    """The structures without a proof, and why."""
    if known["params"].how == "proved":
        return []
    parts = [part for unit in theorems.units(model) for part in theorems.missing(unit)]
    reasons = [f"{part.name}: {theorems.obstacle(part)}" for part in parts]
    return [f"not proved: {'; '.join(reasons)} (txcalc prove tries)"] if reasons else []


def _whole(model: Model) -> list[str]:
    """Parameters besides those that are counted."""
    lines = []
    if model.spec["multimodal"] and model.beside is not None:
        whole, other = model.whole, model.beside
        lines.append(
            f"language model of a multimodal model: {whole:,} parameters in all, {other:,} in towers and projectors"
        )
    if model.predictors:
        lines.append(f"multi-token prediction, not included: {model.predictors:,} parameters")
    return lines


def _known(model: Model, ledger: Ledger) -> dict[str, Evidence]:
    """How each figure is known. Except for forward FLOPs, proofs hold for all logits and expanded MLA."""
    work = ledger.work
    forms = [form for form, name in theorems.FORMS.items() if getattr(work, name)]
    other_form, forward = bool(forms), "flops with cache" if work.decoding else "flops"
    names = {
        "params": "params",
        "flops": theorems.formed(forward, *forms),
        "flops_masked": "" if other_form else "masked flops",
        "flops_other": "",
        "training": "" if other_form or work.decoding else "training flops",
        "cache": "cache",
        "saved": "" if other_form or work.decoding else "saved, fused attention",
        "saved_kept": "" if other_form or work.decoding else "saved, attention matrix kept",
    }
    return all_known(model, names)


def _parts(ledger: Ledger, quantity: str, known: Mapping[str, Evidence]) -> Table:
    params, flops = ledger.by_kind("params"), ledger.by_kind(quantity)
    n, f = ledger.total("params"), ledger.total(quantity)
    tokens = ledger.work.batch * ledger.work.tokens
    rows: list[list[Any]] = []
    for kind in KINDS:
        if kind in params or kind in flops:
            own, cost = params.get(kind), flops.get(kind)
            a_token = rounded(Fraction(cost, tokens)) if cost else ""
            shares = percent(own, n) if own else "", percent(cost, f) if cost else ""
            rows.append([kind.replace("_", " "), cell(own), shares[0], a_token, cell(cost), shares[1]])
    each = rounded(Fraction(f, tokens))
    rows.append(["total", cell(n), TableCell(1, short(n)), each, cell(f), TableCell(1, short(f))])
    params_known, flops_known = known["params"].how, known[quantity].how
    title = f"By part: parameters {params_known}, FLOPs {flops_known}"
    counted = quantity.replace("flops_", "").replace("flops", "dense")
    names = ["parameters", "share of parameters", f"FLOPs per token, {counted}", f"FLOPs, {counted}", "share of FLOPs"]
    shown = ("parameters", "share", "/token", "FLOPs", "share")
    headings = ["part", *(TableCell(name, text) for name, text in zip(names, shown, strict=True))]
    evidence = dict(zip(names, [params_known] * 2 + [flops_known] * 3, strict=True))
    return Table(title, headings, rows, total=True, name="parts", known=evidence)


def _tower_data(ledger: Ledger, known: Mapping[str, Evidence]) -> dict[str, Any]:
    """A tower in JSON, per sequence."""
    flops = {"matmul": ledger.total("flops"), "other": ledger.total("flops_other")}
    return {
        "tokens": ledger.work.tokens,
        "params": {"total": ledger.total("params"), "by_kind": ledger.by_kind("params")},
        "flops": {"forward": flops, "by_kind": ledger.by_kind("flops")},
        "memory": {"weights_bytes": weights_bytes(ledger)},
        "known": {quantity: found._asdict() for quantity, found in known.items()},
    }


def _tower(name: str, ledger: Ledger, language: Ledger, dtype: str, known: Evidence) -> Table:
    """A tower and its projector by part, and its FLOPs relative to the language model's."""
    params, flops = ledger.by_kind("params"), ledger.by_kind("flops")
    n, f = ledger.total("params"), ledger.total("flops")

    rows: list[list[Any]] = []
    for kind in KINDS:
        if kind in params or kind in flops:
            own, cost = params.get(kind), flops.get(kind)
            held = (percent(own, n), iec(ceil_div(own * ledger.bits[0], 8))) if own else ("", "")
            rows.append([kind.replace("_", " "), cell(own), *held, cell(cost), percent(cost, f) if cost else ""])
    held = TableCell(1, short(n)), iec(ceil_div(n * ledger.bits[0], 8))
    rows.append(["total", cell(n), *held, cell(f), TableCell(1, short(f))])
    tokens = f"{ledger.work.batch:,} × {ledger.work.tokens:,}" if ledger.work.batch != 1 else f"{ledger.work.tokens:,}"
    seen = ((entry.leaf.mask_span, entry.work) for entry in ledger if entry.leaf.mask_span and entry.work)
    if grid := next(filter(None, (span.grid(work) for span, work in seen)), None):
        tokens += f" ({grid[0]:,} × {grid[1]:,})"
    share = Fraction(f, language.total("flops"))
    much = f"{percent(share, 1).text} of" if share < 10 else f"{float(share):,.0f} times"
    title = f"{name.capitalize()} tower: {tokens} input tokens, {much} the language model's FLOPs; {known.how}"
    title += f" {known.where}" if known.where else ""
    headings = ("part", "parameters", "share", f"weights, {dtype}", "FLOPs", "share")
    return Table(title, headings, rows, total=True, name=f"{name} tower")


def _params(ledger: Ledger, known: Evidence) -> Table:
    """All parameters, and commonly quoted subtotals."""
    whole = ledger.total("params")
    sums = {"all": whole, "active per token": ledger.total("active"), **sums_of(ledger)}
    channel, blocks = (sums[name] for name in ("feed-forward of all layers", "blocks: all layers"))
    rows = [[name, cell(number), rounded(number), percent(number, whole), known.how] for name, number in sums.items()]
    if not channel:
        rows.pop()
    elif blocks:
        share = f"feed-forward, {float(100 * Fraction(channel, blocks)):.1f} % of the blocks"
        rows[-1][0] = TableCell(rows[-1][0], share)
    return Table(
        "Parameters",
        ("quantity", TableCell("parameters", "exact"), SHORT, "share", "evidence"),
        rows,
        left=frozenset({0, 4}),
    )


def _flops(model: Model, ledger: Ledger, attention: str, known: Mapping[str, Evidence]) -> Table:
    dense, masked, other = (ledger.total(name) for name in ("flops", "flops_masked", "flops_other"))
    scans: dict[str, int] = {}  # recurrent scans
    for entry in ledger:
        for operation in entry.operations:
            if operation.kind == "scan":
                scans[operation.name] = scans.get(operation.name, 0) + operation.flops_other * entry.runs
    tokens = ledger.work.batch * ledger.work.tokens
    chosen = ["flops_masked"] if attention == "masked" else ["flops"]
    if model.has_windows:
        chosen = ["flops", "flops_masked"]
    words = {"flops": ", dense", "flops_masked": ", masked"} if model.has_windows else {}
    per_token = [
        _row(f"forward per token{words.get(name, '')}", _per(ledger.total(name), tokens), known[name])
        for name in chosen
    ]
    rows = [
        _row("forward, dense attention", dense, known["flops"]),
        _row("forward, masked attention", masked, known["flops_masked"]),
        _row("other (norms, softmax, …)", other, known["flops_other"]),
        *([_row(f"of these: {', '.join(scans)}", sum(scans.values()), known["flops_other"])] if scans else []),
        *per_token,
        _row("forward and backward, dense", training_flops(ledger), known["training"]),
    ]
    return Table(
        "FLOPs",
        ("quantity", TableCell("FLOPs", "exact"), SHORT, "evidence"),
        rows,
        left=frozenset({0, 3}),
    )


def _row(name: str, number: Any, known: Evidence) -> list[Any]:
    return [
        name,
        cell(number) if isinstance(number, int) else TableCell(float(number), f"{float(number):,.1f}"),
        short(number),
        known.how,
    ]


def _per(number: int, among: int) -> Any:
    share = Fraction(number, among)
    return share.numerator if share.denominator == 1 else share


def _weights(
    model: Model, ledger: Ledger, dtype: str, form: Format | None, known: Evidence, facts: dict[str, Any]
) -> list[list[Any]]:
    """The weights in the requested format, and as published if that differs."""
    size = weights_bytes(ledger, form)
    rows = [_bytes("weights", size, known, f"weights ({form.name if form else dtype})")]
    try:
        own = native(model)
    except InputError:  # unknown quantisation method
        facts["memory"]["native"] = None
        return rows
    published = weights_bytes(ledger, own)
    facts["memory"]["native"] = {"format": own.name, "bytes": published}
    if published != size:
        evidence = Evidence("published", own.source)
        rows.append(_bytes("weights as published", published, evidence, f"weights as published ({own.name})"))
    return rows


def _memory(ledger: Ledger, kv_dtype: str, kept: Ledger, known: Mapping[str, Evidence], rows: list[list[Any]]) -> Table:
    params, cache, batch = ledger.total("params"), ledger.cache_now, ledger.work.batch
    growth, constant = (n if n is None else ceil_div(n * ledger.bits[2], 8) for n in cache[:2])
    state = training_state(params, learning(ledger))
    weights, held = known["params"], known["cache"]
    if cache.held:
        one = cache_bytes(ledger)
        if growth is not None and constant is not None:
            shown = f"cache per further token{_until(ledger)} ({kv_dtype})"
            rows.append(_bytes("cache per further token", growth, held, shown))
            rows.append(_bytes("cache, constant part", constant, held))
        rows.append(_bytes("cache", one, held, f"cache at length {ledger.work.keys:,}, one sequence"))
        if batch > 1:
            rows.append(_bytes("cache of all sequences", one * batch, held, f"cache of all {batch:,} sequences"))
    rows += [
        _bytes(share.name, share.bytes, weights, f"{share.name}, {share.bytes_per_param} B/param") for share in state
    ]
    each = f", {sum(share.bytes_per_param for share in state)} B/param" if learning(ledger) == params else ""
    rows.append(_bytes("training state", sum(share.bytes for share in state), weights, f"training state{each}"))
    rows.append(_bytes("saved activations, fused attention", saved_bytes(ledger), known["saved"]))
    rows.append(_bytes("saved activations, eager attention", saved_bytes(kept), known["saved_kept"]))
    return Table("Memory", ("quantity", "bytes", TableCell("", "size"), "evidence"), rows, left=frozenset({0, 3}))


def _until(ledger: Ledger) -> str:
    """The length up to which a further token also grows windows."""
    full = ledger.full_at
    return f" up to {full:,}" if full is not None and ledger.work.keys < full else ""


def _bytes(name: str, number: int, known: Evidence, shown: str = "") -> list[Any]:
    """A row; `shown` varies with the options, `name` (of which ids are made) does not."""
    return [TableCell(name, shown or name), cell(number), iec(number), known.how]


def _rule_data(rule: RuleOfThumb) -> dict[str, Any]:
    """A rule in JSON: whole numbers, or fractions as texts."""
    values = {"gives": Fraction(rule.gives), "exact": Fraction(rule.truth)}
    said = {name: n.numerator if n.denominator == 1 else str(n) for name, n in values.items()}
    off = error(rule.gives, rule.truth)
    return {"what": rule.what, "formula": rule.formula, **said, "error": off.text, "relative_error": off.value}


def _rules(model: Model, ledger: Ledger) -> Table:
    rows = [
        [rule.what, rule.formula, rounded(rule.gives), rounded(rule.truth), error(rule.gives, rule.truth)]
        for rule in rules_of_thumb(model, ledger)
    ]
    headings = ("rule of thumb for", "formula", "gives", "exact", "error")
    return Table(
        "Rules of thumb, for this model", headings, rows, left=frozenset({0, 1}), keys=2, name="Rules of thumb"
    )
