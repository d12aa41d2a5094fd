"""The context in which a part of a layer is built, and the base class of every mechanism's options."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import ClassVar, NamedTuple

from txcalc.num import Num
from txcalc.parts.mechanisms import options, section_of
from txcalc.parts.norm import Norm, NormOptions
from txcalc.parts.options import Options
from txcalc.parts.part import Composite
from txcalc.parts.positions import PositionsOptions


class Place(NamedTuple):
    """The context of a part in its layer, which its own options do not know.

    d_model       width of the residual stream
    norm          norm options of the layer; `pre` is the norm before the part, if any
    positions     position options of the layer
    role          of the stack: "decoder", "encoder", "cross-decoder", "vision"
    keeps_input   False where an earlier part saves the input that both read
    """

    d_model: Num
    norm: NormOptions
    positions: PositionsOptions
    role: str
    keeps_input: bool = True
    pre: Norm | None = None


class Mechanism(Options):
    """The options of one part of a layer; its name in paths is that of its table.

    kind      what its leaves count as (`ledger.KINDS`)
    stands    "decoder": causal, in decoders only; "encoder": bidirectional, in encoders only; "": in both
    ordered   whether `[positions]` applies: rotary queries and keys, or biased scores
    sums      residual additions of its branch: 0 where its own leaves add to the stream
    """

    kind: ClassVar[str] = "recurrent"
    stands: ClassVar[str] = "decoder"
    ordered: ClassVar[bool] = False
    sums: ClassVar[int] = 1

    @property
    def takes_norm(self) -> bool:
        """Whether it contains the norm before it, because only part of it reads the normed input."""
        return False

    @abstractmethod
    def build(self, place: Place) -> Composite:
        """The part."""


def mechanism(part: str, tables: Collection[str] = ()) -> type[Mechanism]:
    """The options class of a part of a layer, by its name and the tables that the layer has."""
    cls = options(section_of(part, tables))
    assert issubclass(cls, Mechanism), part
    return cls
