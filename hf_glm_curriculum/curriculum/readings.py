"""What is read off every instruction of a data set, on several processes where it is large."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from hf_glm_curriculum.curriculum.entropy import (
    InstructionEntropyEstimator,
    breadth_of,
    units_of,
)
from hf_glm_curriculum.curriculum.text_entropy import character_entropy, shannon_entropy
from hf_glm_curriculum.progress import progress
from hf_glm_curriculum.text.language import detect_language

CHUNK = 5_000
WORTH_PROCESSES = 4 * CHUNK
"""Rows from which further processes repay their start."""

_QUOTED = re.compile(r"[\"“「『][^\"”」』\n]{1,200}[\"”」』]")
_NUMBER = re.compile(r"\d[\d.,]*")
_NAME = re.compile(r"(?<=[a-z,;:'’] )[A-Z][\w'’-]*(?: [A-Z][\w'’-]*)*")
_TEMPLATE_UNITS = 24


@dataclass(frozen=True)
class Readings:
    """Columns over the rows of a data set.

    Attributes:
        characters: float64 [N], entropy of the characters, bits.
        tokens: float64 [N], entropy of the words, numbers and Han characters, bits.
        surprisal: float64 [N], mean inverse document frequency of 1–3-grams, bits.
        breadth: float64 [N], bits of what is asked for.
        score: float64 [N], instruction entropy, bits.
        verbs: head verb of each, as its English lemma; "" for none.
        languages: "en", "zh" or "other".
        templates: each instruction with its numbers, quotations and names left blank.
    """

    characters: np.ndarray
    tokens: np.ndarray
    surprisal: np.ndarray
    breadth: np.ndarray
    score: np.ndarray
    verbs: list[str]
    languages: list[str]
    templates: list[str]


def read_instructions(
    texts: Sequence[str],
    estimator: InstructionEntropyEstimator | None = None,
    jobs: int | None = None,
    show_progress: bool | None = None,
) -> Readings:
    """Read every instruction.

    Args:
        texts: the instructions.
        estimator: of the instruction entropy; on the bundled tables by default.
        jobs: processes; as many as there are processors for large sets, else one.
        show_progress: see `progress`.
    """
    estimator = estimator or InstructionEntropyEstimator()
    jobs = jobs or ((os.cpu_count() or 1) if len(texts) >= WORTH_PROCESSES else 1)
    chunks = [list(texts[start : start + CHUNK]) for start in range(0, len(texts), CHUNK)]
    parts = []
    with progress(len(texts), "Reading instructions", show_progress) as bar:
        for part in _read_all(chunks, estimator, jobs):
            parts.append(part)
            bar.advance(len(part[1]))
    numbers = np.concatenate([part[0] for part in parts]) if parts else np.zeros((0, 4))
    verbs, languages, templates = (
        [value for part in parts for value in part[place]] for place in (1, 2, 3)
    )
    characters, tokens, surprisal, breadth = numbers.T
    score = estimator.surprisal_weight * surprisal + estimator.breadth_weight * breadth
    return Readings(characters, tokens, surprisal, breadth, score, verbs, languages, templates)


_Part = tuple[np.ndarray, list[str], list[str], list[str]]


def _read_all(
    chunks: list[list[str]], estimator: InstructionEntropyEstimator, jobs: int
) -> Iterator[_Part]:
    if jobs == 1 or len(chunks) == 1:
        yield from (_read(chunk, estimator) for chunk in chunks)
        return
    # A fork would copy the parent's threads' locks; a spawned process starts clean.
    context = get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(chunks)), context, _keep, (estimator,)) as pool:
        yield from pool.map(_read_kept, chunks)


_KEPT: list[InstructionEntropyEstimator] = []


def _keep(estimator: InstructionEntropyEstimator) -> None:
    _KEPT[:] = [estimator]


def _read_kept(texts: list[str]) -> _Part:
    return _read(texts, _KEPT[0])


def _read(texts: list[str], estimator: InstructionEntropyEstimator) -> _Part:
    numbers, verbs = np.zeros((len(texts), 4)), []
    for row, text in enumerate(texts):
        units = units_of(text)
        breadth, verb, _ = breadth_of(text)
        own = character_entropy(text), shannon_entropy(units)
        numbers[row] = (*own, estimator.mean_surprisal(units), breadth)
        verbs.append(verb.lemma)
    languages = [str(detect_language(text)) for text in texts]
    return numbers, verbs, languages, [template_of(text) for text in texts]


def template_of(text: str) -> str:
    """The first words of an instruction with numbers, quotations and names left blank."""
    blank = _NAME.sub("_", _NUMBER.sub("_", _QUOTED.sub("_", text[:600])))
    return " ".join(re.sub(r"\s+", " ", blank).strip().lower().split(" ")[:_TEMPLATE_UNITS])
