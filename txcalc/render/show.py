"""The tables of `show`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from txcalc.evidence.known import Evidence
from txcalc.ledger import KINDS, kind_words
from txcalc.questions.show import CountedByConvention, Rule, Show, Tower
from txcalc.questions.training_step import TrainingStep
from txcalc.render import stored
from txcalc.render.report import Report, Table, TableCell, cell, error, percent, rounded
from txcalc.units import iec, short, three

SHORT = TableCell("", "short")  # heading of figures that repeat the exact ones
BYTE_HEADINGS = ["quantity", "bytes", TableCell("", "size")]


def report(answer: Show, form: str) -> Report:
    """A headline and the costs by part; in full with `detail`, and in forms that are read by programs."""
    full = answer.detail or form != "table"
    workload, context = answer.workload, answer.model.context
    length = ""
    if answer.default_tokens:
        fits = context is not None and workload.tokens <= context
        length = f" (default; context {context:,})" if fits else f" (default {workload.tokens:,})"
    header = _headline(answer) if form == "table" else []
    header += [*answer.model.summary, answer.architecture, *_other_params(answer), f"{workload}{length}"]
    header.append(str(answer.convention))
    if answer.published and not answer.changed:
        header.append(f"published: {answer.published}")
    header += [answer.checkpoint_summary] if answer.checkpoint_summary else []
    tables = [_convention(convention, workload.batch * workload.tokens) for convention in answer.conventions]
    tables.append(_parts(answer))
    towers = [_tower(name, tower, answer) for name, tower in answer.towers.items()]
    if full:
        tables += [*towers, _params(answer, form), _flops(answer, form), _memory(answer, form), _traffic(answer)]
        tables.append(_rules(answer.rules))
    else:
        header += [tower.title for tower in towers]
    if answer.train and not full:
        tables.append(_with_evidence("Memory of training", BYTE_HEADINGS, _training_memory(answer), form))
    tables += stored.tables(answer.checkpoint) if answer.checkpoint else []
    if answer.initial:
        tables.append(_initial(answer))
    trained = answer.memory.trained_params
    if trained != answer.params.total:
        header.append(f"trained: {trained:,} parameters, {100 * trained / answer.params.total:.2g} % of all")
    if answer.training:
        header.append(answer.training.summary)
        tables.append(_training_step(answer.training))
    notes = [*(f"assumed {assumption}" for assumption in answer.assumptions), *answer.notes]
    return Report(tables, header, notes)


def _headline(answer: Show) -> list[str]:
    """The figures that people come for, in three lines, each with how it is known."""
    params, cache, memory, evidence = answer.params, answer.cache, answer.memory, answer.known
    active = f", {short(params.active)} active ({evidence['active'].text})" if params.active != params.total else ""
    batch = answer.workload.batch
    unit, number = ("image", batch) if answer.model.kind == "vision" else ("token", batch * answer.workload.tokens)
    dense, masked = (
        short(Fraction(cost, number)) for cost in (answer.flops.forward.matmul, answer.flops.masked.matmul)
    )
    flops = f"{dense} FLOPs per {unit} ({evidence['flops'].text})"
    if answer.has_windows or answer.convention.attention == "masked":
        flops = f"{masked} FLOPs per {unit} as masked ({evidence['flops_masked'].text}), {dense} dense"
    memories = f"weights {iec(memory.weights_bytes)} ({memory.format})"
    if cache.elements:
        grows = f"{iec(cache.bytes_per_token)} per token" if cache.bytes_per_token else ""
        grows += f" + {iec(cache.constant_bytes)} fixed" if grows and cache.constant_bytes else ""
        grows += "; " if grows else ""
        several = f", {iec(batch * cache.bytes)} for {batch:,} sequences" if batch > 1 else ""
        memories += f"; cache ({cache.dtype}) {grows}{iec(cache.bytes)} at {cache.context:,} tokens{several}"
    state, saved = iec(memory.training_state_bytes), iec(memory.saved_bytes.fused)
    per_param = sum(part.bytes_per_param or 0 for part in memory.training_state)
    rule = "" if answer.training else f" (AdamW, {per_param} B/param)"  # a step has a line of its own
    unscaled = memory.unscaled_bytes
    scaled = f"{memory.format}: {memory.format_rule}; without scales and wider weights {iec(unscaled or 0)}"
    return [
        f"{answer.model.name}: {short(params.total)} parameters ({evidence['params'].text}){active}; {flops}",
        memories,
        *[scaled] * (unscaled is not None),
        f"to train: state {state}{rule}, saved activations {saved}",
    ]


def _other_params(answer: Show) -> list[str]:
    """Parameters besides those that are counted."""
    params, lines = answer.params, []
    if params.whole not in (None, params.total):
        towers = (params.whole or 0) - params.total
        lines.append(
            f"language model of a multimodal model: {params.whole:,} parameters in all, {towers:,} in towers and "
            "projectors"
        )
    if params.mtp:
        lines.append(f"multi-token prediction, not included: {params.mtp:,} parameters")
    return lines


def _by_kind(params: dict[str, int], flops: dict[str, int]) -> list[str]:
    return [kind for kind in KINDS if kind in params or kind in flops]


def _parts(answer: Show) -> Table:
    """Parameters and FLOPs by part; a wide terminal shows the other way of counting attention too."""
    masked = answer.convention.attention == "masked"
    way, other = ("masked", "dense") if masked else ("dense", "masked")
    flops = {"dense": answer.flops.by_kind, "masked": answer.flops.masked.by_kind}
    cost = {"dense": answer.flops.forward.matmul, "masked": answer.flops.masked.matmul}
    params, tokens = answer.params.by_kind, answer.workload.batch * answer.workload.tokens
    rows: list[list[Any]] = []
    for kind in _by_kind(params, flops[way]):
        number, spent = params.get(kind), flops[way].get(kind)
        here, there = (rounded(Fraction(of[kind], tokens)) if of.get(kind) else "" for of in (flops[way], flops[other]))
        shares = percent(number, answer.params.total), percent(spent, cost[way])
        rows.append([kind_words(kind), number, shares[0], here, spent, shares[1], there])
    total = TableCell(1, "100 %")
    here, there = (rounded(Fraction(cost[which], tokens)) for which in (way, other))
    rows.append(["total", answer.params.total, total, here, cost[way], total, there])
    known = answer.known["params"].text, answer.known["flops_masked" if masked else "flops"].text
    names = ["parameters", "share of parameters", f"FLOPs per token, {way}", f"FLOPs, {way}", "share of FLOPs"]
    labels = ("parameters", "share", "FLOPs/token", "FLOPs", "share")
    headings = ["part", *map(TableCell, names, labels), f"FLOPs/token, {other}"]
    evidence = dict(zip(names, [known[0]] * 2 + [known[1]] * 3, strict=True))
    both = " (dense)" if answer.has_windows and not masked else ""
    title = f"By part: parameters {known[0]}, FLOPs{both} {known[1]}"
    return Table(title, headings, rows, total=True, name="parts", known=evidence, optional=frozenset({6}))


def _tower(name: str, tower: Tower, answer: Show) -> Table:
    """A tower and its projector by part, and its FLOPs relative to the language model's."""
    params, flops, sizes = tower.params.by_kind, tower.flops.by_kind, tower.memory.weights_bytes_by_kind
    whole, cost = tower.params.total, tower.flops.forward.matmul
    rows: list[list[Any]] = []
    for kind in _by_kind(params, flops):
        number, spent = params.get(kind), flops.get(kind)
        weights = iec(sizes[kind]) if number else ""
        rows.append([kind_words(kind), number, percent(number, whole), weights, spent, percent(spent, cost)])
    total = TableCell(1, "100 %")
    rows.append(["total", whole, total, iec(tower.memory.weights_bytes), cost, total])
    batch = answer.workload.batch
    tokens = f"{batch:,} × {tower.tokens:,}" if batch != 1 else f"{tower.tokens:,}"
    tokens += f" ({tower.grid[0]:,} × {tower.grid[1]:,})" if tower.grid else ""
    ratio = Fraction(cost, answer.flops.forward.matmul)
    much = f"{percent(ratio, 1).text} of" if ratio < 10 else f"{float(ratio):,.0f} times"
    evidence = tower.known["flops"]
    title = f"{name.capitalize()} tower: {tokens} input tokens, {much} the language model's FLOPs; {evidence.how}"
    title += f" {evidence.where}" if evidence.where else ""
    headings = ("part", "parameters", "share", f"weights, {answer.memory.dtype}", "FLOPs", "share")
    return Table(title, headings, rows, total=True, name=f"{name} tower")


