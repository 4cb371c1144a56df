"""What can be said of answers without a judge: checks, length, repetition, refusals, language."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.text.checks import check_answer
from hf_glm_curriculum.text.language import detect_language
from hf_glm_curriculum.text.refusals import is_refusal
from hf_glm_curriculum.text.repetition import distinct_n, repeated_ngram_share
from hf_glm_curriculum.text.words import words


def judge_answers(
    answers: Sequence[str], checks: Sequence[Mapping[str, Any] | None]
) -> list[bool | None]:
    """Whether each answer passes its check; None where a row has none.

    Raises:
        DataError: The lengths differ, or a check is malformed.
    """
    if len(answers) != len(checks):
        raise DataError(
            f"checks: need one a row (None for no check), got {len(checks)} for {len(answers)}"
        )
    return [
        None if check is None else check_answer(answer, check)
        for answer, check in zip(answers, checks, strict=True)
    ]


def evaluate_answers(
    answers: Sequence[str],
    checks: Sequence[Mapping[str, Any] | None],
    categories: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Figures for a set of answers.

    Args:
        answers: What the model said, one a row.
        checks: `text.checks` specifications, None where an answer cannot be checked.
        categories: Groups to count apart; None for no groups.

    Returns:
        ``n``, ``checkable``, ``correct`` (counts), ``accuracy`` (None without checkable rows),
        ``mean_words`` (words or Chinese characters), ``distinct_2``, ``repetition`` (mean share of
        repeated 3-grams), ``refusals`` (share), ``languages`` (counts) and, with categories,
        ``categories``: name → ``checkable``, ``correct``.

    Raises:
        DataError: The lengths differ, or a check is malformed.
    """
    verdicts = judge_answers(answers, checks)
    checkable = [verdict for verdict in verdicts if verdict is not None]
    n = len(answers)
    languages: dict[str, int] = defaultdict(int)
    for answer in answers:
        languages[detect_language(answer)] += 1
    figures: dict[str, Any] = {
        "n": n,
        "checkable": len(checkable),
        "correct": sum(checkable),
        "accuracy": sum(checkable) / len(checkable) if checkable else None,
        "mean_words": sum(len(words(answer)) for answer in answers) / n if n else 0.0,
        "distinct_2": distinct_n(answers, 2),
        "repetition": sum(repeated_ngram_share(a, 3) for a in answers) / n if n else 0.0,
        "refusals": sum(map(is_refusal, answers)) / n if n else 0.0,
        "languages": dict(languages),
    }
    if categories is not None:
        figures["categories"] = _by_category(verdicts, categories)
    return figures


def _by_category(
    verdicts: Sequence[bool | None], categories: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Checkable and correct answers of each category, by name."""
    if len(categories) != len(verdicts):
        raise DataError(f"categories: need one a row, got {len(categories)} for {len(verdicts)}")
    counts: dict[str, dict[str, int]] = {}
    for verdict, category in zip(verdicts, categories, strict=True):
        if verdict is not None:
            entry = counts.setdefault(category, {"checkable": 0, "correct": 0})
            entry["checkable"] += 1
            entry["correct"] += int(verdict)
    return dict(sorted(counts.items()))
