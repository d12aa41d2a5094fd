"""Accelerators: what a datasheet says of them, from `presets/hardware/` or a file of the user's own.

A value that is not known is absent, and refused when it is needed: nothing here is infinite or taken from a neighbour.
Peaks are dense (no structured sparsity) with the accumulation that PyTorch uses; a link is one way, of one accelerator.
How much of them a kernel reaches is its `Efficiency`: measured here (`[calibration]`), or fitted to measurements of
kernels (`presets/efficiency.toml`, and of its generation, which `kernels` names, in `presets/efficiency/`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from txcalc import cards
from txcalc.curves import KINDS, PEAKS, SECONDS, SHARES, Curve, Efficiency, Link
from txcalc.errors import ABSENT, Fault, InputError, UnknownName, shown
from txcalc.units import ALIASES, parse_bytes

PLACES = ("link", "link_between", "node")
OTHERS = ("power", "peak", "notes", "unified", "kernels", "calibration")
KEYS = ("title", "sources", "memory", "bandwidth", *PLACES, *OTHERS)
# What a complete description of kernels has.
NEEDED = (
    *("matmul.bf16", "matmul.fp8", "matmul.fp4", "matmul.w8", "matmul.w4"),
    *("experts.bf16", "experts.fp8", "experts.fp4", "experts.w4"),
    *("attention.prefill", "attention.decode", "attention.latent_prefill", "attention.latent_decode"),
    *("link.all_reduce", "link.all_to_all"),
)
_SHARE, _SECONDS = (1e-6, 1.0, "a share above 0 and at most 1"), (0.0, 0.999, "seconds from 0 to below 1")
BOUNDS = {
    **dict.fromkeys(("compute", "memory", "share"), _SHARE),
    **dict.fromkeys(("start_s", "depth_s", "rank_s"), _SECONDS),
    "blend": (1.0, inf, "a number from 1"),
}


@dataclass(frozen=True)
class Accelerator:
    """One accelerator.

    memory      bytes: what its driver reports where that is known, else the vendor's capacity
    bandwidth   bytes a second, to and from its own memory
    peaks       dense FLOPs a second by dtype (integer operations for int8), two per multiply-add
    link        bytes a second one way to the others of its node; None: unknown
    link_between    bytes a second one way from one accelerator to other nodes (its share of their network cards), and
    node            accelerators of a node, which share links; None: unknown, and all are taken to share links
    power       watts, the most it may draw; None: unknown
    sources     where each value was read, by key
    kernels     the generation whose kernels it has, a file of `presets/efficiency/`; "": those of any
    unified     its memory is the host's too
    calibration what was measured of its efficiency, the rest as for its generation; None: nothing was
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
    kernels: str = ""
    calibration: Efficiency | None = field(default=None)
    link_between: int | None = None
    node: int | None = None
    unified: bool = False

    @property
    def efficiency(self) -> Efficiency:
        """Its own calibration, or what is assumed of its generation."""
        return self.calibration or (assumed(self.kernels) if self.kernels else assumed())

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

    def placed(self, node: int | None = None, network: int | None = None) -> Accelerator:
        """The same in nodes of so many, each with so many bytes a second to other nodes, one way; None: as it is sold.

        Errors: `InputError` for a node of none, and a network of nothing.
        """
        if network is not None and network < 1:
            raise InputError("--network", [Fault("--network", network, "a rate above 0")])
        if node is not None and not 1 <= node <= 1 << 16:
            raise InputError("--node", [Fault("--node", node, "a whole number from 1 to 65,536")])
        return replace(self, node=node or self.node, link_between=network or self.link_between)


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
    if known not in files and re.fullmatch(r"[\d.]+\s*[kmgt]?i?b?", text, re.I):
        expected = "a name, or a size and a bandwidth with their units", "16GB@500GB/s"
        raise InputError("--gpu", [Fault("--gpu", text, *expected)])
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

    `[calibration]` is optional, and so is each of its keys; what it leaves out is as `presets/efficiency.toml` has it,
    or the file of the generation that `kernels` names. Values are numbers: shares above 0 and at most 1
    (`attention_prefill`, `attention_decode`, `memory`, `link`, and by dtype `matmul.bf16`, …), and seconds from 0 to
    below 1 (`launch_s`, `collective_s`, `host_s`), each for all curves of its kind; then whole curves
    (`curves.Curve`), in `engine.NAME` those of one engine:

        [calibration]
        memory = { value = 0.91, source = "measured" }
        launch_s = { value = 4.2e-6, source = "measured" }
        matmul.bf16 = { value = 0.78, source = "measured" }
        curve.experts.fp8 = { compute = 0.6, memory = 0.8, start_s = 12e-6, source = "measured" }

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
    if accelerator.unified:
        described["unified"] = True
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
    if accelerator.kernels:
        described["kernels"] = accelerator.kernels
    if found := accelerator.calibration:
        cited = {key.removeprefix("calibration."): keys[text] for key, text in _measured(accelerator).items()}
        described["calibration"] = _written(found, cited)
    return {**described, "sources": {key: source for source, key in keys.items()}}


