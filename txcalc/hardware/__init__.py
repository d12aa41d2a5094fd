"""Accelerators: what a datasheet says of them, from `presets/hardware/` or a file of the user's own.

A value that is not known is absent, and refused when it is needed: nothing here is infinite or taken from a neighbour.
Peaks are dense (no structured sparsity) with the accumulation that PyTorch uses; a link is one way, of one accelerator.
How much of them a kernel reaches is its `Efficiency`: measured here (`[calibration]`), or fitted to measurements of
kernels (`presets/efficiency.toml`, and of its generation, which `kernels` names, in `presets/efficiency/`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from txcalc.errors import Fault, InputError, UnknownName
from txcalc.hardware import cards
from txcalc.hardware.curves import Curve, Efficiency, Link
from txcalc.num import ceil_div
from txcalc.units import ALIASES, parse_bytes

PLACES = ("link", "link_between", "node")
OTHERS = ("vendor", "power", "peak", "half_sums", "notes", "unified", "generation", "kernels", "calibration")
KEYS = ("title", "sources", "memory", "bandwidth", *PLACES, *OTHERS)
# NVIDIA's, oldest first; `presets/engines.toml` says which have an engine's kernels.
GENERATIONS = ("pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell")
MEMORIES = ("visible", "driver", "vendor")  # sizes of the memory; the first that is known counts


class Accelerator(Struct, frozen=True):
    """One accelerator.

    memory      bytes: the driver's figure, else the vendor's; of a calibrated card what a process sees
    bandwidth   bytes per second, to and from its own memory
    peaks       dense FLOPs per second by dtype (integer operations for int8), two per multiply-add
    link        bytes per second one way to the others of its node; None: unknown
    link_between    bytes per second one way from one accelerator to other nodes (its share of their network cards), and
    node            accelerators of a node, which share links; None: unknown, and all are taken to share links
    power       watts, the most it may draw; None: unknown
    sources     where each value was read, by key
    kernels     a file of `presets/efficiency/`, whose measured kernels stand for its own; "": those of any
    unified     its memory is the host's too
    vendor      who makes it; "": not said, and no rule of a vendor's cards is taken for it
    generation  one of `GENERATIONS`; "": not said, and engines take it for newer than all of them
    half_sums   how many times as fast products in fp16 are with sums in fp16 as with sums in fp32
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
    calibration: Efficiency | None = None
    link_between: int | None = None
    node: int | None = None
    unified: bool = False
    vendor: str = ""
    half_sums: int = 1
    generation: str = ""

    @property
    def visible(self) -> int:
        """Bytes that a CUDA process sees, or that a system lets the GPU take of a unified memory: `presets/memory.toml`
        by card, else by a rule of its vendor's, else all."""
        if "memory.visible" in self.sources:
            return self.memory
        rule, memory = _memory_rule(self.chip, self.vendor), self.memory
        if "value" in rule:
            return min(memory, int(rule["value"] * 2**30))
        for step in rule.get("shares", ()):
            if memory > parse_bytes(step["above"], "above"):
                times, of = step["share"]
                return memory * int(times) // int(of)
        return max(memory // 2, memory - parse_bytes(rule.get("unseen", "0B"), "unseen"))

    @property
    def chip(self) -> str:
        """Its name, of unified memory without a size."""
        return re.sub(r"-\d+gb$", "", self.name) if self.unified else self.name

    @property
    def gives_more(self) -> str:
        """How a system gives the GPU more of a unified memory, or what it takes of it; "": nothing is known."""
        return str(_memory_rule(self.chip, self.vendor).get("more", ""))

    @property
    def measured_elsewhere(self) -> str:
        """The accelerators whose measured kernels stand in for those that its calibration lacks; "": it lacks none."""
        from txcalc.hardware.reader import NEEDED

        cards, cited = self.efficiency.cards, default_efficiency(self.kernels).cited
        calibrated = {key for key, text in self.efficiency.cited.items() if text != cited.get(key)}
        kernels = {".".join(key.rsplit(".", 2)[-2:]) for key in calibrated}  # without the software: matmul.bf16
        return "" if self.chip in cards or kernels.issuperset(NEEDED) else ", ".join(cards)

    @property
    def cautions(self) -> list[str]:
        """That kernels were measured on others only, and that a chip is sold with less memory too."""
        measured_on, kernels = self.measured_elsewhere, "some kernels" if self.calibration else "kernels"
        assumed_there = f"{kernels} are assumed to be as efficient as on {measured_on}, where they were measured"
        caution = f"speed of {self.name} is less certain: {assumed_there}" if measured_on else ""
        return [text for text in (caution, self.largest) if text]

    @property
    def largest(self) -> str:
        """That a chip is sold with less memory too; "": nothing is known of it."""
        sold = self.unified and self.vendor != "NVIDIA" and self.name == self.chip
        size = ceil_div(self.memory, 2**30)
        return f"{self.name} is the largest, of {size} GB; with less memory: {self.name}-NNgb" if sold else ""

    @property
    def efficiency(self) -> Efficiency:
        """Its own calibration, or what is assumed of its generation."""
        return self.calibration or default_efficiency(self.kernels)

    def peak(self, dtype: str) -> int:
        """Dense FLOPs per second at a dtype. Errors: `InputError` where it is not known, naming those that are."""
        name = ALIASES.get(dtype.lower(), dtype.lower())
        if not self.peaks:
            mend = f"{self.name}@60TFLOPS says it" if "@" in self.name else "a .toml of your own can say it"
            raise InputError(self.name, [f"its peak is not known, and this needs it ({mend})"])
        if name not in self.peaks:
            raise InputError(self.name, [Fault("dtype of the peak", dtype, f"one of {', '.join(self.peaks)}")])
        return self.peaks[name]

    def needed(self, key: str) -> int:
        """`link`, `link_between` or `power`. Errors: `InputError` where it is not known."""
        value: int | None = getattr(self, key)
        if value is None:
            mend = {"link": "--link 32GB/s", "link_between": "--network 50GB/s"}.get(key, "a .toml of your own")
            name = key.replace("_between", " between nodes")
            raise InputError(self.name, [f"its {name} is not known, and this needs it ({mend} can say it)"])
        return value

    def placed(self, node: int | None = None, network: int | None = None, link: int | None = None) -> Accelerator:
        """The same in nodes of `node` accelerators, with `link` bytes per second one way to the others of its node and
        `network` to other nodes; None: as it is sold.

        Errors: `InputError` for a node of none or of more than it is sold in, and a link or a network of nothing.
        """
        sources = dict(self.sources)
        for key, flag, rate in (("link_between", "--network", network), ("link", "--link", link)):
            if rate is not None and rate < 1:
                raise InputError(flag, [Fault(flag, rate, "a rate above 0", "32GB/s")])
            if rate is not None:
                sources[key] = flag
        if node is not None and not 1 <= node <= 1 << 16:
            raise InputError("--node", [Fault("--node", node, "a whole number from 1 to 65,536")])
        if node and self.node and node > self.node:
            expected = f"at most {self.node}, as {self.name} is sold"
            raise InputError("--node", [Fault("--node", node, expected, "a .toml file of its own says otherwise")])
        if node:
            sources["node"] = "--node"
        node, network, link = node or self.node, network or self.link_between, link or self.link
        return replace(self, node=node, link_between=network, link=link, sources=sources)


@cache
def _memory_rule(name: str, vendor: str) -> Mapping[str, Any]:
    from txcalc.sources.presets import folder, read

    rules, _ = read(folder() / "memory.toml")
    return rules["cards"].get(name) or rules["vendors"].get(vendor, {})  # type: ignore[no-any-return]


def names() -> list[str]:
    """The names of all presets of accelerators, a user's own included, in alphabetical order."""
    return sorted(_files())


def load(name: str | Path, flag: str = "--gpu") -> Accelerator:
    """The accelerator of a preset's name, a short one (`h100`) or its driver's (`NVIDIA H100 80GB HBM3`), of a cloud
    instance (`p5.48xlarge`: nodes as those), of numbers (`16GB@500GB/s`), or of a .toml file; with its memory too
    (`rtx-4090-24gb`), of chips of unified memory with less than the most (`m4-pro-24gb`). `flag`: what errors name.

    Errors: `UnknownName` with the nearest names; `InputError` with every fault of a file.
    """
    from txcalc.sources.presets import read

    text = str(name).strip()
    if text.endswith(".toml"):
        path = Path(text)
        return parse(read(path)[0], path.stem, text)
    if (description := cards.numbers(text)) is not None:
        memory, bandwidth, flops = description
        peaks = {} if flops is None else {"bf16": flops, "fp16": flops}
        keys = ("memory.vendor", "bandwidth", *(f"peak.{dtype}" for dtype in peaks))
        return Accelerator(text, text, memory, bandwidth, peaks, None, None, dict.fromkeys(keys, "as given"))
    files = _files()
    place = cards.resolve_name(text, files)
    if place not in files and (instance := cards.find_instance(text)):
        title = f"{(card := load(instance.accelerator)).title} ({instance.name})"
        sources = {**card.sources, "node": instance.source, "link_between": instance.source}
        return replace(card, title=title, node=instance.gpus, link_between=instance.network, sources=sources)
    if place not in files:
        less = re.fullmatch(r"(.+?)[\s_-]*(\d{1,4})\s*gi?b", text, re.I)
        if less and (bare_name := cards.resolve_name(less[1], files)) in files:
            chip, sizes = load(bare_name), cast(Any, read(files[bare_name])[0]["memory"])
            return _of_size(chip, int(less[2]), next(iter(sizes.values()))["value"], text)  # first the vendor's figure
        if re.fullmatch(r"[\d.]+\s*([kmgt]|[kmgt]?i?b)?|.*\d\s*[kmgt]i?b\s*/\s*s", text, re.I):
            expected = "a name, or a size and a bandwidth with their units", "16GB@500GB/s"
            raise InputError(flag, [Fault(flag, text, *expected)])
        several = re.fullmatch(r"(?P<n>\d+)\s*(?P<of>\D.*)|(?P<one>.*\d)\s*[x×*]\s*(?P<times>\d+)", text, re.ASCII)
        if several and cards.resolve_name(accelerator_name := several["of"] or several["one"], files) in files:
            number = several["n"] or several["times"]
            raise InputError(flag, [Fault(flag, text, "a number, an x and a name", f"{number}x{accelerator_name}")])
        names = [*sorted(files), *cards.instance_names()]
        numbers = "; another is given by its memory and bandwidth: 16GB@500GB/s" if flag == "--gpu" else ""
        raise UnknownName(flag, "accelerator", text, names, "txcalc presets --hardware lists them", numbers)
    path = files[place]
    return parse(read(path)[0], path.stem, str(path))


def _files() -> dict[str, Path]:
    """Presets by name; a user's own, in `hardware/` of their folder of presets, win."""
    from txcalc.sources.presets import files_in, folder, user_folder

    user = user_folder()
    places = [folder() / "hardware", *((user / "hardware",) if user else ())]
    return {name.lower(): path for place in places for name, path in files_in(place).items()}


def parse(raw: Mapping[str, object], name: str, where: str) -> Accelerator:
    """An accelerator's description: every value a table of `value` and `source`, a key of `[sources]` or
    of what presets share (`presets/sources.toml`).

    `memory.visible` (what a process sees) goes before `memory.driver` and `memory.vendor`; sizes are texts such as
    "80GB", bandwidth and link such texts per second, peaks numbers of dense TFLOP/s, power watts. `link_between` needs
    `node`, a number of accelerators.

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
    from txcalc.hardware.reader import Reader

    return Reader(raw, where).accelerator(name)


def _of_size(chip: Accelerator, size: int, sold: str, text: str) -> Accelerator:
    """A card of the size that is sold, or a chip with `size` GiB of unified memory and all other figures of the largest
    model, although some are sold with fewer GPU cores and slower memory."""
    if sold.rstrip("iGB") == str(size):
        return chip
    if not (chip.unified and 0 < size << 30 < chip.memory):
        expected = f"{'at most ' * chip.unified}{sold} of memory, as {chip.name} is sold"
        raise InputError("--gpu", [Fault("--gpu", text, expected, "16GB@500GB/s is a card of no name")])
    name, title = f"{chip.name}-{size}gb", f"{chip.title} ({size} GB; bandwidth and peak of the largest model)"
    return replace(chip, name=name, title=title, memory=size << 30)


def describe(accelerator: Accelerator) -> dict[str, Any]:
    """An accelerator as `parse` reads it, ready to be written as TOML."""
    sources = (*accelerator.sources.values(), *_sources_of(accelerator).values())
    keys = {source: f"source-{i}" for i, source in enumerate(dict.fromkeys(sources), 1)}

    def table(key: str, value: object, among: Mapping[str, str] = accelerator.sources) -> dict[str, Any]:
        return {"value": value, "source": keys[among[key]]}

    memory_key = next(f"memory.{key}" for key in MEMORIES if f"memory.{key}" in accelerator.sources)
    tera = {dtype: Fraction(peak, 10**12) for dtype, peak in accelerator.peaks.items()}
    described: dict[str, Any] = {"title": accelerator.title}
    if accelerator.vendor:
        described["vendor"] = accelerator.vendor
    if accelerator.generation:
        described["generation"] = accelerator.generation
    if accelerator.notes:
        described["notes"] = list(accelerator.notes)
    if accelerator.unified:
        described["unified"] = True
    for key in ("bandwidth", "link", "link_between", "node", "power", "half_sums"):
        if (value := getattr(accelerator, key)) not in (None, 1 if key == "half_sums" else None):
            described[key] = table(key, f"{value}B" if key in ("bandwidth", "link", "link_between") else value)
    described["memory"] = {memory_key.removeprefix("memory."): table(memory_key, f"{accelerator.memory}B")}
    if tera:
        described["peak"] = {
            dtype: table(f"peak.{dtype}", peak.numerator if peak.denominator == 1 else float(peak))
            for dtype, peak in tera.items()
        }
    if accelerator.kernels:
        described["kernels"] = accelerator.kernels
    if calibration := accelerator.calibration:
        cited = {key.removeprefix("calibration."): keys[text] for key, text in _sources_of(accelerator).items()}
        described["calibration"] = _written(calibration, cited)
    return {**described, "sources": {key: source for source, key in keys.items()}}


def _written(efficiency: Efficiency, keys: Mapping[str, str]) -> dict[str, Any]:
    """An efficiency as `parse` reads it: the single figures, and the curves, which go before them."""
    written: dict[str, Any] = {"matmul": {}}
    for key, value in (*efficiency.figures().items(), ("spread", efficiency.spread)):
        if key.startswith("matmul.") and key not in efficiency.curves:
            continue  # another dtype's stands for it
        place, name = (written["matmul"], key[7:]) if key.startswith("matmul.") else (written, key)
        place[name] = {"value": value, "source": keys[efficiency.key_of(key)]}
    curve: dict[str, Any] = {"link": {key: _table(link, keys[f"link.{key}"]) for key, link in efficiency.links.items()}}
    engine: dict[str, Any] = {}
    for key, kernel_curve in efficiency.curves.items():
        *owner, kind, name = key.rsplit(".", 2)
        place = engine.setdefault(owner[0], {}) if owner else curve  # an engine's name may have a dot
        place.setdefault(kind, {})[name] = _table(kernel_curve, keys[key])
    return {**written, "curve": curve, **({"engine": engine} if engine else {})}


def _table(parameters: Curve | Link, source: str) -> dict[str, Any]:
    """Its parameters that are not what they are by default, with their source."""
    default = parameters._field_defaults
    return {**{key: value for key, value in parameters._asdict().items() if value != default[key]}, "source": source}


def product_dtype(accelerator: Accelerator, dtype: str) -> str:
    """The dtype whose peak is used: bf16 and fp16, which tensor cores multiply alike, stand in for each other."""
    alike = {"bf16": "fp16", "fp16": "bf16"}.get(dtype, dtype)
    return alike if dtype not in accelerator.peaks and alike in accelerator.peaks else dtype


def peak(accelerator: Accelerator, dtype: str) -> int:
    """Its peak at a dtype, or at the one that stands for it."""
    return accelerator.peak(product_dtype(accelerator, dtype))


def short_key(key: str) -> str:
    """`matmul.bf16` of `calibration.curve.matmul.bf16`."""
    for start in ("calibration.", "curve.", "engine."):
        key = key.removeprefix(start)
    return key


def _sources_of(accelerator: Accelerator) -> dict[str, str]:
    measured = accelerator.calibration.cited if accelerator.calibration else {}
    return {f"calibration.{key}": source for key, source in measured.items()}


@cache
def default_efficiency(kernels: str = "") -> Efficiency:
    """The efficiency assumed where nothing was measured, with its sources: `presets/efficiency.toml`, overridden by the
    file of a generation of kernels in `presets/efficiency/`."""
    from txcalc.hardware.reader import Reader
    from txcalc.sources.presets import folder, read

    path = folder() / ("efficiency" if kernels else "") / f"{kernels or 'efficiency'}.toml"
    return Reader(read(path)[0], str(path)).efficiency_alone(default_efficiency() if kernels else None)


def measured_kernels() -> list[str]:
    """The files of `presets/efficiency/`, by generation."""
    from txcalc.sources.presets import files_in, folder

    return sorted(files_in(folder() / "efficiency"))
