"""The tables of `crossover`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from txcalc.questions.answers import ModelInfo
from txcalc.questions.crossover import CacheCrossing, ClassicCrossing, Crossing, Crossover
from txcalc.render.report import Report, Table, TableCell, byte_size, column, percent
from txcalc.units import iec

NEVER = TableCell(None, "never")
LONGEST = 55  # characters of a model in a title
WIDEST = 28  # characters of a closed form that fit next to its rule


def report(answer: Crossover, form: str) -> Report:
    """The lengths of each model; with `detail`, and in forms that are read by programs, closed forms and the cache by
    batch too."""
    models, full = list(by_model(answer.rows)), answer.detail or form != "table"
    tables: list[Table] = []
    for rows, model in zip(models, answer.models, strict=True):
        tables.append(_lengths(rows, model, "" if full else model.summary[1]))
        if full and (len({row.why for row in rows}) > 1 or answer.classic):  # a common reason is in the verdict
            tables += _closed_forms(rows, form)
        if full and (cache := [row for row in answer.cache if row.model == rows[0].model]):
            tables.append(_contexts(cache))
    if full and answer.classic:
        tables.append(_classic(answer.classic, form))
    latent = f", MLA {answer.convention.mla}" if answer.convention.mla else ""
    header = [_verdict(rows) for rows in models]
    if full:
        header += [f"{model.name}: {model.summary[1]}" for model in answer.models if model.summary[1]]
        header += [
            "each row: the smallest T for which the inequality holds",
            "forward FLOPs summed over layers; active experts and routers count as feed-forward; "
            f"{answer.convention.logits} logits{latent}",
        ]
        if answer.cache:
            header.append(
                "a decode step reads its cache, and every weight once but embedding tables and unused experts"
            )
    else:
        lines = [(model.name, _cache(model, answer.cache)) for model in answer.models]
        header += [f"{name}: {line}" if len(models) > 1 else line for name, line in lines if line]
    return Report(tables, header, answer.notes)


def by_model(rows: Sequence[Crossing]) -> Iterator[Sequence[Crossing]]:
    """The rows of each model: as many for each, one per rule and attention."""
    number = len({(row.rule, row.attention) for row in rows})
    return (rows[i : i + number] for i in range(0, len(rows), number))


def _cache(model: ModelInfo, rows: Sequence[CacheCrossing]) -> str:
    """The context from which a model's decode step reads more cache than weights, in a line; "": never."""
    first = next((row for row in rows if row.model == model.name and row.context), None)
    if first is None:
        return ""
    if first.context == 1:
        cache = "state" if model.kind == "recurrent" else "cache"
        return f"decode reads more {cache} than weights from a batch of {first.batch:,}, at any length"
    return f"decode reads more cache than weights from {first.context:,} tokens (batch {first.batch:,})"


def _verdict(rows: Sequence[Crossing]) -> str:
    """The first rule's lengths in a line, or why there are none."""
    name, first = rows[0].model, rows[:2]
    if not any(row.tokens for row in first):
        why = " or ".join(dict.fromkeys(row.why for row in first if row.why))
        return f"{name}: scores and values never cost as much as the feed-forward{why and f' ({why})'}"
    lengths = [f"from {row.tokens:,} tokens" if row.tokens else "never" for row in first]
    when = lengths[0] if len(set(lengths)) == 1 else f"{lengths[0]} (dense), {lengths[1]} (masked)"
    return f"{name}: scores and values cost as much as the feed-forward {when}"


def _lengths(rows: Sequence[Crossing], model: ModelInfo, description: str) -> Table:
    """One line per rule, with two lengths; `description` of the model, for the title. A wide terminal shows their share
    of the model's context too."""
    context, tokens = model.context, {(row.rule, row.attention): row.tokens for row in rows}
    ways = ("dense", "masked")
    headings = ["rule", *(column(way, "tokens") for way in ways)]
    headings += [f"{way}, of the context" for way in ways]
    lines: list[list[object]] = []
    for rule in dict.fromkeys(row.rule for row in rows):
        lengths = [tokens[rule, way] for way in ways]
        lines.append([rule, *(length or NEVER for length in lengths), *(percent(n, context) for n in lengths)])
    if len(f"{model.name}{description}") > LONGEST:
        description = description.rpartition("; ")[2]  # the feed-forward
    title = f"{model.name} ({description})" if description else model.name
    name = f"{model.name}: crossover length"
    return Table(f"{title}: crossover in tokens", headings, lines, name=name, optional=frozenset({3, 4}))


def _closed_forms(rows: Sequence[Crossing], form: str) -> Iterator[Table]:
    """The closed form of each length, or why there is none; long ones below their rule on a terminal."""
    attentions: dict[str, dict[TableCell, list[str]]] = {}
    for row in rows:
        how = TableCell(row.why, row.why) if row.why else _math(row.formula, row.latex, form)
        if how.text:
            attentions.setdefault(row.rule, {}).setdefault(how, []).append(row.attention)
    lines = [
        (f"{rule}, {which[0]}" if len(which) == 1 else rule, how)
        for rule, hows in attentions.items()
        for how, which in hows.items()
    ]
    headings: tuple[str, ...] = ("rule", "closed form" if any(row.formula for row in rows) else "why")
    cells: list[list[object]] = [[*line] for line in lines]
    title = f"{rows[0].model}: {headings[1]}"
    if form == "table" and any(len(how.text) > WIDEST for _, how in lines):
        headings, cells = ("",), [[f"{rule}\n  " + how.text.replace("; ", "\n  ")] for rule, how in lines]
    if lines:
        yield Table(title, headings, cells, frozenset({0, 1}), name=title)


def _contexts(rows: Sequence[CacheCrossing]) -> Table:
    lines = []
    for row in rows:
        cache = TableCell(row.cache_bytes, iec(row.cache_bytes) if row.cache_bytes else "")
        context = row.context if row.context else NEVER
        lines.append([row.batch, context, byte_size(row.weights_bytes), cache])
    title = f"{rows[0].model}: context from which a decode step reads more cache than weights"
    read = TableCell("weights bytes", "weights read"), TableCell("cache bytes", "cache read")
    return Table(title, ("batch", "context from", *read), lines, frozenset(), name=title)


def _classic(rows: Sequence[ClassicCrossing], form: str) -> Table:
    lines = [
        [
            f"{row.rule}, {row.attention}",
            _math(row.plain, row.plain_latex, form),
            _math(row.gated, row.gated_latex, form),
        ]
        for row in rows
    ]
    return Table("Classic blocks: h_kv = h, h·d_h = D, F = 4·D", ("rule", "plain", "gated"), lines, frozenset(range(3)))


def _math(formula: str | None, latex: str | None, form: str) -> TableCell:
    if formula is None:
        return TableCell(None, "")
    return TableCell(formula, f"${latex}$" if form == "latex" else formula)
