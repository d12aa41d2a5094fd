"""`measurements`: what `measure` wrote on a device, compared with the predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from msgspec import UNSET, UnsetType, ValidationError, convert
from msgspec.structs import replace

from txcalc.errors import ABSENT, Fault, InputError, UnknownName
from txcalc.evidence.figures import Figure, Rate, StepCheck
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, Result
from txcalc.sources import files, presets

SCHEMA = "txcalc/measurements/1"
MAX_BYTES = 1 << 24
KEYS = {"device": dict, "date": str, "command": str, "complete": bool, "items": dict}


class Step(Answer):
    """A step of an item: rows that are compared exactly (`wholes`: of the whole model, `unequal`: those that differ,
    each with `columns`), or figures with a tolerance; or why it did not run.

    sized   the smaller load that was measured, if the intended one does not fit
    ran     kernels that ran, by kind of operation
    """

    compared: int | UnsetType = UNSET
    columns: tuple[str, ...] | UnsetType = UNSET
    unequal: tuple[Any, ...] | UnsetType = UNSET
    wholes: tuple[Any, ...] | UnsetType = UNSET
    figures: tuple[Figure, ...] | UnsetType = UNSET
    refused: str | UnsetType = UNSET
    failed: str | UnsetType = UNSET
    notes: tuple[str, ...] | UnsetType = UNSET
    sized: str | UnsetType = UNSET
    ran: dict[str, Any] | UnsetType = UNSET
    clocks: tuple[Any, ...] | UnsetType = UNSET
    seconds_spent: float | UnsetType = UNSET


class Item(Answer):
    """A model of the list, of which `layers` are measured; `refused`: why nothing of it is."""

    source: str
    steps: dict[str, Step]
    refused: str | UnsetType = UNSET
    date: str | UnsetType = UNSET
    layers: int | UnsetType = UNSET
    of_layers: int | UnsetType = UNSET
    dtype: str | UnsetType = UNSET
    params: int | UnsetType = UNSET
    changes: dict[str, Any] | UnsetType = UNSET

    def figures(self) -> Iterator[Figure]:
        """The figures with a tolerance of all steps."""
        for step in self.steps.values():
            yield from step.figures or ()

    @property
    def compared(self) -> int:
        """Figures that were compared exactly."""
        return sum(step.compared or 0 for step in self.steps.values())

    @property
    def unequal(self) -> int:
        """Of them, those that differ."""
        return sum(len(step.unequal or ()) for step in self.steps.values())


class Ceilings(Answer):
    """The calibration that times are predicted with, as in `Calibrate`."""

    accelerator: dict[str, Any]
    rates: tuple[Rate, ...]
    model: str
    dtype: str
    checks: tuple[StepCheck, ...]
    rounds: int
    clocks: tuple[dict[str, str], ...] | UnsetType = UNSET


class Measurements(Result, tag_field="schema", tag=SCHEMA, kw_only=True):
    """Measurements of a list of models on a device, compared with predictions."""

    device: dict[str, Any]
    hosts: tuple[Any, ...] | UnsetType = UNSET
    date: str
    command: str
    datasheet: str | UnsetType | None = UNSET
    complete: bool
    items: dict[str, Item]
    ceilings: Ceilings | UnsetType = UNSET
    detail: bool = False  # whether the printed text has every figure

    @property
    def failed(self) -> bool:
        """Whether exact figures differ, or a step failed."""
        return any(item.unequal or any(step.failed for step in item.steps.values()) for item in self.items.values())


@o.Question("txcalc measurements cpu")
def measurements(
    file: Annotated[
        str | Path, o.Argument('A file written by "txcalc measure", or the name of a bundled one.', "FILE")
    ] = "cpu",
    *,
    detail: Annotated[bool, o.DETAIL] = False,
) -> Measurements:
    """Show the results of "txcalc measure": counts, memory and times with their predictions.

    Errors: `InputError`, `UnknownName`.
    """
    return replace(read(find(str(file))), detail=detail)


def folder() -> Path:
    """The folder of the measurements shipped with txcalc."""
    return presets.folder() / "measurements"


def find(name: str) -> Path:
    """The file at that path, or the shipped one of that name. Errors: `UnknownName`."""
    path = Path(name)
    if path.suffix or path.exists():
        return path
    names = sorted(file.stem for file in folder().glob("*.json"))
    if name not in names:
        mend = f"a FILE.json of txcalc measure, or {' or '.join(names)}"
        raise UnknownName("measurements", "file of measurements", name, names, mend)
    return folder() / f"{name}.json"


def read(path: Path) -> Measurements:
    """Reads a file of measurements. Errors: `InputError` where it cannot be read or has another form."""
    data = files.read(path, MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise InputError(str(path), [f"is larger than {MAX_BYTES:,} bytes"])
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), [f"is not valid JSON: {error}"]) from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        got = document.get("schema", ABSENT) if isinstance(document, dict) else document
        raise InputError(str(path), [Fault("schema", got, f"{SCHEMA!r}, as txcalc measure --out writes it")])
    faults = [
        Fault(key, document.get(key, ABSENT), f"a value of type {kind.__name__}")
        for key, kind in KEYS.items()
        if not isinstance(document.get(key), kind)
    ]
    if faults:
        raise InputError(str(path), faults)
    try:
        return convert(document, Measurements)
    except ValidationError as error:
        raise InputError(str(path), [f"is not a complete file of measurements: {error}"]) from None
