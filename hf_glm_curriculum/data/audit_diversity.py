"""Counts that show how varied a data set is: languages, openings, lengths, labelled categories."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from hf_glm_curriculum.data.audit_text import script

_LATIN_WORD = re.compile(r"[a-z0-9]+")
LABEL_COLUMNS = ("category", "topic", "task", "language", "difficulty", "source")
_KEPT, _MOST = 20, 200_000


class DiversityCounter:
    """Counts one record at a time in bounded memory.

    Rare openings are forgotten once more than 200,000 distinct ones are held; the frequent ones,
    which are shown, stay.
    """

    def __init__(self, language: Callable[[str], str] | None = None) -> None:
        """Take a function text -> language name; the script of the text stands in for it."""
        self._language = language or script
        self.languages: Counter[str] = Counter()
        self.pairs: Counter[str] = Counter()
        self.openings: Counter[str] = Counter()
        self.answer_openings: Counter[str] = Counter()
        self.labels: dict[str, Counter[str]] = {}

    def add(self, prompt: str, answer: str, labels: dict[str, Any]) -> None:
        """Count a record by its normalised texts and its labels."""
        asked, answered = self._language(prompt), self._language(answer)
        self.languages[answered] += 1
        self.pairs[f"{asked} → {answered}"] += 1
        self.openings[opening(prompt)] += 1
        self.answer_openings[opening(answer)] += 1
        for name, value in labels.items():
            if value is not None and not isinstance(value, list | dict):
                self.labels.setdefault(name, Counter())[str(value)] += 1
        for counter in (self.openings, self.answer_openings, *self.labels.values()):
            if len(counter) > _MOST:
                _forget_rare(counter)

    def summary(self, prompts: int, distinct_prompts: int, lengths: np.ndarray) -> dict[str, Any]:
        """Return the counts as plain values.

        Args:
            prompts: number of records.
            distinct_prompts: number of different prompts.
            lengths: int [records], characters of each answer.
        """
        quantiles = np.percentile(lengths, [5, 25, 50, 75, 95]).round().astype(int).tolist()
        top = sum(count for _, count in self.openings.most_common(_KEPT))
        return {
            "languages": dict(self.languages.most_common(_KEPT)),
            "prompt_to_answer_language": dict(self.pairs.most_common(_KEPT)),
            "distinct_prompt_share": round(distinct_prompts / prompts, 4),
            "answer_characters": dict(
                zip(("p5", "p25", "p50", "p75", "p95"), quantiles, strict=True)
            ),
            "prompt_openings": dict(self.openings.most_common(_KEPT)),
            "prompt_openings_share": round(top / prompts, 4),
            "answer_openings": dict(self.answer_openings.most_common(_KEPT)),
            "labels": {name: dict(c.most_common(_KEPT)) for name, c in self.labels.items()},
        }


def opening(text: str) -> str:
    """Return the first two words of a normalised text, or four characters where there are none."""
    head = text[:60]
    if script(head) in ("zh", "ja", "ko"):
        word = _LATIN_WORD.match(head)
        return word[0] if word else head.replace(" ", "")[:4]
    return " ".join(head.split()[:2])


def _forget_rare(counter: Counter[str]) -> None:
    """Keep the more frequent half of a counter."""
    kept = counter.most_common(_MOST // 2)
    counter.clear()
    counter.update(dict(kept))
