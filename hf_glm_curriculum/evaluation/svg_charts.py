"""Small charts as inline SVG: sized by the page, coloured by its style sheet, light or dark.

Colours are CSS classes or custom properties, so that one chart serves both colour schemes. Drawing
coordinates are in units of a 560-wide view box.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from hf_glm_curriculum.evaluation.report_style import esc

WIDTH = 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 14, 44

Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Line:
    """One curve: what the legend calls it, its points and its colour (a CSS colour)."""

    name: str
    xs: Numbers
    ys: Numbers
    colour: str
    dashed: bool = False
    marks: bool = False


@dataclass(frozen=True)
class Dot:
    """One point of a scatter plot, with the key and the words its tooltip shows."""

    x: float
    y: float
    colour: str
    title: str
    key: str = ""
    ring: bool = False


class Axes:
    """Linear axes over a view box: maps data to drawing units and draws frame, ticks and grid."""

    def __init__(
        self,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        height: int = 300,
        left: int = _LEFT,
    ) -> None:
        self.height, self.left = height, left
        self.x_low, self.x_high = _widened(*x_range)
        self.y_low, self.y_high = _widened(*y_range)

    def x(self, value: float) -> float:
        """Drawing coordinate of an x value."""
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return round(self.left + share * (WIDTH - self.left - _RIGHT), 2)

    def y(self, value: float) -> float:
        """Drawing coordinate of a y value; up is up."""
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return round(self.height - _BOTTOM - share * (self.height - _TOP - _BOTTOM), 2)

    def grid(self, x_label: str, y_label: str, whole_x: bool = False) -> str:
        """Grid lines, tick texts and axis titles."""
        parts = []
        for tick in ticks(self.y_low, self.y_high, 5):
            y = self.y(tick)
            parts.append(f'<line class="grid" x1="{self.left}" x2="{WIDTH - _RIGHT}" y1="{y}"')
            parts.append(f' y2="{y}"/><text class="tick" x="{self.left - 8}" y="{y + 4}"')
            parts.append(f' text-anchor="end">{short(tick)}</text>')
        parts.append(self.x_axis(x_label, whole_x))
        middle = (self.height - _BOTTOM + _TOP) / 2
        parts.append(
            f'<text class="axis" transform="translate(13 {middle}) rotate(-90)" '
            f'text-anchor="middle">{esc(y_label)}</text>'
        )
        return "".join(parts)

    def x_axis(self, label: str, whole: bool = False, lines: bool = False) -> str:
        """The horizontal axis with its ticks and title."""
        base = self.height - _BOTTOM
        parts = [f'<line class="base" x1="{self.left}" x2="{WIDTH - _RIGHT}" y1="{base}"']
        parts.append(f' y2="{base}"/>')
        for tick in ticks(self.x_low, self.x_high, 6):
            if whole and tick != int(tick):
                continue
            x = self.x(tick)
            if lines:
                parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{base}"/>')
            parts.append(f'<text class="tick" x="{x}" y="{base + 17}" text-anchor="middle">')
            parts.append(f"{short(tick)}</text>")
        middle = (self.left + WIDTH - _RIGHT) / 2
        parts.append(f'<text class="axis" x="{middle}" y="{self.height - 6}" ')
        parts.append(f'text-anchor="middle">{esc(label)}</text>')
        return "".join(parts)

    def path(self, xs: Numbers, ys: Numbers) -> str:
        """Path data through the known points; a gap in the data is a gap in the line."""
        parts, pen_down = [], False
        for x, y in zip(xs, ys, strict=True):
            if not known(x) or not known(y):
                pen_down = False
                continue
            parts.append(f"{'L' if pen_down else 'M'}{self.x(float(x))} {self.y(float(y))}")
            pen_down = True
        return "".join(parts)

    def area(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
        """Path data of the closed area between two curves."""
        there = [f"{self.x(x)} {self.y(y)}" for x, y in zip(xs, high, strict=True)]
        back = [f"{self.x(x)} {self.y(y)}" for x, y in zip(xs, low, strict=True)]
        return "M" + "L".join([*there, *reversed(back)]) + "Z"

    def svg(self, body: str, label: str) -> str:
        """The finished picture."""
        return (
            f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img" '
            f'aria-label="{esc(label)}">{body}</svg>'
        )


def line_chart(lines: Sequence[Line], x_label: str, y_label: str, height: int = 300) -> str:
    """Curves over a common x axis, with a legend where there are several; "" without a point."""
    xs = [float(x) for line in lines for x in line.xs if known(x)]
    ys = [float(y) for line in lines for y in line.ys if known(y)]
    if not xs or not ys:
        return ""
    axes = Axes((min(xs), max(xs)), _padded(min(ys), max(ys)), height)
    body = [axes.grid(x_label, y_label, whole_x=True)]
    for line in lines:
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        path = axes.path(line.xs, line.ys)
        body.append(f'<path class="curve" d="{path}" style="stroke:{line.colour}"{dash}/>')
        if line.marks or sum(map(known, line.ys)) == 1:
            body += _marks(axes, line)
    legend_rows = [(line.name, line.colour) for line in lines] if len(lines) > 1 else []
    return axes.svg("".join(body), f"{y_label} over {x_label}") + legend(legend_rows)


def band_chart(
    xs: Sequence[float],
    low: Sequence[float],
    middle: Sequence[float],
    high: Sequence[float],
    x_label: str,
    y_label: str,
    height: int = 300,
) -> str:
    """A median with the band between two quantiles around it."""
    if len(xs) == 1:  # a single moment, as wide as the chart
        xs = [xs[0] - 0.5, xs[0] + 0.5]
        low, middle, high = ([*values] * 2 for values in (low, middle, high))
    axes = Axes((min(xs), max(xs)), _padded(min(low), max(high)), height)
    body = axes.grid(x_label, y_label, whole_x=True)
    body += f'<path class="band" d="{axes.area(xs, low, high)}"/>'
    body += f'<path class="curve" d="{axes.path(xs, middle)}" style="stroke:var(--accent)"/>'
    rows = [("median", "var(--accent)"), ("10–90 % of samples", "var(--band)")]
    return axes.svg(body, f"{y_label} over {x_label}") + legend(rows)


def stacked_chart(
    xs: Sequence[float],
    layers: Sequence[tuple[str, str, Sequence[float]]],
    x_label: str,
    y_label: str,
    height: int = 300,
) -> str:
    """Layers (name, colour, values) stacked over a common x axis."""
    if len(xs) == 1:
        xs = [xs[0] - 0.5, xs[0] + 0.5]
        layers = [(name, colour, [*values] * 2) for name, colour, values in layers]
    totals = [sum(values[i] for _, _, values in layers) for i in range(len(xs))]
    axes = Axes((min(xs), max(xs)), (0.0, max(totals) or 1.0), height)
    body, floor = [axes.grid(x_label, y_label, whole_x=True)], [0.0] * len(xs)
    for _, colour, values in layers:
        top = [base + value for base, value in zip(floor, values, strict=True)]
        body.append(f'<path d="{axes.area(xs, floor, top)}" style="fill:{colour};opacity:.85"/>')
        floor = top
    rows = [(name, colour) for name, colour, values in layers if any(values)]
    return axes.svg("".join(body), f"{y_label} over {x_label}") + legend(rows)


def scatter_chart(
    dots: Sequence[Dot],
    x_label: str,
    y_label: str,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    height: int = 380,
) -> str:
    """Points with a tooltip each; a ring marks the ones that matter."""
    axes = Axes(x_range, y_range, height)
    radius = 5.0 if len(dots) <= 500 else 3.0
    body = [axes.grid(x_label, y_label)]
    body += [_circle(axes.x(dot.x), axes.y(dot.y), radius, dot) for dot in dots]
    return axes.svg("".join(body), f"{y_label} against {x_label}")


def strip_chart(
    rows: Sequence[tuple[str, Sequence[Dot]]], x_label: str, threshold: float | None = None
) -> str:
    """One line of dots a group (name, dots), spread a little so that none hides another."""
    values = [dot.x for _, dots in rows for dot in dots]
    if not values:
        return ""
    step = 34
    axes = Axes(_padded(min(values), max(values)), (0, 1), _TOP + _BOTTOM + step * len(rows), 136)
    body = [axes.x_axis(x_label, lines=True)]
    for line, (name, dots) in enumerate(rows):
        middle = _TOP + step * (line + 0.5)
        body.append(f'<text class="tick" x="{axes.left - 10}" y="{middle + 4}" text-anchor="end">')
        body.append(f"{esc(name)}</text>")
        for place, dot in enumerate(dots):
            # The golden ratio spreads any number of dots evenly and repeatably.
            offset = ((place * 0.618034) % 1 - 0.5) * step * 0.62
            body.append(_circle(axes.x(dot.x), round(middle + offset, 1), 4, dot))
    if threshold is not None and axes.x_low < threshold < axes.x_high:
        x = axes.x(threshold)
        body.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{_TOP}"')
        body.append(f' y2="{axes.height - _BOTTOM}"/>')
    return axes.svg("".join(body), f"{x_label} by group")


def legend(rows: Iterable[tuple[str, str]]) -> str:
    """Colour keys below a chart; "" for none."""
    keys = "".join(
        f'<span><i style="background:{colour}"></i>{esc(name)}</span>' for name, colour in rows
    )
    return f'<p class="legend">{keys}</p>' if keys else ""


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round numbers inside [low, high], about as many as wanted."""
    raw = (high - low) / max(1, wanted)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def short(value: float) -> str:
    """A number in at most about six characters."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value / 1000:.4g}k"
    if abs(value) < 0.001:
        return f"{value:.0e}"
    return f"{value:.4g}"


def known(value: float | None) -> TypeGuard[float]:
    """Whether a value can be drawn."""
    return value is not None and math.isfinite(value)


def _marks(axes: Axes, line: Line) -> list[str]:
    """A mark with a tooltip at each known point of a curve."""
    points = ((x, y) for x, y in zip(line.xs, line.ys, strict=True) if known(x) and known(y))
    return [
        _circle(axes.x(x), axes.y(y), 4, Dot(x, y, line.colour, f"{line.name}: {short(y)}"))
        for x, y in points
    ]


def _circle(x: float, y: float, radius: float, dot: Dot) -> str:
    """One point with its tooltip."""
    shape = "dot ring" if dot.ring else "dot"
    key = f' data-key="{esc(dot.key)}"' if dot.key else ""
    return (
        f'<circle class="{shape}" cx="{x}" cy="{y}" r="{radius}" style="fill:{dot.colour}"{key}>'
        f"<title>{esc(dot.title)}</title></circle>"
    )


def _widened(low: float, high: float) -> tuple[float, float]:
    """A range that is not empty."""
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _padded(low: float, high: float) -> tuple[float, float]:
    """A little room around a range."""
    room = (high - low) * 0.06 or 0.5
    return low - room, high + room
