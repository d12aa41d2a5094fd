"""Pictures drawn as SVG or PNG, by matplotlib."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from txcalc.errors import InputError, MissingExtra, shown
from txcalc.questions.pictures import Panel, Picture, PlotAxis, Series

SUFFIXES = (".svg", ".png", ".pdf")
# Okabe and Ito 2008 ("Color Universal Design"): eight colours told apart whatever one's eyes; grey for their yellow.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
SHAPES = "osD^vPX*"  # a colour is never the only thing that tells lines apart
TICKS = 8
NAME = 64  # characters of a label


# Shared by both libraries.


def limits(axis: PlotAxis, values: Iterable[Any]) -> tuple[float, float]:
    """The limits of an axis: those of the values; from 0 on a linear axis, with a tenth of a decade of margin on a
    logarithmic one."""
    numbers = [float(value) for value in values]
    low, high = min(numbers), max(numbers)
    if not axis.log:
        return 0.0, high * 1.05 or 1.0
    return low / 1.25, high * 1.25


def ticks(axis: PlotAxis, low: float, high: float, most: int = TICKS) -> list[Fraction]:
    """Round values between the ends: powers of the base, or multiples of 1, 2 or 5 (of bytes: of powers of two)."""
    if axis.log:
        first, last = math.ceil(math.log(low, axis.log) - 1e-9), math.floor(math.log(high, axis.log) + 1e-9)
        step = -(-(last - first + 1) // most) or 1
        if axis.log == 10 and last - first < 2:
            candidates = [Fraction(10) ** power * n for power in range(first - 1, last + 1) for n in (1, 2, 5)]
            return [tick for tick in candidates if low <= tick <= high]
        return [Fraction(axis.log) ** power for power in range(first + -first % step, last + 1, step)]
    rough = (high - low) / most
    if axis.unit in ("bytes", "tokens"):
        width = Fraction(2) ** math.ceil(math.log2(rough))
    else:
        decade = Fraction(10) ** math.floor(math.log10(rough))
        width = next(decade * n for n in (1, 2, 5, 10) if decade * n >= rough)
        width = max(width, Fraction(1)) if axis.unit == "sizes" else width  # there is no half of a stage
    return [width * n for n in range(math.ceil(low / width), math.floor(high / width) + 1)]


def extent(panel: Panel) -> tuple[tuple[float, float], tuple[float, float]]:
    """The limits of both axes of lines or a stack; a stack's is cut a little above its highest level."""
    xs = [x for line in panel.series for x in line.xs] + [mark.x for mark in panel.marks if mark.x is not None]
    ys = [y for line in panel.series for y in line.ys if y is not None]
    levels = [mark.y for mark in panel.marks if mark.y is not None]
    if panel.kind == "stack":
        tops = [sum(layer) for layer in zip(*(line.ys for line in panel.series), strict=True)]
        ys = [min(Fraction(max(tops)), Fraction(5, 4) * max(levels or tops))]
    width = limits(panel.x, xs)
    spread = (min(xs), max(xs)) if max(xs) > min(xs) else width
    return (float(spread[0]), float(spread[1])), limits(panel.y, ys + levels)


def shortened(text: str, most: int = NAME) -> str:
    """A label without unprintable characters, shortened if too long."""
    clean = "".join(c if c.isprintable() else "�" for c in text)
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def folded(text: str, width: int) -> list[str]:
    return textwrap.wrap(shortened(text, 1000), width)


# Files.


def check(place: str) -> None:
    """Checks that the library that a target needs is installed and starts. Errors: `MissingExtra`, `InputError`."""
    try:
        if place == "-":
            import plotille  # noqa: F401
        else:
            import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra("--plot", "plotille" if place == "-" else "matplotlib", "plot") from None
    except ValueError as error:  # MPLBACKEND
        raise InputError("--plot", [f"matplotlib does not start: {shown(str(error), 100)}"]) from None


