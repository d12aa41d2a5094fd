"""The tables of `deploy`: verdict, limits, memory and layouts of one deployment, or several side by side.

One deployment is told in lines, with tables of its speed and loads; `--detail` has tables of everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.ledger import kind_words
from txcalc.questions.deploy import Deploy, DeployComparison, Refusal
from txcalc.questions.deployment import AcceleratorInfo, LayoutFit
from txcalc.render import serving
from txcalc.render.report import (
    Column,
    Report,
    Table,
    TableCell,
    byte_size,
    column,
    leading,
    percent,
    tabulate,
    yes_or_no,
)
from txcalc.units import iec, number_of

LAYOUTS = 10  # shown
WIDE_PREFILL = 1.5  # times the cache that later tokens need, from which the cache of a prefill is told apart
EXPENSIVE = 3  # times the hourly cost of the cheapest plan, from which a plan is named


def report(answer: Deploy | DeployComparison, form: str) -> Report:
    """The tables; `detail` and the formats other than a table have all of them."""
    if isinstance(answer, DeployComparison):
        return comparison(answer)
    detail = answer.detail or form != "table"
    speed = answer.speed
    memory = (_limits, _memory, _caches, _layouts) if detail else () if speed else (_memory,)
    tables = [*(table(answer) for table in memory), *(serving.tables(answer, speed, detail) if speed else ())]
    notes = answer.plan_notes if detail else leading(answer.plan_notes)
    return Report(tables, _header(answer, detail), notes, not answer.failed)


def _header(answer: Deploy, detail: bool) -> list[str]:
    speed, gpu, engine, work = answer.speed, answer.gpu, answer.engine, answer.workload
    halved = speed and speed.tpot_s is not None and work.context - work.prompt == work.answer == work.context // 2
    halves = ", half of them prompt" if halved else ""
    verdicts = [line for line in (verdict(answer), serving.verdict(answer, speed) if speed else None) if line]
    if speed and not speed.meets_limits:
        verdicts.reverse()  # failures first
    if answer.unsuited and speed and not speed.meets_limits:
        verdicts.insert(0, serving.unsuited_reason(answer.unsuited, speed.checks))
    if (fewest := answer.fewest_gpus) and fewest.needed < fewest.rented == answer.layout.gpus:
        verdicts.append(
            f"{fewest.needed} GPUs are enough for this load, but a replica takes 1, 2 or 4 GPUs of a node, or whole "
            f"nodes: {fewest.rented}"
        )
    if speed and speed.capacity:
        verdicts.insert(0 if speed.limits else 1, serving.capacity(answer, speed.capacity, speed.limits))
    if answer.api:  # the question that was asked, once the plan holds
        verdicts.insert(len(verdicts) if answer.failed else 0, serving.api(answer, answer.api))
    if largest := answer.largest_that_fits:
        within, line = " within the limits" if largest.within_limits else "", serving.load(largest)
        if not any(line in text for text in verdicts):  # a missed limit names it too
            verdicts.append(f"largest load that fits{within}: {line}")
    plan = [
        f"{number_of('sequence', work.concurrency)} of {work.context:,} tokens{halves}; "
        f"weights {engine.weights}, cache {engine.kv}",
    ]
    if (ram := answer.engine.ram) and ram.host and ram.free_bytes is not None:
        plan.append(f"in RAM: {ram.summary}, {iec(ram.host.memory - ram.free_bytes)} of {iec(ram.host.memory)}")
    lines = [*verdicts, *(serving.headline(answer, speed) if speed else ())]
    if not detail:
        cost = serving.cost(speed) if speed and speed.price_per_gpu_hour is not None else ()
        plan[0] = f"{answer.model.name}: {plan[0]}"
        return [*lines, *cost, *plan, *_memory_lines(answer)]
    gpus = f"{answer.layout.gpus} × {gpu.title}, each {_gpu_memory(gpu)}; {answer.layout}"
    pages = f"pages of {engine.block} tokens, prefill in chunks of {engine.chunk:,}"
    return [*lines, answer.model.summary[0], gpus, *plan, f"{pages}, reserve {gpu.reserve} ({gpu.reserve_source})"]


def _gpu_memory(gpu: AcceleratorInfo) -> str:
    memory = iec(gpu.memory_bytes)
    return f"{iec(gpu.visible_bytes)} usable of {memory}" if gpu.visible_bytes < gpu.memory_bytes else memory


def _memory_lines(answer: Deploy) -> list[str]:
    """What the fullest GPU holds, how much more fits, and the fewest GPUs."""
    stage, work = min(answer.memory, key=lambda stage: stage.free_bytes), answer.workload
    which = "each" if len(answer.memory) == 1 else "the fullest"
    sizes = {"weights": stage.weights_bytes, "cache": stage.cache_bytes, "activations": stage.activations_bytes}
    sizes["engine"] = stage.rest_bytes
    texts = {name: f"{name} {iec(size)}" for name, size in sizes.items() if size}
    if stage.cache_a_sequence.pages > WIDE_PREFILL * stage.cache_a_sequence.algorithmic:
        texts["cache"] += f" ({iec(stage.cache_a_sequence.algorithmic)} per sequence once its prompt is computed)"
    reserve = f"reserve {answer.gpu.reserve}{'' if answer.engine.profile else ', no engine counted (--engine)'}"
    trained, longest = answer.model.context, answer.max_context
    length = "any length" if longest is None else f"{longest:,} tokens"
    if trained and (longest is None or longest > trained):
        length = f"{trained:,} tokens, the model's most"
    within = " within the limits" if answer.speed and answer.speed.limits else ""
    least = "more than tried" if answer.min_gpus is None else answer.min_gpus
    most = number_of("such sequence", answer.max_concurrency)
    capacity = f"memory holds {most}, or {work.concurrency:,} of {length}"
    if answer.speed and answer.speed.capacity and answer.speed.capacity.layout != answer.layout:
        capacity = f"with {answer.layout}, {capacity}"
    if longest == 0:
        capacity = "no sequence of any length fits"
    lines = [
        f"{which} GPU: {_gpu_memory(answer.gpu)}; {', '.join(texts.values())}; {reserve}",
        f"{capacity} (limited by {answer.limit})",
    ]
    fewest = answer.fewest_gpus
    if fewest and fewest.rented == answer.layout.gpus and least in (fewest.needed, fewest.rented):
        return lines
    return [*lines, f"fewest GPUs: {least} to hold it in memory, {_fewest(answer)} to serve this load{within}"]


def verdict(answer: Deploy) -> str:
    """Whether it fits, and by how much."""
    gpus = f"{answer.layout.gpus} × {answer.gpu.title}{f' ({answer.layout})' if answer.layout.gpus > 1 else ''}"
    if answer.fits:
        return f"fits on {gpus}: {iec(answer.headroom_bytes)} to spare on the fullest GPU"
    lacking = f"the fullest GPU lacks {iec(-answer.headroom_bytes)} (limited by {answer.limit})"
    if answer.limit == "RAM" and answer.engine.ram:
        lacking = f"RAM lacks {iec(-(answer.engine.ram.free_bytes or 0))}"
    if answer.max_concurrency:
        sequences = number_of("sequence", answer.workload.concurrency)
        return f"fits {answer.max_concurrency:,} of {sequences} at the full context on {gpus}: {lacking}"
    narrower = "; fit tells which formats do" if answer.limit == "weights" else ""
    return f"does not fit on {gpus}: {lacking}{narrower}"


def comparison(answer: DeployComparison) -> Report:
    """Several models or accelerators, one row each."""
    speeds = [plan.speed for plan in answer.deployments if isinstance(plan, Deploy) and plan.speed]
    columns = serving.comparison_columns(any(speed.price_per_gpu_hour is not None for speed in speeds))
    names = (plan.model if isinstance(plan, Refusal) else plan.model.name for plan in answer.deployments)
    several = len(set(names)) > 1  # else the header names the model
    rows: list[Sequence[Any]] = []
    notes: dict[str, None] = {}
    model = ""
    for plan in answer.deployments:
        above, model = model, plan.model if isinstance(plan, Refusal) else plan.model.name
        if several and model != above:
            rows.append((TableCell(None, model, "bold"), *[""] * (3 + len(columns))))
        gpus = plan.gpu if isinstance(plan, Refusal) else f"{plan.layout.gpus} × {plan.gpu.name}"
        label = TableCell(f"{model} on {gpus}", f"  {gpus}" if several else gpus)
        if isinstance(plan, Refusal):
            rows.append((label, TableCell(None, "refused"), *[None] * (2 + len(columns))))
            notes[f"{model} on {gpus}: {plan.refused}"] = None
            continue
        fits, reason = _judgement(plan)
        if reason:
            notes[f"{model} on {plan.gpu.name}: {reason}"] = None
        capacity = plan.speed.capacity if plan.speed else None
        layout, users = (capacity.layout, capacity.sequences) if capacity else (plan.layout, plan.max_concurrency)
        load = capacity or plan.speed
        rows.append((label, fits, str(layout), users, *(load and of.cell(load) for of in columns)))
        notes |= dict.fromkeys(f"{model} on {plan.gpu.name}: {note}" for note in plan.plan_notes)
    headings = (
        TableCell("deployment", "GPUs"),
        "fits",
        "layout",
        TableCell("most sequences", "max\nusers"),
        *(of.heading for of in columns),
    )
    answers = [plan for plan in answer.deployments if isinstance(plan, Deploy)]
    against = [f"{plan.layout.gpus} × {plan.gpu.name}: {serving.api(plan, plan.api)}" for plan in answers if plan.api]
    header = [*_advice(answer), *against, *(serving.shared_header(answers, speeds[0]) if speeds else [])]
    return Report([Table("", headings, rows, left=frozenset({0, 1, 2}), name="deployments")], header, list(notes))


def _judgement(answer: Deploy) -> tuple[TableCell, str | None]:
    """Whether it serves the load, in a word, and why not."""
    speed = answer.speed
    if speed and not speed.meets_limits and (answer.unsuited or answer.fits):
        word, reason = "too slow", serving.verdict(answer, speed)
        if answer.unsuited:
            word, reason = "not suited", serving.unsuited_reason(answer.unsuited, speed.checks)
        return TableCell(answer.fits, word, "red"), reason
    return yes_or_no(answer.fits, "cheapest" if answer.times_cheapest == 1 else "yes"), None


def _advice(answer: DeployComparison) -> list[str]:
    """The cheapest plan of each model, and those that cost several times as much; without prices the GPUs of each plan
    that serves the load; or that none does."""
    plans = [plan for plan in answer.deployments if isinstance(plan, Deploy) and plan.speed]
    if answer.failed:
        limited = any(plan.speed and plan.speed.limits for plan in plans)
        return ["none serves this load within the limits" if limited else "none serves this load"]
    lines = []
    for plan in plans:
        speed, name = plan.speed, f"{plan.layout.gpus} × {plan.gpu.name}"
        if speed and plan.times_cheapest == 1:
            serves = "at capacity" if speed.capacity else "for this load"
            at = speed.capacity or speed
            cost = f"{serving.money(at.cost_per_hour).text}/h, {at.cost_per_month:,.0f}/month"
            lines.append(f"cheapest {serves}: {plan.model.name} on {name}, {at.layout} ({cost})")
        elif plan.times_cheapest and plan.times_cheapest >= EXPENSIVE:
            per = "per million tokens" if speed and speed.capacity else "per hour"
            lines.append(f"{plan.model.name} on {name} costs {plan.times_cheapest:.1f} × as much {per}")
    if not lines and not any(plan.speed and plan.speed.capacity for plan in plans):
        fewest = sorted((plan for plan in plans if not plan.failed), key=lambda plan: plan.layout.gpus)
        gpus = ", ".join(f"{plan.model.name} on {plan.layout.gpus} × {plan.gpu.name}" for plan in fewest)
        priced = any(plan.speed and plan.speed.price_per_gpu_hour for plan in plans)
        return [f"for this load: {gpus}{'' if priced else ' (prices tell the cheapest: --gpu NAME@PRICE)'}"]
    return lines


def _limits(answer: Deploy) -> Table:
    work, longest = answer.workload, "not limited by memory" if answer.max_context is None else answer.max_context
    within = " within the limits" if answer.speed and answer.speed.limits else ""
    rows: list[tuple[Any, Any]] = [
        (column("most sequences", "", f"max concurrency at {work.context:,} tokens"), answer.max_concurrency),
        (column("longest context", "", f"max context with {number_of('sequence', work.concurrency)}"), longest),
        ("fewest GPUs that hold it in memory", "more than tried" if answer.min_gpus is None else answer.min_gpus),
        (f"fewest that serve this load{within}", _fewest(answer)),
        ("limited by", answer.limit),
    ]
    if answer.engine.profile and answer.cache_tokens is not None:
        rows.insert(1, ("cache capacity per replica, tokens", answer.cache_tokens))
    return Table("Limits", ("limit", "value"), rows)


def _fewest(answer: Deploy) -> int | str:
    if answer.fewest_gpus is None:
        return "not suited" if answer.unsuited else "more than tried"
    return answer.fewest_gpus.rented


def _memory(answer: Deploy) -> Table:
    memory, stage = answer.gpu.memory_bytes, min(answer.memory, key=lambda stage: stage.free_bytes)
    system, free = memory - answer.gpu.visible_bytes, stage.free_bytes
    most = max(stage.activations, key=lambda name: stage.activations[name])
    shared = "pages, the shared prefix once" if answer.workload.shared_prefix >= answer.engine.block else "pages"
    draft = column("weights: draft", "", f"weights: draft {answer.workload.draft}")
    sizes: list[tuple[Any, int]] = [
        *((f"weights: {kind_words(kind)}", size) for kind, size in stage.weights_by_kind.items()),
        ("weights: LoRA adapters", stage.adapters_bytes),
        ("weights: towers", stage.towers_bytes),
        (draft, stage.draft.weights_bytes if stage.draft else 0),
        (column("cache", "", f"cache ({shared})"), stage.cache_bytes),
        (column("activations", "", f"activations (peak: {most})"), stage.activations_bytes),
        *((f"engine: {name}", size) for name, size in stage.rest.items()),
        ("driver or system", system),
    ]
    rows = [(name, size) for name, size in sizes if size]
    rows.append(("reserve of the usable memory", answer.gpu.reserve_bytes - system))
    rows += [("free" if free >= 0 else "over by", abs(free)), ("memory", memory)]
    cells = [(name, size, byte_size(size), percent(size, memory)) for name, size in rows]
    return Table("The fullest GPU", ("", "bytes", "", column("share", "", "of memory")), cells, total=True)


def _caches(answer: Deploy) -> Table:
    """One sequence's cache on one GPU, counted three ways."""
    sizes = max(answer.memory, key=lambda stage: stage.cache_bytes).cache_a_sequence
    ways = (
        ("needed by later tokens", sizes.algorithmic),
        (column("pages", "", f"in pages of {answer.engine.block} tokens, used here"), sizes.pages),
        ("if every layer attended to all tokens", sizes.dense),
    )
    rows = [(name, size, byte_size(size)) for name, size in ways]
    return Table("Cache of one sequence, per GPU", ("", "bytes", ""), rows)


def _layouts(answer: Deploy) -> Table:
    columns: list[Column[LayoutFit]] = [
        Column("layout", str),
        Column("fits", lambda of: yes_or_no(of.fits)),
        Column(column("weights", "bytes"), lambda of: byte_size(of.weights_bytes)),
        Column(column("cache", "bytes"), lambda of: byte_size(of.cache_bytes)),
        Column(column("free", "bytes"), lambda of: byte_size(of.headroom_bytes)),
        Column("most sequences", lambda of: of.max_concurrency),
    ]
    return tabulate(f"Layouts, best first: {answer.rule}", answer.layouts[:LAYOUTS], columns)
