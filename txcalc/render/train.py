"""The report of `txcalc train`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txcalc.curves import PYTORCH
from txcalc.hardware import multiplied
from txcalc.planning.layout import filled
from txcalc.planning.training.answer import Elsewhere, Training
from txcalc.planning.training.inverse import MOST_GPUS
from txcalc.planning.training.machine import Kernels
from txcalc.planning.training.memory import CATEGORIES, RESERVED, RankPeak
from txcalc.planning.training.offload import HOST
from txcalc.planning.training.optimizers import OPTIMIZERS
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.run import DeadlineGpus, RunBudget, Terms, TrainingRun
from txcalc.questions.model_info import summary
from txcalc.render.report import DataReport, Table, TableCell, column, exact, percent, rounded
from txcalc.units import bits_of, iec, seconds, short, si_bytes

if TYPE_CHECKING:
    from txcalc.planning.training.search import Searched

NAMES = {"in_flight": "in flight (pipeline)", "saved": "saved activations", "gathered": "gathered weights"}
RANKS = 10  # shown
DECIDED = (
    "framework", "schedule", "micro_batch", "accumulation", "global_batch", "tokens", "recompute", "optimizer",
    "products", "frozen", "adapter", "offload",
)  # fmt: skip


def report(
    found: Training,
    terms: Terms,
    searched: Searched | None = None,
    others: Sequence[Elsewhere] = (),
    tokens: int | None = None,
) -> DataReport:
    """The whole report; `searched`: the layouts considered; `others`: other accelerators; `tokens`: as asked for."""
    header = [verdict(found), summary(found.model)[0], _where(found), _batch(found)]
    if searched and not searched.refused:
        header.append(f"fastest of {searched.considered:,} layouts, of which about {searched.fitting:,} fit")
        if searched.too_few:
            header.append(f"the fewest GPUs: on {searched.too_few:,} no layout was found to fit")
    tables = [*([_search(searched)] if searched else []), _memory(found.plan.fullest, "the fullest rank")]
    if found.rank:
        tables.append(_memory(found.rank, "the requested rank"))
    tables += [_ranks(found), _limits(found)]
    if found.step:
        tables.append(_time(found))
    if found.used:
        tables.append(_used(found))
    if found.step and found.step.sent:
        tables.append(_sent(found))
    if found.run:
        tables.append(_run(found.run, terms))
    if others:
        tables.append(_others(others))
    more: dict[str, Any] = {"search": _searched(searched)} if searched else {}
    if others:
        more["fits_on"] = [
            {"gpu": row.accelerator.name, "fits": row.fits, "tokens_per_s_per_gpu": row.rate} for row in others
        ]
    notes = [*([searched.refused] if searched and searched.refused else []), *_notes(found, terms)]
    if tokens not in (None, found.recipe.tokens):
        notes.insert(0, "the model fixes the number of positions: --tokens is ignored")
    return DataReport({**data(found), **more, "notes": notes}, tables, header, notes, good=found.fits)


def verdict(found: Training) -> str:
    """Whether it fits, and its speed."""
    rank = found.plan.fullest
    held = f"the fullest rank reserves {iec(rank.reserved)} of {iec(found.capacity)}"
    said = f"fits: {held}" if found.fits else f"does not fit: {held}"
    if found.rate and found.fits:
        how = "measured" if found.measured else "achievable"
        said += f"; {found.rate:,.0f} tokens/s per GPU {how}"
        if best := found.headline:
            said += f", MFU {100 * best.mfu:.1f} % ({best.name})"
    return said


def _where(found: Training) -> str:
    machine, recipe = found.machine, found.recipe
    pipeline = f", schedule {recipe.schedule}" if recipe.layout.pp > 1 else ""
    zero = f", ZeRO-{recipe.zero}" if recipe.zero else ""
    return f"{recipe.layout.gpus:,} × {machine.accelerator.title}; {recipe.layout}{zero}{pipeline}; {recipe.framework}"


def _batch(found: Training) -> str:
    recipe = found.recipe
    batches = f"{recipe.accumulation:,} micro-batch{'es' if recipe.accumulation > 1 else ''}"
    step = recipe.global_batch * recipe.tokens
    return (
        f"{batches} of {recipe.micro_batch:,} × {recipe.tokens:,} tokens, {short(step)} tokens per step; "
        f"recompute {recipe.recompute}; {recipe.optimizer}; products in {_products(found)}"
    )


def _search(searched: Searched) -> Table:
    rows = []
    for each in searched.best:
        recipe, held = each.recipe, each.plan.fullest.reserved
        zero = f" ZeRO-{recipe.zero}" if recipe.zero else ""
        name = f"{recipe.framework} {recipe.layout}{zero}"
        batch = exact(recipe.micro_batch)
        rows.append([name, batch, recipe.recompute, _gib(held), _seconds(each.step.seconds), _rate(each.step.tokens_s)])
    headings = ("layout", "micro", "recompute", column("reserved", "bytes"), column("step", "s"), "tokens/s")
    which = "The smallest layout that was computed" if searched.refused else "The fastest layouts that fit"
    return Table(f"{which} (tokens/s per GPU)", headings, rows)


def _rate(value: float | None) -> TableCell:
    return TableCell(value, "" if value is None else f"{value:,.0f}")


def _searched(searched: Searched) -> dict[str, Any]:
    best = [
        {
            "layout": {**each.recipe.layout.record(), "zero": each.recipe.zero},
            "framework": each.recipe.framework,
            "micro_batch": each.recipe.micro_batch,
            "recompute": each.recipe.recompute,
            "schedule": each.recipe.schedule,
            "reserved_bytes": each.plan.fullest.reserved,
            "step_s": each.step.seconds,
            "tokens_per_s_per_gpu": each.step.tokens_s,
        }
        for each in searched.best
    ]
    counted = {"considered": searched.considered, "fitting": searched.fitting, "too_few": searched.too_few}
    return {**counted, "best": best}


def _others(others: Sequence[Elsewhere]) -> Table:
    rows = [
        [row.accelerator.name, _gib(row.accelerator.memory), "yes" if row.fits else "no", _rate(row.rate)]
        for row in others
    ]
    headings = ("accelerator", column("memory", "bytes"), "fits", "tokens/s per GPU")
    return Table("The same recipe on every accelerator", headings, rows)


def _limits(found: Training) -> Table:
    fewest = found.min_gpus
    micro = column("largest micro-batch", "sequences", "max micro-batch (sequences)")
    rows: list[list[Any]] = [
        [micro, exact(found.max_micro_batch), ""],
        [column("longest sequence", "tokens", "max sequence length (tokens)"), exact(found.max_tokens), ""],
        [
            column("fewest GPUs", "GPUs", "min GPUs"),
            exact(fewest.gpus if fewest else 0),
            str(fewest or f"no number of replicas fits, up to {MOST_GPUS:,} GPUs"),
        ],
    ]
    title = "Limits, all else equal (0: nothing fits)"
    return Table(title, ("limit", "answer", "layout"), rows, left=frozenset({0, 2}))


def _memory(rank: RankPeak, which: str) -> Table:
    rows: list[list[Any]] = [
        [NAMES.get(name, name), exact(size), iec(size), percent(size, rank.allocated)]
        for name in CATEGORIES
        if (size := rank.bytes[name])
    ]
    reserved = column("reserved", "", f"reserved (× {RESERVED[0] / RESERVED[1]})")
    sums: dict[Any, int] = {"allocated": rank.allocated, "collective buffers": rank.lent, reserved: rank.reserved}
    sums["offloaded to the host"] = rank.host
    rows += [
        [name, exact(size), iec(size), ""] for name, size in sums.items() if size or name in ("allocated", reserved)
    ]
    when = "at the end of backward" if rank.moment == "end" else f"in the {rank.moment}"
    where = f"rank {rank.rank:,}, stage {rank.stage}, {when}"
    return Table(f"Memory of {which} ({where})", ("", column("bytes", "bytes"), "", "share"), rows)


def _ranks(found: Training) -> Table:
    ranks = sorted(found.plan.ranks, key=lambda rank: -rank.allocated)
    rows = [
        [exact(rank.rank), exact(rank.count), exact(rank.stage), " ".join(map(str, rank.held)), _gib(rank.allocated),
         _gib(rank.reserved)]
        for rank in ranks[:RANKS]
    ]  # fmt: skip
    more = f", the {RANKS} fullest of {len(ranks)}" if len(ranks) > RANKS else ""
    headings = ("first rank", "count", "stage", "in flight", column("allocated", "bytes"), column("reserved", "bytes"))
    return Table(f"Ranks, equal ones folded{more}", headings, rows)


def _gib(size: int) -> TableCell:
    return TableCell(size, iec(size))


def _time(found: Training) -> Table:
    step = found.step
    assert step is not None
    rows: list[list[Any]] = [
        [name, _seconds(value), percent(value, step.seconds)] for name, value in step.spent.items() if value > 0
    ]
    rows.append(["step, achievable", _seconds(step.seconds), ""])
    floor = column("step, floor", "", f"step, floor ({step.floor_bound})")
    rows.append([floor, _seconds(step.floor), percent(step.floor, step.seconds)])
    hidden = "only exposed communication" if found.machine.overlap else "communication not overlapped"
    return Table(
        f"Time of a step, on the busiest stage ({hidden})",
        ("", column("time", "s"), "share"),
        rows,
    )


def _seconds(value: float) -> TableCell:
    return TableCell(value, seconds(value))


def _used(found: Training) -> Table:
    rows = [
        [f"{each.name}: {each.formula}", rounded(each.a_token), _share(each.mfu), _share(each.hfu)]
        for each in found.used
    ]
    how = "measured" if found.measured else "achievable"
    title = f"Utilisation at the {how} rate, of the dense {_products(found)} peak"
    return Table(title, ("convention", "FLOPs/token", "MFU", "HFU"), rows)


def _share(value: float) -> TableCell:
    return TableCell(value, f"{100 * value:.2f} %")


def _sent(found: Training) -> Table:
    step = found.step
    assert step is not None
    rows = [[kind, exact(size), si_bytes(size)] for kind, size in step.sent.items()]
    return Table("Bytes sent per step by a rank of that stage", ("collective", column("bytes", "bytes"), ""), rows)


def _thousands(value: float, unit: str, thousand: str) -> TableCell:
    return TableCell(value, f"{value / 1000:,.1f} {thousand}" if value >= 1000 else f"{value:,.1f} {unit}")


def _run(run: TrainingRun, terms: Terms) -> Table:
    rows: list[list[Any]] = [
        [column("tokens", "tokens"), rounded(run.tokens)],
        [column("FLOPs (6·N·D)", "FLOPs"), TableCell(run.compute, f"{run.compute:.3e}".replace("e+", "e"))],
        [column("days", "days"), TableCell(run.days, f"{run.days:,.2f}")],
        [column("GPU-hours", "h"), TableCell(run.gpu_hours, f"{run.gpu_hours:,.0f}")],
    ]
    if run.cost is not None:
        cost = column("cost", "", f"cost at {terms.price:g} per GPU-hour")
        rows.append([cost, TableCell(run.cost, f"{run.cost:,.0f}")])
    if run.energy_kwh is not None and run.co2_kg is not None:
        spent, gas = _thousands(run.energy_kwh, "kWh", "MWh"), _thousands(run.co2_kg, "kg", "t")
        rows.append([column("energy", "kWh", f"energy, {terms.power} W, PUE {terms.pue:g}"), spent])
        rows.append([column("CO2", "kg", f"CO2 at {terms.grid:g} g/kWh"), gas])
    if run.deadline:
        rows.append([column("GPUs in time", "GPUs", f"GPUs for {run.deadline.days:g} days"), exact(run.deadline.gpus)])
    if run.budget:
        paid = column("tokens for the budget", "tokens", f"tokens for {run.budget.money:,.0f}")
        rows.append([paid, rounded(run.budget.tokens)])
    return Table("The whole run", ("quantity", "value"), rows)


def _products(found: Training) -> str:
    """Dtype of products in linear layers: on a V100 fp16 instead of bf16."""
    return multiplied(found.machine.accelerator, found.machine.products)


def _rates(found: Training) -> str:
    """Where the rates of products and attention are from, in brackets."""
    return f" ({Kernels(found.machine).source})" if found.step else ""


def _notes(found: Training, terms: Terms) -> list[str]:
    notes = [*(f"assumed {assumption}" for assumption in found.model.assumptions), *found.plan.notes]
    tokens, context = found.recipe.tokens, found.model.context
    if context and tokens > context:
        notes.append(f"{tokens:,} tokens exceed its context of {context:,}")
    if found.why:
        notes.append(f"no time: {found.why}")
    elif found.step:
        accelerator = found.machine.accelerator
        nodes = f"nodes of {accelerator.node}" if accelerator.node else "one link for all"
        ranks = found.recipe.layout.gpus
        if accelerator.node and ranks > accelerator.node > (used := filled(accelerator.node, ranks)):
            nodes += f" ({used} of each used)"
        wide = f", {accelerator.link_between / 1e9:g} GB/s each between them" if accelerator.link_between else ""
        own = _rates(found) if found.machine.accelerator.efficiency.has(PYTORCH) else ""
        notes.append(f"time is modelled, with measured kernel efficiencies{own}; {nodes}{wide}")
        narrow, dtype = found.machine.products, multiplied(found.machine.accelerator, found.recipe.compute)
        if found.step.wide:
            wide = ", ".join(f"{a:,} × {b:,}" for a, b in found.step.wide)
            notes.append(f"products by {wide} are in {dtype}: {narrow} takes only sizes that are multiples of 16")
        if found.step.unaligned:
            slow = (f"{a:,} × {b:,} at {100 * share:.0f} %" for (a, b), share in found.step.unaligned.items())
            dtype = _products(found) if bits_of(narrow) > 8 else dtype
            whose = "a rank's" if found.recipe.layout.tp > 1 else "these"
            notes.append(
                f"some products run at a fraction of the usual rate, as measured, because rows of their matrices in "
                f"{dtype} are not multiples of 16 bytes: {', '.join(slow)}; pad {whose} sizes to multiples of "
                f"{128 // bits_of(dtype)}"
            )
    recipe, mixture = found.recipe, found.model.active != found.model.params
    if found.step and (waits := found.step.spent["pipeline bubble"] / found.step.seconds) > 0.5:
        notes.append(f"{100 * waits:.0f} % of the step is pipeline bubble: {_filling(recipe)}")
    if mixture and recipe.rules.stacks and OPTIMIZERS[recipe.optimizer].newton_schulz:
        notes.append("torch.optim.Muon takes matrices alone: stacked experts, counted here, need a Muon of your own")
    if found.recipe.offload != "none":
        link = found.machine.host / 1e9
        share = f"; the host runs the optimizer step at {HOST / 1e9:.3g} GB/s of its memory bandwidth per GPU"
        said = share if found.recipe.offloads("optimizer") else ""
        notes.append(f"offload is modelled: {link:.3g} GB/s one way between GPU and host (--host-link){said}")
    if found.plan.fullest.state.adapters:
        notes.append("frozen weights: backward computes no gradients of them, which these conventions count")
    step, over = found.step, [each.name for each in found.used if each.hfu > 1]
    if step and found.measured and found.rate and found.rate > (most := step.tokens_s * step.seconds / step.floor):
        notes.append(
            f"the measured rate is impossible: at datasheet rates the step reaches at most {most:,.0f} tokens/s"
        )
    elif over:
        notes.append(f"{', '.join(over)}: above 100 %, because the convention counts more FLOPs than the step computes")
    if found.run and found.run.energy_kwh is not None:
        notes.append("energy is that of the accelerators at full power, without hosts and networks")
    elif found.run and terms.power is None:
        notes.append(f"no energy: the power of {found.machine.accelerator.name} is not known")
    return notes


def _filling(recipe: Recipe) -> str:
    """How to make a pipeline's bubble smaller: 4 micro-batches for each stage leave little of one (GPipe, Huang et al.
    2018, section 2.3)."""
    stages, batches = recipe.layout.pp, recipe.accumulation
    more = f"--global-batch {4 * stages * recipe.micro_batch * recipe.layout.copies} gives each stage 4, or "
    several = f"{batches:,} micro-batch{'es' * (batches > 1)} for {stages:,} stages"
    return f"{several}; {more if batches < 4 * stages else ''}choose a smaller pp"


def _rank(rank: RankPeak) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "count": rank.count,
        "stage": rank.stage,
        "in_flight": list(rank.held),
        "moment": rank.moment,
        "bytes": dict(rank.bytes),
        "allocated_bytes": rank.allocated,
        "reserved_bytes": rank.reserved,
        "host_bytes": rank.host,
    }


def data(found: Training) -> dict[str, Any]:
    """The JSON of `train`, whose keys are fixed."""
    recipe, step, run = found.recipe, found.step, found.run
    return {
        "schema": "txcalc/train/1",
        "model": {"name": found.model.name, "params": found.model.params},
        "gpu": {"name": found.machine.accelerator.name, "count": recipe.layout.gpus, "memory_bytes": found.capacity},
        "layout": {**recipe.layout.record(), "zero": recipe.zero},
        "recipe": {
            **{name: getattr(recipe, name, None) for name in DECIDED},
            "schedule": recipe.schedule if recipe.layout.pp > 1 else None,
            "products": _products(found),
        },
        "ranks": [_rank(rank) for rank in found.plan.ranks],
        "rank": _rank(found.rank) if found.rank else None,
        "fits": found.fits,
        "max_micro_batch": found.max_micro_batch,
        "max_tokens": found.max_tokens,
        "min_gpus": {"gpus": found.min_gpus.gpus, "layout": found.min_gpus.record()} if found.min_gpus else None,
        "step_s": {"floor": step.floor if step else None, "achievable": step.seconds if step else None},
        "spent_s": dict(step.spent) if step else None,
        "tokens_per_s_per_gpu": found.rate,
        "measured": found.measured,
        "mfu": {each.name: each.mfu for each in found.used},
        "mfu_headline": found.headline and found.headline.name,
        "hfu": {each.name: each.hfu for each in found.used},
        "sent": dict(step.sent) if step else None,
        "run": run
        and {
            "train_tokens" if name == "tokens" else name: value._asdict()
            if isinstance(value, DeadlineGpus | RunBudget)
            else value
            for name, value in run._asdict().items()
        },
        "known": {
            "allocated_bytes": {
                "how": "modelled",
                "where": "parameters, gradients and optimizer as PyTorch shards them",
            },
            "step_s": {"how": "modelled", "where": f"a roofline with the shares of kernels{_rates(found)}"},
        },
    }