def _params(answer: Show, form: str) -> Table:
    """All parameters, and commonly quoted subtotals."""
    params, sums, known = answer.params, answer.sums, answer.known["params"].text
    evidence = {"active per token": answer.known["active"].text}
    numbers = {
        "all": params.total,
        "active per token": params.active,
        "without embedding and head": sums["non_embedding"],
        "blocks: all layers": sums["blocks"],
    }
    rows = [
        [name, number, rounded(number), percent(number, params.total), evidence.get(name, known)]
        for name, number in numbers.items()
    ]
    if channel := sums["feed_forward"]:
        name = TableCell("feed-forward of all layers", "feed-forward of all layers")
        if blocks := sums["blocks"]:
            share = float(100 * Fraction(channel, blocks))
            name = TableCell(name.value, f"feed-forward, {share:.1f} % of the blocks")
        rows.append([name, channel, rounded(channel), percent(channel, params.total), known])
    return _with_evidence("Parameters", ["quantity", TableCell("parameters", "exact"), SHORT, "share"], rows, form)


def _flops(answer: Show, form: str) -> Table:
    flops, known = answer.flops, answer.known
    dense, masked = flops.forward.matmul, flops.masked.matmul
    tokens = answer.workload.batch * answer.workload.tokens
    per_token = [("forward per token", dense, known["flops"])]
    if answer.has_windows:
        per_token = [
            ("forward per token, dense", dense, known["flops"]),
            ("forward per token, masked", masked, known["flops_masked"]),
        ]
    elif answer.convention.attention == "masked":
        per_token = [("forward per token", masked, known["flops_masked"])]
    rows = [
        _figure("forward, dense attention", dense, known["flops"]),
        _figure("forward, masked attention", masked, known["flops_masked"]),
        _figure("other (norms, softmax, …)", flops.forward.other, known["flops_other"]),
    ]
    if flops.scans:
        name = f"of these: {', '.join(flops.scans)}"
        rows.append(_figure(name, sum(flops.scans.values()), known["flops_other"]))
    rows += [_figure(name, Fraction(number, tokens), evidence) for name, number, evidence in per_token]
    rows.append(_figure("forward and backward, dense", flops.training.matmul, known["training"]))
    return _with_evidence("FLOPs", ["quantity", TableCell("FLOPs", "exact"), SHORT], rows, form)


