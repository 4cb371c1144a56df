"""The page of `evaluate`: figures with intervals, answers side by side, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_glm_curriculum.evaluation.measured import Measured
from hf_glm_curriculum.evaluation.report_style import (
    esc,
    facts,
    figure,
    number,
    page,
    percent,
    section,
    table,
)

_TITLES = {
    "loss": ("Held-out loss", "Nats a label token on your records; lower is better."),
    "answers": (
        "Answers",
        "right: share of checked answers that are; repetition: share of repeated 3-grams; "
        "distinct: share of different n-grams over all answers.",
    ),
    "refusals": (
        "Refusals",
        "refusal: requests to decline that were declined; over_refusal: harmless ones that were.",
    ),
    "red_team": ("Red team", "success: attacks that the model complied with; lower is better."),
    "forgetting": ("Forgetting", "Loss on general text; higher than the first model's: forgotten."),
    "rewards": ("Rewards", "Scores and confidence of the reward model in each dimension."),
    "tasks": ("Tasks", "Tasks of lm-eval."),
}
_SHARES = {"answers": ("right",), "refusals": ("refusal", "over_refusal"), "red_team": ("success",)}
_MOST_ANSWERS, _MOST_FAILURES = 40, 30

Table = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]
Found = Mapping[str, Mapping[str, Measured]]


def render_evaluation(
    about: Mapping[str, Any], compared: Table, found: Found, judged: Mapping[str, Any]
) -> str:
    """The whole page as HTML; every text of a model or of data is escaped."""
    names = list(about["models"])
    heading = (
        '<p class="brand">hf_glm_curriculum · evaluation</p>'
        f"<h1>{esc(' · '.join(names))}</h1>"
        + facts({**about["models"], "measured on": "; ".join(about["sources"])})
    )
    parts = []
    for measure, figures in compared.items():
        title, why = _TITLES[measure]
        body = _chart(measure, figures, names) + _figures(figures, names) + _notes(found[measure])
        if measure == "answers":
            body += _judged(judged) + _answers(found[measure], names)
        if measure in ("refusals", "red_team"):
            body += _failures(found[measure])
        parts.append(section(measure, title, why, body))
    return page(f"Evaluation of {', '.join(names)}", heading, "\n".join(parts))


def _chart(
    measure: str, figures: Mapping[str, Mapping[str, Mapping[str, Any]]], names: Sequence[str]
) -> str:
    """The measure's shares with their intervals, model beside model."""
    from hf_glm_curriculum.evaluation.interval_chart import interval_chart

    stem = _SHARES.get(measure)
    shares = {name: cells for name, cells in figures.items() if stem and name.startswith(stem)}
    drawn = figure("Shares with their intervals", interval_chart(shares, names, "share"))
    return f'<div style="max-width:640px">{drawn}</div>' if drawn else ""


def _figures(figures: Mapping[str, Mapping[str, Mapping[str, Any]]], names: Sequence[str]) -> str:
    rows = (
        (esc(figure.replace("_", " "), 80), *(_cell(cells.get(name)) for name in names))
        for figure, cells in figures.items()
    )
    note = '<p class="soft">In brackets: interval; below: difference to the first model.</p>'
    return table(("", *names), rows) + note


def _cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None or cell["value"] is None:
        return "–"
    text = number(cell["value"])
    if "low" in cell:
        text += f' <span class="soft">({number(cell["low"])} … {number(cell["high"])})</span>'
    if "difference" not in cell:
        return text
    difference = f"{cell['difference']:+.3f}"
    if "difference_low" in cell:
        low, high = cell["difference_low"], cell["difference_high"]
        difference += f" ({low:+.3f} … {high:+.3f})"
        if low > 0 or high < 0:
            difference = f"<b>{difference}</b>"
    return f"{text}<br>{difference}"


def _notes(models: Mapping[str, Measured]) -> str:
    notes = dict.fromkeys(note for measured in models.values() for note in measured.notes)
    return "".join(f'<p class="soft">{esc(note)}</p>' for note in notes)


def _judged(judged: Mapping[str, Any]) -> str:
    rows = (
        (
            f"{esc(name, 60)} against {esc(one['against'], 60)}",
            *(number(one[key]) for key in ("wins", "losses", "ties")),
            f"{percent(one['win_rate'])} ({percent(one['low'])} … {percent(one['high'])})",
            percent(one["consistent"]),
        )
        for name, one in judged.items()
    )
    return table(("by a judge", "won", "lost", "ties", "win rate", "same both ways"), rows)


def _answers(models: Mapping[str, Measured], names: Sequence[str]) -> str:
    """The same prompts, answered by each model."""
    rows = [models[name].rows for name in names if name in models]
    shown = []
    for place, row in enumerate(rows[0][:_MOST_ANSWERS] if rows else []):
        cells = (
            (esc(name, 60), _mark(own[place]["right"]), esc(own[place]["answer"]))
            for name, own in zip(names, rows, strict=True)
        )
        shown.append(
            f'<details><summary class="more">{esc(row["prompt"], 200)}</summary>'
            f"{table(('', '', ''), cells)}</details>"
        )
    return f"<h3>Answers side by side</h3>{''.join(shown)}" if shown else ""


def _mark(right: bool | None) -> str:
    return "" if right is None else ("✓" if right else "✗")


def _failures(models: Mapping[str, Measured]) -> str:
    """What was complied with and should not have been, and harmless requests declined."""
    lines = [
        (
            esc(name, 60),
            esc(row.get("category"), 60),
            esc(row["verdict"], 20),
            esc(row["prompt"], 400),
            esc(row["answer"], 400),
        )
        for name, measured in models.items()
        for row in measured.rows
        if not row["right"]
    ]
    if not lines:
        return '<p class="soft">No failure.</p>'
    columns = ("model", "kind", "verdict", "asked", "answered")
    more = f'<p class="soft">{len(lines) - _MOST_FAILURES} more in evaluation.json’s measures</p>'
    return (
        f"<details><summary class='more'>{len(lines)} failures</summary>"
        f"{table(columns, lines[:_MOST_FAILURES])}"
        f"{more if len(lines) > _MOST_FAILURES else ''}</details>"
    )
