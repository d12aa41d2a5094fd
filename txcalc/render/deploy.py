"""The report of `txcalc deploy`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from txcalc.hardware import Accelerator
from txcalc.ledger import KINDS
from txcalc.model import Model
from txcalc.planning.serving.deployment import Gpu, Plan
from txcalc.planning.serving.speed import Serving
from txcalc.questions.model_info import summary
from txcalc.render import serving, serving_data
from txcalc.render.report import DataReport, Table, TableCell, column, exact, percent
from txcalc.units import iec

BAR = 40
# Characters of the memory bar.
SIGNS = {"weights": "█", "cache": "▓", "activations": "▒", "reserve": "░", "free": "·"}
LAYOUTS = 10  # shown


def report(
    plan: Plan,
    speed: Serving | None = None,
    why_not: str = "",
    detail: bool = True,
    instead: Serving | None = None,
) -> DataReport:
    """A plan and its speed (None: `why_not` becomes a note); in detail every table.

    `instead`: the largest load that fits, if the requested one does not.
    """
    planner, best = plan.planner, plan.best
    model, accelerator, engine = planner.model, planner.accelerator, planner.engine
    gpus = planner.gpus(best.layout, plan.context, plan.concurrency)
    form = engine.weights
    verdicts = [line for line in (verdict(plan), serving.verdict(speed) if speed else None) if line]
    if speed and speed.unmet:
        verdicts.reverse()  # failures first
    if instead:
        most = _most(instead)
        within = " within the limits" if instead.limits and instead.cheapest else ""
        verdicts.append(f"largest load that fits{within}: {serving.largest(instead, most)}")
    header = [
        *verdicts,
        *(serving.headline(speed) if speed else ()),
        summary(model)[0],
        f"{best.layout.gpus} × {accelerator.title}, {iec(accelerator.memory)} each; {best.layout}",
        f"{serving.sequences(plan.concurrency)} of {plan.context:,} tokens; weights {form.name}, cache {engine.kv}",
        *_in_ram(plan),
        f"pages of {engine.block} tokens, prefill in chunks of {engine.chunk:,}, "
        f"reserve {engine.reserve} ({engine.reserve.source})",
    ]
    held = [_memory(best.fullest), _caches(plan, gpus), _layouts(plan)] if detail else []
    tables = [_answers(plan), _stacks(gpus), *held, *(serving.tables(speed, detail) if speed else ())]
    notes = [*plan.notes, *([f"no speed: {why_not}"] if why_not else speed.notes if speed else ())]
    return DataReport({}, tables, header, notes, partial(_data, plan, gpus, speed, notes, instead), served(plan, speed))


def _most(instead: Serving) -> Any:
    """The largest load that fits, within the limits if possible."""
    return (instead.cheapest if instead.limits else None) or instead.chosen


def served(plan: Plan, speed: Serving | None) -> bool:
    """Whether all of the load fits at once and within the limits; queueing users count as a failure."""
    return plan.best.fits and not (speed and speed.unmet)


class DeployAnswer(NamedTuple):
    """A model on an accelerator: plan and speed, or `why` there is none."""

    model: Model
    accelerator: Accelerator
    plan: Plan | None
    speed: Serving | None
    why: str = ""
    instead: Serving | None = None

    @property
    def failed(self) -> bool:
        """No plan, or it does not fit, or misses a limit."""
        return self.plan is None or not served(self.plan, self.speed)


def comparison(answers: Sequence[DeployAnswer]) -> DataReport:
    """Several models or accelerators, one row each."""
    rows: list[Sequence[Any]] = []
    notes: dict[str, None] = {}
    data: list[Any] = []
    priced = any(answer.speed and answer.speed.price is not None for answer in answers)
    for model, accelerator, plan, speed, why, instead in answers:
        name = f"{model.name} on {accelerator.name}"
        if plan is None:
            rows.append(
                (
                    TableCell(name, f"{model.name}\n{accelerator.name}"),
                    TableCell(None, "refused"),
                    *[None] * (5 + priced),
                )
            )
            data.append({"model": model.name, "gpu": accelerator.name, "refused": why})
            notes[f"{name}: {why}"] = None
            continue
        one = report(plan, speed, why, instead=instead)
        data.append(one.later)
        notes |= dict.fromkeys(f"{name}: {note}" for note in one.notes)
        best = plan.best
        fits = TableCell(best.fits, "yes" if best.fits else "no", "green" if best.fits else "red")
        gpus = f"{best.layout.gpus} × {accelerator.name}"
        label = TableCell(f"{model.name} on {gpus}", f"{model.name}\n{gpus}")
        figures = serving.row(speed) if speed else [None] * (3 + priced)
        rows.append((label, fits, str(best.layout), best.max_concurrency, *figures))
    cost = (TableCell("cost of 1M out", "cost of\n1M out"),) if priced else ()
    most, rate = TableCell("most sequences", "max\nusers"), TableCell("tokens/s per GPU", "tokens/s\nper GPU")
    headings = (
        TableCell("deployment", "model\nGPUs"),
        "fits",
        "layout",
        most,
        *(column(name, "s") for name in ("TTFT", "TPOT")),
        rate,
        *cost,
    )
    said = next((serving.asked(answer.speed) for answer in answers if answer.speed), [])
    table = Table("", headings, rows, left=frozenset({0, 2}))
    return DataReport({}, [table], said, list(notes), partial(_deployments, data))


def _deployments(found: Sequence[Any]) -> dict[str, Any]:
    each = [one() if callable(one) else one for one in found]
    rows = [{key: value for key, value in one.items() if key != "schema"} for one in each]
    return {"schema": "txcalc/deploy/1", "deployments": rows}


def _in_ram(plan: Plan) -> list[str]:
    """What is offloaded to RAM, and its size."""
    offload, left = plan.planner.engine.offload, plan.best.ram
    if offload is None or offload.host is None or left is None:
        return []
    return [f"in RAM: {offload}, {iec(offload.host.memory - left)} of {iec(offload.host.memory)}"]


def verdict(plan: Plan) -> str:
    """Whether it fits, and by how much."""
    gpu = plan.best.fullest
    if plan.best.fits:
        return f"fits: {iec(gpu.free)} to spare on the fullest GPU"
    lacking = f"the fullest GPU lacks {iec(-gpu.free)} (limited by {gpu.limit})"
    if plan.best.limit == "RAM":
        lacking = f"RAM lacks {iec(-(plan.best.ram or 0))}"
    if plan.best.serves:
        asked = serving.sequences(plan.concurrency)
        return f"fits {plan.best.max_concurrency:,} of {asked} at the full context: {lacking}"
    return f"does not fit: {lacking}"


def _answers(plan: Plan) -> Table:
    best = plan.best
    context = "not limited by memory" if plan.max_context is None else plan.max_context
    rows = [
        (column("most sequences", "", f"max concurrency at {plan.context:,} tokens"), best.max_concurrency),
        (column("longest context", "", f"max context with {serving.sequences(plan.concurrency)}"), context),
        ("min GPUs for this load", "more than tried" if plan.min_gpus is None else plan.min_gpus),
        ("limited by", best.limit),
    ]
    tokens = best.fullest.cache_tokens(plan.context)
    if plan.planner.engine.memory and tokens is not None:
        rows.insert(1, ("cache capacity per replica, tokens", tokens))
    return Table("Limits", ("limit", "value"), rows)


def _stacks(gpus: list[Gpu]) -> Table:
    """A bar per kind of stage."""
    rows = []
    for gpu in gpus:
        stage = gpu.rank.stage
        label = f"{stage.first}" if stage.copies == 1 else f"{stage.first} (× {stage.copies})"
        rows.append((label, TableCell(None, bar(gpu)), percent(gpu.memory - max(gpu.free, 0), gpu.memory)))
    legend = " ".join(f"{sign} {name}" for name, sign in SIGNS.items())
    return Table(f"Each GPU: {legend}", ("stage", "memory", "used"), rows, left=frozenset({0, 1}))


def bar(gpu: Gpu) -> str:
    """An accelerator's memory as a bar to scale; a ► marks overflow."""
    sizes = {
        **dict(zip(SIGNS, (gpu.weights, gpu.cache, gpu.peak, gpu.reserve + gpu.rest), strict=False)),
        "free": max(0, gpu.free),
    }
    drawn, end, text = 0, 0, ""
    for name, size in sizes.items():
        end += size
        to = min(BAR, round(BAR * end / gpu.memory))
        text += SIGNS[name] * (to - drawn)
        drawn = max(drawn, to)
    return text if gpu.free >= 0 else text[:-1] + "►"