def _figure(name: str, number: int | Fraction, evidence: Evidence) -> list[object]:
    if isinstance(number, Fraction) and number.denominator == 1:
        number = number.numerator
    exact = number if isinstance(number, int) else TableCell(float(number), f"{float(number):,.1f}")
    return [name, exact, short(number), evidence.text]


def _memory(answer: Show, form: str) -> Table:
    memory, cache, evidence, batch = answer.memory, answer.cache, answer.known, answer.workload.batch
    rows = [_bytes("weights", memory.weights_bytes, evidence["weights_bytes"].text, f"weights ({memory.format})")]
    if (native := memory.native) and native.bytes != memory.weights_bytes:
        name = "weights as published"
        rows.append(_bytes(name, native.bytes, "published", f"{name} ({native.format})"))
    if cache.elements:
        if cache.bytes_per_token is not None and cache.constant_bytes is not None:
            full, length = cache.windows_full_at, cache.context
            until = f" up to {full:,}" if full is not None and length < full else ""
            label = f"KV cache per token{until} ({cache.dtype})"
            rows.append(_bytes("cache per token", cache.bytes_per_token, evidence["cache_bytes"].text, label))
            rows.append(_bytes("fixed part (windows, states)", cache.constant_bytes, evidence["cache_bytes"].text))
        label = f"cache at length {cache.context:,}, one sequence"
        rows.append(_bytes("cache", cache.bytes, evidence["cache_bytes"].text, label))
        if batch > 1:
            label = f"cache of all {batch:,} sequences"
            rows.append(_bytes("cache of all sequences", cache.bytes * batch, evidence["cache_bytes"].text, label))
    return _with_evidence("Memory", BYTE_HEADINGS, [*rows, *_training_memory(answer)], form)


def _training_memory(answer: Show) -> list[list[Any]]:
    """Rows of the training state and of saved activations."""
    memory, evidence, rows = answer.memory, answer.known, []
    state, how = memory.training_state, evidence["training_state_bytes"].text
    per_param = [part.bytes_per_param for part in state if part.bytes_per_param is not None]
    for part in state:
        bytes_note = "" if part.bytes_per_param is None else f", {part.bytes_per_param} B/param"
        rows.append(_bytes(part.name, part.bytes, how, f"{part.name}{bytes_note}"))
    bytes_note = f", {sum(per_param)} B/param" if per_param and memory.trained_params == answer.params.total else ""
    rows.append(_bytes("training state", memory.training_state_bytes, how, f"training state{bytes_note}"))
    for name, key, number in (
        ("fused", "saved_bytes", memory.saved_bytes.fused),
        ("eager", "saved_kept_bytes", memory.saved_bytes.attention_matrix_kept),
    ):
        rows.append(_bytes(f"saved activations, {name} attention", number, evidence[key].text))
    return rows


