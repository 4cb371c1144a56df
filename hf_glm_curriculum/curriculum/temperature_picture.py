"""A text coloured by temperature, as PNG and as HTML."""

from __future__ import annotations

import html
import logging
import math
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from hf_glm_curriculum.curriculum.temperature import TemperatureField
from hf_glm_curriculum.curriculum.temperature_readings import read_positions
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.figures import new_figure, save_figure
from hf_glm_curriculum.storage import atomic_write_text

logger = logging.getLogger(__name__)

Pieces = Sequence[tuple[str, float]]
"""Stretches of a text and their temperatures, NaN for none."""

COLUMNS = 108
_COLD, _MILD, _WARM = (96, 150, 216), (247, 247, 242), (224, 106, 80)
_NONE = (222, 222, 222)
# Latin letters first; the rest where installed, for texts that need them.
_FONTS = ("DejaVu Sans Mono", "Noto Sans Mono CJK SC", "Noto Sans CJK SC", "WenQuanYi Micro Hei")


def text_pieces(
    field: TemperatureField, text: str, tokenizer: Any, model: Any = None
) -> list[tuple[str, float]]:
    """Pieces of a text with their temperatures; see ``TemperatureField.of_text``.

    Raises:
        ConfigError: if the tokenizer is not a fast one.
        IncompatibleError: without a model, for an entropy field.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError("tokenizer: must be a fast one, which tells where tokens lie in a text.")
    coded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    ids = torch.tensor(coded["input_ids"], dtype=torch.long)
    if model is None:
        values = field.of_tokens(ids).tolist()
    else:
        readings = read_positions(model, ids[None], torch.ones_like(ids)[None], field.read)
        values = [math.nan, *_temperatures(field, readings[0, :-1])]
    return list(_spans(text, coded["offset_mapping"], values))


def write_picture(field: TemperatureField, pieces: Pieces, path: Path) -> Path:
    """Write ``.png`` or ``.html``, by the ending of ``path``.

    Raises:
        ConfigError: for another ending.
        StateError: if the file cannot be written.
    """
    ends = sorted((field.low, field.high))
    if path.suffix == ".png":
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            save_figure(text_figure(pieces, ends[0], ends[1]), path)
        if any("Glyph" in str(warning.message) for warning in caught):
            logger.warning(
                "hf_glm_curriculum: %s: no installed font has some of the text's characters; "
                "write .html instead.",
                path.name,
            )
    elif path.suffix == ".html":
        page = text_html(pieces, ends[0], ends[1])
        atomic_write_text(path, f'<!doctype html><meta charset="utf-8">\n{page}')
    else:
        raise ConfigError(f"path: must end in .png or .html, got {path.name!r}.")
    return path


def text_html(pieces: Pieces, low: float, high: float) -> str:
    """A self-contained HTML snippet: one coloured span a piece, its temperature on hovering."""
    spans = []
    for text, temperature in pieces:
        red, green, blue = _colour(temperature, low, high)
        title = "no temperature" if math.isnan(temperature) else f"temperature {temperature:.3f}"
        shown = html.escape(text).replace("\n", "<br>")
        spans.append(
            f'<span title="{title}" style="background:rgb({red},{green},{blue})">{shown}</span>'
        )
    bar = ",".join(f"rgb{colour}" for colour in (_COLD, _MILD, _WARM))
    return (
        '<div style="font:16px/1.7 system-ui,sans-serif;color:#222;background:#fff;padding:1em">'
        f'<p style="font-size:13px;margin:0 0 .8em">temperature {low:g} '
        f'<span style="display:inline-block;width:10em;height:.8em;vertical-align:middle;'
        f'background:linear-gradient(to right,{bar})"></span> {high:g}</p>'
        f'<div style="white-space:pre-wrap">{"".join(spans)}</div></div>\n'
    )


def text_figure(pieces: Pieces, low: float, high: float) -> Any:
    """A figure of the text in lines of 108 columns, and the scale of its colours."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.patches import Rectangle

    cells = list(_lines(pieces))
    rows = 1 + max((row for row, *_ in cells), default=0)
    figure = new_figure(9.6, 0.9 + 0.27 * rows)
    axes = figure.add_subplot()
    axes.set(xlim=(0, COLUMNS), ylim=(rows, 0))
    axes.axis("off")
    font = _fonts()
    for row, column, text, width, temperature in cells:
        colour = tuple(part / 255 for part in _colour(temperature, low, high))
        axes.add_patch(Rectangle((column, row + 0.06), width, 0.88, color=colour, lw=0))
        axes.text(column, row + 0.5, text, fontsize=10, family=font, va="center", parse_math=False)
    scale = LinearSegmentedColormap.from_list(
        "temperature", [tuple(part / 255 for part in c) for c in (_COLD, _MILD, _WARM)]
    )
    norm = Normalize(low, high) if low < high else Normalize(low - 0.5, high + 0.5)
    shown = ScalarMappable(norm, scale)
    figure.colorbar(shown, ax=axes, location="bottom", label="temperature", aspect=60, pad=0.02)
    return figure


def _temperatures(field: TemperatureField, readings: torch.Tensor) -> list[float]:
    if field.constant:
        return [field.low] * len(readings)
    return field.from_readings(readings).tolist()


def _spans(
    text: str, offsets: Sequence[tuple[int, int]], values: Sequence[float]
) -> Iterator[tuple[str, float]]:
    """The text in pieces; tokens that are parts of one character share a piece."""
    done = 0
    for (start, end), value in zip(offsets, values, strict=True):
        if end <= done:
            continue
        if start > done:
            yield text[done:start], math.nan
        yield text[max(start, done) : end], value
        done = end
    if done < len(text):
        yield text[done:], math.nan


def _lines(pieces: Pieces) -> Iterator[tuple[int, int, str, int, float]]:
    """Row, column, text, width and temperature of what fits on a line, piece by piece."""
    row = column = 0
    for text, temperature in pieces:
        for part in text.expandtabs(4).splitlines(keepends=True):
            shown = part.splitlines()[0]
            ended = shown != part
            width = _width(shown)
            if column and column + width > COLUMNS:
                row, column = row + 1, 0
                shown = shown.lstrip(" ")
            while _width(shown) > COLUMNS:
                cut = COLUMNS // 2
                yield row, column, shown[:cut], _width(shown[:cut]), temperature
                row, column, shown = row + 1, 0, shown[cut:]
            if shown:
                yield row, column, shown, _width(shown), temperature
            column += _width(shown)
            if ended:
                row, column = row + 1, 0


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _fonts() -> list[str]:
    from matplotlib import font_manager

    known = {font.name for font in font_manager.fontManager.ttflist}
    return [name for name in _FONTS if name in known]


def _colour(temperature: float, low: float, high: float) -> tuple[int, int, int]:
    """Blue at the coolest, nearly white in the middle, red at the warmest; grey for none."""
    if math.isnan(temperature):
        return _NONE
    place = 0.5 if low == high else (temperature - low) / (high - low)
    place = 2 * min(max(place, 0.0), 1.0)
    first, second = (_COLD, _MILD) if place < 1 else (_MILD, _WARM)
    share = place if place < 1 else place - 1
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue
