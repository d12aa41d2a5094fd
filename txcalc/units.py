"""Units: bits of a dtype, sizes as people write them, numbers as people read them.

GiB (2^30) for memory, GB (10^9) only for vendors' capacities; K, M, B, T are 10^3 … 10^12 for counts, and `32k` tokens
are 32 × 1,024 because contexts are powers of two.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

from txcalc.errors import Fault, InputError, UnknownName

# Bits of an element, as stored. Formats of weights that have scales are in `planning.formats`.
DTYPE_BITS = {"fp64": 64, "fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp4": 4, "int4": 4}
ALIASES = {
    "float64": "fp64", "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
    "f16": "fp16", "f32": "fp32", "float8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
}  # fmt: skip


class CacheFormat(NamedTuple):
    """A format of keys and values, in blocks of a head's elements that share scales."""

    bits: int  # of an element
    scale_bits: int  # of a block's scales and biases together
    block: int  # elements


CACHE_FORMATS = {
    "q8_0": CacheFormat(8, 16, 32),  # these of llama.cpp (ggml-common.h)
    "q5_1": CacheFormat(5, 32, 32),
    "q5_0": CacheFormat(5, 16, 32),
    "q4_1": CacheFormat(4, 32, 32),
    "q4_0": CacheFormat(4, 16, 32),
    "iq4_nl": CacheFormat(4, 16, 32),
    "int6": CacheFormat(6, 32, 64),  # MLX: a scale and a bias of 16 bits each
}


@cache
def bits_of(dtype: str, where: str = "dtype") -> int:
    """Bits of one element of a dtype. `where` it was said. Errors: `UnknownName`."""
    name = _plain(dtype)
    if name not in DTYPE_BITS:
        raise UnknownName(where, "dtype", str(dtype), [*DTYPE_BITS, *ALIASES], f"one of {', '.join(DTYPE_BITS)}")
    return DTYPE_BITS[name]


@cache
def cache_bits_of(dtype: str) -> int:
    """Bits of a cached element in a dtype or a format of caches: a fraction where elements share scales. Errors:
    `UnknownName`."""
    name = _plain(dtype)
    if form := CACHE_FORMATS.get(name):
        return form.bits + Fraction(form.scale_bits, form.block)  # type: ignore[return-value]  # adds up as an int does
    if name not in DTYPE_BITS:
        formats = [*DTYPE_BITS, *CACHE_FORMATS]
        raise UnknownName("--kv", "dtype", str(dtype), [*formats, *ALIASES], f"one of {', '.join(formats)}")
    return DTYPE_BITS[name]


def cache_block(dtype: str) -> int:
    """Elements of a head that share scales in a format of caches; 1: none do."""
    form = CACHE_FORMATS.get(_plain(dtype))
    return form.block if form else 1


def _plain(dtype: str) -> str:
    """A dtype's own name."""
    text = str(dtype).lower()
    return ALIASES.get(text, text)


MONTH_HOURS = 730
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30}
DECIMAL = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_BYTES = {
    "b": 1,
    **{f"{p}b": 1000**i for i, p in enumerate("kmgtpe", 1)},
    **{f"{p}ib": 1024**i for i, p in enumerate("kmgtpe", 1)},
}
_DIGITS = r"\d{1,3}(?:[_,]\d{3}){1,12}|\d{1,40}"
_NUMBER = re.compile(rf"\s*({_DIGITS})(?:\.(\d{{1,12}}))?\s*([A-Za-z]*)\s*\Z", re.ASCII)


def _parse_scaled(text: str, what: str, units: dict[str, int], expected: str) -> int:
    match = _NUMBER.match(text)
    unit = match[3].lower() if match else ""
    if not match or (unit and unit not in units):
        raise InputError(what, [Fault(what, text, expected)])
    number = Fraction(re.sub(r"[_,]", "", match[1]) + (f".{match[2]}" if match[2] else "")) * units.get(unit, 1)
    if number.denominator != 1:
        raise InputError(what, [Fault(what, text, expected)])
    return number.numerator


def parse_tokens(text: str, what: str = "tokens") -> int:
    """A length: `2048`, `32k` (32 × 1,024), `1M` (1,048,576)."""
    return _parse_scaled(text, what, _BINARY, "a positive whole number such as 2048, 32k or 1M")


def parse_count(text: str, what: str = "count") -> int:
    """A count: `8B`, `15T`, `124_439_808`, `3.8e25`; decimal."""
    if re.fullmatch(r"\s*\d{1,40}(\.\d{1,40})?[eE]\+?\d{1,2}\s*", text, re.ASCII):
        number = Fraction(text.strip())
        if number.denominator == 1:
            return number.numerator
    return _parse_scaled(text, what, DECIMAL, "a positive whole number such as 124439808, 8B, 15T or 3.8e25")


