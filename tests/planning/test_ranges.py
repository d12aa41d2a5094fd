"""Numbers that are asked for: the last that may be, and those next to them that may not."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from tiny import TINY

from txcalc import load
from txcalc.errors import InputError
from txcalc.model import MAX_TOKENS
from txcalc.planning.fitting import checked_context
from txcalc.planning.formats.quantised import from_config
from txcalc.planning.scaling import ScalingQuestion
from txcalc.planning.serving.deployment import MOST_GPUS, MOST_SEQUENCES, check
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.points import request
from txcalc.planning.serving.speed import check_budget
from txcalc.planning.serving.traffic import arrivals, lengths
from txcalc.planning.shapes import DesignFamily
from txcalc.planning.training.answer import Terms
from txcalc.planning.training.recipe import LONGEST, MOST, Recipe

SMALL = load("D=256 L=1 h=4 F=256 V=50")


def packed(strategy: str, group: int | None) -> Any:
    """A quantiser's config with groups of so many."""
    weights = {"num_bits": 4, "type": "int", "strategy": strategy, "group_size": group}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return from_config(SMALL, {"quant_method": "compressed-tensors", "config_groups": groups})


def came(number: int) -> list[float]:
    """So many requests, of a file, half a second apart."""
    with NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(str(i / 2) for i in range(number)))
        file.flush()
        return arrivals(file.name)


def served(**options: Any) -> Any:
    return request(1000, 100, answer=10, **options)


def quark(group: object) -> Any:
    weight = {"dtype": "int4", "group_size": group}
    return from_config(SMALL, {"quant_method": "quark", "global_quant_config": {"weight": weight}})