def weights_by_kind(gpu: Gpu) -> dict[str, int]:
    """Bytes of a rank's weights by kind of part."""
    sums: dict[str, int] = {}
    for entry, size in gpu.rank.weights:
        kind = "attention" if entry.kind == "attention_core" else entry.kind
        sums[kind] = sums.get(kind, 0) + size
    return {kind: sums[kind] for kind in KINDS if sums.get(kind)}


def _memory(gpu: Gpu) -> Table:
    rows: list[tuple[Any, ...]] = []
    for kind, size in weights_by_kind(gpu).items():
        rows.append((f"weights: {kind.replace('_', ' ')}", size))
    if gpu.rank.adapters_bytes:
        rows.append(("weights: LoRA adapters", gpu.rank.adapters_bytes))
    if gpu.rank.towers_bytes:
        rows.append(("weights: towers", gpu.rank.towers_bytes))
    if draft := gpu.rank.draft:
        rows.append((column("weights: draft", "", f"weights: draft {draft.model.name}"), draft.weights_bytes))
    shared = "pages, the shared prefix once" if gpu.rank.engine.shared else "pages"
    rows.append((column("cache", "", f"cache ({shared})"), gpu.cache))
    most = max(gpu.activations, key=lambda name: gpu.activations[name])
    rows.append((column("activations", "", f"activations (peak: {most})"), gpu.peak))
    rows += [(f"engine: {name}", size) for name, size in gpu.rank.rest.items() if size]
    rows.append(("reserve", gpu.reserve))
    rows.append(("free" if gpu.free >= 0 else "lacking", gpu.free))
    rows.append(("memory", gpu.memory))
    shown = [(name, exact(size), TableCell(size, iec(size)), percent(size, gpu.memory)) for name, size in rows]
    return Table("The fullest GPU", ("", "bytes", "", "share"), shown, total=True)


