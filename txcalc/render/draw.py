"""Pictures drawn as SVG, PNG, PDF or PGF, by matplotlib."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any, NamedTuple

from txcalc.errors import Fault, InputError, MissingExtra, quote
from txcalc.questions.pictures import Panel, Picture, PlotAxis, Series

SUFFIXES = (".svg", ".png", ".pdf", ".pgf")
COLUMN = 3.33  # inches of a column of a paper
# Okabe and Ito 2008 ("Color Universal Design"): eight colours safe for the colour-blind; grey for their yellow.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
SHAPES = "osD^vPX*"  # a colour is never the only thing that tells lines apart
TICKS = 8
NAME = 64  # characters of a label


class Style(NamedTuple):
    """Inches of a picture, and points of its text; without a height, what the panels need."""

    width: float = 8.0
    height: float | None = None
    font: float = 9.0

    @property
    def letters(self) -> int:
        """How many fit across."""
        return int(self.width * 72 / (0.55 * self.font))

    @property
    def legend(self) -> int:
        """Letters that fit below the axes, beside a line's sign."""
        return max(12, self.letters - 25)


DEFAULT = Style()


def style(size: str | float | None = None, font: float | None = None) -> Style:
    """A size such as `3.3`, `3.3x2.5` or `column`, and a font size. Errors: `InputError`."""
    sides: list[float] = []
    with suppress(ValueError):
        text = COLUMN if size == "column" else DEFAULT.width if size is None else size
        sides = [float(side) for side in str(text).split("x")]
    if len(sides) not in (1, 2) or not all(1 <= side <= 40 for side in sides):
        raise InputError("--size", [Fault("--size", size, "WIDTH or WIDTHxHEIGHT, from 1 to 40 inches, or column")])
    if font is not None and not 1 <= font <= 100:
        raise InputError("--font", [Fault("--font", font, "from 1 to 100 points")])
    default = DEFAULT.font if sides[0] >= 5 else 8.0
    return Style(sides[0], sides[1] if len(sides) == 2 else None, default if font is None else font)


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
            decades = [Fraction(10) ** power for power in range(first - 1, last + 1)]
            for digits in ((1, 2, 5), (1, 2, 3, 5, 7), range(1, 10)):  # the first that give three ticks
                values = [decade * n for decade in decades for n in digits if low <= decade * n <= high]
                if len(values) > 2:
                    break
            return values
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


def shorten(text: str, most: int = NAME) -> str:
    """A label without unprintable characters, shortened if too long."""
    clean = "".join(c if c.isprintable() else "�" for c in text)
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def fold(text: str, width: int) -> list[str]:
    return textwrap.wrap(shorten(text, 1000), width)


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
        raise InputError("--plot", [f"matplotlib does not start: {quote(str(error), 100)}"]) from None


