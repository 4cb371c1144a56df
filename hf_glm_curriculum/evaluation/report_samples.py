"""Sections of the report on single samples: faults found, suspicious samples, answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_glm_curriculum.evaluation.report_style import (
    controls,
    esc,
    figure,
    is_number,
    number,
    percent,
    select,
    state_colour,
    state_pill,
)
from hf_glm_curriculum.evaluation.run_folder import RunFolder
from hf_glm_curriculum.evaluation.svg_charts import Dot, strip_chart

_MOST_ROWS = 200
_SIGNALS = {
    "loss": "loss, last",
    "loss_mean": "loss, mean",
    "onset_loss": "onset loss",
    "loss_slope": "slope",
    "opening_loss": "loss of the first 4 tokens",
    "first_loss": "loss of the first token",
    "closing_loss": "loss of the last 2 tokens",
    "grad_norm": "gradient norm",
    "drift": "drift",
    "confidence": "confidence",
    "variability": "variability",
    "visits": "visits",
}


def detection(run: RunFolder) -> str | None:
    """How the planted faults were found: suspicion by kind, and the figures of each kind."""
    found = run.evaluation.get("detection")
    if not found or not found.get("n_faulty"):
        return None
    rows = [_kind_row(kind, entry) for kind, entry in _sorted_kinds(found["kinds"])]
    rows.append(_kind_row("all kinds", _overall(found), strong=True))
    table = (
        '<div class="wide"><table class="kinds"><thead><tr><th>fault</th><th class="n">planted</th>'
        '<th>AUROC with 95 % interval</th><th class="n">taken out</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{_detection_notes(found)}"
    )
    strip = figure("Suspicion of every sample, by what was done to it", _strip(run, found))
    return f'<div class="pair"><div>{strip}</div><div>{table}</div></div>'


def _sorted_kinds(kinds: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Kinds with the best found first."""
    return sorted(kinds.items(), key=lambda item: -(item[1].get("auroc") or 0))


def _overall(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "n": found["n_faulty"],
        "auroc": found.get("auroc"),
        "auroc_interval": found.get("auroc_interval"),
        "flagged_recall": found["flagged"].get("recall"),
    }


def _kind_row(kind: str, entry: Mapping[str, Any], strong: bool = False) -> str:
    name = esc(kind.replace("_", " "))
    return (
        f"<tr><td>{f'<b>{name}</b>' if strong else name}</td>"
        f'<td class="n">{number(entry.get("n"))}</td><td>{_auroc_bar(entry)}</td>'
        f'<td class="n">{percent(entry.get("flagged_recall"))}</td></tr>'
    )


def _auroc_bar(entry: Mapping[str, Any]) -> str:
    """The AUROC as a bar from 0 to 1 with its interval and a mark at chance."""
    value, interval = entry.get("auroc"), entry.get("auroc_interval")
    if not is_number(value):
        return "–"
    whisker, words = "", ""
    if interval:
        left, width = 100 * interval[0], max(0.5, 100 * (interval[1] - interval[0]))
        whisker = f'<u style="left:{left:.1f}%;width:{width:.1f}%"></u>'
        words = f' <span class="soft">{interval[0]:.2f}–{interval[1]:.2f}</span>'
    bar = f'<div class="bar"><i style="width:{100 * value:.1f}%"></i>{whisker}<s></s></div>'
    return f'<span class="meter">{value:.2f}</span>{words}{bar}'


def _detection_notes(found: Mapping[str, Any]) -> str:
    """The figures that do not belong to one kind."""
    at, pool, flagged = found["precision_at"], found["pool"], found["flagged"]
    notes = [
        f"Among the {number(at['k'])} most suspicious samples {percent(at['value'])} are faulty",
        f"average precision {number(found.get('average_precision'))}",
        f"taken out (RELABEL): precision {percent(flagged['precision'])}, recall "
        f"{percent(flagged['recall'])}",
        f"observation pool of {number(pool['size'])}: precision {percent(pool['precision'])}, "
        f"recall {percent(pool['recall'])}",
    ]
    if found.get("n_unscored"):
        notes.append(f"never observed: {number(found['n_unscored'])}")
    return f'<p class="why">{esc("; ".join(notes))}.</p>'


