"""Sections of the report on the run as a whole: header, figures, curves, data map, config.

Every builder takes the run and returns markup, or None where the run has nothing for it.
"""

from __future__ import annotations

import json
from typing import Any

from hf_glm_curriculum.evaluation.report_flow import flow_figure
from hf_glm_curriculum.evaluation.report_style import (
    STATES,
    before_after,
    card,
    duration,
    embedded_json,
    esc,
    facts,
    figure,
    is_number,
    moment,
    number,
    percent,
    state_colour,
)
from hf_glm_curriculum.evaluation.run_folder import CallbackFolder, RunFolder
from hf_glm_curriculum.evaluation.svg_charts import (
    Dot,
    Line,
    band_chart,
    legend,
    line_chart,
    scatter_chart,
    stacked_chart,
)

_MOST_DOTS = 3000
_STATUS = {"finished": "good", "failed": "bad", "interrupted": "bad", "running": "soft"}


def header(run: RunFolder) -> str:
    """Title, status, one sentence on the outcome and the facts of the run."""
    about = run.run
    title = about.get("title") or f"Run {run.path.resolve().name}"
    status = about.get("status")
    mark = ""
    if status:
        mark = f' <span class="pill {_STATUS.get(status, "soft")}">{esc(status)}</span>'
    model, data = about.get("model") or {}, about.get("data") or {}
    versions = about.get("versions") or {}
    shown = ("hf_glm_curriculum", "torch", "transformers", "trl", "peft")
    pairs = {
        "model": model.get("name"),
        "trained": _trained(model),
        "data": data.get("train"),
        "rows": number(data["rows"]) if is_number(data.get("rows")) else None,
        "trainer": about.get("trainer"),
        "seed": about.get("seed"),
        "started": moment(about["started"]) if about.get("started") else None,
        "took": _took(run),
        "versions": ", ".join(f"{k} {versions[k]}" for k in shown if versions.get(k)),
    }
    return (
        f'<p class="brand">hf_glm_curriculum · training report</p><h1>{esc(title)}{mark}</h1>'
        f'<p class="lead">{esc(summary_sentence(run))}</p>{facts(pairs)}'
    )


def _took(run: RunFolder) -> str | None:
    """Wall time, that of later stages in the folder included."""
    seconds = run.run.get("seconds")
    stages = (run.run.get("stages") or {}).values()
    more = [one for one in stages if is_number(one)]
    return duration(seconds + sum(more)) if is_number(seconds) else None


def _trained(model: dict[str, Any]) -> str | None:
    """How many of how many parameters were trained."""
    trained, total = model.get("trainable_parameters"), model.get("parameters")
    if not is_number(total):
        return None
    size = f"{total / 1e6:,.1f}M parameters"
    share = f"{trained / 1e6:,.2f}M of " if is_number(trained) and trained != total else ""
    return share + size


def summary_sentence(run: RunFolder) -> str:
    """What the run showed, in plain words; built from whatever artefacts there are."""
    parts = []
    answers = run.evaluation.get("answers") or {}
    before, after = answers.get("before") or {}, answers.get("after") or {}
    if after.get("checkable") and before.get("checkable"):
        parts.append(
            f"Of {after['checkable']} held-out questions with a checkable answer the model got "
            f"{before['correct']} right before training and {after['correct']} after."
        )
    for callback in run.callbacks:
        counts = callback.samples["state"].value_counts()
        fates = {
            "RELABEL": "look wrong and were taken out",
            "MASTERED": "are learnt",
            "OBSERVED": "are under observation",
            "RESAMPLE": "are drawn again",
        }
        said = [f"{counts[state]:,} {words}" for state, words in fates.items() if state in counts]
        found = ", ".join(said) or "all stayed in training"
        parts.append(f"{len(callback.samples):,} training samples were followed; {found}.")
    switch = run.run.get("switch") or {}
    if is_number(switch.get("seconds")):
        parts.append(
            f"Pre-training became instruction tuning at step {switch['step']:,}, with a pause of "
            f"{switch['seconds']:.3g} s between two steps."
        )
    detection = run.evaluation.get("detection") or {}
    if detection.get("n_faulty"):
        flagged = detection["flagged"]
        parts.append(
            f"{flagged['hits']} of the {detection['n_faulty']} planted faults are among the "
            f"{flagged['size']} samples taken out."
        )
    return " ".join(parts) or "The run left no results yet; what there is, is shown below."


def cards(run: RunFolder) -> str:
    """The summary figures; "" where none is known."""
    found = [*_loss_card(run), *_answer_card(run), *_detection_cards(run), *_sample_cards(run)]
    return f'<div class="cards">{"".join(found)}</div>' if found else ""


