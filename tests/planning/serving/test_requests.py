"""Requests: what they leave open, what they cannot be, files of lengths and times."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from txcalc import hardware, load
from txcalc.errors import InputError
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.serving.points import request
from txcalc.planning.serving.simulation import Server, simulate
from txcalc.planning.serving.traffic import Arrival, Lengths, Requests, arrivals, lengths

CARD = hardware.load("h100-sxm")


def written(read: Callable[[str], Any], *lines: str) -> Any:
    """What is read of a file of such lines."""
    with NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines))
        file.flush()
        return read(file.name)


def test_what_a_request_leaves_open() -> None:
    """Half of the context, none of it shared or cached; a rate of so many gaps in the time between the first and the
    last arrival."""
    default = request(101)
    assert default.traffic is not None
    assert (default.prompt, default.answer, default.traffic.prefix, default.cached(16)) == (51, 50, 0, 0)
    assert request(101, times=(0.0, 1.0, 4.0)).rate == 2 / 4
    assert request(101, times=(0.0, 1.0, 4.0), rate=3.0).rate == 3.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": Lengths(0, 5)}, "prompt is 0, expected a whole number from 1 to the context of 100"),
        ({"prompt": Lengths(1, 500)}, "prompt is 500, expected a whole number from 1 to the context of 100"),
        ({"answer": 2.5}, "answer is 2.5, expected a whole number from 1"),
        ({"prompt": 90, "answer": 20}, "answer is 20, expected at most 10, what a prompt of 90 leaves"),
        ({"prompt": 90, "answer": 20}, "(--context 110)"),
        ({"draft_tokens": 2}, "--acceptance 70%"),
        ({"acceptance": 0.5}, "needs a draft"),
        ({"prompt": 5, "prefix": 6}, "shared prefix is 6, expected at most the 5 tokens"),
    ],
)
def test_a_request_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        request(100, **options)
    assert message in str(error.value)


def test_lines_of_a_file_are_counted_from_one() -> None:
    """A length of 1 may be, none of 0; a time may be that of the line before, and none is below 0."""

    def read(path: str) -> Lengths:
        return lengths(f"@{path}", "--prompt")

    assert written(read, "1", "", "5") == Lengths(1, 5, (1, 5))
    with pytest.raises(InputError, match="above 0 in every line"):
        written(read, "0", "5")
    with pytest.raises(InputError, match="line 3"):
        written(read, "1", "", "x")
    assert written(arrivals, "1", "", "3", "3") == [0, 2, 2]
    for lines in (("1", "", "x"), ("1", "2", "1.5"), ("1", "2", "-1")):
        with pytest.raises(InputError, match="line 3"):
            written(arrivals, *lines)


def test_an_encoder_s_prompt_is_in_no_prefix_cache() -> None:
    half_cached = request(512, 400, Fraction(1, 2))
    for name, cached in (("t5-small", 0), ("llama-3.2-1b", 192)):
        model = load(name)
        assert half_cached.on(LayoutTime(model, Sharding(model), Layout(), CARD, engine(model)), 512) == (400, cached)


def test_a_file_of_lengths_is_read_to_16_mib(tmp_path: Path) -> None:
    with (tmp_path / "zeros").open("wb") as file:
        file.truncate(2**24 + 1)
    with pytest.raises(InputError, match="larger than 16,777,216 bytes"):
        lengths(f"@{tmp_path / 'zeros'}", "--prompt")


def test_a_request_takes_what_is_cached_for_it_too() -> None:
    job = Arrival(0.0, 5, 3, 4)
    server = Server(lambda n: 0.01, 1e-3, 0.0, 1000, 8, 12, 1)
    assert len(simulate(server, iter([job]), None).done) == 1
    with pytest.raises(InputError, match="tokens of a request is 12, expected at most the 11"):
        simulate(server._replace(pages=11), iter([job]), None)


def test_a_prompt_is_at_least_one_token_longer_than_its_prefix() -> None:
    """Of 5 tokens 4 are the prefix's, which are nobody's own; of 20 half are cached, 2 of which are it."""
    for prompt, prefix, new, cached in ((5, 10, 1, 0), (20, 2, 10, 8), (20, 19, 1, 0)):
        (job,) = Requests(Lengths(prompt, prompt), Lengths(3, 3), cached=0.5, prefix=prefix).jobs(1, 0)
        assert (job.prompt, job.cached) == (new, cached)