def _strip(run: RunFolder, found: Mapping[str, Any]) -> str:
    """Suspicion of each sample, one line a fault kind."""
    faults = found.get("faults") or {}
    if not run.callbacks or not faults:
        return ""
    groups: dict[str, list[Dot]] = {"clean": []}
    groups |= {kind: [] for kind, _ in _sorted_kinds(found["kinds"])}
    for record in run.callbacks[0].samples.to_dict("records"):
        if not is_number(record["suspicion"]):
            continue
        row = str(int(record["row"]))
        kind, state = faults.get(row, "clean"), str(record["state"]).lower()
        title = f"row {row} · {kind} · {state} · suspicion {record['suspicion']:.1f}"
        dot = Dot(float(record["suspicion"]), 0, state_colour(state), title, key=row)
        groups.setdefault(kind, []).append(dot)
    return strip_chart(
        [(kind.replace("_", " "), dots) for kind, dots in groups.items()],
        "suspicion (robust deviations above the median)",
        found.get("threshold"),
    )


def suspicious(run: RunFolder) -> str | None:
    """The most suspicious samples with text, signals and verdict."""
    entries = run.suspicious or [row for callback in run.callbacks for row in callback.pool]
    if not entries:
        return None
    entries = sorted(entries, key=_by_suspicion)[:_MOST_ROWS]
    verdicts = sorted({str(entry.get("verdict", "")).lower() for entry in entries} - {""})
    kinds = sorted({entry["fault"] for entry in entries if entry.get("fault")})
    if kinds:
        kinds = ["any_fault", "clean", *kinds]
    row = controls(
        select("verdict", "every verdict", verdicts), select("fault", "faulty or clean", kinds)
    )
    items = "".join(map(_suspect, entries))
    return f'<div data-filter>{row}<div class="scroll">{items}</div></div>'


def _by_suspicion(entry: Mapping[str, Any]) -> float:
    return -float(entry["suspicion"]) if is_number(entry.get("suspicion")) else float("inf")


def _suspect(entry: Mapping[str, Any]) -> str:
    """One sample: a line that opens."""
    text = entry.get("text") or {}
    prompt, response = text.get("prompt"), text.get("response")
    fault = entry.get("fault")
    verdict = str(entry.get("verdict", ""))
    kinds = f"any_fault {fault}" if fault else "clean"
    pill = (
        f'<span class="pill fault">{esc(str(fault).replace("_", " "), 40)}</span>' if fault else ""
    )
    snippet = esc(f"{prompt or ''} → {response or ''}" if text else "(text not in the data)", 220)
    search = esc(f"{prompt or ''} {response or ''} row {entry.get('row')}".lower(), 4000)
    signals = entry.get("signals") or {}
    listed = "".join(
        f"<span>{esc(words)} <b>{number(signals.get(name))}</b></span>"
        for name, words in _SIGNALS.items()
        if is_number(signals.get(name))
    )
    clean = entry.get("clean_response")
    was = _text("before the fault was planted", clean) if fault and clean else ""
    return (
        f'<details class="item" data-search="{search}" data-verdict="{esc(verdict.lower(), 40)}" '
        f'data-fault="{esc(kinds, 80)}"><summary><span class="meter" title="suspicion">'
        f"{number(entry.get('suspicion'), 1)}</span>{state_pill(verdict)}"
        f'<span class="snippet" dir="auto">{snippet}</span>{pill or "<span></span>"}</summary>'
        f'<div class="body">{_text("prompt", prompt)}{_text("response", response)}{was}'
        f'<p class="signals"><span>row <b>{number(entry.get("row"))}</b></span>'
        f"<span>weight <b>{number(entry.get('weight'))}</b></span>{listed}</p></div></details>"
    )