def _loss_card(run: RunFolder) -> list[str]:
    heldout = run.evaluation.get("heldout") or {}
    before, after = (heldout.get(k) or {} for k in ("before", "after"))
    if not is_number(after.get("loss")):
        return []
    was = number(before.get("loss"), 2)
    better = is_number(before.get("loss")) and after["loss"] < before["loss"]
    note = f"nats a token, {number(after.get('samples'))} held-out samples"
    value = before_after(was, number(after["loss"], 2))
    return [card("Held-out loss", value, note, "good" if better else "")]


def _answer_card(run: RunFolder) -> list[str]:
    answers = run.evaluation.get("answers") or {}
    before, after = (answers.get(k) or {} for k in ("before", "after"))
    if not is_number(after.get("accuracy")):
        return []
    value = before_after(percent(before.get("accuracy")), percent(after["accuracy"]))
    better = is_number(before.get("accuracy")) and after["accuracy"] > before["accuracy"]
    note = f"{number(after['correct'])} of {number(after['checkable'])} checked answers after"
    return [card("Held-out answers right", value, note, "good" if better else "")]


def _detection_cards(run: RunFolder) -> list[str]:
    detection = run.evaluation.get("detection") or {}
    if not detection.get("n_faulty"):
        return []
    interval = detection.get("auroc_interval")
    note = "suspicion, faulty against clean"
    if interval:
        note = f"95 % interval {interval[0]:.2f}–{interval[1]:.2f}"
    flagged = detection["flagged"]
    value = f"{percent(flagged['precision'])} / {percent(flagged['recall'])}"
    words = f"{flagged['hits']} faults among {flagged['size']} taken out"
    return [
        card("Faults found (AUROC)", number(detection.get("auroc")), note),
        card("Precision / recall", value, words),
    ]


def _sample_cards(run: RunFolder) -> list[str]:
    if not run.callbacks:
        return []
    samples = run.callbacks[0].samples
    counts = samples["state"].str.lower().value_counts()
    left = len(samples) - int(counts.get("training", 0))
    parts = ", ".join(f"{counts[s]:,} {s}" for s in STATES[1:] if counts.get(s))
    return [card("Samples that left training", f"{left:,}", esc(parts or "none"))]


def curves(run: RunFolder) -> str | None:
    """Training loss with its running mean, held-out loss, learning rate and gradient norm."""
    logged = [m for m in run.metrics if is_number(m.get("loss"))]
    if not logged:
        return None
    steps = [m["step"] for m in logged]
    losses = [float(m["loss"]) for m in logged]
    lines = [Line("training loss", steps, losses, "var(--accent)")]
    lines += _held_out_lines(run, steps)
    left = figure("Loss, nats a token", line_chart(lines, "optimizer step", "loss"))
    others = [m for m in logged if is_number(m.get("grad_norm"))]
    norms = [float(m["grad_norm"]) for m in others]
    line = Line("gradient norm", [m["step"] for m in others], norms, "var(--resample)")
    chart = line_chart([line], "optimizer step", "gradient norm")
    right = figure("Gradient norm of the step", chart)
    return f'<div class="pair"><div>{left}</div><div>{right}</div></div>'


def _held_out_lines(run: RunFolder, steps: list[float]) -> list[Line]:
    """Evaluation losses the trainer logged, and our own before, during and after the run."""
    evaluated = [m for m in run.metrics if is_number(m.get("eval_loss"))]
    lines = []
    if evaluated:
        xs, ys = [m["step"] for m in evaluated], [m["eval_loss"] for m in evaluated]
        lines.append(Line("held-out loss (trainer)", xs, ys, "var(--observed)", marks=True))
    heldout = run.evaluation.get("heldout") or {}
    points = {m["step"]: m["heldout/loss"] for m in run.metrics if is_number(m.get("heldout/loss"))}
    for step, key in ((0, "before"), (max([*steps, *points]), "after")):
        points.setdefault(step, (heldout.get(key) or {}).get("loss"))
    known = sorted((x, y) for x, y in points.items() if is_number(y))
    if known:
        xs, ys = [x for x, _ in known], [y for _, y in known]
        lines.append(Line("held-out loss", xs, ys, "var(--mastered)", dashed=True, marks=True))
    return lines


