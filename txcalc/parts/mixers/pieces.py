"""Leaves one by one, each where it works: what a published model has that no other part says.

They are counted and each has a module by itself; a list does not say what reads what, so that none is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

from txcalc.num import ceil_div, maximum
from txcalc.parts.forms import FORMS, pieces, steps
from txcalc.parts.frozen import frozen
from txcalc.parts.options import REQUIRED, key, numbered
from txcalc.parts.part import Child, Composite, Duty, Stream, Workload, on_batch, on_source
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.sharding import Ways


def _positions(tokens: Any, at: list[int]) -> Any:
    """m·⌈(a·T + b)/c⌉, none of a text that is too short for one."""
    a, b, c, m = (*at, 1)[:4]
    return ceil_div(maximum(0, tokens * a + b), c) * m


# What a piece is to its layer, by its name.
DUTIES: Final[Mapping[str, Duty]] = {
    "q": "reads", "k": "reads", "v": "reads", "o": "writes", "down": "writes", "out_proj": "writes",
    "tokens": "tokens", "positions": "positions", "types": "types",
}  # fmt: skip
# What each thing that a piece says of where it works (`forms.steps`) makes of its stack's workload.
STEPS: Final[dict[str, Callable[[Mapping[str, Any]], Stream]]] = {
    "source": lambda piece: on_source,
    "keys": lambda piece: lambda work: work._replace(source=_positions(work.keys, piece["keys"])),
    "batch": lambda piece: on_batch,
    "at": lambda piece: lambda work: work._replace(tokens=_positions(work.tokens, piece["at"]), past=0),
    "shared": lambda piece: lambda work: work._replace(batch=1),
}


def _stream(piece: Mapping[str, Any]) -> Stream:
    """Where a piece works."""
    made = [STEPS[name](piece) for name in steps(piece)]

    def on(work: Workload) -> Workload | None:
        found: Workload | None = work
        for step in made:
            found = None if found is None else step(found)
        return found

    return on


@frozen
class Pieces(Composite):
    """Leaves by their names; the order in which they are listed is that in which they compute."""

    pieces: tuple[Mapping[str, Any], ...]
    cuttable = False
    fixed: ClassVar[None] = None  # it works where it is asked to

    def describe(self) -> str:
        return "pieces of its own"

    def children(self) -> Iterator[Child]:
        for piece in self.pieces:
            leaf = FORMS[piece["form"]].make(piece["bias"], piece["groups"], *piece["sizes"])
            times = piece["times"]
            copies = {"times": times, "runs": times * piece["runs"], "indices": numbered(times)}
            duty = DUTIES.get(piece["name"], "")
            yield Child(piece["name"], leaf, **copies, kind=piece["kind"], on=_stream(piece), duty=duty)

    def shard(self, ways: Ways) -> Pieces:
        """Whole on every rank."""
        ways.whole("list of pieces")
        return self


@frozen
class PiecesOptions(Mechanism, section="pieces", kind="other", stands="", sums=0):
    leaves: Any = key(pieces, REQUIRED, "what it is made of, leaf by leaf: tables of name, form, sizes, …")

    def build(self, place: Place) -> Pieces:
        return Pieces(pieces=tuple(self.leaves))
