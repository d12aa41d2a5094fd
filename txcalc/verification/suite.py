"""Runs a list of measurements on one device, most important first, and stores predictions and results.

One JSON file is rewritten after every step, so that an interrupted run keeps its results; the same command continues
it, also on another host of the same kind. Items marked `first` run completely; then exact checks of all others, then
memory, then times.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from msgspec.structs import asdict

from txcalc.errors import Fault, InputError, UnknownName
from txcalc.hardware import Accelerator, parse
from txcalc.model import Model
from txcalc.reference import truncate
from txcalc.sources import load
from txcalc.units import iec
from txcalc.verification import device as devices, verify
from txcalc.verification.calibrate import Calibration, calibrate
from txcalc.verification.measure import Clock
from txcalc.verification.verdict import as_number
from txcalc.verification.workloads import (
    DeviceModel,
    Load,
    deployed_bytes,
    launches,
    overtaking,
    peak_memory,
    times,
    training_speed,
)

SCHEMA = "txcalc/measurements/1"
CEILINGS = "ceilings"


class Item(NamedTuple):
    """A model of the list with its first `layers` layers (None: as many as fit), and its measurements."""

    name: str
    source: str
    layers: int | None = None
    dtype: str = "bf16"
    exact: tuple[str, ...] = ()
    peaks: tuple[Load, ...] = ()
    times: tuple[Load, ...] = ()
    overtaking: tuple[int, ...] = ()  # lengths around the one at which attention outweighs the feed-forward
    launches: tuple[Load, ...] = ()  # loads whose kernels are counted
    speed: tuple[Load, ...] = ()  # training steps to compare with `train`
    first: bool = False
    changes: Mapping[str, int] = {}  # smaller sizes, so that a small machine can run the model


def _item(row: Mapping[str, Any]) -> Item:
    """The item of a JSON row, whose loads are lists."""
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    fields |= {name: tuple(Load(*load) for load in row.get(name, ())) for name in LOADS}
    return Item(**fields)


LOADS = ("peaks", "times", "launches", "speed")
# By kind of device, most important first.
LISTS = {
    kind: tuple(map(_item, rows))
    for kind, rows in json.loads(Path(__file__).with_name("suite.json").read_text("utf-8")).items()
}
PHASES = ("exact", "memory", "")  # prefixes of step names, most important first
UNTIMED = ("exact", "kernels", "memory")  # prefixes of the names of steps that measure no time


class OutOfTime(Exception):
    """The time limit is reached."""


class Refused(Exception):
    """The reason why a step does not fit in the device's memory; stored as the step's result."""


class Suite:
    """A run of the list. `tell` is called with each step's name and the share of the list done so far."""

    def __init__(
        self,
        device: str,
        path: Path | None,
        command: str,
        limit: float,
        items: tuple[Item, ...] | None = None,
        like: Accelerator | None = None,
        tell: Callable[[str, float], None] = lambda step, share: None,
        ceilings: Callable[..., Calibration] = calibrate,
        only: Collection[str] = (),
    ) -> None:
        devices.check(device)
        if torch.device(device).type == "meta":
            raise InputError("measure", [Fault("--device", device, "cpu or cuda", "a real device is measured")])
        self.device, self.path, self.limit, self.tell, self.like = device, path, limit, tell, like
        self.items = items or LISTS[torch.device(device).type]
        names = [item.name for item in self.items]
        for name in only:
            if name not in names:
                raise UnknownName("measure", "test model", name, names, f"one of: {'; '.join(names)}")
        self.only = frozenset(only or names)
        self.end, self.measure_ceilings = time.monotonic() + limit, ceilings
        self.longest = 0.0  # seconds of the longest step: a step begins only if as much time is left
        self.results: dict[str, Any] = {
            "schema": SCHEMA,
            "device": {**devices.describe(device), "clock": Clock(device).name},
            "hosts": [],
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "command": command,
            "datasheet": like.name if like else None,
            "complete": False,
            "items": {},
        }
        if path is not None and path.is_file():
            self._resume(path)

    def _resume(self, path: Path) -> None:
        """Loads the results of an earlier run on a device of the same kind, except failed steps."""
        try:
            before = json.loads(path.read_text("utf-8"))
            old, new = before["device"], self.results["device"]
            same_kind = all(old.get(key) == new.get(key) for key in devices.KIND)
            same_device = before["schema"] == SCHEMA and same_kind
            sheet = before.get("datasheet")
            if CEILINGS in before:
                parse(before[CEILINGS]["accelerator"], "this-machine", CEILINGS)
            items = {
                name: {**item, "steps": {n: step for n, step in item["steps"].items() if "failed" not in step}}
                for name, item in before["items"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError) as error:
            raise InputError("measure", [f"--out {path} exists and is not a file of measurements: {error}"]) from None
        if not same_device:
            raise InputError(
                "measure", [f"--out {path} has measurements of another device or PyTorch (choose another name)"]
            )
        if sheet != self.results["datasheet"]:
            option = f"with --gpu {sheet}" if sheet else "without --gpu"
            raise InputError("measure", [f"--out {path} was begun {option}: do the same, or choose another name"])
        hosts = [*before.get("hosts", ()), {"until": before.get("date"), **before["device"]}]
        moved = before["device"] != self.results["device"]
        self.results["hosts"] = hosts if moved else before.get("hosts", [])
        self.results |= {key: before[key] for key in (CEILINGS,) if key in before}
        listed = {item.name for item in self.items}
        self.results["items"] = {name: item for name, item in items.items() if name in listed}

    def run(self) -> dict[str, Any]:
        """Runs what the time limit allows. Errors: `InputError`, before measuring, if the file cannot be written."""
        try:
            self._write()
        except OSError as error:
            if self.path is not None:
                self._draft(self.path).unlink(missing_ok=True)
            reason = (error.strerror or str(error)).lower()
            raise InputError("measure", [f"--out {self.path} cannot be written: {reason}"]) from None
        try:
            if CEILINGS not in self.results:
                self._ceilings()
            accelerator = parse(self.results[CEILINGS]["accelerator"], "this-machine", CEILINGS)
            selected = [(number, item) for number, item in enumerate(self.items) if item.name in self.only]
            first = [pair for pair in selected if pair[1].first]
            later = [pair for pair in selected if not pair[1].first]
            for phase, items in (("", first), *((phase, later) for phase in PHASES)):
                for number, item in items:
                    self._item(item, accelerator, number, phase)
        except OutOfTime:
            pass
        self.results["complete"] = all(self._done(item) for item in self.items)
        self._write()
        return self.results

    def _done(self, item: Item) -> bool:
        entry = self.results["items"].get(item.name, {})
        return "refused" in entry or all(name in entry.get("steps", ()) for name, _ in steps_of(item))

    def _ceilings(self) -> None:
        self._step("ceilings", 0)
        calibration = self.measure_ceilings(self.device, like=self.like, limit=min(60.0, self.limit / 4))
        self.results[CEILINGS] = calibration.described()
        self._write()

    def _item(self, item: Item, accelerator: Accelerator, number: int, phase: str) -> None:
        """Runs the steps of an item whose names begin with `phase`."""
        entry = self.results["items"].setdefault(item.name, {"source": item.source, "steps": {}})
        names = [name for name, _ in steps_of(item)]
        steps = entry["steps"] = {name: entry["steps"][name] for name in names if name in entry["steps"]}
        if all(name in steps for name in names if name.startswith(phase)):
            return
        full_model = load(item.source, dict(item.changes))
        dtype = devices.DTYPES[item.dtype]
        model, total_layers = fitting_batch(full_model, item.layers, self.device, dtype), devices.n_layers(full_model)
        if model is None:
            entry["refused"] = str(devices.too_large(full_model, self.device, dtype, devices.free_bytes(self.device)))
            return
        layer_count = devices.n_layers(model)
        entry.pop("refused", None)  # an earlier run had less memory
        if entry.get("layers", layer_count) != layer_count:
            steps.clear()  # an earlier run had another number of layers
        entry |= {
            "date": self.results["date"],
            "layers": layer_count,
            "of_layers": total_layers,
            "dtype": item.dtype,
            "params": model.params,
        }
        entry |= {"changes": dict(item.changes)} if item.changes else {}
        subject = DeviceModel(model, self.device, dtype)
        for name, step in steps_of(item):
            if name not in steps and name.startswith(phase):
                self._step(f"{item.name}: {name}", number / len(self.items))
                steps[name] = self._measured(step, subject, accelerator, timed=not name.startswith(UNTIMED))
                entry["steps"] = {name: steps[name] for name in names if name in steps}
                self._write()

    def _measured(self, step: Any, subject: DeviceModel, accelerator: Accelerator, timed: bool) -> dict[str, object]:
        """The result of a step; if `timed`, with the device's clocks before and after it."""
        start, clocks = time.monotonic(), [devices.clocks(self.device)] if timed else []
        try:
            result: dict[str, Any] = step(subject, accelerator)
        except Refused as error:
            result = {"refused": str(error)}
        except Exception as error:
            error.__traceback__ = None  # its frames reference the modules
            devices.tidy(self.device)
            result = {"failed": f"{type(error).__name__}: {error}"}
            if isinstance(error, RuntimeError) and devices.ran_out(error):
                result = {"refused": f"it needs more than the {devices.free_bytes(self.device):,} B that are free"}
        devices.tidy(self.device)
        seconds = time.monotonic() - start
        self.longest = max(self.longest, seconds)
        readings = [clock for clock in (*clocks, devices.clocks(self.device) if timed else {}) if clock]
        return {**result, **({"clocks": readings} if readings else {}), "seconds_spent": round(seconds, 1)}

    def _step(self, name: str, share: float) -> None:
        if time.monotonic() + self.longest > self.end:
            raise OutOfTime
        self.tell(name, share)

    @staticmethod
    def _draft(path: Path) -> Path:
        return path.with_suffix(".part")

    def _write(self) -> None:
        if self.path is not None:
            draft = self._draft(self.path)
            draft.write_text(json.dumps(self.results, indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
            draft.replace(self.path)


def fitting_batch(model: Model, layers: int | None, device: str, dtype: torch.dtype) -> Model | None:
    """The model with at most `layers` layers, as many as fit in half of the free memory, so that the other half is left
    to compute; None if no layer fits."""
    free, total_layers = devices.free_bytes(device), devices.n_layers(model)
    layer_count = min(layers or total_layers, total_layers)
    while layer_count and 2 * truncate(model, layer_count).params * dtype.itemsize + devices.SPARE > free:
        layer_count -= 1
    if not layer_count:
        return None
    return model if layer_count == total_layers else truncate(model, layer_count)


def steps_of(item: Item) -> Iterator[tuple[str, Callable[[DeviceModel, Accelerator], dict[str, Any]]]]:
    """The measurements of an item, by name, in order."""
    kinds: tuple[tuple[str, Sequence[Any], Callable[[DeviceModel, Any, Accelerator], dict[str, Any]]], ...] = (
        ("exact", item.exact, lambda subject, oracle, _: _verify_exact(subject, oracle)),
        ("kernels", item.launches, lambda subject, step, _: _measure_kernels(subject, _fit_batch(subject, step))),
        ("memory", item.peaks, lambda subject, step, _: _measure_peak(subject, step)),
        ("time", item.times, _measure_times),
        ("train", item.speed, _measure_speed),
    )

    def bound(measure: Callable[..., dict[str, Any]], step: object) -> Callable[..., dict[str, Any]]:
        return lambda subject, accelerator: measure(subject, step, accelerator)

    for kind, steps, measure in kinds:
        for step in steps:
            yield f"{kind}: {step}", bound(measure, step)
    if item.overtaking:
        yield "attention overtakes", lambda s, accelerator: _figures(overtaking(s, item.overtaking, accelerator))


def _fit_batch(subject: DeviceModel, load: Load) -> Load:
    """The load, its batch halved until it fits in free memory, by the bytes that `deploy` reserves for it, or by the
    least that a training step needs. Raises `Refused` if one sequence is too much."""
    free, batch = devices.free_bytes(subject.device) - devices.SPARE, load.batch
    while True:
        sized = load._replace(batch=batch)
        needed = deployed_bytes(subject, sized) or subject.least_bytes(sized)
        if needed <= free:
            return sized
        if batch == 1:
            raise Refused(f"{sized} needs {iec(needed)} of the {iec(free)} that are free")
        batch //= 2


def _size_note(load: Load, sized: Load) -> dict[str, object]:
    """A note that a smaller batch was measured."""
    return {} if load == sized else {"sized": f"B = {sized.batch:,}: {load.batch:,} would not fit"}


def _measure_peak(subject: DeviceModel, load: Load) -> dict[str, object]:
    sized = _fit_batch(subject, load)
    return {**_figures([peak_memory(subject, sized)]), **_size_note(load, sized)}


def _measure_times(subject: DeviceModel, load: Load, accelerator: Accelerator) -> dict[str, object]:
    """The times, and the attention kernels that ran."""
    sized = _fit_batch(subject, load)
    notes: list[str] = []
    figures = _figures(times(subject, sized, accelerator, notes=notes))
    devices.tidy(subject.device)
    extra = {"notes": notes} if notes else {}
    return {**figures, **extra, **_size_note(load, sized), "ran": launches(subject, sized)[1]}


def _measure_speed(subject: DeviceModel, load: Load, accelerator: Accelerator) -> dict[str, object]:
    sized = _fit_batch(subject, load)
    return {**_figures(training_speed(subject, sized, accelerator)), **_size_note(load, sized)}


def _measure_kernels(subject: DeviceModel, load: Load) -> dict[str, object]:
    figures, kernels = launches(subject, load)
    return {**_figures(figures), "ran": kernels}


def _verify_exact(subject: DeviceModel, oracle: str) -> dict[str, object]:
    """The number of compared figures, those that differ, and the whole model's figures at every size."""
    verdict = verify(subject.model, [oracle], device=subject.device, dtype=subject.dtype)
    keys = ("path", "quantity", "oracle", "where", "predicted", "measured", "copies")

    def listed(row: Any) -> list[Any]:
        values = row._asdict() | {"predicted": as_number(row.predicted), "measured": as_number(row.measured)}
        return [values[key] for key in keys]

    return {
        "compared": len(verdict.rows),
        "columns": list(keys),
        "unequal": [listed(row) for row in verdict.failures],
        "wholes": [listed(row) for row in verdict.rows if row.path == ""],
        "notes": verdict.notes,
    }


def _figures(figures: Any) -> dict[str, Any]:
    return {"figures": [asdict(figure) for figure in figures]}