def parse_bytes(text: str, what: str = "memory") -> int:
    """A size in bytes: `80GB` (10^9) or `80GiB` (2^30). `16Gb` may mean bits: it is refused with both readings, as is
    16 without a unit."""
    return _bytes(text, what, "a size", "a size in bytes", "16GB or 80GiB")


def parse_rate(text: str, what: str) -> int:
    """Bytes per second: `25GB/s`, or without the second. Errors: as of a size."""
    return _bytes(text, what, "a rate", "bytes per second", "25GB/s", "/s")


def _bytes(text: str, what: str, kind: str, meant: str, such: str, per: str = "") -> int:
    size = text.strip().removesuffix(per) if per else text
    match = _NUMBER.match(size)
    number = match[1] + (f".{match[2]}" if match[2] else "") if match else ""
    if match and not match[3] and 0 < Fraction(re.sub("[_,]", "", number)) < 2**20:
        raise InputError(what, [Fault(what, text, f"{kind} with its unit", f"{number}GB{per}")])
    if match and re.fullmatch(r"[kmgtpe]i?b", match[3], re.I) and match[3].endswith("b"):
        wide = match[3][:-1].upper().replace("I", "i") + f"B{per}"
        readings = f"{number}{wide}, or {float(Fraction(re.sub('[_,]', '', number)) / 8):.12g}{wide} if it does"
        raise InputError(what, [Fault(what, text, f"{meant}: {match[3]} may mean bits", readings)])
    return _parse_scaled(size, what, _BYTES, f"{meant} such as {such}")


_SECONDS = {"us": Fraction(1, 10**6), "µs": Fraction(1, 10**6), "ms": Fraction(1, 1000), "s": Fraction(1)}


def parse_seconds(text: str, what: str = "time") -> float:
    """A time in seconds: `200ms`, `0.5s`; a unit is needed, for tools differ in what they mean without one."""
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*(us|µs|ms|s)\s*", text, re.ASCII)
    if not match or not Fraction(match[1]):
        bare = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*", text, re.ASCII)
        mend = f"{text.strip()}{'ms' if Fraction(bare[1]) >= 10 else 's'}?" if bare and Fraction(bare[1]) else ""
        raise InputError(what, [Fault(what, text, "a time above 0 with its unit, such as 200ms or 0.5s", mend)])
    return float(Fraction(match[1]) * _SECONDS[match[2]])


def seconds(number: float) -> str:
    """A time to three significant digits, in ns, µs, ms or s: 45.2 ms; from a thousand seconds on in min, h or days."""
    for length, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if number >= max(1000, 2 * length):
            count = float(number / length)
            return f"{count:,.0f} {unit}" if count >= 999.5 else f"{count:.3g} {unit}"
    return _round_with_prefix(Fraction(number) * 10**9, 1000, ("ns", "µs", "ms", "s"))


def short(number: object, digits: int = 3) -> str:
    """Significant digits with K, M, B, T (10^3 … 10^12), P, E…: 8.03 B, 32.9 T."""
    return _round_with_prefix(number, 1000, ("", "K", "M", "B", "T", "P", "E", "Z", "Y"), digits)


def three(number: float) -> str:
    """Three significant digits, or all of a large number's whole ones: 9.20, 45.6, 1,234."""
    return f"{number:,.0f}" if number >= 100 else f"{number:#.3g}".rstrip(".")


def iec(number: object, digits: int = 4) -> str:
    """Bytes in KiB, MiB, GiB…: 14.96 GiB."""
    return _round_with_prefix(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB"), digits)


def si_bytes(number: object) -> str:
    """Bytes in kB, MB, GB (10^9): 16.06 GB."""
    return _round_with_prefix(number, 1000, ("B", "kB", "MB", "GB", "TB", "PB", "EB", "ZB"), digits=4)


def _round_with_prefix(number: Any, base: int, names: tuple[str, ...], digits: int = 3) -> str:
    """Rounded first, then given its prefix, so that 999,999 is 1 M and never 1000 K."""
    value = number if type(number) is int else Fraction(number)
    if value < 0:
        return "−" + _round_with_prefix(-value, base, names, digits)
    power = 0
    while power + 1 < len(names) and (
        value >= base ** (power + 1) or float(f"{float(value / base**power):.{digits}g}") >= base
    ):
        power += 1
    whole, remainder = divmod(value, base**power)
    text = f"{float(value / base**power):.{max(0, digits - len(str(whole)))}f}" if remainder else str(whole)
    if "." in text and power == 0:
        text = text.rstrip("0").rstrip(".")
    return f"{text} {names[power]}".rstrip()


def number_of(noun: str, number: int) -> str:
    """`1 user`, `2,000 users`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
