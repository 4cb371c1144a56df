"""The flywheel: a policy's good answers go back into its fine-tuning data, with their provenance.

Source: article 2, §6.1 (generations, screened by people or models, feed the training data).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hf_glm_curriculum.data.record_files import read_file
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.dimensions import dimension_index
from hf_glm_curriculum.rewards.pipeline import RewardPipeline, ScoredBatch
from hf_glm_curriculum.rewards.readings import read_responses
from hf_glm_curriculum.storage import atomic_write_text
from hf_glm_curriculum.text.checks import check_answer
from hf_glm_curriculum.text.truncation import looks_truncated

Row = dict[str, Any]
Screen = Callable[[str, str], bool]

ORIGIN = "policy"
"""`meta.origin` of every harvested row."""


@dataclass(frozen=True)
class FlywheelConfig:
    """What an answer must be to go back into the data.

    Raises:
        ConfigError: naming the field, the rule and the value.
    """

    least_score: float = 0.6
    """Of every open dimension."""

    least_reward: float = 0.7
    """Of the weighted reward without shaping, where closed dimensions are worth their mean."""

    must_be_open: tuple[str, ...] = ()
    """Dimensions of which the reward model must be confident; of some one it always must."""

    most_per_prompt: int = 1
    """Answers kept of one prompt, the best first."""

    most_repetition: float = 0.2
    """Share of repeated 3-grams."""

    allow_templates: bool = False
    """Keep boilerplate openings and closings."""

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("least_score", "least_reward", "most_repetition"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: must lie in [0, 1], got {getattr(self, name)}")
        if self.most_per_prompt < 1:
            raise ConfigError(f"most_per_prompt: must be at least 1, got {self.most_per_prompt}")


@dataclass(frozen=True)
class Harvest:
    """What one turn of the flywheel brought in."""

    rows: list[Row]
    """Rows of fine-tuning data, (prompt, response, meta)."""

    rejected: Counter[str] = field(default_factory=Counter)
    """Answers left out by the first reason that applied."""

    @property
    def share(self) -> float:
        """Share of the answers that were kept."""
        total = len(self.rows) + self.rejected.total()
        return len(self.rows) / total if total else 0.0


def harvest(
    prompts: Sequence[Mapping[str, Any] | str],
    responses: Sequence[str],
    pipeline: RewardPipeline,
    provenance: Mapping[str, Any],
    *,
    config: FlywheelConfig | None = None,
    ended: Sequence[bool] | None = None,
    screens: Mapping[str, Screen] | None = None,
) -> Harvest:
    """Filter a policy's answers into rows of fine-tuning data.

    Args:
        prompts: B texts, or rows with `prompt` and perhaps `answer_check` (which the answer must
            pass) and `refusal_ok` (whether a refusal is called for).
        responses: B answers; several to one prompt stand in several rows.
        pipeline: scores them; its running state is left alone.
        provenance: where the answers come from, kept in every row: policy, step, reward model.
        config: filters.
        ended: [B], whether generation came to the end-of-sequence token; without it answers that
            look cut off are left out.
        screens: reason → function of (prompt, response) that returns whether to keep it, such as a
            person's decision.

    Returns:
        The rows, best answer of each prompt first, prompts in the order given.

    Raises:
        DataError: if the lists do not match, or the provenance is empty or not plain data.
        ConfigError: if `must_be_open` names an unknown dimension.
    """
    config = config or FlywheelConfig()
    rows = [{"prompt": p} if isinstance(p, str) else dict(p) for p in prompts]
    _check(rows, responses, provenance, pipeline, config)
    if not rows:
        return Harvest([])
    texts = [row["prompt"] for row in rows]
    scored = pipeline.score(texts, responses, ended=ended, update=False)
    reasons = _text_reasons(rows, responses, ended, config)
    score_reasons = _score_reasons(scored, config)
    rejected: Counter[str] = Counter()
    kept: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        reason = reasons[i] or _failed(row, responses[i], screens or {}) or score_reasons[i]
        if reason:
            rejected[reason] += 1
        else:
            kept.setdefault(row["prompt"], []).append(i)
    found: list[Row] = []
    for places in kept.values():
        best = _best(places, scored, responses, config, rejected)
        found += [_row(rows[i], responses[i], scored, i, provenance) for i in best]
    return Harvest(found, rejected)


def append_sft_rows(path: str | os.PathLike[str], rows: Iterable[Row]) -> int:
    """Add harvested rows to a JSONL file of fine-tuning data; what is in it already is left out.

    The file is replaced whole, so that a kill leaves the old or the new one.

    Args:
        path: JSONL that `load_records(path, "sft")` reads; made where it is missing.
        rows: of `harvest`.

    Returns:
        The rows added.

    Raises:
        StateError: if the file cannot be written.
        DataError: if it is there and not JSONL.
    """
    target = Path(path)
    before = target.read_text("utf-8") if target.exists() else ""
    known = [record.fields for record in read_file(target)] if before.strip() else []
    seen = {(row.get("prompt"), row.get("response")) for row in known}
    added = []
    for row in rows:
        key = (row["prompt"], row["response"])
        if key not in seen:
            seen.add(key)
            added.append(json.dumps(row, ensure_ascii=False))
    if added:
        separator = "" if not before or before.endswith("\n") else "\n"
        atomic_write_text(target, before + separator + "".join(f"{line}\n" for line in added))
    return len(added)


def _check(
    rows: list[Row],
    responses: Sequence[str],
    provenance: Mapping[str, Any],
    pipeline: RewardPipeline,
    config: FlywheelConfig,
) -> None:
    if len(rows) != len(responses):
        raise DataError(
            f"prompts, responses: must be of one length, got {len(rows)} and {len(responses)}"
        )
    for name in config.must_be_open:
        dimension_index(name, pipeline.dimensions, "must_be_open")
    if not provenance:
        raise DataError(
            "provenance: must say where the answers come from, got nothing; give policy and step"
        )
    try:
        json.dumps(dict(provenance))
    except TypeError as error:
        raise DataError(f"provenance: must be plain JSON data ({error})") from error
    for number, row in enumerate(rows):
        if not isinstance(row.get("prompt"), str):
            raise DataError(
                f"prompts, row {number}: prompt must be text, got {row.get('prompt')!r}"
            )


def _text_reasons(
    rows: list[Row],
    responses: Sequence[str],
    ended: Sequence[bool] | None,
    config: FlywheelConfig,
) -> list[str | None]:
    """Why a text alone rules an answer out."""
    wanted = [bool(row.get("refusal_ok")) for row in rows]
    read = read_responses(responses, ended=ended, refusal_ok=wanted)
    cut = read.unfinished.bool()
    if ended is None:
        cut = torch.tensor([looks_truncated(response) for response in responses])
    flags = {
        "empty": read.empty.bool(),
        "unfinished": cut,
        "refusal": read.refusal.bool(),
        "repetition": read.repetition > config.most_repetition,
        "template": read.template.bool() & (not config.allow_templates),
    }
    return [next((name for name, f in flags.items() if f[i]), None) for i in range(len(rows))]


def _failed(row: Row, response: str, screens: Mapping[str, Screen]) -> str | None:
    """Which check of the prompt's, or which screen, an answer does not pass."""
    check = row.get("answer_check")
    if check is not None:
        if isinstance(check, Mapping):
            check = {name: value for name, value in check.items() if value is not None}
        if not check_answer(response, check):
            return "answer_check"
    return next((name for name, keep in screens.items() if not keep(row["prompt"], response)), None)