def _caches(plan: Plan, gpus: list[Gpu]) -> Table:
    """One sequence's cache on one GPU, counted three ways."""
    sizes = max(gpus, key=lambda gpu: gpu.cache).rank.caches(plan.context)
    block = plan.planner.engine.block
    ways = (
        ("algorithmic: read by later tokens", sizes.algorithmic),
        (column("pages", "", f"pages of {block} tokens (vLLM's rule): used here"), sizes.pages),
        ("dense: without windows", sizes.dense),
    )
    rows = [(name, exact(size), TableCell(size, iec(size))) for name, size in ways]
    return Table("Cache of one sequence, per GPU", ("", "bytes", ""), rows)


def _layouts(plan: Plan) -> Table:
    rows = [
        (
            str(choice.layout),
            TableCell(choice.fits, "yes" if choice.fits else "no", "green" if choice.fits else "red"),
            TableCell(choice.fullest.weights, iec(choice.fullest.weights)),
            TableCell(choice.fullest.cache, iec(choice.fullest.cache)),
            TableCell(choice.fullest.free, iec(choice.fullest.free)),
            choice.max_concurrency,
        )
        for choice in plan.choices[:LAYOUTS]
    ]
    sizes = (column(name, "bytes") for name in ("weights", "cache", "free"))
    headings = ("layout", "fits", *sizes, "most sequences")
    return Table(f"Layouts, best first: {plan.rule}", headings, rows)


