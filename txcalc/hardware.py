"""Accelerators: what a datasheet says of them, from `presets/hardware/` or a file of the user's own.

A value that is not known is absent, and refused when it is needed: nothing here is infinite or taken from a neighbour.
Peaks are dense (no structured sparsity) with the accumulation that PyTorch uses; a link is one way, of one accelerator.
How much of them a kernel reaches is its `Efficiency`: measured here (`[calibration]`), or `presets/efficiency.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from txcalc import cards
from txcalc.errors import ABSENT, Fault, InputError, UnknownName, shown
from txcalc.units import ALIASES, DTYPE_BITS, parse_bytes

PEAKS = (*DTYPE_BITS, "fp6")
SHARES = ("attention_prefill", "attention_decode", "memory", "link")
SECONDS = ("launch_s", "collective_s")
PLACES = ("link", "link_between", "node")
KEYS = ("title", "sources", "memory", "bandwidth", *PLACES, "power", "peak", "notes", "calibration")


@dataclass(frozen=True)
class Efficiency:
    """What kernels reach of an accelerator's datasheet: shares above 0 and at most 1, and seconds that a start costs.

    matmul              of the peak, by dtype: linear layers and convolutions
    attention_prefill   of the peak: the attention core
    attention_decode    of the bandwidth: the attention core, which reads the cache
    memory              of the bandwidth: all else, and the weights of linear layers
    link                of the link one way
    launch_s            an operation's start, whatever its size; it is also what keeps small products from their share:
                        one of launch_s · share · peak FLOPs reaches half of it
    collective_s        a collective's or transfer's latency, whatever its size
    sources             where each was read or measured, by key (`matmul.bf16`, `memory`, …)
    """

    matmul: Mapping[str, float]
    attention_prefill: float
    attention_decode: float
    memory: float
    link: float
    launch_s: float
    collective_s: float
    sources: Mapping[str, str]


@dataclass(frozen=True)
class Accelerator:
    """One accelerator.

    memory      bytes: what its driver reports where that is known, else the vendor's capacity
    bandwidth   bytes a second, to and from its own memory
    peaks       dense FLOPs a second by dtype (integer operations for int8), two a multiply-add
    link        bytes a second one way to the others of its node; None: unknown
    link_between    bytes a second one way from one accelerator to other nodes (its share of their network cards), and
    node            accelerators of a node, which share links; None: unknown, and all are taken to share links
    power       watts, the most it may draw; None: unknown
    sources     where each value was read, by key
    calibration what was measured of its efficiency, the rest as for any; None: nothing was
    """

    name: str
    title: str
    memory: int
    bandwidth: int
    peaks: Mapping[str, int]
    link: int | None
    power: int | None
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()
    calibration: Efficiency | None = field(default=None)
    link_between: int | None = None
    node: int | None = None

    @property
    def efficiency(self) -> Efficiency:
        """Its own calibration, or the shares that are assumed of any accelerator."""
        return self.calibration or assumed()

    def peak(self, dtype: str) -> int:
        """Dense FLOPs a second at a dtype. Errors: `InputError` where it is not known, naming those that are."""
        name = ALIASES.get(dtype.lower(), dtype.lower())
        if name not in self.peaks:
            known = f"one of {', '.join(self.peaks)}" if self.peaks else "none: no peak of it is known"
            raise InputError(self.name, [Fault("dtype of the peak", dtype, known)])
        return self.peaks[name]

    def needed(self, key: str) -> int:
        """`link`, `link_between` or `power`. Errors: `InputError` where it is not known."""
        value: int | None = getattr(self, key)
        if value is None:
            raise InputError(self.name, [f"its {key} is not known, and this needs it (a .toml of your own can say it)"])
        return value


def names() -> list[str]:
    """Every accelerator there is a preset of, in alphabetical order, those a user's own too."""
    return sorted(_files())