def _score_reasons(scored: ScoredBatch, config: FlywheelConfig) -> list[str | None]:
    """Why the reward model rules an answer out."""
    found: list[str | None] = []
    low = (scored.scores < config.least_score) & scored.mask
    for i in range(len(scored.scores)):
        opened = {n for n, o in zip(scored.dimensions, scored.mask[i].tolist(), strict=True) if o}
        reason = None
        if not opened or not opened.issuperset(config.must_be_open):
            reason = "not confident"
        elif bool(low[i].any()):
            reason = f"low {scored.dimensions[int(low[i].nonzero()[0])]}"
        elif float(scored.plain_reward[i]) < config.least_reward:
            reason = "low reward"
        found.append(reason)
    return found


def _best(
    places: list[int],
    scored: ScoredBatch,
    responses: Sequence[str],
    config: FlywheelConfig,
    rejected: Counter[str],
) -> list[int]:
    """The best different answers to one prompt."""
    order = sorted(places, key=lambda i: (-float(scored.plain_reward[i]), i))
    distinct: dict[str, int] = {}
    for i in order:
        distinct.setdefault(" ".join(responses[i].split()), i)
    chosen = list(distinct.values())[: config.most_per_prompt]
    rejected["duplicate"] += len(order) - len(distinct)
    rejected["not the best"] += len(distinct) - len(chosen)
    return chosen


def _row(
    row: Row, response: str, scored: ScoredBatch, i: int, provenance: Mapping[str, Any]
) -> Row:
    """One row of fine-tuning data; fields of the prompt's row are kept."""
    tables = {"scores": scored.scores, "confidence": scored.confidence}
    read = {
        kind: {n: _plain(v) for n, v in zip(scored.dimensions, t[i].tolist(), strict=True)}
        for kind, t in tables.items()
    }
    opened = [n for n, o in zip(scored.dimensions, scored.mask[i].tolist(), strict=True) if o]
    before = row.get("meta")
    meta = {
        **(before if isinstance(before, Mapping) else {} if before is None else {"prompt": before}),
        "origin": ORIGIN,
        **provenance,
        **read,
        "open": opened,
        "reward": _plain(float(scored.plain_reward[i])),
    }
    return {**row, "prompt": row["prompt"], "response": response, "meta": meta}


def _plain(value: float) -> float | None:
    """A number for JSON, which knows no NaN; four places are all a score is worth."""
    return None if value != value else round(value, 4)
