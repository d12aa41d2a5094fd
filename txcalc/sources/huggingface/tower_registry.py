"""The towers of a multimodal config, and the projectors between them and the language model.

An unknown key of a tower or projector makes the totals unknown, but not the figures of the language model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from txcalc.errors import ABSENT, InputError, quote
from txcalc.ledger import walk
from txcalc.model import Model
from txcalc.parts.options import Wrong
from txcalc.parts.part import Workload
from txcalc.parts.projectors import projector, steps_of
from txcalc.parts.tower import Projector
from txcalc.sources import build
from txcalc.sources.huggingface.config import Config, Raw, check_rope
from txcalc.sources.huggingface.families import STANDALONE_TOWERS
from txcalc.sources.huggingface.projectors import by_row
from txcalc.sources.huggingface.tower_types import Projection, Tower
from txcalc.sources.huggingface.transformers_metadata import part_of, table
from txcalc.sources.spec import MAX_SIZE

# Sizes of the language model that older configs repeat outside text_config; `multimodal` compares them.
REPEATED_SIZES = frozenset(
    {"hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}
)


class TowerPlan(NamedTuple):
    """One tower of a model type.

    tower         reads its config (with alternatives, that of a config without a model type)
    projector     reads its projector
    alternatives  readers of other towers, by model type
    key           the tower's table in the config; "" if its sizes are in the outer table
    of            its modality (vision, audio, …), one word for each of several equal towers
    ignore        keys of the outer table that change no size
    absent        the meaning of an absent table: "none" no tower, "usual" its class's defaults, "" a fault
    """

    tower: Callable[[Config], Tower]
    projector: Callable[[Config, Config, Tower, Raw], Projection]
    alternatives: Mapping[str, Callable[[Config], Tower]] = {}
    key: str = "vision_config"
    of: str = "vision"
    ignore: str = ""
    absent: str = ""


def describe_towers(c: Config, text: Config, raw: Raw) -> Raw:
    """The keys of a description for the towers of the language model `raw`, with a note of their parameters."""
    answer: Raw = {"multimodal": True}
    plans = TOWER_PLANS.get(c.model_type, ())
    if not plans:
        c.note(f"params.whole is not known: the tower and projector of {c.model_type} are not supported")
        return answer
    outer = Config(c.data, c.model_type)
    outer.ignore(
        "text_config",
        *(key for key, value in text.data.items() if key in REPEATED_SIZES or c.data.get(key) == value),
        "tie_word_embeddings",
        "image_seq_length",
        "video_seq_length",
    )
    outer.ignore(*(plan.key for plan in plans))
    try:
        present = [plan for plan in plans if plan.absent != "none" or outer.data.get(plan.key) is not None]
        readings = [(plan, *_read(outer, plan, raw)) for plan in present]
        outer.report_unread_keys()
        outer.finish(c.model_type)
        parts = [_towers(*reading) for reading in readings]
    except InputError as error:
        suffix = f" (and {len(error.faults) - 1} more)" if len(error.faults) > 1 else ""
        c.note(f"params.whole is not known: {error.faults[0]}{suffix}")
        return answer
    c.assumptions += outer.assumptions
    c.note(f"beside the language model: {', '.join(words for _, words, _ in parts)} parameters")
    for why in (why for *_, why in parts if why):
        c.note(f"FLOPs are not known of {why}")
    towers = {name: table for described, *_ in parts for name, table in described.get("towers", {}).items()}
    counted = sum(described.get("undescribed_tower_params", 0) for described, *_ in parts)
    return answer | ({"towers": towers} if towers else {}) | ({"undescribed_tower_params": counted} if counted else {})


def _towers(plan: TowerPlan, tower: Tower, projection: Projection) -> tuple[Raw, str, str]:
    """The towers as descriptions, or their parameters if nothing else is known; a phrase with these parameters; the
    reason why their FLOPs are unknown, or "". Errors: `InputError`."""
    steps, names = [*tower.steps, *projection.steps], tuple(plan.of.split())
    stack = tower_model(tower.raw)
    projector = _build_projector(stack, steps, plan.of, f"its {names[0]} projector")
    stacks, between = len(names) * stack.params, _params(projector)
    towers = f"{' and '.join(names)} tower{'s' * (len(names) > 1)}"
    words = f"{towers} {stacks:,}" + (f", projector {between:,}" if between else "")
    positions, unused = stack.root.fixed, tower.dropped + projection.dropped
    remaining = (positions or MAX_SIZE) - unused
    if why := tower.why or ("" if remaining >= projector.reads else f"{remaining:,} positions are less than a token"):
        return {"undescribed_tower_params": stacks + between}, words, f"its {towers}: {why}"
    dropped = 0 if projection.why else unused + (remaining % projector.reads if positions else 0)
    described = {name: tower.raw | {"projector": {"steps": [], "dropped": dropped}} for name in names}
    if projection.why:
        return (
            {"towers": described, "undescribed_tower_params": between},
            words,
            f"its {names[0]} projector: {projection.why}",
        )
    described[names[0]]["projector"]["steps"] = steps
    return {"towers": described}, words, ""


def tower_model(raw: Raw) -> Model:
    """A tower without its projector. Errors: `InputError`."""
    return build(raw | {"projector": {"steps": []}}, "tower")


def _build_projector(stack: Model, steps: Sequence[Raw], where: str, what: str) -> Projector:
    """The projector of these steps behind a tower. Errors: `InputError`."""
    try:
        return projector(stack.d_model, steps_of(steps))
    except Wrong as error:
        raise InputError(where, [f"{what}: expected {error}"]) from None


def _params(part: Projector) -> int:
    return sum(entry.params for entry in walk(part, Workload(1, 1, 0, 1)))


# Activations of transformers' table that have weights of their own.
_LEARNED_ACTIVATIONS = ("prelu", "xielu")


def _refuse_learned_activations(c: Config) -> None:
    """A fault for an activation with weights, which readers of towers and projectors do not count."""
    for key, value in c.data.items():
        if isinstance(value, str) and value in _LEARNED_ACTIVATIONS:
            c.fault(key, value, "an activation without weights")


def _read(outer: Config, plan: TowerPlan, raw: Raw) -> tuple[Tower, Projection]:
    """The tower and the projector. Errors: `InputError` for a missing table or an unsupported tower."""
    _refuse_learned_activations(outer)
    outer.ignore(*plan.ignore.split())
    if not plan.key:
        tower = plan.tower(outer)
        return tower, plan.projector(outer, outer, tower, raw)
    data = outer.data.get(plan.key, ABSENT)
    if plan.absent == "usual" and data in (ABSENT, None):
        data = {}
    if not isinstance(data, Mapping):
        raise InputError(outer.model_type, [f"{plan.key} is {quote(data)}, expected an object, the tower's config"])
    default = next((name for name, read in plan.alternatives.items() if read is plan.tower), outer.model_type)
    name = data.get("model_type", default) if plan.alternatives else default
    if plan.alternatives and (not isinstance(name, str) or name not in plan.alternatives):
        raise InputError(outer.model_type, [f"{plan.key}.model_type is {quote(name)}, a tower that is not supported"])
    v = Config(data, name, f"{plan.key}.", outer)
    _refuse_learned_activations(v)
    v.ignore("dropout", "encoder_layerdrop", "tie_word_embeddings")
    tower = plan.alternatives.get(name, plan.tower)(v)
    return tower, plan.projector(outer, v, tower, raw)


def standalone_tower(c: Config) -> Raw:
    """A tower as a model: its layers and the steps that its class has after them, without a language model."""
    c.require_single_stack()
    _refuse_learned_activations(c)
    if table := c.table("rope_parameters"):
        check_rope(table)
        table.ignore(*table.data)
    whole = STANDALONE_TOWERS[c.model_type]
    plans = TOWER_PLANS[whole]
    plan = next((plan for plan in plans if part_of(whole, plan.key) == c.model_type), plans[0])
    tower = plan.tower(c)
    c.apply_ignored_keys(f"{whole}/{plan.key}")
    if tower.why:
        c.faults.append(f"its FLOPs are not known: {tower.why}")
    dropped, steps = tower.dropped, [*tower.steps]
    if steps and not c.faults:
        stack = tower_model(tower.raw)
        projector = _build_projector(stack, steps, c.model_type, "the steps after its layers")
        dropped += ((stack.root.fixed or 0) - dropped) % projector.reads
    return tower.raw | {"projector": {"steps": steps, "dropped": dropped}}


def _function(name: str, module: str) -> Any:
    """A function of this module, or, as MODULE.NAME, of another."""
    *place, function = name.split(".")
    return getattr(import_module(f"txcalc.sources.huggingface.{'.'.join(place) or module}"), function)


def _plan(
    tower: str, projector: str | list[Raw], alternatives: str = "", key: str = "vision_config", of: str = "vision",
    ignore: str = "", sizes: Sequence[object] = (), absent: str = "", drops_first: bool = False, **options: object,
) -> TowerPlan:  # fmt: skip
    """A row of `tower_registry.json`: the functions of the tower and of the projector (or its steps, for `by_row`),
    model types of alternative towers, and arguments of the tower's function (`sizes`: default sizes)."""
    read_tower = _function(tower, "towers")
    read_row = (lambda v: read_tower(v, *sizes, **options)) if sizes or options else read_tower
    others = {name: _function(ALTERNATIVE_TOWERS[name], "towers") for name in alternatives.split()}
    read_projector = (
        _function(projector, "projectors")
        if isinstance(projector, str)
        else partial(by_row, steps=projector, drops_first=drops_first)
    )
    return TowerPlan(read_row, read_projector, others, key, of, ignore, absent)


# The functions of alternative towers.
ALTERNATIVE_TOWERS = {"clip_vision_model": "clip", "siglip_vision_model": "siglip", "pixtral": "pixtral"}
TOWER_PLANS = {
    name: tuple(_plan(**row) for row in rows)
    for names, rows in table("tower_registry.json").items()
    for name in names.split()
}
