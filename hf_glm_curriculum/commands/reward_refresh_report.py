"""`report.html` of a refreshed reward model: what changed, and what the flywheel brought in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_glm_curriculum.commands.reward_report import image_tag, settings_section
from hf_glm_curriculum.evaluation.report_style import duration, esc, facts, page, section
from hf_glm_curriculum.evaluation.run_folder import read_json_lines
from hf_glm_curriculum.storage import atomic_write_text, read_json

DRIFT = "refresh/drift.json"
DRIFT_COLUMNS = (
    "dimension",
    "pairs",
    "right before",
    "right now",
    "order flipped",
    "mean shift",
    "KS distance",
    "open before",
    "open now",
)
_SHOWN = 8


def write_refresh_report(
    run_dir: str | os.PathLike[str], path: str | os.PathLike[str] | None = None
) -> Path:
    """Write the report of a refresh and return its path; the picture lies beside the figures.

    Args:
        run_dir: the run's folder.
        path: the page to write; `report.html` in the run's folder by default.

    Raises:
        StateError: The run's files cannot be read, or the page cannot be written.
    """
    from hf_glm_curriculum.rewards.plots import drift_png

    folder = Path(run_dir).expanduser()
    about, drift = read_json(folder / "run.json"), read_json(folder / DRIFT)
    picture = folder / "refresh" / "drift.png"
    drift_png(drift, picture)
    parts = [_verdict(drift), _drift(drift, picture), _harvest(folder), settings_section(about)]
    title = str(about.get("title") or "Rewards refreshed")
    target = folder / "report.html" if path is None else Path(path)
    text = page(title, _header(title, about), "\n".join(filter(None, parts)))
    atomic_write_text(target, text)
    return target


def drift_rows(dimensions: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """One row a dimension, in the order of `DRIFT_COLUMNS`."""
    return [
        (
            name,
            f"{one['pairs']:,}",
            *(_percent(one[key]) for key in ("accuracy_old", "accuracy_new", "flipped")),
            f"{one['shift']:+.2f}",
            f"{one['distance']:.2f}",
            *(_percent(one[key]) for key in ("open_old", "open_new")),
        )
        for name, one in dimensions.items()
    ]


def _header(title: str, about: Mapping[str, Any]) -> str:
    data = about.get("data", {})
    shown = {
        "refreshed": about.get("model", {}).get("name"),
        "policy": about.get("policy", {}).get("name"),
        "prompts": f"{data.get('prompts', 0):,}",
        "pairs replayed": f"{data.get('replayed_pairs', 0):,}",
        "pairs compared on": f"{data.get('fixed_pairs', 0):,}",
        "took": duration(about.get("seconds")),
        "seed": about.get("seed"),
    }
    brand = '<p class="brand">hf_glm_curriculum · reward refresh report</p>'
    return f"{brand}<h1>{esc(title)}</h1>{facts(shown)}"


def _verdict(drift: Mapping[str, Any]) -> str:
    if drift["accepted"]:
        text = f"Taken: no dimension lost more than {drift['tolerance']:.0%} on the fixed pairs."
    else:
        text = (
            f"Not taken: more than {drift['tolerance']:.0%} lost on {', '.join(drift['lost'])}. "
            "The model in this run's folder is the old one."
        )
    return section("verdict", "New heads", "Trained on old pairs and new.", f"<p>{esc(text)}</p>")


def _drift(drift: Mapping[str, Any], picture: Path) -> str:
    tables = [("Pairs of the fixed set, never trained on.", drift["fixed"])]
    if drift.get("policy_pairs"):
        why = "Pairs of the policy's answers, most of them trained on: how wrong the old heads were"
        tables.append((f"{why} where the policy is now.", drift["policy_pairs"]))
    body = image_tag(picture, "Old heads and new")
    for why, dimensions in tables:
        body += f"<p>{esc(why)}</p>{_table(DRIFT_COLUMNS, drift_rows(dimensions))}"
    why = "Old heads against new. Where the mean moved, thresholds on levels mean something else."
    return section("drift", "Drift", why, body)


def _harvest(folder: Path) -> str:
    """What the flywheel kept, what it did not and why, and the first rows."""
    path = folder / "refresh" / "harvest.json"
    if not path.exists():
        return ""
    counts = read_json(path)
    reasons = [(name, f"{count:,}") for name, count in counts["rejected"].items() if count]
    table = _table(("left out because", "answers"), reasons) if reasons else ""
    rows = read_json_lines(folder / "refresh" / "sft.jsonl")[:_SHOWN]
    samples = "".join(
        f"<details><summary>reward {row['meta']['reward']} · {esc(row['prompt'], 80)}</summary>"
        f"<p>{esc(row['response'])}</p></details>"
        for row in rows
    )
    why = (
        f"{counts['kept']:,} of {counts['answers']:,} sampled answers passed every filter and lie "
        "in refresh/sft.jsonl as SFT records; each says where it comes from."
    )
    return section("flywheel", "Flywheel", why, table + samples)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{esc(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{esc(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
