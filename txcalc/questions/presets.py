"""`presets`: the models and accelerators that come with txcalc."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Self

from txcalc.errors import UnknownName
from txcalc.hardware import Accelerator, load as load_accelerator, names as accelerator_names
from txcalc.model import Model
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, Result
from txcalc.sources import load
from txcalc.sources.presets import names


class Preset(Answer):
    """A preset model, and the source of its sizes."""

    name: str
    family: str
    kind: str
    params: int
    active: int
    context: int | None
    source: str

    @classmethod
    def of(cls, model: Model) -> Self:
        params, active = (model.ledger().total(quantity) for quantity in ("params", "active"))
        description = model.description
        return cls(model.name, description.family, model.kind, params, active, model.context, description.source)


class Datasheet(Answer):
    """An accelerator: memory as the driver reports it, if known, and what a process sees of it; dense peaks in FLOPs
    per second by dtype; links one way."""

    name: str
    title: str
    memory_bytes: int
    bandwidth_bytes_per_s: int
    peak_flops: dict[str, int]
    link_bytes_per_s: int | None
    link_between_bytes_per_s: int | None
    node: int | None
    power_w: int | None
    source: dict[str, str]
    notes: tuple[str, ...]
    visible_bytes: int

    @classmethod
    def of(cls, accelerator: Accelerator) -> Self:
        return cls(
            name=accelerator.name,
            title=accelerator.title,
            memory_bytes=accelerator.memory,
            bandwidth_bytes_per_s=accelerator.bandwidth,
            peak_flops=dict(accelerator.peaks),
            link_bytes_per_s=accelerator.link,
            link_between_bytes_per_s=accelerator.link_between,
            node=accelerator.node,
            power_w=accelerator.power,
            source=dict(accelerator.sources),
            notes=tuple(accelerator.notes),
            visible_bytes=accelerator.visible,
        )


class Presets(Result, tag_field="schema", tag="txcalc/presets/1", kw_only=True):
    """The models, or the accelerators."""

    presets: tuple[Preset, ...] | None = None
    hardware: tuple[Datasheet, ...] | None = None

    @property
    def rows(self) -> tuple[Answer, ...]:
        return self.presets or self.hardware or ()

    def _rows(self) -> Sequence[dict[str, Any]]:
        """Without the sources of each figure."""
        cards = [{**row.to_dict(), "source": {}, "notes": {}} for row in self.hardware or ()]
        return [*(row.to_dict() for row in self.presets or ()), *cards]


@o.Question("txcalc presets 'llama*'")
def presets(
    pattern: Annotated[
        str, o.Argument("Part of a name, a family or a source (vaswani); * and ? are wildcards.", "PATTERN")
    ] = "*",
    *,
    hardware: Annotated[bool, o.Option("List accelerators instead of models.", aliases=("--gpus",))] = False,
) -> Presets:
    """List the presets: models with family, kind, parameters and context; or accelerators.

    Errors: `UnknownName` where there is none.

    >>> import txcalc
    >>> [preset.name for preset in txcalc.presets("gpt2*").presets]
    ['gpt2', 'gpt2-large', 'gpt2-medium', 'gpt2-xl']
    """
    glob = pattern.lower() if set(pattern) & set("*?[") else f"*{pattern.lower()}*"
    if hardware:
        cards = [name for name in accelerator_names() if fnmatchcase(name, glob)]
        if not cards:
            raise UnknownName("presets", "accelerator", pattern, accelerator_names(), "txcalc presets --hardware")
        return Presets(hardware=tuple(Datasheet.of(load_accelerator(name)) for name in cards))
    models = [
        model
        for model in map(load, names())
        if any(
            fnmatchcase(text.lower(), glob) for text in (model.name, model.description.family, model.description.source)
        )
    ]
    if not models:
        raise UnknownName("presets", "preset", pattern, names(), "txcalc presets lists them all")
    return Presets(presets=tuple(map(Preset.of, models)))
