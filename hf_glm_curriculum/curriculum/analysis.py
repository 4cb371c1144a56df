"""What a set of instructions is like: how its entropies lie, what it covers, what repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_glm_curriculum.curriculum.modality import Modality, modality
from hf_glm_curriculum.curriculum.readings import Readings
from hf_glm_curriculum.curriculum.text_entropy import ARTICLE_BANDS
from hf_glm_curriculum.errors import DataError

BINS = 40
EXTREMES = 8
MOST_SHOWN = 20
MEASURES = {
    "instruction": "Instruction entropy, bits",
    "character": "Entropy of the characters, bits",
    "token": "Entropy of the words and Han characters, bits",
}
"""Name of a distribution → what it is called."""


@dataclass(frozen=True)
class Distribution:
    """How one measure lies over the rows.

    Attributes:
        values: float64 [N].
        edges: float64 [B + 1] of the histogram.
        counts: int64 [B].
        modality: one heap or two.
    """

    values: np.ndarray
    edges: np.ndarray
    counts: np.ndarray
    modality: Modality

    def summary(self) -> dict[str, Any]:
        """As plain values."""
        quantiles = np.quantile(self.values, (0.05, 0.25, 0.5, 0.75, 0.95))
        names = ("p5", "p25", "p50", "p75", "p95")
        about = self.modality
        return {
            "mean": float(self.values.mean()),
            "std": float(self.values.std()),
            **dict(zip(names, map(float, quantiles), strict=True)),
            "bimodality_coefficient": _plain(about.coefficient),
            "dip": _plain(about.dip),
            "dip_by_chance": _plain(about.dip_by_chance),
            "two_heaps": bool(about.two_heaps),
            "histogram": {"edges": self.edges.tolist(), "counts": self.counts.tolist()},
        }


@dataclass(frozen=True)
class InstructionAnalysis:
    """The whole analysis.

    Attributes:
        rows: instructions.
        distributions: name of the measure → how it lies.
        bands: share of rows in each of the articles' bands of character entropy.
        lowest, highest: (row, score, beginning of the text).
        verbs, languages: counts, the most frequent first.
        labels: name of a column → its counts.
        templates: (template, rows) of those that more than one row fills.
        templated: share of rows whose template another row fills too.
    """

    rows: int
    distributions: dict[str, Distribution]
    bands: dict[str, float]
    lowest: list[tuple[int, float, str]]
    highest: list[tuple[int, float, str]]
    verbs: dict[str, int]
    languages: dict[str, int]
    labels: dict[str, dict[str, int]]
    templates: list[tuple[str, int]]
    templated: float

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "rows": self.rows,
            "entropy": {name: d.summary() for name, d in self.distributions.items()},
            "article_bands_of_character_entropy": self.bands,
            "lowest": [_extreme(entry) for entry in self.lowest],
            "highest": [_extreme(entry) for entry in self.highest],
            "verbs": self.verbs,
            "languages": self.languages,
            "labels": self.labels,
            "templates": [{"template": text, "rows": count} for text, count in self.templates],
            "templated_share": self.templated,
        }


def analyse(
    texts: Sequence[str], readings: Readings, labels: Mapping[str, Sequence[Any]] | None = None
) -> InstructionAnalysis:
    """Sum up what was read.

    Args:
        texts: the instructions.
        readings: of them.
        labels: columns that say what a row is about, by name.

    Raises:
        DataError: there is no instruction.
    """
    if not len(texts):
        raise DataError("texts: needs one instruction at least, got none")
    columns = (readings.score, readings.characters, readings.tokens)
    order = np.argsort(readings.score, kind="stable")
    templates = Counter(readings.templates)
    shared = [(text, count) for text, count in templates.most_common() if count > 1]
    return InstructionAnalysis(
        rows=len(texts),
        distributions=dict(zip(MEASURES, map(_distribution, columns), strict=True)),
        bands={f"{a}–{b}": _share(readings.characters, a, b) for a, b in ARTICLE_BANDS},
        lowest=[_row(texts, readings, row) for row in order[:EXTREMES]],
        highest=[_row(texts, readings, row) for row in order[::-1][:EXTREMES]],
        verbs=_counts(verb or "(none)" for verb in readings.verbs),
        languages=_counts(readings.languages),
        labels={name: _counts(map(str, values)) for name, values in (labels or {}).items()},
        templates=shared[:MOST_SHOWN],
        templated=sum(count for _, count in shared) / len(texts),
    )


def _share(values: np.ndarray, low: float, high: float) -> float:
    return float(((values >= low) & (values < high)).mean())


def _distribution(values: np.ndarray) -> Distribution:
    counts, edges = np.histogram(values, bins=BINS)
    return Distribution(values, edges, counts, modality(values))


def _counts(values: Any) -> dict[str, int]:
    return dict(Counter(values).most_common(MOST_SHOWN))


def _row(texts: Sequence[str], readings: Readings, row: Any) -> tuple[int, float, str]:
    return int(row), float(readings.score[row]), texts[int(row)][:300]


def _extreme(entry: tuple[int, float, str]) -> dict[str, Any]:
    return {"row": entry[0], "score": entry[1], "text": entry[2]}


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
