"""The tables of `train`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.planning.training.answer import MAX_GPUS, OnAccelerator, TrainingRun
from txcalc.planning.training.memory import CATEGORIES, RESERVED
from txcalc.planning.utilisation import COMPUTED
from txcalc.questions.train import Accelerators, RankedLayout, RankMemory, SearchSummary, Train
from txcalc.render.report import (
    Column,
    Report,
    Table,
    TableCell,
    byte_size,
    column,
    duration,
    leading,
    percent,
    rounded,
    tabulate,
)
from txcalc.units import iec, number_of, seconds, short, si_bytes

MAX_RANKS = 10
# Where the time of a step goes, in the words of the table.
CAUSES = {
    "products": "matmuls",
    "computed again": "recomputation",
    "collectives of a layer": "TP, CP, EP communication",
    "weights and gradients": "DP communication",
}
MOMENTS = {
    "loss": "while computing the loss",
    "backward": "during backward",
    "end": "at the end of backward",
    "step": "during the optimizer's step",
}
SHOWN_LAYOUTS = 3  # of a search, without --detail
NEGLIGIBLE = 0.01  # share of memory or of a step that is part of "other" without --detail


def report(answer: Train, form: str) -> Report:
    """Whether it fits, and how fast it is; memory and time; with `detail`, and in forms that are read by programs,
    ranks, limits, every convention of MFU, communication and the whole run too."""
    search, full = answer.search, answer.detail or form != "table"
    header = [_verdict(answer), _headline_place(answer), _batch(answer)]
    if answer.has_frozen_weights:
        trained, params = answer.trained_params, answer.model.params
        layers = "every linear layer" if "all" in answer.adapted else " and ".join(answer.adapted)
        if "all" not in answer.adapted and answer.model.kind != "encoder-decoder":  # which --lora refuses
            layers += " (--lora targets=all: every linear layer)"
        share = f"{100 * trained / params:.2g} %"
        header.append(f"trains {trained:,} of {params:,} parameters ({share}): adapters on {layers}")
    if search and search.too_few and not search.refused:
        header.append(f"{answer.gpu.count:,} GPUs are the fewest: no layout was found that fits on {search.too_few:,}")
    header += [_limit_line(answer), *([_run_line(answer.run)] if answer.run and not full else [])]
    best = [_search(search, answer.gpu, full)] if search else []
    tables = [*best, _memory(answer.fullest, "the fullest GPU", answer.gpu, full)]
    if answer.rank:
        tables.append(_memory(answer.rank, "the requested rank", answer.gpu, full))
    if full:
        tables += [_ranks(answer.ranks), _limits(answer)]
    if answer.spent_s:
        tables.append(_time(answer, answer.spent_s, 0 if full else NEGLIGIBLE))
    if answer.utilisation and (full or answer.conventions or answer.measured):
        tables.append(_utilisation(answer))
    if full and answer.sent:
        tables.append(_sent(answer))
    if answer.run and full:
        tables.append(_run(answer.run, answer.has_frozen_weights))
    if answer.fits_on:
        tables.append(_fits_on(answer.fits_on))
    return Report(tables, header, answer.notes if full else leading(answer.notes), good=answer.fits)


def _verdict(answer: Train) -> str:
    fits = "fits" if answer.fits else "does not fit"
    reserved, memory = iec(answer.fullest.reserved_bytes), iec(answer.gpu.usable_bytes)
    verdict = f"{fits}: peak {reserved} of {memory} usable by PyTorch on the fullest GPU"
    if answer.tokens_per_s_per_gpu and answer.fits:
        verdict += f"; {answer.tokens_per_s_per_gpu:,.0f} tokens/s per GPU {_how(answer)}"
        if name := answer.mfu_headline:
            counted = "FLOPs computed" if name == COMPUTED else f"convention {name}"
            verdict += f", MFU {100 * answer.mfu[name]:.1f} % ({counted})"
        if run := answer.run:
            cost = "" if run.cost is None else f", cost {_amount(run.cost)}"
            verdict += f"; run: {_days(run.days)}{cost}"
            if run.deadline and run.days > run.deadline.days:
                verdict += f"; over the deadline: needs {run.deadline.gpus:,} GPUs at this speed"
            if run.budget and run.budget.tokens < run.train_tokens:
                verdict += f"; over the budget: {_amount(run.budget.money)} pays for {short(run.budget.tokens)} tokens"
    return verdict


def _days(days: float) -> str:
    """A length of time: 27 min, 5.2 h, 16.29 days."""
    if days < 1:
        return f"{24 * days:.1f} h" if 24 * days >= 1 else f"{24 * 60 * days:.2g} min"
    return f"{days:,.2f} days"


def _amount(number: float) -> str:
    """An amount of money or hours: 0.67, 12.5, 62,570."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _how(answer: Train) -> str:
    return "measured" if answer.measured else "predicted"