# Of each number that is asked for: what takes it, the last ones that may be, and those next to them that may not.
ENDS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "pue": (lambda n: Terms(1, pue=n).checked(), (1, 1.01, 9.9, 10), (0.99, 10.1)),
    "grid": (lambda n: Terms(1, grid=n).checked(), (0, 0.5, 10_000), (-0.5, 10_000.5)),
    "run's price": (lambda n: Terms(n).checked(), (0.5, 1e15 - 1), (0, -1, 1e15)),
    "deadline": (lambda n: Terms(1, deadline=n).checked(), (0.5, 1e15 - 1), (0, 1e15)),
    "budget": (lambda n: Terms(1, budget=n).checked(), (0.5, 1e15 - 1), (0, 1e15)),
    "price": (lambda n: check_budget(price=n), (0.5, 1e9 - 0.5), (0, 1e9)),
    "ttft": (lambda n: check_budget(ttft=n), (0.5, 1e9 - 0.5), (0, 1e9)),
    "tpot": (lambda n: check_budget(tpot=n), (0.5, 1e9 - 0.5), (0, 1e9)),
    "vocab": (lambda n: DesignFamily(vocab=n).checked(), (1, 10**9), (0, 10**9 + 1)),
    "gqa": (lambda n: DesignFamily(gqa=n, d_head=8).checked(), (1, 1024), (0, 1025)),
    "d_head": (lambda n: DesignFamily(d_head=n).checked(), (1, 4096), (0, 4097)),
    "ratio": (lambda n: DesignFamily(ratio=n).checked(), (Fraction(1, 2), 64), (0, Fraction(129, 2))),
    "rate": (lambda n: served(rate=n), (0.5, 1e9 - 0.5), (0, 1e9)),
    "burstiness": (lambda n: served(burstiness=n), (0.01, 1000), (0.009, 1000.5)),
    "hits": (lambda n: served(hits=n), (0, 0.5, 1), (-0.1, 1.1)),
    "acceptance": (lambda n: served(acceptance=n, draft_tokens=1), (0, 0.5, 1), (-0.1, 1.1)),
    "draft tokens": (lambda n: served(acceptance=1, draft_tokens=n), (1, 64), (0, 65, True)),
    "prompt": (lambda n: request(1000, n), (1, 1000), (0, 1001)),
    "answer": (lambda n: request(1000, answer=n), (1, 1000), (0, 1001)),
    "context": (lambda n: check(n, 1, None, {}), (1, MAX_TOKENS), (0, MAX_TOKENS + 1, 1.5)),
    "concurrency": (lambda n: check(1, n, None, {}), (1, MOST_SEQUENCES), (0, MOST_SEQUENCES + 1)),
    "gpus": (lambda n: check(1, 1, n, {}), (None, 1, MOST_GPUS), (0, MOST_GPUS + 1)),
    "compute": (lambda n: ScalingQuestion(compute=n).checked(), (6000, 1e30), (5999, 0)),
    "compute of a size": (lambda n: ScalingQuestion(params=2000, compute=n).checked(), (12_000,), (11_999,)),
    "length of a prompt": (lambda n: lengths(f"{n}..5", "--prompt"), (1, 5), (0, 6)),
    "held": (lambda n: check(1, 1, None, {"tp": n}), (1, MOST_GPUS), (0, MOST_GPUS + 1)),
    "block": (lambda n: engine(SMALL, block=n), (1, 1 << 16), (0, (1 << 16) + 1)),
    "chunk": (lambda n: engine(SMALL, chunk=n), (1, MAX_TOKENS), (0, MAX_TOKENS + 1)),
    "poll": (lambda n: engine(SMALL, interval=n), (1, 1000), (0, 1001)),
    "gather": (lambda n: engine(SMALL, interval=n, gathers=True), (1, 1000), (0, 1001)),
    "prefix": (lambda n: engine(SMALL, prefix=n), (0, 1, MAX_TOKENS), (-1, MAX_TOKENS + 1)),
    "adapters": (lambda n: engine(SMALL, adapters=(n, 8)), (1, 100), (-1,)),
    "group of compressed-tensors": (lambda n: packed("group", n), (1, 32), (0, -1)),
    "no group of compressed-tensors": (lambda n: packed("channel", n), (None, 0, -1), (1,)),
    "times": (lambda n: came(n), (2, 3), (0, 1)),
    "context that fits": (checked_context, (1, MAX_TOKENS), (0, MAX_TOKENS + 1)),
    "micro-batch": (lambda n: Recipe(micro_batch=n).check(), (1, MOST), (0, MOST + 1, True)),
    "accumulation": (lambda n: Recipe(accumulation=n).check(), (1, MOST), (0, MOST + 1)),
    "length": (lambda n: Recipe(tokens=n).check(), (1, LONGEST), (0, LONGEST + 1)),
    "every": (lambda n: Recipe(recompute=f"every:{n}").check(), (1, MOST), (0, MOST + 1)),
    "tile": (lambda n: from_config(SMALL, {"quant_method": "fp8", "weight_block_size": [n, 128]}), (1, 128), (0, -1)),
    "bits of MLX": (lambda n: from_config(SMALL, {"bits": n, "group_size": 64}), (2, 3, 4, 5, 6, 8), (1, 7)),
    "group of Quark's": (lambda n: quark(n), (1, 32), (0, -1)),
    "rows of distances": (
        lambda n: load(TINY["deberta"]).set({"positions.rows": n, "positions.clipped": False}), (2, 12), (0, 13, 14)
    ),
    "rows of clipped distances": (lambda n: load(TINY["deberta"]).set({"positions.rows": n}), (12,), (10, 14)),
    "rows, a distance of one": (
        lambda n: load(TINY["deberta"]).set({"positions.rows": n, "positions.distance": n // 2}), (2, 4, 40), (3, 5)
    ),
}  # fmt: skip


@pytest.mark.drawn(quick=1000)
@pytest.mark.parametrize("name", ENDS)
def test_the_last_numbers_that_may_be(name: str) -> None:
    validate, last, beyond = ENDS[name]
    for value in last:
        validate(value)
    for value in beyond:
        with pytest.raises(InputError):
            validate(value)
