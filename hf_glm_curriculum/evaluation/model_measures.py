"""What `evaluate` measures of a model beside safety: losses, answers, rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hf_glm_curriculum.evaluation.answers import judge_answers
from hf_glm_curriculum.evaluation.heldout import row_losses
from hf_glm_curriculum.evaluation.measured import Measured, by_group, flag, rates
from hf_glm_curriculum.rewards.construct import RULE_DIMENSIONS
from hf_glm_curriculum.text.language import detect_language
from hf_glm_curriculum.text.refusals import is_refusal
from hf_glm_curriculum.text.repetition import distinct_n, repeated_ngram_share
from hf_glm_curriculum.text.words import word_count

Answer = Callable[[Sequence[Any]], list[str]]
"""Prompts (texts, or turns) → answers."""


def measure_loss(
    model: Any,
    dataset: Any,
    collate: Any,
    batch_size: int = 8,
    name: str = "loss",
    *,
    places: Sequence[int] | None = None,
    total: int | None = None,
) -> Measured:
    """Mean loss of the label tokens, nats, with every row's sum as its part.

    Args:
        model: A causal language model.
        dataset: Rows with ``input_ids`` and ``labels``.
        collate: Pads rows, such as `SftCollator`.
        batch_size: Rows at once.
        name: Of the figure.
        places: Where each row stands among all that could be measured; None for its own order.
        total: How many those are.
    """
    words = f"Reading: {name}"
    found = row_losses(model, dataset, collate, batch_size=batch_size, description=words)
    rows: list[Any] = [None] * (len(found) if total is None else total)
    for place, (loss, count) in zip(places or range(len(found)), found, strict=True):
        rows[place] = (loss, float(count)) if count else None
    out = sum(row is None for row in rows)
    notes = [f"{out} of {len(rows)} rows keep no answer token and have no part"] if out else []
    return Measured(rates({name: rows}), {name: rows}, notes=notes)


def text_rows(texts: Sequence[str], tokenizer: Any, max_length: int) -> list[dict[str, list[int]]]:
    """Plain texts as rows whose every token carries loss."""
    rows = tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
    return [{"input_ids": ids, "labels": ids} for ids in rows]


def measure_answers(answer: Answer, rows: Sequence[Mapping[str, Any]]) -> Measured:
    """Checks, diversity, repetition, length and refusals of the answers to prompts.

    Args:
        answer: Asks the model.
        rows: prompt, and perhaps check (`text.checks`), category and reference.

    Returns:
        ``right`` (and ``right/<category>``) where checks are known; ``words``, ``repetition``
        (share of repeated 3-grams), ``refused``, ``own_language`` (answers in the prompt's),
        all means over answers; ``distinct_1`` and ``distinct_2`` over all answers together.
    """
    answers = answer([row["prompt"] for row in rows])
    verdicts = judge_answers(answers, [row.get("check") for row in rows])
    groups = [str(row.get("category") or "other") for row in rows]
    parts = {
        **by_group("right", [flag(verdict) for verdict in verdicts], groups),
        "words": [(float(word_count(text)), 1.0) for text in answers],
        "repetition": [(repeated_ngram_share(text, 3), 1.0) for text in answers],
        "refused": [flag(is_refusal(text)) for text in answers],
        "own_language": [
            flag(detect_language(str(row["prompt"])) == detect_language(text))
            for row, text in zip(rows, answers, strict=True)
        ],
    }
    parts = {name: values for name, values in parts.items() if any(v is not None for v in values)}
    figures = rates(parts) | {f"distinct_{n}": distinct_n(answers, n) for n in (1, 2)}
    shown = [
        {
            "prompt": row["prompt"],
            "category": group,
            "answer": text,
            "right": verdict,
            "dimension": _dimension_of(row),
        }
        for row, group, text, verdict in zip(rows, groups, answers, verdicts, strict=True)
    ]
    return Measured(figures, parts, shown)


def _dimension_of(row: Mapping[str, Any]) -> str | None:
    """What a row's check says something about."""
    check = row.get("check") or {}
    return row.get("dimension") or RULE_DIMENSIONS.get(str(check.get("kind")))


def measure_rewards(
    reward: Any,
    rows: Sequence[Mapping[str, Any]],
    threshold: float,
    judged: Sequence[Mapping[str, Any]] = (),
) -> Measured:
    """Scores and confidence of a reward model in each of its dimensions.

    Args:
        reward: A `StructuredRewardModel`.
        rows: prompt and answer, right (a check's verdict, or None) and dimension, of
            `measure_answers`.
        threshold: Confidence from which a gate is open.
        judged: Further rows with all of these, for calibration alone.

    Returns:
        ``<dimension>/score``, ``<dimension>/confidence``, ``<dimension>/open``; and, where verdicts
        about the dimension are known, ``<dimension>/agreement`` (scores on the verdict's side of
        0.5) and ``<dimension>/calibration_error`` of its confidence in that. A model whose
        dimensions have other names is held against all verdicts in its first one.
    """
    from hf_glm_curriculum.rewards.measures import calibration_error

    out = _scored(reward, rows)
    parts: dict[str, list[Any]] = {}
    figures: dict[str, float | None] = {}
    dimensions = list(reward.config.dimensions)
    for place, name in enumerate(dimensions):
        scores, confidence = out.scores[:, place], out.confidence[:, place]
        parts[f"{name}/score"] = [(value, 1.0) for value in scores.tolist()]
        parts[f"{name}/confidence"] = [(value, 1.0) for value in confidence.tolist()]
        parts[f"{name}/open"] = [flag(value >= threshold) for value in confidence.tolist()]
    everything = [*rows, *judged]
    more = _scored(reward, judged) if judged else None
    scores, confidence = out.scores, out.confidence
    if more is not None:
        scores = torch.cat([scores, more.scores])
        confidence = torch.cat([confidence, more.confidence])
    foreign = not any(row.get("dimension") in dimensions for row in everything)
    for place, name in enumerate(dimensions):
        known = [
            at
            for at, row in enumerate(everything)
            if row.get("right") is not None
            and (row.get("dimension") == name or (foreign and place == 0))
        ]
        if not known:
            continue
        right = torch.tensor([bool(everything[at]["right"]) for at in known])
        agrees = (scores[known, place] > 0.5) == right
        held = dict(zip(known, agrees.tolist(), strict=True))
        parts[f"{name}/agreement"] = [flag(held.get(at)) for at in range(len(everything))]
        figures[f"{name}/calibration_error"] = calibration_error(confidence[known, place], agrees)
    return Measured(rates(parts) | figures, parts)


def _scored(reward: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    return reward.score_texts(
        [str(row["prompt"]) for row in rows], [row["answer"] for row in rows], too_long="cut"
    )