def _with_evidence(title: str, headings: list[Any], rows: Sequence[Sequence[object]], form: str) -> Table:
    """A table of rows whose last cell says how their figures are known: in its title, where all are known alike."""
    if form == "table" and len({row[-1] for row in rows}) == 1:
        return Table(f"{title}: {rows[0][-1]}", headings, [row[:-1] for row in rows], name=title)
    return Table(title, [*headings, "evidence"], rows, left=frozenset({0, len(headings)}))


def _bytes(name: str, number: int, how: str, label: str = "") -> list[Any]:
    """A row; `label` varies with the options, `name` (of which ids are made) does not."""
    return [TableCell(name, label or name), number, iec(number), how]


def _traffic(answer: Show) -> Table:
    traffic, intensities = answer.traffic, answer.traffic.flops_per_byte_by_kind
    rows = [
        [kind_words(kind), number, iec(number), three(intensities[kind])]
        for kind, number in traffic.bytes_by_kind.items()
        if number
    ]
    rows.append(["total", traffic.bytes, iec(traffic.bytes), three(traffic.flops_per_byte)])
    headings = ["part", TableCell("bytes moved", "bytes"), TableCell("size", ""), "FLOPs/byte"]
    return Table(
        "Arithmetic intensity, each operand read and each result written once: modelled", headings, rows, total=True
    )


def _rules(rules: Sequence[Rule]) -> Table:
    rows = []
    for rule in rules:
        gives, exact = Fraction(rule.gives), Fraction(rule.exact)
        rows.append([rule.what, rule.formula, rounded(gives), rounded(exact), error(gives, exact)])
    headings = ("rule of thumb for", "formula", "gives", "exact", "error")
    title = "Rules of thumb, for this model"
    return Table(title, headings, rows, left=frozenset({0, 1}), keys=2, name="Rules of thumb")


def _convention(convention: CountedByConvention, tokens: int) -> Table:
    rows = [
        [
            f"{term.name}: {term.why}" if term.why else term.name,
            term.theirs,
            term.ours,
            error(convention.ours + term.difference, convention.ours) if term.difference else "",
        ]
        for term in convention.terms
    ]
    rows.append(["total", convention.theirs, convention.ours, error(convention.theirs, convention.ours)])
    if tokens > 1:
        rows.append(
            ["per token", rounded(Fraction(convention.theirs, tokens)), rounded(Fraction(convention.ours, tokens)), ""]
        )
    title = f"As {convention.name} counts {convention.counts}: {convention.formula} ({convention.source})"
    return Table(title, ("term: why they differ", convention.name, "txcalc", "off"), rows)


def _initial(answer: Show) -> Table:
    rows = []
    for row in answer.initial:
        deviation = TableCell(row.deviation, "" if row.deviation is None else f"{row.deviation:.4g}")
        rows.append((", ".join(row.parts), row.rule, deviation, row.params))
    return Table("Initialisation", ("weights", "rule", "σ", "parameters"), rows, left=frozenset({0, 1}))


def _training_step(step: TrainingStep) -> Table:
    """Each kind of part of the fullest GPU, and their sum."""
    rows = [
        [
            kind_words(kind),
            part.flops or None,
            TableCell(part.recomputed_flops, short(part.recomputed_flops) if part.recomputed_flops else ""),
            TableCell(part.saved_bytes, iec(part.saved_bytes) if part.saved_bytes else ""),
            TableCell(part.optimizer_bytes, iec(part.optimizer_bytes) if part.optimizer_bytes else ""),
        ]
        for kind, part in step.in_order().items()
    ]
    sums = (short(step.recomputed_flops), iec(step.saved_bytes), iec(step.optimizer_bytes))
    rows.append(["total", step.flops, *map(cell, sums)])
    batches = f", {step.accumulation} micro-batches" if step.accumulation > 1 else ""
    where = f" of rank {step.rank} of {step.layout}{batches}" if step.layout.layout.gpus > 1 else ""
    sizes = TableCell("saved activations, bytes", "saved"), TableCell("optimizer state, bytes", "optimizer")
    headings = ["part", TableCell("FLOPs, dense", "FLOPs"), TableCell("of these recomputed", "recomputed"), *sizes]
    return Table(f"A training step{where}: modelled", headings, rows, total=True, name="training step")
