"""Leaves listed one by one, each with its workload: what a published model has that no other part describes.

Each is counted and has a reference module. The list gives no dataflow, so no reference model is built from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar, Final

from txcalc.num import Num, ceil_div, maximum
from txcalc.parts.forms import FORMS, pieces, steps
from txcalc.parts.options import REQUIRED, Raw, Table, key, numbered
from txcalc.parts.part import Child, Composite, Duty, Stream, on_batch, on_source
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.sharding import Ways
from txcalc.parts.work import along


def _positions(tokens: Num, at: list[int]) -> Num:
    """m·⌈(a·T + b)/c⌉, 0 for texts that are too short."""
    a, b, c, m = (*at, 1)[:4]
    return ceil_div(maximum(0, tokens * a + b), c) * m


# Role in the layer by name.
DUTIES: Final[Mapping[str, Duty]] = {
    "q": "reads", "k": "reads", "v": "reads", "o": "writes", "down": "writes", "out_proj": "writes",
    "tokens": "tokens", "positions": "positions", "types": "types",
}  # fmt: skip
# How each key of `forms.steps` changes the workload.
STEPS: Final[dict[str, Callable[[Table], Stream]]] = {
    "source": lambda piece: on_source,
    "keys": lambda piece: lambda work: work._replace(source=_positions(work.keys, piece["keys"])),
    "batch": lambda piece: on_batch,
    "at": lambda piece: lambda work: work._replace(tokens=_positions(work.tokens, piece["at"])),
    "shared": lambda piece: lambda work: work._replace(batch=1),
}


class Pieces(Composite):
    """Named leaves, in the order of computation."""

    pieces: tuple[Table, ...]
    cuttable = False
    fixed: ClassVar[None] = None  # as the workload says

    def describe(self) -> str:
        return "pieces of its own"

    def children(self) -> Iterator[Child]:
        for piece in self.pieces:
            leaf = FORMS[piece["form"]].make(piece["bias"], piece["groups"], *piece["sizes"])
            times = piece["times"]
            copies = {"times": times, "runs": times * piece["runs"], "indices": numbered(times)}
            duty, stream = DUTIES.get(piece["name"], ""), partial(along, [STEPS[name](piece) for name in steps(piece)])
            yield Child(piece["name"], leaf, **copies, kind=piece["kind"], on=stream, duty=duty)

    def grouped(self) -> Iterator[tuple[Num, Num, Num]]:
        periods = [piece[key] for piece in self.pieces for key in ("at", "keys")]
        return ((at[0], at[1], at[2]) for at in periods if type(at) is list)

    def shard(self, ways: Ways) -> Pieces:
        """Replicated."""
        ways.cannot_split("list of pieces")
        return self


class PiecesOptions(Mechanism, section="pieces", kind="other", stands="", sums=0):
    leaves: list[Raw] = key(pieces, REQUIRED, "what it is made of, leaf by leaf: tables of name, form, sizes, …")

    def build(self, place: Place) -> Pieces:
        return Pieces(pieces=tuple(self.leaves))