def _written(found: Efficiency, keys: Mapping[str, str]) -> dict[str, Any]:
    """An efficiency as `parse` reads it: the single figures, and the curves, which go before them."""
    written: dict[str, Any] = {"matmul": {}}
    for key, value in (*found.figures().items(), ("spread", found.spread)):
        if key.startswith("matmul.") and key not in found.curves:
            continue  # another dtype's stands for it
        place, name = (written["matmul"], key[7:]) if key.startswith("matmul.") else (written, key)
        place[name] = {"value": value, "source": keys[found.key_of(key)]}
    curve: dict[str, Any] = {"link": {key: _table(one, keys[f"link.{key}"]) for key, one in found.links.items()}}
    engine: dict[str, Any] = {}
    for key, one in found.curves.items():
        *owner, kind, name = key.split(".")
        place = engine.setdefault(owner[0], {}) if owner else curve
        place.setdefault(kind, {})[name] = _table(one, keys[key])
    return {**written, "curve": curve, **({"engine": engine} if engine else {})}


def _table(one: Curve | Link, source: str) -> dict[str, Any]:
    """Its parameters that are not what they are by default, with their source."""
    default = one._field_defaults
    return {**{key: value for key, value in one._asdict().items() if value != default[key]}, "source": source}


def _short(key: str) -> str:
    """`matmul.bf16` of `calibration.curve.matmul.bf16`."""
    for start in ("calibration.", "curve.", "engine."):
        key = key.removeprefix(start)
    return key


def _sources(accelerator: Accelerator) -> dict[str, str]:
    return {**accelerator.sources, **_measured(accelerator)}


def _measured(accelerator: Accelerator) -> dict[str, str]:
    measured = accelerator.calibration.cited if accelerator.calibration else {}
    return {f"calibration.{key}": source for key, source in measured.items()}


@cache
def assumed(kernels: str = "") -> Efficiency:
    """What is assumed where nothing was measured, each with its source: `presets/efficiency.toml`, and what the file of
    a generation of kernels in `presets/efficiency/` says instead."""
    from txcalc.sources.presets import folder, read

    path = folder() / "efficiency.toml"
    base = _Reader(read(path)[0], str(path)).efficiency_alone(None)
    if not kernels:
        return base
    path = folder() / "efficiency" / f"{kernels}.toml"
    return _Reader(read(path)[0], str(path)).efficiency_alone(base)