def data_map(run: RunFolder) -> str | None:
    """Confidence against variability of every sample, coloured by state; planted faults ringed."""
    faults = (run.evaluation.get("detection") or {}).get("faults") or {}
    charts = [_map_of(callback, faults, len(run.callbacks) > 1) for callback in run.callbacks]
    if not any(charts):
        return None
    texts = embedded_json("texts", _texts(run))
    hint = '<p class="soft">Point at or tap a sample to read it.</p>'
    detail = f'<div id="detail" aria-live="polite">{hint}</div>'
    return f'<div class="map"><div>{"".join(charts)}</div>{detail}</div>{texts}'


def _map_of(callback: CallbackFolder, faults: dict[str, str], named: bool) -> str:
    samples = callback.samples
    if not {"confidence", "variability"} <= set(samples.columns):
        return ""
    samples = samples.dropna(subset=["confidence", "variability"])
    if samples.empty:
        return ""
    shown = samples.sort_values("suspicion", ascending=False, na_position="last").head(_MOST_DOTS)
    dots = [_dot(record, faults) for record in shown.to_dict("records")]
    right = max(0.05, float(samples["variability"].max())) * 1.05
    chart = scatter_chart(dots, "variability", "confidence", (0, right), (0, 1))
    counts = samples["state"].str.lower().value_counts()
    keys = [(f"{s} {counts[s]:,}", state_colour(s)) for s in STATES if s in counts]
    notes = ["○ ringed: planted fault"] if faults else []
    if len(shown) < len(samples):
        notes.append(f"the {len(shown):,} most suspicious of {len(samples):,} are drawn")
    note = f'<p class="legend"><span>{" · ".join(notes)}</span></p>' if notes else ""
    title = f"<h3>{esc(callback.name)}</h3>" if named else ""
    return f"{title}{chart}{legend(keys)}{note}"


def _dot(record: dict[str, Any], faults: dict[str, str]) -> Dot:
    row = str(int(record["row"]))
    words = [f"row {row}", str(record["state"]).lower()]
    words.append(f"suspicion {number(record['suspicion'], 1)}")
    if row in faults:
        words.append(f"planted: {faults[row]}")
    return Dot(
        round(float(record["variability"]), 4),
        round(float(record["confidence"]), 4),
        state_colour(record["state"]),
        " · ".join(words),
        key=row,
        ring=row in faults,
    )


def _texts(run: RunFolder) -> dict[str, list[str]]:
    """Row → prompt and response, for the rows whose text the run kept."""
    texts = {}
    pools = [entry for callback in run.callbacks for entry in callback.pool]
    for entry in [*pools, *run.suspicious]:
        text = entry.get("text") or {}
        if text:
            pair = (str(text.get(name) or "")[:600] for name in ("prompt", "response"))
            texts[str(entry.get("row"))] = list(pair)
    return texts


def lives(run: RunFolder) -> str | None:
    """Weights over time, how many samples are in which state, and what moved between states."""
    charts = [_lives_of(run, c.name) + flow_figure(c.flow) for c in run.callbacks] or [
        _lives_of(run, "lifespan")
    ]
    charts = [chart for chart in charts if chart]
    return "".join(charts) if charts else None


def _lives_of(run: RunFolder, name: str) -> str:
    keys = [f"{name}/weight_p{q}" for q in (10, 50, 90)]
    logged = [m for m in run.metrics if all(is_number(m.get(key)) for key in keys)]
    if not logged:
        return ""
    steps = [float(m["step"]) for m in logged]
    low, middle, high = ([float(m[key]) for m in logged] for key in keys)
    weights = band_chart(steps, low, middle, high, "optimizer step", "sample weight")
    layers = [
        (
            state,
            state_colour(state),
            [float(m.get(f"{name}/state_{state}") or 0) for m in logged],
        )
        for state in STATES
    ]
    flow = stacked_chart(steps, layers, "optimizer step", "samples")
    left = figure("Weights samples are trained with", weights)
    right = figure("Samples by state", flow)
    return f'<div class="pair"><div>{left}</div><div>{right}</div></div>'


def configuration(run: RunFolder) -> str | None:
    """Everything needed to repeat the run."""
    about = run.run
    if not about:
        return None
    parts = []
    if about.get("argv"):
        command = " ".join(["hf-glm-curriculum", *map(str, about["argv"])])
        parts.append(f"<h3>Command</h3><pre>{esc(command)}</pre>")
    for name in ("config", "versions", "data", "model"):
        if about.get(name):
            text = json.dumps(about[name], indent=2, ensure_ascii=False, default=str)
            opened = " open" if name == "config" else ""
            parts.append(
                f'<details{opened}><summary class="more">{name}</summary>'
                f"<pre>{esc(text, 20_000)}</pre></details>"
            )
    return "".join(parts) or None