def load(name: str | Path) -> Accelerator:
    """The accelerator of a preset's name or a short one (`h100`), of numbers (`16GB@500GB/s`), or of a .toml file.

    Errors: `UnknownName` with the nearest names; `InputError` with every fault of a file.
    """
    from txcalc.sources.presets import read

    text = str(name).strip()
    if text.endswith(".toml"):
        path = Path(text)
        return parse(read(path)[0], path.stem, text)
    if (given := cards.numbers(text)) is not None:
        memory, bandwidth, flops = given
        peaks = {} if flops is None else {"bf16": flops, "fp16": flops}
        return Accelerator(
            text, text, memory, bandwidth, peaks, None, None, {"memory": "as given", "bandwidth": "as given"}
        )
    files = _files()
    known = cards.named(text, files)
    if known not in files:
        raise UnknownName("gpu", "accelerator", text, sorted(files), "txcalc presets --hardware lists them")
    path = files[known]
    return parse(read(path)[0], path.stem, str(path))


def _files() -> dict[str, Path]:
    """Presets by name; a user's own, in `hardware/` of their folder of presets, win."""
    from txcalc.sources.presets import folder, own

    mine = own()
    places = [folder() / "hardware", *((mine / "hardware",) if mine else ())]
    return {path.stem.lower(): path for place in places for path in place.glob("*.toml")}


def parse(raw: Mapping[str, Any], name: str, where: str) -> Accelerator:
    """An accelerator's description: every value a table of `value` and `source`, a key of `[sources]`.

    `memory.driver` (what the driver reports) goes before `memory.vendor`; sizes are texts such as "80GB", bandwidth and
    link such texts a second, peaks numbers of dense TFLOP/s, power watts. `link_between` and `node`, a number of
    accelerators, go together.

    `[calibration]` is optional, and so is each of its keys; what it leaves out is as `presets/efficiency.toml` has it.
    Values are numbers: shares above 0 and at most 1 (`attention_prefill`, `attention_decode`, `memory`, `link`, and by
    dtype `matmul.bf16`, …), and seconds from 0 to below 1 (`launch_s`, `collective_s`):

        [calibration]
        memory = { value = 0.91, source = "measured" }
        launch_s = { value = 4.2e-6, source = "measured" }
        matmul.bf16 = { value = 0.78, source = "measured" }

    Errors: `InputError` with every fault at once. `describe` writes what this reads.
    """
    return _Reader(raw, where).accelerator(name)


def describe(accelerator: Accelerator) -> dict[str, Any]:
    """An accelerator as `parse` reads it, ready to be written as TOML. `memory` is what the driver reports."""
    keys = {source: f"source-{i}" for i, source in enumerate(dict.fromkeys(_sources(accelerator).values()), 1)}

    def table(key: str, value: Any, among: Mapping[str, str] = accelerator.sources) -> dict[str, Any]:
        return {"value": value, "source": keys[among[key]]}

    held = "memory.driver" if "memory.driver" in accelerator.sources else "memory.vendor"
    tera = {dtype: Fraction(peak, 10**12) for dtype, peak in accelerator.peaks.items()}
    described: dict[str, Any] = {"title": accelerator.title}
    if accelerator.notes:
        described["notes"] = list(accelerator.notes)
    described["bandwidth"] = table("bandwidth", f"{accelerator.bandwidth}B")
    if accelerator.link is not None:
        described["link"] = table("link", f"{accelerator.link}B")
    if accelerator.link_between is not None:
        described["link_between"] = table("link_between", f"{accelerator.link_between}B")
    if accelerator.node is not None:
        described["node"] = table("node", accelerator.node)
    if accelerator.power is not None:
        described["power"] = table("power", accelerator.power)
    described["memory"] = {held.removeprefix("memory."): table(held, f"{accelerator.memory}B")}
    if tera:
        described["peak"] = {
            dtype: table(f"peak.{dtype}", peak.numerator if peak.denominator == 1 else float(peak))
            for dtype, peak in tera.items()
        }
    if found := accelerator.calibration:
        shares = {key: table(key, getattr(found, key), found.sources) for key in (*SHARES, *SECONDS)}
        products = {dtype: table(f"matmul.{dtype}", share, found.sources) for dtype, share in found.matmul.items()}
        described["calibration"] = {**shares, "matmul": products}
    return {**described, "sources": {key: source for source, key in keys.items()}}


