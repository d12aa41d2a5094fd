"""What `verification` measures on a device: figures with their predictions, and rates of kernels. Loads no PyTorch, so
that answers and tables have the same types."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

Number = int | float


class Figure(Struct, frozen=True, kw_only=True):
    """A measured figure with its prediction, which need not be equal.

    load        the work that was measured
    part        a kind of part, or "" for all of it
    unit        bytes, seconds, tokens, tokens/s or launches
    floor       lower bound for any implementation; None: unknown
    gap         the terms of measured minus predicted, by name
    beside      figures included in neither, by name
    planned     what `deploy` reserves for it; None: no deployment
    above       the prediction's terms above the floor, by name
    """

    quantity: str
    load: str
    part: str = ""
    unit: str
    floor: Number | None = None
    predicted: Number | None
    measured: Number
    gap: Mapping[str, Number] = field(default_factory=dict)
    beside: Mapping[str, Number] = field(default_factory=dict)
    planned: Number | None = None
    above: Mapping[str, Number] = field(default_factory=dict)


class Rate(Struct, frozen=True):
    """The measured rate of a kernel: FLOPs or bytes per second; attention's backward has 2.5 times forward's FLOPs."""

    kind: str
    dtype: str
    size: str
    rate: float


class StepCheck(Struct, frozen=True):
    """Seconds of a step of the reference model: predicted before and after calibration, and measured."""

    load: str
    before: float
    after: float
    measured: float
