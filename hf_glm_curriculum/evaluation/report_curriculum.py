"""The report's sections on lanes, the alignment monitor, and pictures that callbacks left."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from hf_glm_curriculum.evaluation.report_style import esc, facts, figure, number, table
from hf_glm_curriculum.evaluation.run_folder import RunFolder, read_json_lines
from hf_glm_curriculum.evaluation.svg_charts import Line, line_chart

_LANES = (
    ("fast", "var(--mastered)"),
    ("refine", "var(--accent)"),
    ("base", "var(--observed)"),
)
_LEVELS = (
    ("variance_smoothed", "variance, smoothed", "var(--accent)", False),
    ("threshold", "threshold", "var(--relabel)", True),
    ("release", "back below", "var(--mastered)", True),
)
_COLOURS = ("var(--accent)", "var(--resample)", "var(--observed)", "var(--mastered)")
_MOST_EVENTS = 50
_LARGEST_PICTURE = 1_500_000
_DRAWN_ALREADY = {"data_map.png", "weights.png", "state_flow.png", "states.png"}
"""What the page draws itself."""


def curriculum(run: RunFolder) -> str | None:
    """Loss and pace of each lane, and every switch of the monitor; None without either."""
    parts = [_lanes(run, name) for name in _names(run, "loss_fast", "loss_refine")]
    parts += [_monitor(run, name) for name in _names(run, "variance_smoothed")]
    return "".join(parts) or None


def _names(run: RunFolder, *endings: str) -> list[str]:
    """Callbacks that logged one of these figures."""
    keys = (key for line in run.metrics for key in line)
    return sorted({key.rpartition("/")[0] for key in keys if key.rpartition("/")[2] in endings})


def _series(run: RunFolder, key: str, name: str, colour: str, dashed: bool = False) -> list[Line]:
    """A logged figure as a line; none where it was never logged."""
    xs, ys = run.series(key)
    return [Line(name, xs, ys, colour, dashed=dashed)] if xs else []


def _lanes(run: RunFolder, name: str) -> str:
    losses = [x for lane, c in _LANES for x in _series(run, f"{name}/loss_{lane}", lane, c)]
    pace = [
        x
        for lane, colour in _LANES
        for x in _series(run, f"{name}/label_tokens_per_second_{lane}", lane, colour)
    ]
    return _pair(
        figure("Training loss of each lane", line_chart(losses, "optimizer step", "loss")),
        figure("Label tokens a second", line_chart(pace, "optimizer step", "tokens / s")),
    )


def _monitor(run: RunFolder, name: str) -> str:
    levels = [
        x
        for key, word, colour, dashed in _LEVELS
        for x in _series(run, f"{name}/{key}", word, colour, dashed)
    ]
    start = f"{name}/ratio_"
    ratios = sorted({key for line in run.metrics for key in line if key.startswith(start)})
    shares = [
        x
        for place, key in enumerate(ratios)
        for x in _series(run, key, key.removeprefix(start), _COLOURS[place % len(_COLOURS)])
    ]
    drawn = _pair(
        figure(
            "Variance of the alignment scores", line_chart(levels, "optimizer step", "variance")
        ),
        figure("Share of each source", line_chart(shares, "optimizer step", "share")),
    )
    return drawn + _events(run, name)


def _pair(left: str, right: str) -> str:
    boxes = [box for box in (left, right) if box]
    return f'<div class="pair">{"".join(f"<div>{box}</div>" for box in boxes)}</div>'


def _events(run: RunFolder, name: str) -> str:
    """Every switch with its reason."""
    path = run.path / name / "events.jsonl"
    events = read_json_lines(path) if path.exists() else []
    if not events:
        return '<p class="soft">The monitor never stepped in.</p>'
    rows = (
        (number(event.get("step")), esc(event.get("event"), 60), esc(event.get("reason"), 300))
        for event in events[:_MOST_EVENTS]
    )
    more = len(events) - _MOST_EVENTS
    note = f'<p class="soft">{more} more in {esc(name)}/events.jsonl</p>' if more > 0 else ""
    return f"<h3>Switches</h3>{table(('step', 'switch', 'reason'), rows)}{note}"


def attention(run: RunFolder) -> str | None:
    """What the position graph let queries see while it trained; None without one."""
    names = _names(run, "kept_share", "choosing_share")
    parts = []
    for name in names:
        keys, kept = (run.series(f"{name}/{key}")[1] for key in ("keys", "kept_share"))
        told = {
            "keys a choosing query sees": number(keys[-1] if keys else None),
            "share of the keys before a query": number(kept[-1] if kept else None),
        }
        lines = [
            *_series(run, f"{name}/kept_share", "keys seen", "var(--accent)"),
            *_series(run, f"{name}/entropy", "entropy of the estimate", "var(--resample)"),
        ]
        parts.append(facts(told) + figure("Shares", line_chart(lines, "optimizer step", "share")))
    return "".join(parts) or None


def pictures(run: RunFolder) -> str | None:
    """Pictures in the folders of the run's callbacks, inside the page; None where there are none.

    Texts coloured by temperature, position graphs, layers by step: what is not drawn above.
    """
    found = [path for path in sorted(run.path.glob("*/*.png")) if path.name not in _DRAWN_ALREADY]
    found = [p for p in found if not p.parent.name.startswith("checkpoint-")]
    shown = [p for p in found if p.stat().st_size <= _LARGEST_PICTURE]
    drawn = "".join(_picture(str(p.relative_to(run.path)), p.read_bytes()) for p in shown)
    return (drawn + _left_out(found, shown)) or None


def _picture(name: str, content: bytes) -> str:
    data = base64.b64encode(content).decode("ascii")
    image = (
        f'<img alt="{esc(name)}" loading="lazy" style="max-width:100%;height:auto" '
        f'src="data:image/png;base64,{data}">'
    )
    return figure(name, image)


def _left_out(found: Iterable[Any], shown: Iterable[Any]) -> str:
    names = [path.name for path in found if path not in set(shown)]
    return f'<p class="soft">Too large for this page: {esc(", ".join(names))}</p>' if names else ""