def _headline_place(answer: Train) -> str:
    zero = f", ZeRO-{answer.layout.zero}" if answer.layout.zero else ""
    pipeline = f", {answer.recipe.schedule}" if answer.recipe.schedule else ""
    accelerators = f"{answer.gpu.count:,} × {answer.gpu.name}"
    return f"{answer.model.name} on {accelerators}; {answer.layout.layout}{zero}{pipeline}; {answer.recipe.framework}"


def _batch(answer: Train) -> str:
    recipe = answer.recipe
    batches = f"{recipe.accumulation:,} micro-batch{'es' if recipe.accumulation > 1 else ''}"
    recompute = f"recompute {recipe.recompute} (activation checkpointing)"
    recompute = "no activation checkpointing" if recipe.recompute == "none" else recompute
    matmuls = "" if recipe.products == "bf16" else f"; matmuls in {recipe.products}"
    tokens = f"{recipe.micro_batch:,} × {recipe.tokens:,} tokens, {short(recipe.step_tokens)} per step"
    return f"{batches} of {tokens}; {recompute}; {recipe.optimizer}{matmuls}"


def _limit_line(answer: Train) -> str:
    """What fits in this layout, and a number of GPUs that is enough for it, unless the fewest were searched."""
    recipe, fewest = answer.recipe, answer.min_gpus
    sizes = {answer.max_micro_batch: recipe.tokens, recipe.micro_batch: answer.max_tokens}
    fits = " or ".join(f"{batch:,} × {tokens:,}" for batch, tokens in sizes.items() if batch and tokens)
    line = f"largest micro-batch in this layout: {fits} tokens" if fits else "no sequence fits in this layout"
    if fewest is None:
        return f"{line}, with any number of replicas"
    if fewest.gpus == answer.gpu.count or (answer.search and answer.search.too_few):
        return line
    on = f" on {fewest.gpus:,} GPUs" if fewest.gpus > 1 else ""
    return f"{line}; {fewest.layout}{on} is enough"


def _run_line(run: TrainingRun) -> str:
    energy = ""
    if run.energy_kwh is not None and run.co2_kg is not None:
        energy = f", {_thousands(run.energy_kwh, 'kWh', 'MWh').text}, {_thousands(run.co2_kg, 'kg', 't').text} of CO2"
    limits = ""  # those that are missed are in the first line
    if run.deadline and run.days <= run.deadline.days:
        limits = f"; {number_of('GPU', run.deadline.gpus)} within {seconds(run.deadline.days * 86400)}"
    if run.budget and run.budget.tokens >= run.train_tokens:
        limits += f"; {_amount(run.budget.money)} pays for {short(run.budget.tokens)} tokens"
    return f"{short(run.train_tokens)} tokens: {_amount(run.gpu_hours)} GPU-hours{energy}{limits}"


def _search(search: SearchSummary, gpu: Accelerators, full: bool) -> Table:
    shown = search.best[: None if full else SHOWN_LAYOUTS]
    framework = full or len({row.framework for row in shown}) > 1  # else the header has it
    columns: list[Column[RankedLayout]] = [
        Column("layout", lambda row: f"{row.framework} {row.layout}" if framework else str(row.layout)),
        Column(column("micro", "", "micro-batch"), lambda row: row.micro_batch),
        Column(column("reserved", "bytes"), lambda row: byte_size(row.reserved_bytes)),
        Column(column("step", "s"), lambda row: duration(row.step_s), optional=not full),
        Column("tokens/s", lambda row: _rate(row.tokens_per_s_per_gpu)),
        Column("free", lambda row: byte_size(gpu.usable_bytes - row.reserved_bytes), optional=True),
        Column("recompute", lambda row: row.recompute, optional=True),
    ]
    if full or len({row.recompute for row in shown}) > 1:
        columns.insert(2, columns.pop()._replace(optional=False))
    which = "The smallest layout that was computed" if search.refused else "The fastest layouts that fit"
    name = f"{which} (tokens/s per GPU)"
    number = f"The fastest layouts: about {search.fitting:,} of {search.considered:,} fit (tokens/s per GPU)"
    return tabulate(name if search.refused else number, shown, columns, name=name)


