"""Pictures as data: panels of lines, stacks, bars or spans over axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from txcalc.errors import UnknownName
from txcalc.model import Model
from txcalc.units import iec, seconds, short


class PlotAxis(NamedTuple):
    """An axis: `unit` is tokens, bytes, seconds, sizes or "" (a count), `log` its base (0: linear)."""

    label: str
    unit: str = ""
    log: int = 0

    def write(self, value: Any) -> str:
        """A value as a tick label: 32k tokens, 16 GiB, 2.5 ms, 8.03 B."""
        return WRITTEN[self.unit](Fraction(value)) if value else "0"


class Series(NamedTuple):
    """One line, one layer of a stack, or one bar of each name; values are exact, None where there is none.

    `of` is a group number, which determines the colour (below 0: black and grey, for limits); a series without a label
    continues another with the same `of`; `marked` are the xs that are in the table too.
    """

    label: str
    xs: Sequence[Any]
    ys: Sequence[Any]
    of: int = 0
    dashed: bool = False
    marked: frozenset[Any] = frozenset()


class Mark(NamedTuple):
    """A labelled point; without y a vertical line at a length, without x a horizontal one at a level."""

    label: str
    x: Any = None
    y: Any = None


class Panel(NamedTuple):
    """One pair of axes. `kind` is lines, stack (series on top of each other), bars (xs are names) or spans (xs are
    pairs of start and end, ys the track)."""

    title: str
    x: PlotAxis
    y: PlotAxis
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    kind: str = "lines"

    @property
    def name(self) -> str:
        """Its name for `--panel`."""
        return self.title or self.y.label


class Picture(NamedTuple):
    """A picture: title, conventions, and panels stacked vertically."""

    title: str
    convention: str
    panels: Sequence[Panel]

    def panel(self, name: str) -> Picture:
        """The first panel with `name` in its title, without text above it. Errors: `UnknownName`."""
        matching = [panel for panel in self.panels if name.lower() in f"{panel.title}\n{panel.y.label}".lower()]
        if not matching:
            names = [panel.name for panel in self.panels]
            raise UnknownName("--panel", "panel", name, names, f"panels: {'; '.join(names)}")
        return Picture("", "", [matching[0]._replace(title="")])


PER_OCTAVE = 4  # lengths drawn between a power of two and the next
MAX_LINES = 12  # that can be told apart
MAX_MODELS = 8  # in one picture
USUAL_CONTEXTS = (1 << 10, 1 << 13, 1 << 15, 1 << 17)  # tokens


def between(low: int, high: int, also: Iterable[int] = ()) -> list[int]:
    """Integer lengths from low to high, `PER_OCTAVE` per octave, with all powers of two and those in `also`."""
    first, last = PER_OCTAVE * (low.bit_length() - 1), PER_OCTAVE * high.bit_length()
    steps = {round(2 ** (i / PER_OCTAVE)) for i in range(first, last)}
    return sorted({low, high, *(n for n in (*steps, *also) if low < n < high)})


def picture_convention(models: Iterable[Model], what: str, logits: str, mla: str) -> str:
    """The conventions under a picture's title."""
    latent = [f"MLA {mla}"] if any(model.has_latents for model in models) else []
    return "; ".join([what, "2 FLOPs per multiply-add", f"{logits} logits", *latent])


def _tokens(value: Fraction) -> str:
    """Multiples of 2^10, 2^20 and 2^30 as `--tokens` takes them: 32k."""
    for power, unit in ((30, "G"), (20, "M"), (10, "k")):
        if value >= 1 << power and value.denominator == 1 and value.numerator % (1 << power) == 0:
            return f"{value.numerator >> power:,}{unit}"
    return _exact(value)


def _exact(value: Fraction) -> str:
    return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):,.3g}"


WRITTEN: dict[str, Callable[[Any], str]] = {
    "": short,
    "bytes": iec,
    "tokens": _tokens,
    "seconds": seconds,
    "sizes": _exact,
}
