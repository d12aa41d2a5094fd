"""Descriptions of accelerators, read key by key; every fault is gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from math import inf
from typing import Any

from msgspec.structs import replace

from txcalc.errors import ABSENT, Fault, InputError, meant, nearest, quote
from txcalc.hardware import GENERATIONS, KEYS, MEMORIES, Accelerator, default_efficiency, measured_kernels, short_key
from txcalc.hardware.curves import KINDS, PEAKS, SECONDS, SHARES, Curve, Efficiency, Link
from txcalc.sources.presets import folder, read
from txcalc.units import parse_bytes

# What a complete description of kernels has.
NEEDED = (
    *("matmul.bf16", "matmul.fp8", "matmul.fp4", "matmul.w8", "matmul.w4"),
    *("experts.bf16", "experts.fp8", "experts.fp4", "experts.w4"),
    *("attention.prefill", "attention.decode", "attention.latent_prefill", "attention.latent_decode", "optimizer.bf16"),
    *("link.all_reduce", "link.all_to_all"),
)
_SHARE, _SECONDS = (1e-6, 1.0, "a share above 0 and at most 1"), (0.0, 0.999, "seconds from 0 to below 1")
BOUNDS = {
    **dict.fromkeys(("compute", "memory", "share"), _SHARE),
    **dict.fromkeys(("start_s", "depth_s", "rank_s"), _SECONDS),
    **dict.fromkeys(("aligned_4", "aligned_2"), (0.0, 1.0, "a share from 0 to 1")),
    "blend": (1.0, inf, "a number from 1"),
}


@cache
def _shared_sources() -> Mapping[str, Any]:
    """The sources that several descriptions cite."""
    return read(folder() / "sources.toml")[0]


class Reader:
    """Reads one description and gathers its faults."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw, self.where = raw, where
        self.faults: list[Fault | str] = []
        self.sources: dict[str, str] = {}
        self.cited = {**_shared_sources(), **self.table("sources")}

    def accelerator(self, name: str) -> Accelerator:
        self.keys(KEYS)
        memory, peaks = self.table("memory"), self.table("peak")
        sizes = {key: self.size(f"memory.{key}", memory[key]) for key in memory if self.one_of(key, "memory")}
        if not sizes:
            self.faults.append(Fault("memory", ABSENT, "memory.vendor or memory.driver, such as '80GB'"))
        # From TFLOP/s as a datasheet writes them; exact, although TOML reads them as floats.
        listed = {key: value for key, value in peaks.items() if self.one_of(key, "peak")}
        flops = {key: self.number(f"peak.{key}", value, "dense TFLOP/s", 10**12) for key, value in listed.items()}
        bandwidth = self.size("bandwidth", self.raw.get("bandwidth", ABSENT))
        rates = (self.size(key, self.raw[key]) if key in self.raw else None for key in ("link", "link_between"))
        counts = (
            self.number(key, self.raw[key], unit, 1) if key in self.raw else None
            for key, unit in (("node", "accelerators"), ("power", "watts"), ("half_sums", "times"))
        )
        (link, between), (node, power, sums) = rates, counts
        if between is not None and node is None:
            self.faults.append("link_between needs node: the number of accelerators of a node")
        generation = self.name_of("generation", GENERATIONS)
        kernels = self.name_of("kernels", measured_kernels())
        calibration = self.over(default_efficiency(kernels)) if "calibration" in self.raw else None
        title, vendor, notes = self.raw.get("title", name), self.raw.get("vendor", ""), self.raw.get("notes", [])
        self.faults += [
            Fault(key, value, "a text")
            for key, value in (("title", title), ("vendor", vendor))
            if not isinstance(value, str)
        ]
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            self.faults.append(Fault("notes", notes, "a list of texts"))
        unified = self.raw.get("unified", False)
        if type(unified) is not bool:
            self.faults.append(Fault("unified", unified, "true or false"))
        if self.faults:
            raise InputError(self.where, self.faults)
        size = next((sizes[key] for key in MEMORIES if key in sizes), 0)
        first = name, title, size, bandwidth, flops, link, power, self.sources, tuple(notes), kernels, calibration
        return Accelerator(*first, between, node, unified, vendor, sums or 1, generation)

    def name_of(self, key: str, names: Sequence[str]) -> str:
        """One of these names; "" if there is none."""
        name = self.raw.get(key, "")
        if name in ("", *names):
            return str(name)
        self.faults.append(Fault(key, name, f"one of {', '.join(names)}"))
        return ""

    def efficiency_alone(self, base: Efficiency | None) -> Efficiency:
        """A description that is nothing but a calibration: over another, or complete."""
        self.keys(("calibration", "sources", "cards"))
        required = () if base else (*(f"{key}.value" for key in ("memory", "launch_s", "spread")), *NEEDED)
        result = self.over(base or Efficiency({}, {}, 1.0, 0.0, inf, {}))
        keys = {*result.curves, *(f"link.{key}" for key in result.links), *result.cited}
        self.faults += [
            Fault(f"calibration.{key}", ABSENT, "its value and source")
            for key in required
            if key.removesuffix(".value") not in keys
        ]
        if self.faults:
            raise InputError(self.where, self.faults)
        return replace(result, cards=tuple(self.raw.get("cards", ())))

    def over(self, base: Efficiency) -> Efficiency:
        """What `[calibration]` says, over what is assumed: single figures for all of a kind first, then curves."""
        table = self.table("calibration")
        keys = (*SHARES, *SECONDS, "matmul", "spread", "curve", "engine")
        for key in table:
            if key not in keys:
                self.faults.append(f"calibration.{key} is not known, expected one of {', '.join(keys)}")
        outer, self.sources = self.sources, {}
        flat = self.flat(table)
        spread = self.positive("calibration.spread", table["spread"]) if "spread" in table else base.spread
        curves, links = self.curves("calibration.curve", table.get("curve", {}))
        engines = table.get("engine", {})
        if not isinstance(engines, dict):
            self.faults.append(Fault("calibration.engine", engines, "a table of tables by engine"))
            engines = {}
        for engine, tables in engines.items():
            engine_curves, none = self.curves(f"calibration.engine.{engine}", tables)
            curves |= {f"{engine}.{key}": curve for key, curve in engine_curves.items()}
            if none:
                self.faults.append(f"calibration.engine.{engine}.link is not known, expected one of {', '.join(KINDS)}")
        cited, self.sources = self.sources, outer
        if self.faults:
            return base
        sources = {short_key(key): source for key, source in cited.items()}
        efficiency = base.overlaid(flat, {key: sources[key] for key in flat}) if flat else base
        sources = {key: source for key, source in sources.items() if key not in flat}
        # What was measured here, of any engine, takes precedence over an engine's own of another generation.
        base_curves = {
            key: curve for key, curve in efficiency.curves.items() if ".".join(key.split(".")[-2:]) not in curves
        }
        return replace(
            efficiency,
            curves={**base_curves, **curves},
            links={**efficiency.links, **links},
            spread=spread,
            cited={**efficiency.cited, **sources},
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

    def curves(self, where: str, tables: object) -> tuple[dict[str, Curve], dict[str, Link]]:
        """The curves of tables by kind and name, and links by kind."""
        curves: dict[str, Curve] = {}
        links: dict[str, Link] = {}
        if not isinstance(tables, dict):
            self.faults.append(Fault(where, tables, "a table of tables by kind"))
            return curves, links
        for kind, rows in tables.items():
            if kind not in (*KINDS, "link") or not isinstance(rows, dict):
                self.faults.append(f"{where}.{kind} is not known, expected a table: one of {', '.join(KINDS)}, link")
                continue
            for name, written in rows.items():
                values = self.numbers(f"{where}.{kind}.{name}", written, Link if kind == "link" else Curve)
                if kind == "link":
                    links[name] = Link(**values)
                else:
                    curves[f"{kind}.{name}"] = Curve(**values)
        return curves, links

    def numbers(self, where: str, written: object, of: type[Curve] | type[Link]) -> dict[str, float]:
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
            low, high, expected = BOUNDS.get(key, (0.0, 1e9, "a number from 0"))
            if type(value) in (int, float) and low <= value <= high:
                values[key] = float(value)
            else:
                self.faults.append(Fault(f"{where}.{key}", value, expected))
        return values

    def positive(self, key: str, value: object) -> float:
        written = self.sourced(key, value)
        if type(written) in (int, float) and written > 0:
            return float(written)
        if written is not None:
            self.faults.append(Fault(f"{key}.value", written, "a number above 0"))
        return inf

    def fraction(self, key: str, value: object, seconds: bool) -> float:
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
                mend = meant(nearest(key, known)[:1], f"known: {', '.join(known)}")
                self.faults.append(f"{quote(key)} is not a key of it ({mend})")

    def table(self, key: str) -> Mapping[str, Any]:
        value = self.raw.get(key, {})
        if isinstance(value, dict):
            return value
        self.faults.append(Fault(key, value, "a table"))
        return {}

    def one_of(self, key: str, table: str) -> bool:
        names = MEMORIES if table == "memory" else PEAKS
        if key in names:
            return True
        self.faults.append(f"{table}.{key} is not known, expected one of {', '.join(names)}")
        return False

    def sourced(self, key: str, value: object) -> Any:
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

    def size(self, key: str, value: object) -> int:
        """Bytes, or bytes per second."""
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

    def number(self, key: str, value: object, unit: str, factor: int) -> int:
        written = self.sourced(key, value)
        if written is None:
            return 0
        if type(written) in (int, float) and 0 < written < 10**9:
            exact = Fraction(str(written)) * factor
            if exact.denominator == 1:
                return exact.numerator
        self.faults.append(Fault(f"{key}.value", written, f"a number of {unit} above 0"))
        return 0