def generations() -> list[str]:
    """The generations of kernels that were measured."""
    from txcalc.sources.presets import folder

    return sorted(path.stem for path in (folder() / "efficiency").glob("*.toml"))


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
        kernels = self.raw.get("kernels", "")
        if kernels not in ("", *generations()):
            self.faults.append(Fault("kernels", kernels, f"one of {', '.join(generations())}"))
            kernels = ""
        calibration = self.over(assumed(kernels) if kernels else assumed()) if "calibration" in self.raw else None
        title, notes = self.raw.get("title", name), self.raw.get("notes", [])
        if not isinstance(title, str):
            self.faults.append(Fault("title", title, "a text"))
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            self.faults.append(Fault("notes", notes, "a list of texts"))
        unified = self.raw.get("unified", False)
        if type(unified) is not bool:
            self.faults.append(Fault("unified", unified, "true or false"))
        if self.faults:
            raise InputError(self.where, self.faults)
        held = sizes.get("driver", sizes.get("vendor", 0))
        known = name, title, held, bandwidth, found, link, power, self.sources, tuple(notes), kernels, calibration
        return Accelerator(*known, between, node, unified)

    def efficiency_alone(self, base: Efficiency | None) -> Efficiency:
        """A description that is nothing but a calibration: over another, or complete."""
        self.keys(("calibration", "sources"))
        wanted = () if base else (*(f"{key}.value" for key in ("memory", "launch_s", "spread")), *NEEDED)
        found = self.over(base or Efficiency({}, {}, 1.0, 0.0, inf, {}))
        given = {**found.curves, **{f"link.{key}": one for key, one in found.links.items()}, **found.cited}
        self.faults += [
            Fault(f"calibration.{key}", ABSENT, "its value and source")
            for key in wanted
            if key.removesuffix(".value") not in given
        ]
        if self.faults:
            raise InputError(self.where, self.faults)
        return found

    def over(self, base: Efficiency) -> Efficiency:
        """What `[calibration]` says, over what is assumed: single figures for all of a kind first, then curves."""
        table = self.table("calibration")
        known = (*SHARES, *SECONDS, "matmul", "spread", "curve", "engine")
        for key in table:
            if key not in known:
                self.faults.append(f"calibration.{key} is not known, expected one of {', '.join(known)}")
        own, self.sources = self.sources, {}
        flat = self.flat(table)
        spread = self.positive("calibration.spread", table["spread"]) if "spread" in table else base.spread
        curves, links = self.curves("calibration.curve", table.get("curve", {}))
        engines = table.get("engine", {})
        if not isinstance(engines, dict):
            self.faults.append(Fault("calibration.engine", engines, "a table of tables by engine"))
            engines = {}
        for engine, tables in engines.items():
            more, none = self.curves(f"calibration.engine.{engine}", tables)
            curves |= {f"{engine}.{key}": one for key, one in more.items()}
            if none:
                self.faults.append(f"calibration.engine.{engine}.link is not known, expected one of {', '.join(KINDS)}")
        cited, self.sources = self.sources, own
        if self.faults:
            return base
        sources = {_short(key): source for key, source in cited.items()}
        found = base.overlaid(flat, {key: sources[key] for key in flat}) if flat else base
        sources = {key: source for key, source in sources.items() if key not in flat}
        return replace(
            found,
            curves={**found.curves, **curves},
            links={**found.links, **links},
            spread=spread,
            cited={**found.cited, **sources},
        )

    def flat(self, table: Mapping[str, Any]) -> dict[str, float]:
        """The single figures of `[calibration]`, by key (`matmul.bf16`, `memory`, …)."""
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
        return {key: self.fraction(f"calibration.{key}", value, key in SECONDS) for key, value in written.items()}

    def curves(self, where: str, tables: Any) -> tuple[dict[str, Curve], dict[str, Link]]:
        """The curves of tables by kind and name, and links by kind."""
        curves: dict[str, Curve] = {}
        links: dict[str, Link] = {}
        if not isinstance(tables, dict):
            self.faults.append(Fault(where, tables, "a table of tables by kind"))
            return curves, links
        for kind, named in tables.items():
            if kind not in (*KINDS, "link") or not isinstance(named, dict):
                self.faults.append(f"{where}.{kind} is not known, expected a table: one of {', '.join(KINDS)}, link")
                continue
            for name, written in named.items():
                values = self.numbers(f"{where}.{kind}.{name}", written, Link if kind == "link" else Curve)
                if kind == "link":
                    links[name] = Link(**values)
                else:
                    curves[f"{kind}.{name}"] = Curve(**values)
        return curves, links

    def numbers(self, where: str, written: Any, of: type[Curve] | type[Link]) -> dict[str, float]:
        """The parameters of a curve with one source."""
        if not isinstance(written, dict):
            self.faults.append(Fault(where, written, f"a table of {', '.join(of._fields)} and source"))
            return {}
        cited = written.get("source")
        if not isinstance(cited, str) or not isinstance(self.cited.get(cited), str):
            self.faults.append(Fault(f"{where}.source", written.get("source", ABSENT), "a key of [sources]"))
        else:
            self.sources[where] = self.cited[cited]
        values: dict[str, float] = {}
        for key, value in written.items():
            if key == "source":
                continue
            if key not in of._fields:
                self.faults.append(f"{where}.{key} is not known, expected one of {', '.join(of._fields)}")
                continue
            low, high, said = BOUNDS.get(key, (0.0, 1e9, "a number from 0"))
            if type(value) in (int, float) and low <= value <= high:
                values[key] = float(value)
            else:
                self.faults.append(Fault(f"{where}.{key}", value, said))
        return values

    def positive(self, key: str, value: Any) -> float:
        written = self.sourced(key, value)
        if type(written) in (int, float) and written > 0:
            return float(written)
        if written is not None:
            self.faults.append(Fault(f"{key}.value", written, "a number above 0"))
        return inf

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
