"""The score of every row that decides its lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.lifespan.texts import DatasetTexts

_COLUMNS = ("instruction", "prompt", "query", "question", "messages")


class Estimator(Protocol):
    """Gives texts their scores, such as ``InstructionEntropyEstimator``."""

    def score(self, texts: list[str]) -> Any:
        """Return float [len(texts)], finite."""
        ...


def row_scores(
    dataset: Any,
    estimator: Estimator | None,
    scores: Sequence[float] | np.ndarray | None,
    column: str | None,
    tokenizer: Any,
) -> np.ndarray:
    """The score of every row: as given, or of its instruction's text.

    Args:
        dataset: a `datasets.Dataset`.
        estimator: scores texts; the bundled entropy estimator if None.
        scores: [N] numbers, in place of an estimator.
        column: the text or messages column; found by its usual names if None.
        tokenizer: decodes the prompts of data sets that hold tokens only.

    Returns:
        float64 [N].

    Raises:
        DataError: if there is no text to score, or a score is missing or not finite.
    """
    if scores is None:
        texts = instruction_texts(dataset, column, tokenizer)
        scores = (estimator or _entropy()).score(texts)
    found = np.asarray(scores, dtype=np.float64)
    if found.shape != (len(dataset),):
        raise DataError(
            f"scores: needs one number for each of the {len(dataset)} rows, got shape "
            f"{found.shape}; score the same data set that is trained on."
        )
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise DataError(
            f"scores: must be finite, got {found[bad[0]]} for row {bad[0]} and "
            f"{len(bad) - 1} more; drop these rows or give them a score."
        )
    return found


def instruction_texts(dataset: Any, column: str | None = None, tokenizer: Any = None) -> list[str]:
    """The instruction of every row: a text column, the user's turns, or decoded prompt tokens.

    Raises:
        DataError: if there is neither, or a row's is empty.
    """
    names = dataset.column_names
    if column is not None and column not in names:
        raise DataError(f"column: the data set has no {column!r}; it has {', '.join(names)}.")
    columns = [column] if column is not None else [name for name in _COLUMNS if name in names]
    if columns:
        rows = zip(*(dataset[name] for name in columns), strict=True)
        texts = [next(filter(None, map(_text, values)), "") for values in rows]
    elif tokenizer is not None:
        reader = DatasetTexts(dataset, tokenizer)
        texts = [(reader.pair(row) or ("", ""))[0] for row in range(len(dataset))]
    else:
        raise DataError(
            f"dataset: no instruction to score among its columns ({', '.join(names)}); pass "
            "scores=, column=, or tokenizer= to decode the prompts of token rows."
        )
    empty = next((row for row, text in enumerate(texts) if not text.strip()), None)
    if empty is not None:
        raise DataError(f"row {empty}: has no instruction to score; drop it or pass scores=.")
    return texts


def _text(value: Any) -> str:
    """Text as it is; of a conversation, what the user says."""
    if isinstance(value, str):
        return value.strip()
    turns = [turn for turn in value or () if turn.get("role") not in ("assistant", "system")]
    return "\n".join(str(turn.get("content") or "") for turn in turns)


def _entropy() -> Estimator:
    from hf_glm_curriculum.curriculum.entropy import InstructionEntropyEstimator

    return InstructionEntropyEstimator()
