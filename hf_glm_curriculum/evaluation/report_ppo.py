"""The report's section on a policy trained by PPO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_glm_curriculum.evaluation.report_samples import answers, score_chips
from hf_glm_curriculum.evaluation.report_style import esc, facts, figure, is_number, number, percent
from hf_glm_curriculum.evaluation.run_folder import (
    RunFolder,
    read_json_lines,
    read_run,
)
from hf_glm_curriculum.evaluation.svg_charts import Line, line_chart
from hf_glm_curriculum.storage import read_json

STAGE = "stages/ppo"
"""Where a run of several stages keeps its PPO run."""

HEADS = "stages/reward"
"""Where it keeps the run that made the reward model."""

COMPLETIONS_FILE = "completions.jsonl"
_SCORE, _OPEN, _ALARM = "structured/score_", "structured/open_", "/alarm_"
_COLOURS = ("var(--accent)", "var(--resample)", "var(--mastered)", "var(--relabel)")
_SHOWN = 24


def ppo(run: RunFolder) -> str | None:
    """Curves, alarms, scores before and after and sample answers; None without a PPO run."""
    left_out = (run.run.get("stages") or {}).get("left_out") or {}
    if left_out.get(STAGE):
        note = f'<p class="why">PPO was left out: {esc(left_out[STAGE])}</p>'
        return note + ("" if HEADS in left_out else _heads(run.path / HEADS))
    own = run.run.get("command") == "ppo"
    if not own and not (run.path / STAGE / "run.json").is_file():
        return None
    found = run if own else read_run(run.path / STAGE)
    parts = [_facts(found), _alarms(found), _scores(found), _curves(found)]
    parts.append("" if own else _heads(run.path / HEADS))
    parts.append("" if own else answers(found) or "")
    parts.append(_completions(found))
    return "".join(parts) or None


def alarm_spans(metrics: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """Kind of alarm → first and last update at which it held, in the order they began.

    Args:
        metrics: lines of `metrics.jsonl`.
    """
    spans: dict[str, tuple[int, int]] = {}
    for line in metrics:
        for key, value in line.items():
            kind = key.partition(_ALARM)[2]
            if kind and value:
                step = int(line["step"])
                spans[kind] = (spans.get(kind, (step, step))[0], step)
    return spans


def _facts(run: RunFolder) -> str:
    reward = run.run.get("reward") or {}
    last = next((m for m in reversed(run.metrics) if "objective/kl" in m), {})
    seconds = ((m.get(f"ppo/seconds_{p}") for p in _PHASES) for m in run.metrics)
    took = [sum(s) for s in (list(filter(is_number, one)) for one in seconds) if s]
    return facts(
        {
            "reward": reward.get("name"),
            "dimensions": ", ".join(reward.get("dimensions") or ()),
            "updates": number(run.run.get("global_step")),
            "KL to the reference at the end": _nats(last.get("objective/kl")),
            "seconds an update": f"{sum(took) / len(took):.1f}" if took else None,
        }
    )


_PHASES = ("rollout", "score", "optimize")


def _alarms(run: RunFolder) -> str:
    """Every alarm of the monitor with the updates at which it held."""
    spans = alarm_spans(run.metrics)
    if not spans:
        watched = sum(key.endswith("/alarms") for line in run.metrics for key in line)
        words = _calm(watched, run.run.get("alarm_window")) if watched else ""
        return f'<p class="why">{words}</p>' if words else ""
    lines = "".join(
        f"<li><b>{esc(kind.replace('_', ' '))}</b>: updates {first:,} to {last:,}</li>"
        for kind, (first, last) in spans.items()
    )
    words = "The reward rose while something got worse. Read the answers before trusting it."
    return f'<div class="warning"><p>{words}</p><ul>{lines}</ul></div>'


def _calm(watched: int, window: Any) -> str:
    """What it means that there was no alarm."""
    if is_number(window) and watched < window:
        return (
            f"{watched:,} updates are too few to tell whether the reward is gamed: alarms look "
            f"back on {window:,}."
        )
    return "No alarm: the reward was not seen to be gamed."


def _scores(run: RunFolder) -> str:
    """Mean score and confidence of the held-out answers, before and after."""
    scores = run.evaluation.get("scores") or {}
    before, after = scores.get("before") or {}, scores.get("after") or {}
    if not after:
        return ""
    rows = "".join(
        f"<tr><td>{esc(name)}</td>"
        + "".join(
            f'<td class="n">{_moved(before.get(name), after.get(name), key, show)}</td>'
            for key, show in (("score", number), ("confidence", number), ("open_share", percent))
        )
        + "</tr>"
        for name in after
    )
    titles = ("score", "confidence", "open gates")
    head = "".join(f'<th class="n">{title}</th>' for title in titles)
    table = f"<table><thead><tr><th>dimension</th>{head}</tr></thead><tbody>{rows}</tbody></table>"
    caption = "Held-out answers before → after, by the reward they were trained on"
    return f'<h3>{caption}</h3><div class="wide">{table}</div>'


def _moved(before: Any, after: Any, key: str, show: Callable[[Any], str]) -> str:
    """A figure before and after training."""
    was, now = (show((stage or {}).get(key)) for stage in (before, after))
    return f'<span class="soft">{was} →</span> {now}'


def _heads(folder: Path) -> str:
    """What the reward model is worth on test prompts."""
    path = folder / "rewards" / "figures.json"
    if not path.exists():
        return ""
    found = read_json(path)
    rows = "".join(
        f'<tr><td>{esc(name)}</td><td class="n">{number(one.get("pairs"))}</td>'
        f'<td class="n">{percent(one.get("pairwise_accuracy"))}</td>'
        f'<td class="n">{number(one.get("ece"))}</td>'
        f'<td class="n">{percent(one.get("open_share"))}</td></tr>'
        for name, one in (found["figures"].get(found["split"]) or {}).items()
    )
    titles = ("pairs", "right", "ECE of the confidence", "above the gate")
    head = "".join(f'<th class="n">{title}</th>' for title in titles)
    return (
        f"<h3>Heads of the reward model, on {esc(found['split'])} prompts</h3>"
        f'<div class="wide"><table><thead><tr><th>dimension</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _curves(run: RunFolder) -> str:
    """Reward, KL, openness, length and entropy over the updates."""
    scores, opened = _by_dimension(run, _SCORE), _by_dimension(run, _OPEN)
    scores = scores or [_line(run, "objective/scores", "reward", _COLOURS[0])]
    lengths = [
        _line(run, "structured/tokens", "tokens", _COLOURS[0]),
        _line(run, "structured/length", "words", _COLOURS[1]),
    ]
    charts = [
        ("Score of the sampled answers", scores, "score"),
        ("KL to the reference, nats an answer", [_line(run, "objective/kl", "KL")], "KL"),
        ("Share of rows in which a dimension is open", opened, "share"),
        ("Length of an answer", lengths, "length"),
        ("Entropy, nats an answer", [_line(run, "objective/entropy", "entropy")], "entropy"),
        ("Ended by themselves", [_line(run, "structured/eos_rate", "share")], "share"),
    ]
    drawn = [figure(title, _chart(lines, unit)) for title, lines, unit in charts]
    drawn = [one for one in drawn if one]
    pairs = (drawn[i : i + 2] for i in range(0, len(drawn), 2))
    return "".join(
        f'<div class="pair">{"".join(f"<div>{one}</div>" for one in pair)}</div>' for pair in pairs
    )


def _by_dimension(run: RunFolder, prefix: str) -> list[Line]:
    names = dict.fromkeys(
        key.removeprefix(prefix) for line in run.metrics for key in line if key.startswith(prefix)
    )
    return [
        _line(run, f"{prefix}{name}", name, _COLOURS[place % len(_COLOURS)])
        for place, name in enumerate(names)
    ]


def _line(run: RunFolder, key: str, name: str, colour: str = _COLOURS[0]) -> Line:
    return Line(name, *run.series(key), colour)


def _chart(lines: list[Line], unit: str) -> str:
    filled = [line for line in lines if line.xs]
    return line_chart(filled, "update", unit) if filled else ""


def _completions(run: RunFolder) -> str:
    """Answers of the last update that wrote any, as they were sampled and scored."""
    path = run.path / COMPLETIONS_FILE
    rows = read_json_lines(path) if path.exists() else []
    last = [row for row in rows if row.get("step") == rows[-1].get("step")][:_SHOWN] if rows else []
    if not last:
        return ""
    items = "".join(
        f'<tr><td data-name="prompt">{esc(row.get("prompt"), 300)}</td>'
        f'<td data-name="sampled answer">{esc(row.get("response"), 600)}</td>'
        f'<td data-name="scores">{score_chips(row.get("scores"), row.get("confidence"))}</td>'
        f'<td class="n" data-name="reward">{number(row.get("reward"))}</td>'
        f'<td class="n" data-name="KL">{number(row.get("kl"))}</td></tr>'
        for row in last
    )
    head = "".join(f"<th>{t}</th>" for t in ("prompt", "sampled answer", "scores"))
    head += "".join(f'<th class="n">{t}</th>' for t in ("reward", "KL"))
    title = f"Sampled in update {last[0].get('step')}"
    return (
        f'<h3>{title}</h3><div class="scroll"><table class="stack"><thead><tr>{head}</tr></thead>'
        f"<tbody>{items}</tbody></table></div>"
    )


def _nats(value: Any) -> str | None:
    return f"{value:.3g} nats" if is_number(value) else None
