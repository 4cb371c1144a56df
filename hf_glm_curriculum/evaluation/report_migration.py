"""The report's section on a run that migrates from pre-training to instruction tuning."""

from __future__ import annotations

from typing import Any

from hf_glm_curriculum.evaluation.report_style import facts, figure, is_number
from hf_glm_curriculum.evaluation.run_folder import RunFolder
from hf_glm_curriculum.evaluation.svg_charts import Line, line_chart
from hf_glm_curriculum.storage import read_json

SCHEDULE = "migration/schedule.json"
_PREFIX = "migration/"
_DOCUMENTS, _INSTRUCTIONS = "var(--accent)", "var(--resample)"


def migration(run: RunFolder) -> str | None:
    """When the objective moved, what was asked and drawn, and both losses; None without one."""
    path = run.path / SCHEDULE
    if not path.exists():
        return None
    schedule, switch = read_json(path), run.run.get("switch") or {}
    begin, end = schedule["window"]
    told = {
        "migration": f"steps {begin:,} to {end:,} of {schedule['max_steps']:,}",
        "pause at the switch": _seconds(switch.get("seconds")),
        "usual pause between steps": _seconds(switch.get("usual_seconds")),
        "a stop and a new start": _seconds(switch.get("restart_seconds")),
    }
    ratios = [
        _line(run, f"{_PREFIX}ratio_asked", "asked", "var(--observed)", dashed=True),
        _line(run, f"{_PREFIX}ratio_drawn", "drawn", _INSTRUCTIONS),
    ]
    weights = [
        _line(run, f"{_PREFIX}weight_{kind}_{place}", f"{word}, {place}", colour, place != "top")
        for kind, word, colour in (
            ("pretrain", "documents", _DOCUMENTS),
            ("instruction", "instructions", _INSTRUCTIONS),
        )
        for place in ("bottom", "top")
    ]
    losses = [
        _line(run, f"{_PREFIX}loss_pretrain", "documents", _DOCUMENTS),
        _line(run, f"{_PREFIX}loss_instruction", "instructions", _INSTRUCTIONS),
    ]
    charts = (
        ("Instructions' share of the label tokens", ratios, "share"),
        ("Weight of the objectives, lowest and highest layer", weights, "weight"),
        ("Training loss by objective, nats a token", losses, "loss"),
        ("Held-out loss, nats a token", _held_out(run), "loss"),
    )
    drawn = [figure(title, _chart(lines, unit)) for title, lines, unit in charts]
    pairs = (drawn[:2], drawn[2:])
    boxes = "".join(
        f'<div class="pair">{"".join(f"<div>{one}</div>" for one in pair)}</div>' for pair in pairs
    )
    note = '<p class="soft">Layer by step, as a picture: migration/layers.png</p>'
    return facts(told) + boxes + note


def _line(run: RunFolder, key: str, name: str, colour: str, dashed: bool = False) -> Line:
    return Line(name, *run.series(key), colour, dashed=dashed)


def _held_out(run: RunFolder) -> list[Line]:
    """Both held-out losses, with the points before and after training."""
    sets = (
        ("heldout/documents_loss", "heldout_documents", "documents", _DOCUMENTS),
        ("heldout/loss", "heldout", "instructions", _INSTRUCTIONS),
    )
    lines = []
    for key, file, name, colour in sets:
        points: dict[Any, Any] = {m["step"]: m[key] for m in run.metrics if is_number(m.get(key))}
        stages = run.evaluation.get(file) or {}
        points.setdefault(0, (stages.get("before") or {}).get("loss"))
        points.setdefault(run.run.get("global_step"), (stages.get("after") or {}).get("loss"))
        known = sorted((x, y) for x, y in points.items() if is_number(x) and is_number(y))
        lines.append(Line(name, [x for x, _ in known], [y for _, y in known], colour, marks=True))
    return lines


def _chart(lines: list[Line], unit: str) -> str:
    filled = [line for line in lines if line.xs]
    return line_chart(filled, "optimizer step", unit) if filled else ""


def _seconds(value: Any) -> str | None:
    return f"{value:.3g} s" if is_number(value) else None
