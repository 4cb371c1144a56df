"""How samples moved between states, as a flow diagram in the report."""

from __future__ import annotations

from collections.abc import Sequence

from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.evaluation.report_style import esc, figure, state_colour
from hf_glm_curriculum.evaluation.svg_charts import WIDTH, legend, short
from hf_glm_curriculum.lifespan.flows import ORDER, UNSEEN, Layout, Moment, Ribbon, layout

# Twice as wide as other charts: it has the page's width, and its text their size.
_WIDTH, _HEIGHT, _TOP, _BOTTOM, _SIDE, _BAR = 2 * WIDTH, 340, 12, 46, 34, 16
_MOST_NAMES = 16
_LABELLED = 0.04


def flow_figure(moments: Sequence[Moment]) -> str:
    """The diagram with its legend; "" where nothing moved, a note where the file is damaged."""
    if not moments:
        return ""
    try:
        found = layout(moments)
    except StateError as error:
        return f'<p class="soft">{esc(str(error))}</p>'
    chart = _Chart(found)
    names = ["start", *(m.name for m in moments)]
    steps = ["", *(f"step {m.step}" for m in moments)]
    parts = [chart.ribbon(r) for r in found.ribbons]
    parts += [chart.stack(number, names[number]) for number in range(len(found.columns))]
    parts += chart.names(names, steps)
    label = f"states of {found.total:,} samples from moment to moment"
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{esc(label)}">'
        f"{''.join(parts)}</svg>"
    )
    used = {state for column in found.columns for state in column}
    keys = [(_word(state), _colour(state)) for state in ORDER if state in used]
    return figure("What moved between states", svg + legend(keys))


def _word(state: str) -> str:
    return "not seen yet" if state == UNSEEN else state.lower()


def _colour(state: str) -> str:
    return "var(--line)" if state == UNSEEN else state_colour(state)


class _Chart:
    """Drawing coordinates of a layout."""

    def __init__(self, found: Layout) -> None:
        self.found = found
        self.gap = (_WIDTH - 2 * _SIDE) / max(1, len(found.columns) - 1)
        self.bar = min(_BAR, self.gap / 3)

    def x(self, column: int) -> float:
        """Middle of a column."""
        return round(_SIDE + column * self.gap, 2)

    def y(self, sample: int) -> float:
        """Height of a sample in the stacks."""
        room = _HEIGHT - _TOP - _BOTTOM
        return round(_HEIGHT - _BOTTOM - room * sample / max(1, self.found.total), 2)

    def ribbon(self, one: Ribbon) -> str:
        """A ribbon with a tooltip; samples that stayed are pale, large moves are numbered."""
        a, b = self.x(one.column) + self.bar / 2, self.x(one.column + 1) - self.bar / 2
        middle = (a + b) / 2
        (low, high), (to_low, to_high) = (map(self.y, side) for side in (one.left, one.right))
        path = (
            f"M{a},{low}C{middle},{low} {middle},{to_low} {b},{to_low}L{b},{to_high}"
            f"C{middle},{to_high} {middle},{high} {a},{high}Z"
        )
        stays = one.source == one.target
        words = f"{one.samples:,} {_word(one.source)}"
        words += " stayed" if stays else f" → {_word(one.target)}"
        style = f"fill:{_colour(one.target)};opacity:{0.18 if stays else 0.55}"
        text = ""
        if not stays and one.samples >= _LABELLED * self.found.total:
            y = round((low + high + to_low + to_high) / 4 + 4, 2)
            text = f'<text class="tick" x="{round(middle, 2)}" y="{y}" text-anchor="middle">'
            text += f"{short(one.samples)}</text>"
        return f'<path d="{path}" style="{style}"><title>{esc(words)}</title></path>{text}'

    def stack(self, number: int, name: str) -> str:
        """The bars of one moment."""
        parts = []
        for state, (low, high) in self.found.columns[number].items():
            top, x = self.y(high), round(self.x(number) - self.bar / 2, 2)
            words = f"{name}: {high - low:,} {_word(state)}"
            parts.append(
                f'<rect x="{x}" y="{top}" width="{round(self.bar, 2)}" '
                f'height="{round(self.y(low) - top, 2)}" style="fill:{_colour(state)}">'
                f"<title>{esc(words)}</title></rect>"
            )
        return "".join(parts)

    def names(self, names: Sequence[str], steps: Sequence[str]) -> list[str]:
        """Names and steps below the columns, as many as fit."""
        parts = []
        for number in range(0, len(names), -(-len(names) // _MOST_NAMES)):
            for line, text in enumerate((names[number], steps[number])):
                y = _HEIGHT - _BOTTOM + 17 + 14 * line
                parts.append(f'<text class="tick" x="{self.x(number)}" y="{y}" ')
                parts.append(f'text-anchor="middle">{esc(text)}</text>')
        return parts
