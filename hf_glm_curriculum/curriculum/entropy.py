"""How open an instruction is, in bits: how rare what it says is, and how much its verb can mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hf_glm_curriculum.curriculum.answer_space import AnswerSpace, answer_space
from hf_glm_curriculum.curriculum.background import BackgroundTable
from hf_glm_curriculum.curriculum.head_verbs import HeadVerb, head_verb
from hf_glm_curriculum.curriculum.ngram_counts import NgramCounts
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.progress import progress
from hf_glm_curriculum.text.language import detect_language
from hf_glm_curriculum.text.words import words

_BATCH = 2048
_SHOWN = 8


class InstructionEntropyEstimator:
    """score = mean inverse document frequency of word 1–3-grams + log₂(1 + senses of the verb).

    The first part is in bits, over words, numbers and Han characters; the second is the breadth of
    the instruction's head verb by WordNet 3.0. Source: the method's "instruction entropy estimator"
    (word n-grams' IDF in a corpus, and the verb's semantic breadth).

    Works at once on bundled tables for English and Chinese; `fit` counts a corpus of one's own.

    Args:
        surprisal_weight: of the first part.
        breadth_weight: of the second.
        width: cells of the counts that `fit` makes; memory is 8 bytes a cell.

    Example::

        estimator = InstructionEntropyEstimator()
        estimator.score(["Write a story about a lighthouse.", "Is 7 a prime number?"])
    """

    def __init__(
        self, surprisal_weight: float = 1.0, breadth_weight: float = 1.0, width: int = 2**22
    ) -> None:
        self.surprisal_weight, self.breadth_weight = surprisal_weight, breadth_weight
        self._width = width
        self._counts: NgramCounts | None = None
        self._table = BackgroundTable()

    @property
    def documents(self) -> int:
        """Documents it was fitted on; 0 on the bundled tables."""
        return 0 if self._counts is None else self._counts.documents

    def fit(
        self, corpus: Iterable[str], total: int | None = None, show_progress: bool | None = None
    ) -> InstructionEntropyEstimator:
        """Count a corpus in fixed memory; a second call goes on counting.

        Args:
            corpus: texts, read once and one after the other.
            total: how many there are, for the progress bar.
            show_progress: see `progress`.

        Returns:
            The estimator itself.

        Raises:
            DataError: an entry is no text, or the corpus is empty.
        """
        counts = self._counts or NgramCounts(self._width)
        before = counts.documents
        with progress(total, "Counting", show_progress) as bar:
            for batch in _batches(_checked(corpus, "corpus")):
                counts.add([units_of(text) for text in batch])
                bar.advance(len(batch))
        if counts.documents == before:
            raise DataError("corpus: needs one text at least, got none")
        self._counts = counts
        return self

    def score(self, texts: Sequence[str], show_progress: bool | None = False) -> np.ndarray:
        """Instruction entropy of every text, bits, float64 [n]; finite, 0 for empty texts.

        Raises:
            DataError: an entry is no text, or one string was given for a list.
        """
        parts = self.parts(texts, show_progress)
        return self.surprisal_weight * parts[:, 0] + self.breadth_weight * parts[:, 1]

    def parts(self, texts: Sequence[str], show_progress: bool | None = False) -> np.ndarray:
        """Mean surprisal and verb breadth of every text, bits, float64 [n, 2]."""
        if isinstance(texts, str):
            raise DataError("texts: must be a list of texts, got one string; put it in a list")
        found = np.zeros((len(texts), 2))
        with progress(len(texts), "Scoring", show_progress) as bar:
            for row, text in enumerate(_checked(texts, "texts")):
                found[row] = self.mean_surprisal(units_of(text)), breadth_of(text)[0]
                if row % 256 == 255:
                    bar.advance(256)
        return found

    def explain(self, text: str) -> dict[str, Any]:
        """Where a score comes from, for people to read.

        Returns:
            ``score``, ``language``, ``units``; ``surprisal`` and ``surprisal_by_n`` (mean bits of
            1-, 2- and 3-grams); ``rarest`` (text and bits of the rarest single units);
            ``verb``, ``lemma``, ``senses``, ``rule`` and ``breadth``; ``background``.

        Raises:
            DataError: the text is none.
        """
        (text,) = _checked([text], "text")
        units = units_of(text)
        bits = self._bits(units)
        breadth, verb, space = breadth_of(text)
        rare = sorted(set(zip(bits[0].tolist(), units, strict=True)), key=lambda x: (-x[0], x[1]))
        mean = _mean(bits)
        fitted = f"counted on {self.documents:,} documents"
        return {
            "score": self.surprisal_weight * mean + self.breadth_weight * breadth,
            "language": detect_language(text),
            "units": len(units),
            "surprisal": mean,
            "surprisal_by_n": [float(part.mean()) if len(part) else 0.0 for part in bits],
            "rarest": [(unit, round(value, 2)) for value, unit in rare[:_SHOWN]],
            "verb": verb.verb,
            "lemma": verb.lemma,
            "senses": verb.senses,
            "rule": verb.rule,
            "verb_breadth": verb.breadth,
            "answers": space.answers,
            "answers_rule": space.reason,
            "breadth": breadth,
            "background": fitted if self._counts is not None else "bundled tables",
        }

    def save(self, path: str | Path) -> None:
        """Write the counts of `fit` as one safetensors file.

        Raises:
            DataError: nothing was fitted.
            StateError: the file cannot be written.
        """
        if self._counts is None:
            raise DataError("save: nothing was fitted; the bundled tables need no file")
        self._counts.save(path)

    @classmethod
    def load(cls, path: str | Path, **settings: float) -> InstructionEntropyEstimator:
        """An estimator on counts that `save` wrote.

        Raises:
            StateError: the file is missing, damaged or of another kind.
        """
        found = cls(**settings)  # type: ignore[arg-type]
        found._counts = NgramCounts.load(path)
        return found

    def _bits(self, units: list[str]) -> list[np.ndarray]:
        return (self._counts or self._table).bits(units)

    def mean_surprisal(self, units: list[str]) -> float:
        """Mean bits over all n-grams of a text's units; see `units_of`."""
        return _mean(self._bits(units))


def breadth_of(text: str) -> tuple[float, HeadVerb, AnswerSpace]:
    """Bits of what is asked for: the verb's, but no more than the answers named leave."""
    verb = head_verb(text)
    space = answer_space(text, verb.lemma)
    if space.answers is None:
        return verb.breadth, verb, space
    return min(verb.breadth, math.log2(1 + space.answers)), verb, space


def _mean(bits: list[np.ndarray]) -> float:
    """Mean over all n-grams of all lengths."""
    count = sum(map(len, bits))
    return float(sum(part.sum() for part in bits)) / count if count else 0.0


def units_of(text: str) -> list[str]:
    """A text's words, numbers and Han characters, lower case."""
    return [unit.lower() for unit in words(text)]


def _checked(texts: Iterable[Any], field: str) -> Iterator[str]:
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(
                f"{field}: entry {row} must be a text, got {type(text).__name__}; leave empty rows "
                "out or give them ''"
            )
        yield text


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(texts, _BATCH)):
        yield batch