def _sources(accelerator: Accelerator) -> dict[str, str]:
    measured = accelerator.calibration.sources if accelerator.calibration else {}
    return {**accelerator.sources, **{f"calibration.{key}": source for key, source in measured.items()}}


@cache
def assumed() -> Efficiency:
    """The shares that are assumed where nothing was measured, each with its source: `presets/efficiency.toml`."""
    from txcalc.sources.presets import folder, read

    path = folder() / "efficiency.toml"
    return _Reader(read(path)[0], str(path)).efficiency_alone()


class _Reader:
    """Reads one description and gathers its faults."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw, self.where = raw, where
        self.faults: list[Fault | str] = []
        self.sources: dict[str, str] = {}
        self.cited = self.table("sources")

    def accelerator(self, name: str) -> Accelerator:
        self.keys(KEYS)
        memory, peaks = self.table("memory"), self.table("peak")
        sizes = {key: self.size(f"memory.{key}", memory[key]) for key in memory if self.one_of(key, "memory")}
        if not sizes:
            self.faults.append(Fault("memory", ABSENT, "memory.vendor or memory.driver, such as '80GB'"))
        found = {key: self.flops(f"peak.{key}", value) for key, value in peaks.items() if self.one_of(key, "peak")}
        bandwidth = self.size("bandwidth", self.raw.get("bandwidth", ABSENT))
        link = self.size("link", self.raw["link"]) if "link" in self.raw else None
        between = self.size("link_between", self.raw["link_between"]) if "link_between" in self.raw else None
        node = self.number("node", self.raw["node"], "accelerators", 1) if "node" in self.raw else None
        if (between is None) != (node is None):
            self.faults.append("link_between and node go together: what is between nodes, and how large these are")
        power = self.watts("power", self.raw["power"]) if "power" in self.raw else None
        calibration = self.calibration() if "calibration" in self.raw else None
        title, notes = self.raw.get("title", name), self.raw.get("notes", [])
        if not isinstance(title, str):
            self.faults.append(Fault("title", title, "a text"))
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            self.faults.append(Fault("notes", notes, "a list of texts"))
        if self.faults:
            raise InputError(self.where, self.faults)
        held = sizes.get("driver", sizes.get("vendor", 0))
        known = name, title, held, bandwidth, found, link, power, self.sources, tuple(notes), calibration
        return Accelerator(*known, between, node)

    def efficiency_alone(self) -> Efficiency:
        """A description that is nothing but a complete calibration."""
        self.keys(("calibration", "sources"))
        found, cited = self.measured()
        wanted = (*SHARES, *SECONDS, *(f"matmul.{dtype}" for dtype in PEAKS))
        self.faults += [
            Fault(f"calibration.{key}", ABSENT, "its value and source") for key in wanted if key not in found
        ]
        if self.faults:
            raise InputError(self.where, self.faults)
        products = {dtype: found[f"matmul.{dtype}"] for dtype in PEAKS}
        others: dict[str, Any] = {key: found[key] for key in (*SHARES, *SECONDS)}
        return Efficiency(matmul=products, **others, sources=cited)

    def calibration(self) -> Efficiency:
        """What was measured over what is assumed."""
        found, cited = self.measured()
        rest = assumed()
        products = {key.removeprefix("matmul."): value for key, value in found.items() if key.startswith("matmul.")}
        others: dict[str, Any] = {key: value for key, value in found.items() if not key.startswith("matmul.")}
        sources = {**rest.sources, **cited}
        return replace(rest, matmul={**rest.matmul, **products}, sources=sources, **others)

    def measured(self) -> tuple[dict[str, float], dict[str, str]]:
        """The values of `[calibration]` and their sources, by key (`matmul.bf16`, `memory`, …)."""
        table, known = self.table("calibration"), (*SHARES, *SECONDS, "matmul")
        for key in table:
            if key not in known:
                self.faults.append(f"calibration.{key} is not known, expected one of {', '.join(known)}")
        products = table.get("matmul", {})
        if not isinstance(products, dict):
            self.faults.append(Fault("calibration.matmul", products, "a table of shares by dtype"))
            products = {}
        written = {key: value for key, value in table.items() if key in (*SHARES, *SECONDS)}
        for dtype, value in products.items():
            if dtype in PEAKS:
                written[f"matmul.{dtype}"] = value
            else:
                self.faults.append(f"calibration.matmul.{dtype} is not known, expected one of {', '.join(PEAKS)}")
        own, self.sources = self.sources, {}
        found = {key: self.fraction(f"calibration.{key}", value, key in SECONDS) for key, value in written.items()}
        cited, self.sources = self.sources, own
        return found, {key.removeprefix("calibration."): source for key, source in cited.items()}

    def fraction(self, key: str, value: Any, seconds: bool) -> float:
        """A share above 0 and at most 1, or seconds from 0 to below 1."""
        written = self.sourced(key, value)
        if written is None:
            return 0
        if type(written) in (int, float) and (0 <= written < 1 if seconds else 0 < written <= 1):
            return float(written)
        expected = "seconds from 0 to below 1" if seconds else "a share above 0 and at most 1"
        self.faults.append(Fault(f"{key}.value", written, expected))
        return 0

    def keys(self, known: tuple[str, ...]) -> None:
        for key in self.raw:
            if key not in known:
                near = UnknownName("", "", key, known).near
                self.faults.append(f"{shown(key)} is not a key of it" + (f" (did you mean {near[0]}?)" if near else ""))

    def table(self, key: str) -> Mapping[str, Any]:
        value = self.raw.get(key, {})
        if isinstance(value, dict):
            return value
        self.faults.append(Fault(key, value, "a table"))
        return {}

    def one_of(self, key: str, table: str) -> bool:
        known = ("vendor", "driver") if table == "memory" else PEAKS
        if key in known:
            return True
        self.faults.append(f"{table}.{key} is not known, expected one of {', '.join(known)}")
        return False

    def sourced(self, key: str, value: Any) -> Any:
        """The value of a table with a value and its source."""
        if not isinstance(value, dict) or set(value) != {"value", "source"}:
            self.faults.append(Fault(key, value, "a table { value = …, source = … }"))
            return None
        cited = value["source"]
        if not isinstance(cited, str) or not isinstance(self.cited.get(cited), str):
            self.faults.append(Fault(f"{key}.source", cited, "a key of [sources]"))
            return None
        self.sources[key] = self.cited[cited]
        return value["value"]

    def size(self, key: str, value: Any) -> int:
        """Bytes, or bytes a second."""
        text = self.sourced(key, value)
        if isinstance(text, str):
            try:
                size = parse_bytes(text, f"{key}.value")
            except InputError as error:
                self.faults += error.faults
                return 0
            if 0 < size < 1 << 60:
                return size
        if text is not None:
            self.faults.append(Fault(f"{key}.value", text, "a size in bytes such as '80GB' or '81559MiB'"))
        return 0

    def flops(self, key: str, value: Any) -> int:
        """FLOPs a second, from TFLOP/s as a datasheet writes them; exact, for all that TOML makes them floats."""
        return self.number(key, value, "dense TFLOP/s", 10**12)

    def watts(self, key: str, value: Any) -> int:
        return self.number(key, value, "watts", 1)

    def number(self, key: str, value: Any, unit: str, factor: int) -> int:
        written = self.sourced(key, value)
        if written is None:
            return 0
        if type(written) in (int, float) and 0 < written < 10**9:
            exact = Fraction(str(written)) * factor
            if exact.denominator == 1:
                return exact.numerator
        self.faults.append(Fault(f"{key}.value", written, f"a number of {unit} above 0"))
        return 0