def _memory(rank: RankMemory, which: str, gpu: Accelerators, full: bool) -> Table:
    whole = rank.allocated_bytes
    sizes = {CATEGORIES[name]: rank.bytes[name] for name in CATEGORIES if rank.bytes[name]}
    small = [name for name, size in sizes.items() if size < NEGLIGIBLE * whole]
    if len(small) > 1 and not full:
        sizes[f"other: {', '.join(small)}"] = sum(sizes.pop(name) for name in small)
    ratio = RESERVED[0] / RESERVED[1]
    free = gpu.usable_bytes - rank.reserved_bytes
    sums: list[tuple[object, int, bool]] = [  # name, bytes, and whether they are shown
        ("allocated" if full else f"allocated (reserved: × {ratio})", whole, True),
        ("collective buffers", rank.collective_bytes, rank.collective_bytes > 0),
        (column("reserved", "", f"reserved (× {ratio})"), rank.reserved_bytes, full),
        ("driver or system", gpu.memory_bytes - gpu.visible_bytes, full and gpu.memory_bytes > gpu.visible_bytes),
        ("CUDA context", gpu.visible_bytes - gpu.usable_bytes, full and gpu.visible_bytes > gpu.usable_bytes),
        ("free" if free >= 0 else "over by", abs(free), full or free < 0),  # else the first line tells
        ("offloaded to the host", rank.host_bytes, rank.host_bytes > 0),
    ]
    parts = [(name, size, percent(size, whole)) for name, size in sizes.items()]
    rows = [*parts, *((name, size, None) for name, size, is_shown in sums if is_shown)]
    columns: list[Column[tuple[Any, int, TableCell | None]]] = [
        Column("", lambda row: row[0]),
        Column(column("bytes", "bytes"), lambda row: row[1]),
        Column("", lambda row: iec(row[1])),
        Column(column("share", "", "of peak"), lambda row: row[2]),
        Column("of the GPU", lambda row: percent(row[1], gpu.usable_bytes), optional=True),
    ]
    where = f"rank {rank.rank:,}, stage {rank.stage}, {MOMENTS[rank.moment]}"
    return tabulate(f"Peak memory of {which} ({where})", rows, columns)


def _ranks(ranks: Sequence[RankMemory]) -> Table:
    fullest = sorted(ranks, key=lambda rank: -rank.allocated_bytes)[:MAX_RANKS]
    suffix = f", the {MAX_RANKS} fullest of {len(ranks)}" if len(ranks) > MAX_RANKS else ""
    columns: list[Column[RankMemory]] = [
        Column("first rank", lambda rank: rank.rank),
        Column("count", lambda rank: rank.count),
        Column("stage", lambda rank: rank.stage),
        Column("in flight", lambda rank: " ".join(map(str, rank.in_flight))),
        Column(column("allocated", "bytes"), lambda rank: byte_size(rank.allocated_bytes)),
        Column(column("reserved", "bytes"), lambda rank: byte_size(rank.reserved_bytes)),
    ]
    return tabulate(f"Memory per rank (identical ranks grouped){suffix}", fullest, columns)


def _limits(answer: Train) -> Table:
    fewest = answer.min_gpus
    micro = column("largest micro-batch", "sequences", "max micro-batch (sequences)")
    tokens = column("longest sequence", "tokens", "max sequence length (tokens)")
    layout = str(fewest.layout) if fewest else f"no number of replicas fits, up to {MAX_GPUS:,} GPUs"
    rows: list[list[Any]] = [
        [micro, answer.max_micro_batch, ""],
        [tokens, answer.max_tokens, ""],
        [column("fewest GPUs", "GPUs", "GPUs, with fewer or more replicas"), fewest.gpus if fewest else 0, layout],
    ]
    title = "Limits of this layout (0: nothing fits)"
    return Table(title, ("limit", "answer", "layout"), rows, left=frozenset({0, 2}))