def as_file(picture: Picture, suffix: str) -> bytes:
    """The bytes of a .svg, .png or .pdf: identical for identical numbers under one version of matplotlib."""
    import warnings

    import matplotlib

    out = io.BytesIO()
    with _defaults(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # of a name: drawn as a box
        drawn = figure(picture)
        unstated = {".svg": ("Date", "Creator"), ".png": ("Software",), ".pdf": ("CreationDate", "Creator", "Producer")}
        metadata: dict[str, Any] = {"Title": shortened(picture.title), **dict.fromkeys(unstated[suffix])}
        with matplotlib.rc_context({"svg.hashsalt": "txcalc"}):
            drawn.savefig(out, format=suffix[1:], metadata=metadata, dpi=144)
    return out.getvalue()


def _defaults() -> Any:
    """matplotlib with its default settings, and no math parsing in labels."""
    import matplotlib

    plain: dict[Any, Any] = {
        key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith("backend")
    }
    ours: dict[Any, Any] = {
        "text.parse_math": False,
        "font.size": 9.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
    }
    return matplotlib.rc_context({**plain, **ours})


def figure(picture: Picture) -> Any:
    """A matplotlib `Figure` of a picture, with its panels stacked; pyplot's state is not touched."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [_height(panel) for panel in picture.panels]
    drawn = Figure(figsize=(8.0, 0.7 + sum(heights)), layout="constrained")
    FigureCanvasAgg(drawn)
    if picture.title:
        header = [shortened(picture.title), *folded(picture.convention, 110)]
        drawn.suptitle("\n".join(header), x=0.01, ha="left", fontsize=10)
    rows = drawn.subplots(len(picture.panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, panel in zip(rows, picture.panels, strict=True):
        axes.set_title(shortened(panel.title, 100), fontsize=10, fontweight="bold", loc="left")
        {"lines": _lines, "stack": _stack, "bars": _bars, "spans": _spans}[panel.kind](axes, panel)
    return drawn


def _height(panel: Panel) -> float:
    """Height in inches, including the legend."""
    if panel.kind == "bars":
        return 1.2 + 0.45 * len(panel.series[0].xs)
    if panel.kind == "spans":
        return 1.4 + 0.25 * min(40, tracks(panel))
    return 2.9 + 0.1 * (len(panel.series) + len(panel.marks))


def _colour(line: Series, panel: Panel) -> Any:
    if line.of < 0:
        return ("black", "#888888")[-1 - line.of]
    most = max(other.of for other in panel.series) + 1
    if most <= len(PALETTE):
        return PALETTE[line.of]
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * line.of / (most - 1))


def _scaled(axes: Any, panel: Panel) -> None:
    """Limits, scales, ticks and labels of both axes."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    for which, axis, (low, high) in zip("xy", (panel.x, panel.y), extent(panel), strict=True):
        scale = {"value": "log", "base": axis.log} if axis.log else {"value": "linear"}
        getattr(axes, f"set_{which}scale")(**scale)
        getattr(axes, f"set_{which}lim")(low, high)
        getattr(axes, f"set_{which}label")(axis.label)
        axis_, marks = getattr(axes, f"{which}axis"), ticks(axis, low, high, 12 if which == "x" else TICKS)
        axis_.set_major_locator(FixedLocator([float(tick) for tick in marks]))
        axis_.set_major_formatter(FixedFormatter([axis.write(tick) for tick in marks]))
        axis_.set_minor_locator(NullLocator())


def _legend(axes: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """The legend, half an inch below the axes so that it hides nothing; old versions of matplotlib drop labels that
    begin with _."""
    from matplotlib.transforms import ScaledTranslation

    names = [f" {label}" if label.startswith("_") else label for label in map(shortened, labels)]
    columns = 3 if max(map(len, names)) <= 24 else 2 if len(names) > 2 else 1
    below = axes.transAxes + ScaledTranslation(0, -0.5, axes.figure.dpi_scale_trans)
    place = {"loc": "upper left", "bbox_to_anchor": (0.0, 0.0), "bbox_transform": below, "borderaxespad": 0.0}
    axes.legend(handles, names, ncols=columns, **place)


def _lines(axes: Any, panel: Panel) -> None:
    handles, labels = [], []
    for line in panel.series:
        ys = [math.nan if y is None else float(y) for y in line.ys]
        (drawn,) = axes.plot(
            [float(x) for x in line.xs],
            ys,
            color=_colour(line, panel),
            linestyle="" if len(line.xs) == 1 else "--" if line.dashed else "-",
            marker=SHAPES[line.of % len(SHAPES)] if line.marked else "",
            markevery=[i for i, x in enumerate(line.xs) if x in line.marked],
            markersize=5,
            markerfacecolor="white" if line.dashed else None,
            clip_on=False,
        )
        if line.label:
            handles.append(drawn)
            labels.append(line.label)
    _marked(axes, panel, handles, labels)
    _scaled(axes, panel)
    _legend(axes, handles, labels)


def _stack(axes: Any, panel: Panel) -> None:
    (first, *_) = panel.series
    layers = [[float(y) for y in line.ys] for line in panel.series]
    colours: list[Any] = [PALETTE[line.of % len(PALETTE)] for line in panel.series]
    if max(line.of for line in panel.series) >= len(PALETTE):  # neighbours must be told apart, as shades of one are not
        from matplotlib import colormaps

        colours = [colormaps["tab20"](line.of % 20) for line in panel.series]
    xs = [float(x) for x in first.xs]
    if len(xs) == 1:  # a bar
        xs, layers = [0.95 * xs[0], 1.05 * xs[0]], [2 * ys for ys in layers]
    handles = list(axes.stackplot(xs, layers, colors=colours, alpha=0.75))
    labels = [line.label for line in panel.series]
    _marked(axes, panel, handles, labels)
    _scaled(axes, panel)
    _legend(axes, handles, labels)


def _marked(axes: Any, panel: Panel, handles: list[Any], labels: list[str]) -> None:
    """Marks: numbered points, and lines at lengths and levels."""
    style, number = iter(("-.", ":", "--")), 0
    for mark in panel.marks:
        if mark.x is None:
            handles.append(axes.axhline(float(mark.y), color="black", linewidth=1.4))
            labels.append(mark.label)
        elif mark.y is None:
            handles.append(axes.axvline(float(mark.x), color="black", linewidth=1.0, linestyle=next(style, ":")))
            labels.append(mark.label)
        else:
            number += 1
            at = (float(mark.x), float(mark.y))
            (dot,) = axes.plot(*at, marker="o", color="black", markersize=4, linestyle="", zorder=5)
            axes.annotate(str(number), at, xytext=(0, 5), textcoords="offset points", ha="center", fontweight="bold")
            handles.append(dot)
            labels.append(f"{number}  {mark.label}")


def _bars(axes: Any, panel: Panel) -> None:
    """A group of horizontal bars for each name, the first on top, each with its value."""
    names, count = panel.series[0].xs, len(panel.series)
    handles = []
    for line in panel.series:
        places = [i + (line.of - (count - 1) / 2) * 0.8 / count for i in range(len(names))]
        bars = axes.barh(places, [float(y or 0) for y in line.ys], 0.8 / count, color=PALETTE[line.of])
        axes.bar_label(bars, ["" if y is None else panel.y.write(y) for y in line.ys], padding=3, fontsize=8)
        handles.append(bars)
    low, high = limits(panel.y, [y or 0 for line in panel.series for y in line.ys])
    marks = ticks(panel.y, low, high)
    axes.set_yticks(range(len(names)), [shortened(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlim(low, high * 1.08)
    _along(axes, panel, panel.y, marks, handles)


def _along(axes: Any, panel: Panel, axis: PlotAxis, marks: Sequence[Fraction], handles: list[Any]) -> None:
    """The horizontal value axis of bars and spans."""
    axes.set_xticks([float(tick) for tick in marks], [axis.write(tick) for tick in marks])
    axes.set_xlabel(axis.label)
    axes.grid(False, axis="y")
    _legend(axes, handles, [line.label for line in panel.series])


def tracks(panel: Panel) -> int:
    """The number of tracks of a panel of spans."""
    return 1 + max(y for line in panel.series for y in line.ys)  # type: ignore[no-any-return]


def _spans(axes: Any, panel: Panel) -> None:
    """Spans from a start to an end, each on its track, the first track on top."""
    handles, number = [], tracks(panel)
    for line in panel.series:
        for track in range(number):
            blocks = [
                (float(low), float(high - low)) for (low, high), y in zip(line.xs, line.ys, strict=True) if y == track
            ]
            bars = axes.broken_barh(
                blocks, (track - 0.4, 0.8), facecolors=PALETTE[line.of], edgecolor="white", linewidth=0.2
            )
        handles.append(bars)
    end = max(float(high) for line in panel.series for _, high in line.xs)
    marks = ticks(panel.x, 0.0, end)
    axes.set_ylim(number - 0.5, -0.5)
    axes.set_yticks(range(0, number, -(-number // 16)))
    axes.set_ylabel(panel.y.label)
    axes.set_xlim(0, end)
    _along(axes, panel, panel.x, marks, handles)


# Terminals.
