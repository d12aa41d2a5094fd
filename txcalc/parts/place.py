"""Where a part of a layer stands, and what the options of every part of a layer say of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar, NamedTuple

from txcalc.parts.mechanisms import options, section_of
from txcalc.parts.norm import Norm, NormOptions
from txcalc.parts.options import Options
from txcalc.parts.part import Composite
from txcalc.parts.positions import PositionsOptions


class Place(NamedTuple):
    """Where a part of a layer stands, which its own options do not know.

    d_model       width of the stream
    norm          how the layer norms, and `pre` the norm before the part, if it has one
    positions     how the layer knows order
    role          of the stack: "decoder", "encoder", "cross-decoder", "vision"
    keeps_input   False where an earlier part keeps the input that both read
    """

    d_model: Any
    norm: NormOptions
    positions: PositionsOptions
    role: str
    keeps_input: bool = True
    pre: Norm | None = None


class Mechanism(Options):
    """The options of one part of a layer, which stands in paths by its table's name.

    kind      what its leaves count as (`ledger.KINDS`)
    stands    where it may: in a "decoder" alone, for it reads only what came before; in an "encoder" alone, for it
              reads what comes later too; "" in either
    ordered   whether it turns queries and keys, or biases scores, as `[positions]` says
    sums      how often the stream is added to what it gives: 0 where its own leaves do so
    """

    kind: ClassVar[str] = "recurrent"
    stands: ClassVar[str] = "decoder"
    ordered: ClassVar[bool] = False
    sums: ClassVar[int] = 1

    @property
    def takes_norm(self) -> bool:
        """Whether the norm before it stands within it, for not all of it reads what is normed."""
        return False

    @abstractmethod
    def build(self, place: Place) -> Composite:
        """The part."""


def mechanism(part: str, tables: Collection[str] = ()) -> type[Mechanism]:
    """The options of a part of a layer, by its name, and by the tables that the layer has."""
    found = options(section_of(part, tables))
    assert issubclass(found, Mechanism), part
    return found