def _time(answer: Train, spent: dict[str, float], least: float) -> Table:
    """Causes with more than a share `least` of the step, and the sum of the others if that is more too."""
    step = answer.step_s
    smallest = least * (step.achievable or 0)
    shown = {name: value for name, value in spent.items() if value > smallest}
    if (other := sum(spent.values()) - sum(shown.values())) > smallest:
        shown["other"] = other
    rows: list[list[Any]] = [
        [CAUSES.get(name, name), duration(value), percent(value, step.achievable)] for name, value in shown.items()
    ]
    rows.append([column("step, achievable", "", "step, predicted"), duration(step.achievable), ""])
    floor = column("step, floor", "", f"step, floor ({step.floor_bound})")
    rows.append([floor, duration(step.floor), percent(step.floor, step.achievable)])
    hidden = "only what is not hidden" if answer.recipe.overlap else "not overlapped"
    title = f"Step time, slowest stage (communication: {hidden})"
    return Table(title, ("", column("time", "s"), "share"), rows)


def _utilisation(answer: Train) -> Table:
    rows = [
        [f"{row.name}: {row.formula}", rounded(row.flops_per_token), _share(row.mfu), _share(row.hfu)]
        for row in answer.utilisation
    ]
    title = f"Utilisation at the {_how(answer)} rate, of the dense {answer.recipe.products} peak"
    return Table(title, ("convention", "FLOPs/token", "MFU", "HFU"), rows)


def _sent(answer: Train) -> Table:
    libraries = {kind: sent.library for kind, sent in answer.libraries.items()}
    rows = [[kind, size, si_bytes(size), libraries.get(kind, "")] for kind, size in (answer.sent or {}).items()]
    headings = ("collective", column("bytes", "bytes"), "", "library")
    return Table("Bytes sent per step by a rank of that stage", headings, rows)


def _run(run: TrainingRun, adapters: bool) -> Table:
    flops = f"{run.compute:.3e}"
    rows: list[list[Any]] = [
        [column("tokens", "tokens"), rounded(run.train_tokens)],
        [column(f"FLOPs{' (6·N·D)' * (not adapters)}", "FLOPs"), TableCell(run.compute, flops.replace("e+", "e"))],
        [column("days", "days", "time"), TableCell(run.days, _days(run.days))],
        [column("GPU-hours", "h"), TableCell(run.gpu_hours, _amount(run.gpu_hours))],
    ]
    if run.cost is not None:
        cost = column("cost", "", f"cost at {run.price:g} per GPU-hour")
        rows.append([cost, TableCell(run.cost, _amount(run.cost))])
    if run.energy_kwh is not None and run.co2_kg is not None:
        energy = column("energy", "kWh", f"energy, {run.power_w} W, PUE {run.pue:g}")
        rows.append([energy, _thousands(run.energy_kwh, "kWh", "MWh")])
        carbon = column("CO2", "kg", f"CO2 at {run.grid_g_per_kwh:g} g/kWh")
        rows.append([carbon, _thousands(run.co2_kg, "kg", "t")])
    if run.deadline:
        deadline = seconds(run.deadline.days * 86400)
        rows.append([column("GPUs in time", "GPUs", f"GPUs for {deadline}"), run.deadline.gpus])
    if run.budget:
        tokens = column("tokens for the budget", "tokens", f"tokens for {run.budget.money:,.0f}")
        rows.append([tokens, rounded(run.budget.tokens)])
    return Table("The whole run", ("quantity", "value"), rows)


def _fits_on(accelerators: Sequence[OnAccelerator]) -> Table:
    rows = [
        [row.gpu, byte_size(row.usable_bytes), "yes" if row.fits else "no", _rate(row.tokens_per_s_per_gpu)]
        for row in accelerators
    ]
    headings = ("accelerator", column("usable", "bytes"), "fits", "tokens/s per GPU")
    return Table("The same recipe on every accelerator", headings, rows)


def _rate(value: float | None) -> TableCell:
    return TableCell(value, "" if value is None else f"{value:,.0f}")


def _share(value: float) -> TableCell:
    return TableCell(value, f"{100 * value:.2f} %")


def _thousands(value: float, unit: str, thousand: str) -> TableCell:
    return TableCell(value, f"{value / 1000:,.1f} {thousand}" if value >= 1000 else f"{value:,.1f} {unit}")