def _text(label: str, text: Any) -> str:
    """A labelled block of sample text."""
    if text is None:
        return ""
    return f'<div class="label">{esc(label)}</div><div class="text" dir="auto">{esc(text)}</div>'


def answers(run: RunFolder) -> str | None:
    """Answers to held-out prompts before and after training, side by side."""
    rows = [row for row in run.generations if row.get("before") or row.get("after")]
    if not rows:
        return None
    outcomes = sorted({_outcome(row) for row in rows})
    categories = sorted({str(row["category"]) for row in rows if row.get("category")})
    bar = controls(
        select("outcome", "every outcome", outcomes),
        select("category", "every category", categories),
    )
    body = "".join(map(_answer_row, rows[:_MOST_ROWS]))
    return (
        f'{_answer_figures(run)}<div data-filter>{bar}<div class="scroll"><table class="stack">'
        "<thead><tr><th>prompt</th><th>before</th><th>after</th><th>reference</th></tr></thead>"
        f"<tbody>{body}</tbody></table></div></div>"
    )


def _outcome(row: Mapping[str, Any]) -> str:
    before, after = row.get("correct_before"), row.get("correct_after")
    if after is None:
        return "not_checkable"
    if before is None or before == after:
        return "right" if after else "still_wrong"
    return "fixed" if after else "broken"


def _answer_row(row: Mapping[str, Any]) -> str:
    search = " ".join(str(row.get(k) or "") for k in ("prompt", "before", "after", "reference"))
    category = row.get("category") or ""
    words = " · ".join(str(row[k]) for k in ("category", "language") if row.get(k))
    return (
        f'<tr data-search="{esc(search.lower(), 4000)}" data-outcome="{_outcome(row)}" '
        f'data-category="{esc(category, 80)}"><td data-name="prompt"><div class="text" dir="auto">'
        f'{esc(row.get("prompt"))}</div><span class="soft">{esc(words)}</span></td>'
        f"{_answer_cell('before', row)}{_answer_cell('after', row)}"
        f'<td data-name="reference"><div class="text" dir="auto">{esc(row.get("reference"))}</div>'
        "</td></tr>"
    )


def _answer_cell(when: str, row: Mapping[str, Any]) -> str:
    """One answer with a tick or a cross."""
    verdict, text = row.get(f"correct_{when}"), row.get(when)
    if text is None:
        return f'<td data-name="{when}"><span class="soft">not generated</span></td>'
    kind, mark = {True: ("ok", "✓"), False: ("no", "✗")}.get(verdict, ("na", "·"))  # type: ignore[arg-type]
    chips = score_chips(row.get(f"scores_{when}"), row.get(f"confidence_{when}"))
    return (
        f'<td data-name="{when}"><div class="text" dir="auto"><span class="tick-{kind}">{mark}'
        f"</span>{esc(text)}</div>{chips}</td>"
    )


def score_chips(scores: Any, confidence: Any = None) -> str:
    """Scores by dimension in small print, confidences behind them."""
    if not scores:
        return ""
    sure = confidence or {}
    parts = (
        f"{esc(name)} <b>{number(value, 2)}</b>"
        + (f" ({number(sure[name], 2)})" if is_number(sure.get(name)) else "")
        for name, value in scores.items()
    )
    return f'<span class="soft">{" · ".join(parts)}</span>'


def _answer_figures(run: RunFolder) -> str:
    """Length, repetition and refusals before and after."""
    found = run.evaluation.get("answers") or {}
    before, after = found.get("before") or {}, found.get("after") or {}
    if not after:
        return ""
    names = {
        "accuracy": ("right", percent),
        "mean_words": ("words an answer", lambda v: number(v, 1)),
        "distinct_2": ("distinct-2", number),
        "repetition": ("repeated 3-grams", percent),
        "refusals": ("refusals", percent),
    }
    parts = "".join(
        f"<span>{words} <b>{show(before.get(key))} → {show(after.get(key))}</b></span>"
        for key, (words, show) in names.items()
    )
    return f'<p class="signals" style="margin-bottom:12px">{parts}</p>'
