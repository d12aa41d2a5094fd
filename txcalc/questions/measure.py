"""`measure`: a list of models measured on a device, and compared with the predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec import convert

from txcalc import hardware
from txcalc.errors import Fault, InputError
from txcalc.questions import options as o
from txcalc.questions.measurements import Measurements
from txcalc.questions.verify import Progress, no_progress


@o.Question("txcalc measure --device cpu --out mine.json")
def measure(
    device: Annotated[str, o.DEVICE._replace(help="Device: cpu or cuda.")] = "cpu",
    *,
    gpu: Annotated[
        str | None,
        o.GPU._replace(help="An accelerator or calibrate's file, for the lower bounds of times (default: measured)."),
    ] = None,
    only: Annotated[
        Sequence[str],
        o.Option("Only this model. Repeatable; an unknown name lists them.", "NAME", "Model", repeats=True),
    ] = (),
    limit: Annotated[float, o.Option("Start no new model after N seconds.", "N", "Device")] = 540,
    out: Annotated[str | Path | None, o.OUT.with_help("a .json after every step; a later run continues it.")] = None,
    command: str = "txcalc.measure",
    tell: Progress = no_progress,
) -> Measurements:
    """Measure txcalc's test models on this device and compare with the predictions. Counts must be equal (exit code 0);
    memory and times are shown with their predictions.

    In Python: `command` is recorded in the file.
    Errors: `InputError`, `UnknownName`, `MissingExtra` (PyTorch).
    """
    from txcalc.verification.suite import Suite

    if not limit > 0:
        raise InputError("measure", [Fault("--limit", limit, "seconds, more than 0")])
    datasheet = hardware.load(gpu) if gpu else None
    path = None if out is None else Path(out)
    return convert(Suite(device, path, command, limit, like=datasheet, tell=tell, only=only).run(), Measurements)
