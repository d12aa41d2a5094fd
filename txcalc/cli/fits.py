"""`fit`."""

from __future__ import annotations

from typing import Annotated, Any

import txcalc
from txcalc.cli import options as o
from txcalc.cli.command import command


@command(
    gpu=Annotated[list[str], o.option("--gpu", "Also 8xh100. Repeatable.")],
    weights=o.option("--weights", "Default: the first of native, Q8_0, Q4_K_M that fits.", several=True),
    context=o.length("--context", "Of one sequence."),
    chunk=o.length("--chunk"),
    every=o.option("--all", "Also list what does not fit, and by how much."),
)
def fit(sources: o.MaybeSources = None, **asked: Any) -> Any:
    """Which models fit on accelerators, in which format, with how much room and how fast. Without sources: the presets.

    Exit code 1: none fits.

    Example: txcalc fit qwen3-32b gpt-oss-20b --gpu 4090 --gpu 4090:2 --gpu m4-pro
    """
    return txcalc.fit(*(sources or ()), **asked)
