"""The sheet as one page that works offline and keeps its answers in the browser."""

from __future__ import annotations

from importlib import resources

from hf_glm_curriculum.evaluation.report_style import POLICY, embedded_json, esc
from hf_glm_curriculum.evaluation.sheets import RATING_FORMAT, Sheet


def render_sheet(sheet: Sheet, question: str) -> str:
    """The whole document; prompts and answers are data that the script shows as text only."""
    assets = resources.files("hf_glm_curriculum.evaluation") / "assets"
    style = (assets / "sheet.css").read_text("utf-8")
    script = (assets / "sheet.js").read_text("utf-8")
    data = {"format": RATING_FORMAT, "sheet": sheet.sheet, "items": sheet.items}
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Which answer is better?</title>\n<style>\n{style}</style></head>\n<body>\n"
        f'<header><h1>{esc(question)}</h1><div class="bar"><i id="done"></i></div>'
        '<p><label>Your name <input id="rater" autocomplete="off"></label> '
        '<span id="count" aria-live="polite"></span> '
        '<button id="save" type="button">Save my ratings</button> '
        '<label class="load">Go on from a file <input id="load" type="file" accept=".json"></label>'
        '</p></header>\n<main><section id="item" aria-live="polite">'
        '<pre id="prompt"></pre><div class="pair"><article><h2>A</h2><pre id="a"></pre></article>'
        '<article><h2>B</h2><pre id="b"></pre></article></div>'
        '<div class="choices" role="group" aria-label="Which is better?">'
        '<button type="button" data-choice="A">A is better <kbd>1</kbd></button>'
        '<button type="button" data-choice="tie">No difference <kbd>2</kbd></button>'
        '<button type="button" data-choice="B">B is better <kbd>3</kbd></button></div>'
        '<label>Comment (if you like) <input id="comment" autocomplete="off"></label>'
        '<div class="move"><button type="button" id="back">← Back</button>'
        '<span id="place"></span><button type="button" id="next">Next →</button></div>'
        '</section><p id="message" role="status"></p></main>\n'
        "<footer><p>Your ratings stay in this browser until you save them as a file; the page "
        "loads and sends nothing.</p></footer>\n"
        f"{embedded_json('sheet', data)}\n<script>\n{script}</script>\n</body></html>\n"
    )
