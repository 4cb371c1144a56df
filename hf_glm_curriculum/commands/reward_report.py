"""`report.html` of a `reward` run: figures, pictures and the most confident mistakes."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_glm_curriculum.commands.reward import COLUMNS, table_rows
from hf_glm_curriculum.evaluation.report_style import duration, esc, facts, page, section
from hf_glm_curriculum.evaluation.run_folder import read_json_lines
from hf_glm_curriculum.storage import atomic_write_text, read_json

_SPLITS = {
    "test": "Prompts that nothing was trained, stopped, anchored or calibrated on. Right: pairs in "
    "order; levels: scores on their side of 0.5; ECE and AUROC of the confidence; open: gates at "
    "the threshold; caught: wrong scores below it.",
    "unseen": "Sources that nothing was trained on.",
    "validation": "Prompts that training was stopped, anchored and calibrated by.",
}
_PICTURES = (
    (
        "reliability",
        "Reliability",
        "How often scores of each confidence were right. On the diagonal, confidence can be taken "
        "at its word; the dotted line is the gate.",
    ),
    ("scores", "Scores", "Scores of chosen and rejected responses; 0.5 is the anchor."),
    (
        "risk_coverage",
        "Risk and coverage",
        "Errors left when only the most confident scores are kept.",
    ),
    ("training", "Training", "Each dimension keeps its own best epoch."),
)
_MISTAKES = 12
FIGURES = "rewards/figures.json"


def write_reward_report(
    run_dir: str | os.PathLike[str], path: str | os.PathLike[str] | None = None
) -> Path:
    """Write the report of a finished run and return its path.

    Args:
        run_dir: the run's folder.
        path: the page to write; `report.html` in the run's folder by default.

    Raises:
        StateError: The run's files cannot be read, or the page cannot be written.
    """
    folder = Path(run_dir).expanduser()
    figures = read_json(folder / FIGURES)
    about = read_json(folder / "run.json")
    parts = [
        section(split, f"Figures: {split}", why, _table(figures["figures"][split]))
        for split, why in _SPLITS.items()
        if figures["figures"].get(split)
    ]
    parts += [_picture(folder, *picture) for picture in _PICTURES]
    parts += [_dimensions(figures), _sources(figures), _mistakes(folder), settings_section(about)]
    heading = _header(about, figures)
    target = folder / "report.html" if path is None else Path(path)
    text = page(str(about.get("title") or "Rewards"), heading, "\n".join(filter(None, parts)))
    atomic_write_text(target, text)
    return target


def _header(about: dict[str, Any], figures: dict[str, Any]) -> str:
    model, data = about.get("model", {}), about.get("data", {})
    pairs = {
        "backbone": model.get("name"),
        "added parameters": f"{model.get('trainable_parameters', 0):,}",
        "of the backbone": f"{model.get('share', 0):.2%}",
        "examples": f"{data.get('rows', 0):,} to train, {data.get('heldout_rows', 0):,} held out",
        "sources": data.get("train"),
        "took": duration(about.get("seconds")),
        "seed": about.get("seed"),
    }
    return (
        '<p class="brand">hf_glm_curriculum · reward report</p>'
        f"<h1>{esc(about.get('title') or 'Rewards')}</h1>{facts(pairs)}"
    )


def _table(figures: dict[str, Any]) -> str:
    head = "".join(f"<th>{esc(title)}</th>" for title in ("dimension", *(c[1] for c in COLUMNS)))
    body = "".join(
        f"<tr>{''.join(f'<td>{esc(cell)}</td>' for cell in row)}</tr>"
        for row in table_rows(figures)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _picture(folder: Path, name: str, title: str, why: str) -> str:
    path = folder / "rewards" / f"{name}.png"
    if not path.exists():
        return ""
    return section(name, title, why, image_tag(path, title))


def image_tag(path: Path, title: str) -> str:
    """A PNG inside the page."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    style = "max-width:100%;background:#fff"
    return f'<img alt="{esc(title)}" style="{style}" src="data:image/png;base64,{data}">'


def _dimensions(figures: dict[str, Any]) -> str:
    """Whether the dimensions measure different things."""
    names = list(figures["figures"].get(figures["split"], {}))
    table = figures.get("correlation") or []
    if len(names) < 2 or len(table) != len(names):
        return ""
    head = "".join(f"<th>{esc(name)}</th>" for name in ("", *names))
    body = "".join(
        f"<tr><th>{esc(name)}</th>{''.join(f'<td>{value:.2f}</td>' for value in row)}</tr>"
        for name, row in zip(names, table, strict=True)
    )
    entropy = figures.get("joint_entropy")
    why = "Correlation of the dimensions' scores over all held-out responses."
    if entropy is not None:
        why += f" Their joint entropy, binned, is {entropy:.0%} of the most it could be."
    return section("dimensions", "Dimensions", why, f"<table><tr>{head}</tr>{body}</table>")


def _sources(figures: dict[str, Any]) -> str:
    """Each source with and without training on it."""
    rows = []
    for source, dimensions in figures.get("by_source", {}).items():
        for name, one in dimensions.items():
            left = figures.get("shift", {}).get(source, {}).get(name, {})
            cells = (
                source,
                name,
                _percent(one.get("pairwise_accuracy")),
                _percent(left.get("pairwise_accuracy")),
                "–" if one.get("ece") is None else f"{one['ece']:.3f}",
            )
            rows.append("".join(f"<td>{esc(cell)}</td>" for cell in cells))
    if not rows:
        return ""
    titles = ("source", "dimension", "pairs right", "without training on it", "ECE")
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    why = "Held-out prompts of each source; and heads trained on all other sources."
    return section("sources", "Sources", why, f"<table><tr>{head}</tr>{body}</table>")


def _mistakes(folder: Path) -> str:
    """The wrong scores with the highest confidence."""
    rows = read_json_lines(folder / "rewards" / "scores.jsonl")
    wrong = sorted((r for r in rows if not r["correct"]), key=lambda r: -r["confidence"])
    if not wrong:
        return ""
    parts = [
        f"<details><summary>{esc(row['dimension'])}: score {row['score']:.2f}, should be "
        f"{row['target']:.2g}; confidence {row['confidence']:.2f} · {esc(row['response'], 80)}"
        f"</summary><p><b>Prompt</b> {esc(row['prompt'])}</p>"
        f"<p><b>Response</b> {esc(row['response'])}</p></details>"
        for row in wrong[:_MISTAKES]
    ]
    why = f"{len(wrong)} of {len(rows)} held-out scores are wrong; these are the surest of them."
    return section("mistakes", "Most confident mistakes", why, "".join(parts))


def settings_section(about: Mapping[str, Any]) -> str:
    """Section of the settings that a run was started with."""
    text = json.dumps(about.get("config", {}), indent=2, ensure_ascii=False)
    return section(
        "configuration",
        "Configuration",
        "Everything needed to repeat the run.",
        f"<pre>{esc(text, None)}</pre>",
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
