"""Sizes as people write and read them: what is accepted, what is refused, and that nothing is rounded on the way in."""

from __future__ import annotations

import re
from typing import Any

import pytest
from paths import stored_rows

from txcalc import InputError, UnknownName
from txcalc.units import DTYPE_BITS, bits_of, parse_bytes, parse_count, parse_seconds, parse_tokens, short


@pytest.mark.parametrize(("unit", "text", "number"), stored_rows("units.json", "accepted"))
def test_accepted(unit: str, text: str, number: int) -> None:
    parse = {"tokens": parse_tokens, "count": parse_count, "bytes": parse_bytes}[unit]
    assert parse(text) == number


WRONG = "32q -1 +1 1e3 0x10 1. .5 1.5 0.3k nan inf 1,2 1234,567 1__0 ٣ ² 1k1 1.0000000000001 None 8B k"


@pytest.mark.parametrize(
    "text", [*WRONG.split(), "", "1 2", "1 000", "\0", "9" * 41, "9" * 5000], ids=lambda text: ascii(text)[:20]
)
def test_refused_as_tokens(text: str) -> None:
    with pytest.raises(InputError, match="expected a positive whole number such as 2048, 32k or 1M"):
        parse_tokens(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("16Gb", "memory is '16Gb', expected a size in bytes: Gb may mean bits (16GB, or 2GB if it does)"),
        (
            "1,500.5Mb",
            "memory is '1,500.5Mb', expected a size in bytes: Mb may mean bits (1,500.5MB, or 187.5625MB if it does)",
        ),
        ("80 gib", "memory is '80 gib', expected a size in bytes: gib may mean bits (80GiB, or 10GiB if it does)"),
        ("16XB", "memory is '16XB', expected a size in bytes such as 16GB or 80GiB"),
        ("16", "memory is '16', expected a size with its unit (16GB)"),
        ("24.0", "memory is '24.0', expected a size with its unit (24.0GB)"),
    ],
)
def test_refused_as_memory(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_bytes(text)
    assert str(error.value) == message


@pytest.mark.parametrize(("number", "words"), stored_rows("units.json", "short"))
def test_short(number: Any, words: str) -> None:
    assert short(number) == words


def test_an_unknown_dtype_names_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=re.escape("no dtype named 'bf61' (did you mean bf16")):
        bits_of("bf61")
    with pytest.raises(UnknownName, match="one of fp64, fp32"):
        bits_of("q")


@pytest.mark.parametrize("text", ["", "3", "0ms", "-1s", "1e3s", "nan s", "1h", "1.s", "9" * 20 + "s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--ttft is .*, expected a time above 0 with its unit"):
        parse_seconds(text, "--ttft")


def test_a_dtype_is_named_by_its_bits() -> None:
    assert {name: 32 if name == "tf32" else int(name.strip("bfpint")) for name in DTYPE_BITS} == DTYPE_BITS
