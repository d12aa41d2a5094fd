"""Presets, accelerators, measurements, and export of descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from txcalc.errors import Fault, InputError, UnknownName
from txcalc.questions.results import Record, Result
from txcalc.questions.verify import Progress as Tell, no_progress as silent
from txcalc.sources import load
from txcalc.sources.files import write

if TYPE_CHECKING:
    from txcalc.render.report import DataReport as Report
    from txcalc.sources import Source


class Preset(Record):
    """A preset model, and the source of its sizes."""

    name: str
    family: str
    kind: str
    params: int
    active: int
    context: int | None
    source: str


class Datasheet(Record):
    """An accelerator: dense peaks in FLOPs per second by dtype, links one way."""

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
    notes: list[str]


class Presets(Result):
    """The models, or accelerators, that come with txcalc."""

    presets: list[Preset] | None
    hardware: list[Datasheet] | None

    def _rows(self) -> list[dict[str, Any]]:
        return [row.to_dict() for row in (*(self.presets or ()), *(self.hardware or ()))]


def presets(pattern: str = "*", *, hardware: bool = False) -> Presets:
    """Preset models whose name or family matches `pattern` (a substring, with `*` and `?` as in file names), or the
    accelerators.

    Errors: `UnknownName` where there is none.

    >>> import txcalc
    >>> [preset.name for preset in txcalc.presets("gpt2*").presets]
    ['gpt2', 'gpt2-large', 'gpt2-medium', 'gpt2-xl']
    """
    from fnmatch import fnmatchcase

    from txcalc.render.summary import listed
    from txcalc.sources.presets import names

    wanted = str(pattern).lower()
    wanted = wanted if set(wanted) & set("*?[") else f"*{wanted}*"
    if hardware:
        from txcalc.hardware import load as accelerator, names as accelerators
        from txcalc.render.summary import cards as report

        cards = [name for name in accelerators() if fnmatchcase(name, wanted)]
        if not cards:
            raise UnknownName("presets", "accelerator", str(pattern), accelerators(), "txcalc presets --hardware")
        return Presets(lambda _: report([accelerator(name) for name in cards]))
    models = map(load, names())
    found = [m for m in models if fnmatchcase(m.name, wanted) or fnmatchcase(m.spec["family"].lower(), wanted)]
    if not found:
        raise UnknownName("presets", "preset", str(pattern), names(), "txcalc presets lists them all")
    return Presets(lambda _: listed(found))


class Measurements(Result):
    """Measurements of a list of models on a device, compared with predictions: the steps of each item, and their
    figures."""

    device: dict[str, Any]
    hosts: list[Any]
    date: str
    command: str
    datasheet: str | None
    complete: bool
    items: dict[str, Any]
    ceilings: dict[str, Any] | None

    def __init__(self, make: Callable[[], Report]) -> None:
        found = make()
        steps = [step for item in found.data["items"].values() for step in item["steps"].values()]
        super().__init__(lambda _: found, failed=any(step.get("unequal") or "failed" in step for step in steps))


def measurements(file: str | Path = "cpu") -> Measurements:
    """Shows a file that `measure` wrote, or shipped measurements by name. Nothing is measured.

    Errors: `InputError`, `UnknownName`.
    """
    from txcalc.render.measurements import find, shown

    return Measurements(lambda: shown(find(str(file))))


def measure(
    device: str = "cpu",
    *,
    gpu: str | None = None,
    only: Sequence[str] = (),
    limit: float = 540,
    out: str | Path | None = None,
    command: str = "txcalc.measure",
    tell: Tell = silent,
) -> Measurements:
    """Measures a list of models on a device for at most `limit` seconds and compares with predictions.

    `gpu` gives the floor of times, `only` selects items of the list. `out`, a .json, is written after every step and
    resumed from; it records `command`. `failed`: counts differ.
    Errors: `InputError`, `UnknownName`, `MissingExtra` (PyTorch).
    """
    from txcalc import hardware
    from txcalc.render.measurements import report
    from txcalc.verification.suite import Suite

    if not limit > 0:
        raise InputError("measure", [Fault("--limit", limit, "seconds, more than 0")])
    like = hardware.load(gpu) if gpu else None
    suite = Suite(device, None if out is None else Path(out), command, limit, like=like, tell=tell, only=only)
    return Measurements(lambda: report(suite.run()))


class Exported(NamedTuple):
    """The text of an exported description, and what it cannot express."""

    text: str
    notes: tuple[str, ...]


def export(
    source: Source,
    to: Literal["toml", "config.json"],
    file: str | Path | None = None,
    *,
    force: bool = False,
    changes: Mapping[str, Any] | None = None,
    ignore: Sequence[str] = (),
) -> Exported:
    """Exports a model as a preset or a config.json that reads back to the same numbers; writes it to `file` if given.

    Errors: `InputError`, also for a file that exists (unless `force`) and for a model that no config.json can say;
    `UnknownName`, `MissingExtra`.

    >>> import txcalc
    >>> txcalc.export("gpt2", "config.json").text[:21]
    '{\\n  "model_type": "gp'
    """
    import json

    from txcalc.sources.export import to_config, to_toml

    if to not in ("toml", "config.json"):
        raise InputError("export", [Fault("--to", to, "toml or config.json")])
    model, notes = load(source, changes, ignore=ignore), ()
    if to == "toml":
        found = Exported(to_toml(model), notes)
    else:
        config, said = to_config(model)
        found = Exported(json.dumps(config, indent=2, allow_nan=False) + "\n", said)
    if file is not None:
        write(Path(file), found.text, force)
    return found
