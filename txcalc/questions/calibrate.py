"""`calibrate`: the measured rates of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import convert

from txcalc.errors import Fault, InputError
from txcalc.evidence.figures import Rate, StepCheck
from txcalc.questions import options as o
from txcalc.questions.answers import Result
from txcalc.questions.verify import Progress, no_progress


class Calibrate(Result, tag_field="schema", tag="txcalc/calibrate/1", kw_only=True):
    """Measured rates of a machine; `accelerator` is a hardware file for `deploy`."""

    rows_key: ClassVar[str] = "rates"

    file: str | None
    accelerator: dict[str, Any]
    rates: tuple[Rate, ...]
    model: str
    dtype: str
    checks: tuple[StepCheck, ...]
    rounds: int
    clocks: tuple[dict[str, str], ...]


@o.Question("txcalc calibrate --device cpu --out mine.toml")
def calibrate(
    device: Annotated[str, o.DEVICE._replace(help="Device: cpu or cuda.")] = "cpu",
    *,
    out: Annotated[str | Path | None, o.OUT.with_help("a .toml for deploy --gpu FILE.")] = None,
    force: Annotated[bool, o.FORCE] = False,
    like: Annotated[
        str | None,
        o.Option(
            "Start from this accelerator's datasheet: measured rates are for train, deploy uses the accelerator's "
            "kernels. Default: measured rates for both.",
            "NAME",
            "Device",
            completes="accelerator",
        ),
    ] = None,
    tell: Progress = no_progress,
) -> Calibrate:
    """Measure this machine in two minutes (matmuls, copies, attention, kernel launches), for deploy --gpu FILE.

    Errors: `InputError`, `MissingExtra`.
    """
    from txcalc import hardware
    from txcalc.sources.export import as_toml
    from txcalc.sources.files import writable, write

    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise InputError("calibrate", [Fault("--device", device, "cpu or cuda")])
    path = None if out is None else Path(out)
    if path is not None and path.suffix != ".toml":
        expected = "a file that ends in .toml, as deploy --gpu reads it"
        raise InputError("calibrate", [Fault("--out", str(path), expected)])
    if path is not None:
        writable(path, force)
    as_toml({})  # fails now rather than after two minutes if TOML cannot be written
    datasheet = hardware.load(like, "--like") if like else None

    from txcalc.verification.calibrate import calibrate as measure

    name = path.stem if path else "this-machine"
    calibration = measure(device, name=name, like=datasheet, progress=lambda share: tell("measuring", share))
    described = calibration.described()
    if path is not None:
        write(path, as_toml(described["accelerator"]), True)
    return convert({**described, "file": str(path) if path else None}, Calibrate)
