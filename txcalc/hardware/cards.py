"""Accelerators by the names that people use, by numbers, and by cloud instances: `h100`, `4090`, `16GB@500GB/s`,
`p5.48xlarge` (`presets/instances.toml`)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import NamedTuple

from txcalc.errors import Fault, InputError
from txcalc.units import parse_bytes, parse_rate

# What a short name means (the form that most people rent or hold), and the names that drivers print.
SHORT: dict[str, str] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
# Words that a preset's name leaves out: of drivers ("NVIDIA RTX 6000 Ada Generation"), of machines ("Mac mini M4").
WITHOUT = re.compile(
    r"\b(nvidia|amd|apple|google|intel|geforce|radeon|instinct|tesla|generation|graphics|oam|"
    r"(server|workstation) edition|imac|mac[ -]?(mini|studio|book[ -](air|pro)))\b"
)
_NUMBERS = r"\s*([\d.]+)\s*([a-z]*)\s*@\s*([\d.]+)\s*([a-z]*)(?:/s)?\s*(?:@\s*([\d.]+)\s*([a-z/]*)\s*)?"


def resolve_name(text: str, known: Collection[str]) -> str:
    """The preset's name that a short or differently spelt one means; the text itself where it means none."""
    if text in known:
        return text
    if SHORT.get(text) in known:
        return SHORT[text]
    short = strip_separators(WITHOUT.sub("", text.lower()))
    aliases = {**SHORT, **{name: name for name in known}}
    aliases = {re.sub(r"^rt?x-", "", name): full for name, full in aliases.items()} | aliases
    spelt = {strip_separators(name): full for name, full in aliases.items() if full in known}
    return spelt.get(short, text.strip())


def strip_separators(name: str) -> str:
    """A name without its hyphens, spaces and underscores."""
    return re.sub(r"[\s_-]+", "", name.lower())


def numbers(text: str, flag: str = "--gpu") -> tuple[int, int, int | None] | None:
    """Bytes, bytes per second and FLOP/s of `16GB@500GB/s` or `16GB@500GB/s@60TFLOPS`; None: it is a name.

    Errors: `InputError` where a unit is missing, for 16 may be GB or GiB, and @60 a price.
    """
    match = re.fullmatch(_NUMBERS, text, re.I) if "@" in text else None
    expected = "a size and a bandwidth with their units", "16GB@500GB/s"
    if not match:
        if re.match(r"\s*[\d.]+\s*[kmgt]i?b\s*@", text, re.I):
            raise InputError(flag, [Fault(flag, text, *expected)])
        return None
    size, unit, rate, per, tera, peak_unit = match.groups()
    is_peak = re.fullmatch(r"tflops?(/s)?", peak_unit or "", re.I)
    if tera and not is_peak:  # or a price
        expected = "its arithmetic with a unit", "16GB@500GB/s@60TFLOPS"
    if not unit or not per or (tera and not is_peak):
        raise InputError(flag, [Fault(flag, text, *expected)])
    memory, bandwidth = parse_bytes(size + unit, flag), parse_rate(f"{rate}{per}/s", flag)
    if not memory or not bandwidth:
        raise InputError(flag, [Fault(flag, text, *expected)])
    return memory, bandwidth, round(float(tera) * 10**12) if tera else None


def split_count(text: str) -> tuple[int | None, str]:
    """`8xh100` as how many and of what; None: not said, as in `7900xtx`."""
    name_start = r"(?!tx?\s*(?:$|[:@]))"
    match = re.fullmatch(rf"\s*(\d{{1,6}})\s*[x×*]{name_start}\s*(\S.*?)\s*", text, re.ASCII | re.I) or re.fullmatch(
        r"\s*(\d{1,6})\s*×\s*(\S.*?)\s*", text
    )
    return (int(match[1]), match[2]) if match else (None, text)


class Instance(NamedTuple):
    """`gpus` accelerators of a preset's name, with `network` bytes per second one way each to other instances; None: a
    single one, or not known."""

    name: str
    gpus: int
    accelerator: str
    network: int | None
    source: str


def find_instance(name: str) -> Instance | None:
    """The instance of this name, in any case, with or without Azure's `Standard_`; None where there is none."""
    return _instances().get(strip_separators(name).removeprefix("standard"))


def instance_names() -> list[str]:
    """The names of all instances, as their clouds write them."""
    return [instance.name for instance in _instances().values()]


@cache
def _instances() -> dict[str, Instance]:
    from txcalc.sources.presets import folder, read

    clouds, _ = read(folder() / "instances.toml")
    return {
        strip_separators(name): Instance(
            name, row["gpus"], row["of"], row.get("network", 0) * 10**9 // 8 // row["gpus"] or None, source
        )
        for cloud, source in clouds["sources"].items()
        for name, row in clouds[cloud].items()
    }