def _data(
    plan: Plan, gpus: list[Gpu], speed: Serving | None, notes: list[str], instead: Serving | None
) -> dict[str, Any]:
    planner, best = plan.planner, plan.best
    model, accelerator, engine = planner.model, planner.accelerator, planner.engine
    most = (speed, speed.busiest) if speed and speed.busiest else (instead, _most(instead)) if instead else None
    return {
        "schema": "txcalc/deploy/1",
        "model": {"name": model.name, "source": model.spec["source"], "params": model.params},
        "gpu": {
            "name": accelerator.name,
            "memory_bytes": accelerator.memory,
            "reserve_bytes": planner.reserve,
            "reserve_source": engine.reserve.source,
            "source": accelerator.sources,
        },
        "workload": {
            "context": plan.context,
            "concurrency": plan.concurrency,
            "shared_prefix": engine.prefix,
            "draft": planner.draft and planner.draft.name,
        },
        "engine": {
            "weights": engine.weights.name,
            "weights_source": engine.weights.source,
            "kv": engine.kv,
            "block": engine.block,
            "chunk": engine.chunk,
            "poll": None if engine.gathers else engine.interval,
            "gather": engine.interval if engine.gathers else None,
            **({"profile": engine.memory.facts(best.fullest.rank.graphs)} if engine.memory else {}),
            **({"ram": engine.offload.facts(best.ram)} if engine.offload else {}),
        },
        "cache_tokens": best.fullest.cache_tokens(plan.context),
        "fits": best.fits,
        "limit": best.limit,
        "headroom_bytes": best.fullest.free,
        "max_concurrency": best.max_concurrency,
        "max_context": plan.max_context,
        "min_gpus": plan.min_gpus,
        "layout": {**best.layout.record(), "gpus": best.layout.gpus},
        "rule": plan.rule,
        "layouts": [
            {
                **choice.layout.record(),
                "gpus": choice.layout.gpus,
                "fits": choice.fits,
                "headroom_bytes": choice.fullest.free,
                "max_concurrency": choice.max_concurrency,
            }
            for choice in plan.choices
        ],
        "memory": [_gpu(gpu, plan.context) for gpu in gpus],
        "speed": serving_data.data(speed) if speed else None,
        "largest": most and serving_data.point_data(*most),
        "assumptions": list(model.assumptions),
        "notes": [*model.notes, *notes],
    }


def _gpu(gpu: Gpu, context: int) -> dict[str, Any]:
    """A stage's accelerators: sums, and entries by part."""
    rank = gpu.rank
    return {
        "stage": rank.stage.first,
        "stages_alike": rank.stage.copies,
        "weights_bytes": gpu.weights,
        "weights_by_kind": weights_by_kind(gpu),
        **({"towers_bytes": rank.towers_bytes} if rank.towers_bytes else {}),
        "draft": rank.draft
        and {"weights_bytes": rank.draft.weights_bytes, "cache_a_sequence": rank.draft.pages_bytes(context)},
        "cache_bytes": gpu.cache,
        "cache_a_sequence": rank.caches(context)._asdict(),
        "activations_bytes": gpu.peak,
        "activations": gpu.activations,
        "rest_bytes": gpu.rest,
        "rest": gpu.rank.rest,
        "free_bytes": gpu.free,
        "weights": [{"path": entry.path, "copies": entry.times, "bytes": size} for entry, size in rank.weights],
        "cache": [{"path": held.path, "copies": held.copies, "bytes": size} for held, size in rank.pages(context)],
    }
