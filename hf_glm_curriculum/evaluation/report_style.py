"""Words and boxes of the report: escaping, numbers, pills, sections, the page around them."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from importlib import resources
from typing import Any, TypeGuard

LONGEST = 2000
"""Characters shown of one text."""

STATES = ("training", "observed", "mastered", "resample", "relabel")
"""States of a sample, lower case, in the order they are drawn."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Content-security policy of every page: it loads and sends nothing."""


def esc(value: Any, longest: int | None = LONGEST) -> str:
    """Any value as text that is safe in an element or a quoted attribute.

    Lone surrogates, which UTF-8 cannot hold, become question marks; a text beyond `longest`
    characters is cut, and says by how much.
    """
    text = "" if value is None else str(value)
    if longest is not None and len(text) > longest:
        text = f"{text[:longest]} … ({len(text) - longest:,} more characters)"
    return html.escape(sayable(text), quote=True)


def sayable(text: str) -> str:
    """The text without what UTF-8 or HTML cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")


def number(value: Any, digits: int = 3) -> str:
    """A number for reading; an en dash for what is unknown."""
    if not is_number(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.{digits}f}" if abs(value) < 1000 else f"{value:,.0f}"


def percent(value: Any) -> str:
    """A share as a percentage; an en dash for what is unknown."""
    return f"{100 * value:.0f} %" if is_number(value) else "–"


def duration(seconds: Any) -> str:
    """Seconds as "3 min 20 s"."""
    if not is_number(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.0f} s"


def moment(text: Any) -> str:
    """An ISO time as "2026-01-31 14:05"; the text itself where it is none."""
    try:
        return datetime.fromisoformat(str(text)).strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return str(text)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number (booleans are not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def state_colour(state: Any) -> str:
    """The colour of a state, as the style sheet names it; grey for an unknown one."""
    name = str(state).lower()
    return f"var(--{name})" if name in STATES else "var(--soft)"


def state_pill(state: Any) -> str:
    """A state's name with its colour."""
    name = esc(str(state).lower(), 40)
    return f'<span class="pill"><i style="background:{state_colour(state)}"></i>{name}</span>'


def card(name: str, value: str, note: str = "", kind: str = "") -> str:
    """A summary figure; `value` and `note` are markup, `name` is text."""
    note_html = f'<div class="note">{note}</div>' if note else ""
    return (
        f'<div class="card"><div class="name">{esc(name)}</div>'
        f'<b class="{kind}">{value}</b>{note_html}</div>'
    )


def before_after(before: str, after: str) -> str:
    """Two figures with an arrow between them."""
    return f'{before} <span class="arrow">→</span> {after}'


def section(key: str, title: str, why: str, body: str) -> str:
    """A section with its heading and one sentence on how to read it."""
    return f'<section id="{key}"><h2>{esc(title)}</h2><p class="why">{esc(why)}</p>{body}</section>'


def absent(key: str, title: str, note: str) -> str:
    """What stands where an artefact is missing."""
    return (
        f'<section id="{key}" class="absent"><h2>{esc(title)}</h2>'
        f'<p class="why">{esc(note)}</p></section>'
    )


def figure(caption: str, drawing: str) -> str:
    """A chart under its caption; "" without a drawing."""
    if not drawing:
        return ""
    return f"<figure><figcaption>{esc(caption)}</figcaption>{drawing}</figure>"


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table that scrolls on a narrow screen; "" without a row.

    Args:
        columns: Headings, as text.
        rows: Cells, as markup: escape what is not yours.
    """
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    head = "".join(f"<th>{esc(name, 80)}</th>" for name in columns)
    head = f"<thead><tr>{head}</tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>' if body else ""


def select(name: str, everything: str, choices: Iterable[str]) -> str:
    """A filter by one attribute; "" where there is nothing to choose between."""
    choices = list(choices)
    if len(choices) < 2:
        return ""
    options = "".join(
        f'<option value="{esc(c)}">{esc(c.replace("_", " "))}</option>' for c in choices
    )
    label = esc(everything)
    return (
        f'<select name="{name}" aria-label="{label}"><option value="">{label}</option>'
        f"{options}</select>"
    )


def controls(*selects: str) -> str:
    """The filter row of a list; hidden until the script is there to serve it."""
    box = '<input type="search" placeholder="Filter by text" aria-label="Filter by text">'
    return f'<div class="controls" hidden>{box}{"".join(selects)}<output></output></div>'


def embedded_json(key: str, value: Any) -> str:
    """JSON for the script; no text in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{key}">{sayable(text)}</script>'


def facts(pairs: Mapping[str, Any]) -> str:
    """A row of name-value facts; unknown ones are left out."""
    items = "".join(
        f"<div><dt>{esc(name)}</dt><dd>{esc(value, 300)}</dd></div>"
        for name, value in pairs.items()
        if value not in (None, "")
    )
    return f'<dl class="facts">{items}</dl>'


def page(title: str, header: str, body: str) -> str:
    """The whole document: style and script inside, and a policy that forbids loading anything."""
    written = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    footer = f"Written by hf_glm_curriculum, {written}. The page loads nothing from outside."
    assets = resources.files("hf_glm_curriculum.evaluation") / "assets"
    style = (assets / "report.css").read_text("utf-8")
    script = (assets / "report.js").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{esc(title)}</title>\n<style>\n{style}</style></head>\n<body>\n"
        f'<header><div class="inner">{header}</div></header>\n<main>\n{body}\n</main>\n'
        f"<footer><p>{footer}</p></footer>\n<script>\n{script}</script>\n</body></html>\n"
    )