def as_file(picture: Picture, suffix: str, style: Style = DEFAULT) -> bytes:
    """The bytes of a .svg, .png, .pdf or .pgf: identical for identical numbers under one version of matplotlib."""
    import warnings

    import matplotlib

    out = io.BytesIO()
    with _defaults(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # of a name: drawn as a box
        if suffix == ".pgf":
            with matplotlib.rc_context({"font.family": "serif"}):  # the document's own
                return _pgf(figure(picture, style)).encode()
        drawn = figure(picture, style)
        unstated = {".svg": ("Date", "Creator"), ".png": ("Software",), ".pdf": ("CreationDate", "Creator", "Producer")}
        metadata: dict[str, Any] = {"Title": shorten(picture.title), **dict.fromkeys(unstated[suffix])}
        with matplotlib.rc_context({"svg.hashsalt": "txcalc"}):
            drawn.savefig(out, format=suffix[1:], metadata=metadata, dpi=144)
    return out.getvalue()


def _pgf(drawn: Any) -> str:
    r"""A figure for `\input` in LaTeX. matplotlib would start LaTeX to measure text; Agg's measures do."""
    from matplotlib.backends.backend_pgf import RendererPgf

    from txcalc.render.latex import latex_text

    measure = drawn.canvas.get_renderer().get_text_width_height_descent

    class Renderer(RendererPgf):
        def draw_text(self, gc: object, x: object, y: object, s: str, *args: object, **options: object) -> None:
            super().draw_text(gc, x, y, latex_text(s), *args, **options)  # type: ignore[no-untyped-call]

        def get_text_width_height_descent(self, s: str, prop: object, ismath: object) -> Any:
            return measure(s, prop, ismath)

    body = io.StringIO()
    drawn.draw(Renderer(drawn, body))  # type: ignore[no-untyped-call]
    size = rf"\pgfqpoint{{{drawn.get_figwidth():f}in}}{{{drawn.get_figheight():f}in}}"
    return "\n".join(
        [
            r"% \usepackage{pgf}",
            r"\begingroup\makeatletter\begin{pgfpicture}%",
            rf"\pgfpathrectangle{{\pgfpointorigin}}{{{size}}}\pgfusepath{{use as bounding box, clip}}%",
            body.getvalue() + r"\end{pgfpicture}\makeatother\endgroup",
            "",
        ]
    )


def _defaults(style: Style) -> Any:
    """matplotlib with its default settings, and no math parsing in labels."""
    import matplotlib

    plain: dict[Any, Any] = {
        key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith("backend")
    }
    ours: dict[Any, Any] = {
        "text.parse_math": False,
        "font.size": style.font,
        "axes.titlesize": "medium",
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "legend.fontsize": "medium",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "pdf.fonttype": 42,  # TrueType: many venues refuse Type 3
    }
    return matplotlib.rc_context({**plain, **ours})


def figure(picture: Picture, style: Style = DEFAULT) -> Any:
    """A matplotlib `Figure` of a picture, with its panels stacked; more than three stand in two columns, unless a size
    is given. pyplot's state is not touched."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = 2 if len(picture.panels) > 3 and style[:2] == DEFAULT[:2] else 1
    heights = [_height(panel, style) for panel in picture.panels]
    heights = [max(heights[i : i + columns]) for i in range(0, len(heights), columns)]
    header = [*fold(picture.title, style.letters), *fold(picture.convention, style.letters)]
    natural = 0.1 + len(header) * 1.4 * style.font / 72 + sum(heights)
    drawn = Figure(figsize=(columns * style.width, style.height or natural), layout="constrained")
    below = style if style.height is None or style.height >= natural else None  # no room for legends
    FigureCanvasAgg(drawn)
    if header:
        drawn.suptitle("\n".join(header), x=0.01, ha="left", fontsize="medium")
    grid = drawn.subplots(len(heights), columns, squeeze=False, height_ratios=heights).flat
    for i, (axes, panel) in enumerate(zip(grid, picture.panels, strict=False)):
        alike = [other for other in picture.panels if (other.kind, other.x, other.y) == (panel.kind, panel.x, panel.y)]
        axes.set_title("\n".join(fold(panel.title, style.letters)))
        panel_into(axes, panel, below, alike, explained=i > 0 and _labels(picture.panels[i - 1]) == _labels(panel))
    for axes in grid[len(picture.panels) :]:
        axes.remove()
    return drawn


def panel_into(
    axes: object, panel: Panel, style: Style | None = None, alike: Sequence[Panel] = (), explained: bool = False
) -> None:
    """Draws a panel into matplotlib's axes. `style`: of a figure with the legend below, not inside; `alike`: panels
    whose axes are the same; `explained`: the legend above has its series."""
    handles, labels = {"lines": _lines, "stack": _stack, "bars": _bars, "spans": _spans}[panel.kind](axes, panel)
    if panel.kind in ("lines", "stack"):
        _scale_axes(axes, panel, alike or [panel], style)
    marks = len(panel.marks)
    if explained:
        handles, labels = handles[len(handles) - marks :], labels[len(labels) - marks :]
    if len(labels) > 1 or marks:
        _legend(axes, handles, labels, style)


def _labels(panel: Panel) -> list[str]:
    return [line.label for line in panel.series if line.label]


def _height(panel: Panel, style: Style) -> float:
    """Height in inches, including the legend."""
    line = 1.45 * style.font / 72
    labels = [*_labels(panel), *(f"0  {mark.label}" for mark in panel.marks)]
    legend_lines = -(-sum(len(fold(label, style.legend)) for label in labels) // _legend_columns(labels, style))
    legend = line * legend_lines if len(labels) > 1 else 0
    around = 4 * line + legend  # title, ticks, label
    if panel.kind == "bars":
        return around + 0.4 + max(0.25, line * len(panel.series)) * len(panel.series[0].xs)
    if panel.kind == "spans":
        return around + 0.4 + 0.25 * min(40, tracks(panel))
    return around + min(2.6, 0.5 * style.width + 0.4)


def _legend_columns(labels: Sequence[str], style: Style) -> int:
    return max(1, min(3, len(labels), (style.legend + 7) // (7 + max(map(len, map(shorten, labels)), default=0))))


def colour(line: Series, panel: Panel) -> object:
    if line.of < 0:
        return ("black", "#888888")[-1 - line.of]
    most = max(other.of for other in panel.series) + 1
    if most <= len(PALETTE):
        return PALETTE[line.of]
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * line.of / (most - 1))


def _scale_axes(axes: object, panel: Panel, alike: Sequence[Panel], style: Style | None) -> None:
    """Limits, scales, ticks and labels of both axes."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    extents = [extent(other) for other in alike]
    for which, axis in zip("xy", (panel.x, panel.y), strict=True):
        lows, highs = zip(*(both["xy".index(which)] for both in extents), strict=True)
        low, high = min(lows), max(highs)
        scale = {"value": "log", "base": axis.log} if axis.log else {"value": "linear"}
        getattr(axes, f"set_{which}scale")(**scale)
        getattr(axes, f"set_{which}lim")(low, high)
        getattr(axes, f"set_{which}label")(axis.label)
        most = 12 if which == "x" and axis.log and style and style.letters > 90 else TICKS
        axis_, marks = getattr(axes, f"{which}axis"), ticks(axis, low, high, most)
        axis_.set_major_locator(FixedLocator([float(tick) for tick in marks]))
        axis_.set_major_formatter(FixedFormatter([axis.write(tick) for tick in marks]))
        axis_.set_minor_locator(NullLocator())


def _legend(axes: Any, handles: Sequence[object], labels: Sequence[str], style: Style | None) -> None:
    """The legend, below the axes so that it hides nothing; old versions of matplotlib drop labels that begin with _."""
    from matplotlib.transforms import ScaledTranslation

    names = [f" {label}" if label.startswith("_") else label for label in map(shorten, labels)]
    place: dict[str, Any] = {"fontsize": "small", "frameon": True}
    if style:
        below = axes.transAxes + ScaledTranslation(0, -4 * style.font / 72, axes.figure.dpi_scale_trans)
        place = {"loc": "upper left", "bbox_to_anchor": (0.0, 0.0), "bbox_transform": below, "borderaxespad": 0.0}
        place["ncols"] = _legend_columns(names, style)
        names = ["\n".join(fold(name, style.legend) or [""]) for name in names]
    axes.legend(handles, names, **place)


Legend = tuple[list[Any], list[str]]  # handles and labels


def _lines(axes: Any, panel: Panel) -> Legend:
    handles: list[object] = []
    for line in panel.series:
        ys = [math.nan if y is None else float(y) for y in line.ys]
        (drawn,) = axes.plot(
            [float(x) for x in line.xs],
            ys,
            color=colour(line, panel),
            linestyle="" if len(line.xs) == 1 else "--" if line.dashed else "-",
            marker=SHAPES[line.of % len(SHAPES)] if line.marked else "",
            markevery=[i for i, x in enumerate(line.xs) if x in line.marked],
            markersize=5,
            markerfacecolor="white" if line.dashed else None,
            clip_on=False,
        )
        if line.label:
            handles.append(drawn)
    return _draw_marks(axes, panel, handles)


def _stack(axes: Any, panel: Panel) -> Legend:
    (first, *_) = panel.series
    layers = [[float(y) for y in line.ys] for line in panel.series]
    colours: list[object] = [PALETTE[line.of % len(PALETTE)] for line in panel.series]
    if max(line.of for line in panel.series) >= len(PALETTE):  # neighbours must be told apart, as shades of one are not
        from matplotlib import colormaps

        colours = [colormaps["tab20"](line.of % 20) for line in panel.series]
    xs = [float(x) for x in first.xs]
    if len(xs) == 1:  # a bar
        xs, layers = [0.95 * xs[0], 1.05 * xs[0]], [2 * ys for ys in layers]
    return _draw_marks(axes, panel, list(axes.stackplot(xs, layers, colors=colours, alpha=0.75)))


def _draw_marks(axes: Any, panel: Panel, handles: list[Any]) -> Legend:
    """Marks: numbered points, and lines at lengths and levels, below the handles of the series in the legend."""
    labels = _labels(panel)
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
    return handles, labels


def _bars(axes: Any, panel: Panel) -> Legend:
    """A group of horizontal bars for each name, the first on top, each with its value."""
    names, count = panel.series[0].xs, len(panel.series)
    handles = []
    for line in panel.series:
        places = [i + (line.of - (count - 1) / 2) * 0.8 / count for i in range(len(names))]
        bars = axes.barh(places, [float(y or 0) for y in line.ys], 0.8 / count, color=PALETTE[line.of])
        axes.bar_label(bars, ["" if y is None else panel.y.write(y) for y in line.ys], padding=3, fontsize="small")
        handles.append(bars)
    low, high = limits(panel.y, [y or 0 for line in panel.series for y in line.ys])
    marks = ticks(panel.y, low, high)
    axes.set_yticks(range(len(names)), [shorten(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlim(low, high * 1.08)
    return _value_axis(axes, panel, panel.y, marks, handles)


def _value_axis(axes: Any, panel: Panel, axis: PlotAxis, marks: Sequence[Fraction], handles: list[Any]) -> Legend:
    """The horizontal value axis of bars and spans."""
    axes.set_xticks([float(tick) for tick in marks], [axis.write(tick) for tick in marks])
    axes.set_xlabel(axis.label)
    axes.grid(False, axis="y")
    return handles, [line.label for line in panel.series]


def tracks(panel: Panel) -> int:
    """The number of tracks of a panel of spans."""
    return 1 + max(y for line in panel.series for y in line.ys)  # type: ignore[no-any-return]


def _spans(axes: Any, panel: Panel) -> Legend:
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
    return _value_axis(axes, panel, panel.x, marks, handles)


# Terminals.
