"""Requests: lengths of prompts and answers, and arrival times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from txcalc.errors import Fault, InputError
from txcalc.sources import files
from txcalc.units import parse_tokens

if TYPE_CHECKING:
    from random import Random


# Tokens by which simulated answers of one length differ, either way, so that they do not end together. It is a number
# of steps, not a share: TTFT of Qwen3-32B on vLLM 0.12 (75 servers in `tests/data/serving`) is the same for answers of
# 128, 512 or 1,024 tokens. 8 was fitted to these servers: TTFT is 1.01 of the measured one, 0.98 to 1.04 for each
# length; with 4 and with 16, 1.17 and 0.87.
ALIKE = 8
MAX_BYTES = 1 << 24  # of a file: about two million lengths or times


class Arrival(NamedTuple):
    """A request: arrival time, prompt tokens to compute, answer tokens, and prompt tokens in its own prefix cache."""

    at: float
    prompt: int
    answer: int
    cached: int = 0


class Lengths(NamedTuple):
    """Tokens of prompts or answers: uniform between two numbers, or drawn from a list."""

    low: int
    high: int
    values: tuple[int, ...] = ()

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values) if self.values else (self.low + self.high) / 2

    @property
    def spread(self) -> float:
        """Variance over the mean squared."""
        if self.values:
            mean = self.mean
            return sum((value - mean) ** 2 for value in self.values) / len(self.values) / mean**2
        return ((self.high - self.low + 1) ** 2 - 1) / 12 / self.mean**2

    @property
    def varied(self) -> Lengths:
        """Uniform within `ALIKE` tokens of a single length."""
        by = min(ALIKE, self.low - 1)
        return Lengths(self.low - by, self.high + by)

    def draw(self, random: Random) -> int:
        return random.choice(self.values) if self.values else random.randint(self.low, self.high)


def lengths(text: str, what: str) -> Lengths:
    """`4k`, `4k±1k` (or `4k+-1k`), `3k..5k`: evenly between two numbers; `@FILE`: one of a file's lines, at random.

    Errors: `InputError` for an unreadable text, a length below 1, or a file without a length.
    """
    if text.startswith("@"):
        values = tuple(parse_tokens(line, f"{text[1:]}, line {i}") for i, line in _lines(text[1:], what))
        if not values or min(values) < 1:
            raise InputError(what, [Fault(what, text, "a file with a length above 0 in every line")])
        return Lengths(min(values), max(values), values)
    written = text.replace("+-", "±")
    parts = re.split(r"±|\.\.", written)
    if "" in parts or len(parts) > 2 or (parts[1:] and not all(part.strip()[:1].isdigit() for part in parts)):
        raise InputError(what, [Fault(what, text, "a length or two", "4k, 4k±1k or 3k..5k")])
    first, last = parse_tokens(parts[0], what), parse_tokens(parts[-1], what)
    bounds = Lengths(first - last, first + last) if "±" in written else Lengths(first, last)
    if not 1 <= bounds.low <= bounds.high:
        raise InputError(what, [Fault(what, text, "lengths above 0, the lower one first", "4k±1k or 3k..5k")])
    return bounds


def arrivals(path: str) -> list[float]:
    """Arrival times in seconds, one per line, ascending, relative to the first.

    Errors: `InputError` for an unreadable file, and a line with an earlier time.
    """
    times: list[float] = []
    for i, line in _lines(path, "--arrivals"):
        try:
            time = float(line)
        except ValueError:
            time = -1.0
        if not 0 <= time < 1e12 or (times and time < times[-1]):
            raise InputError(f"{path}, line {i}", [Fault("arrival", line, "seconds, none before the line above")])
        times.append(time)
    if len(times) < 2 or times[-1] == times[0]:
        raise InputError(path, ["has fewer than two times that differ"])
    return [time - times[0] for time in times]


def _lines(path: str, what: str) -> Iterator[tuple[int, str]]:
    """Line number → line of a file, without blank lines."""
    data = files.read(Path(path), MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise InputError(what, [f"{path} is larger than {MAX_BYTES:,} bytes"])
    try:
        text = StringIO(data.decode())
    except UnicodeDecodeError:
        raise InputError(what, [f"{path} cannot be read: it is not text"]) from None
    return ((i, line.strip()) for i, line in enumerate(text, 1) if line.strip())


class Requests(NamedTuple):
    """The distributions of requests.

    prompts, answers   their lengths
    cached             share of a prompt's tokens in the prefix cache
    rate               per second; None: a closed loop
    burstiness         1: at random (Poisson); below: in bursts; above: more even (shape of a gamma distribution)
    times              arrival times in seconds, instead of a rate
    prefix             tokens of a prefix common to all prompts, computed and cached once
    """

    prompts: Lengths
    answers: Lengths
    cached: float = 0.0
    rate: float | None = None
    burstiness: float = 1.0
    times: Sequence[float] = ()
    prefix: int = 0

    @property
    def bursts(self) -> float:
        """Variance of the time between two requests over its mean squared."""
        if not self.times:
            return 1 / self.burstiness
        gaps = [b - a for a, b in pairwise(self.times)]
        mean = self.times[-1] / len(gaps)
        return sum((gap - mean) ** 2 for gap in gaps) / len(gaps) / mean**2

    def jobs(self, number: int, seed: int) -> Iterator[Arrival]:
        """`number` requests, determined by the seed."""
        from random import Random

        random, now = Random(seed), 0.0
        for i in range(number):
            if self.times:
                now = self.times[i]
            elif self.rate is not None:
                now += random.gammavariate(self.burstiness, 1 / self.rate / self.burstiness)
            prompt = self.prompts.draw(random)
            cached = min(max(int(prompt * self.cached), self.prefix), prompt - 1)
            yield Arrival(now, prompt - cached, self.answers.draw(random), max(0, cached - self.prefix))
