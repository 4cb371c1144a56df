"""Samples that an annotator confirmed, and a judge that does not ask about them again."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hf_glm_curriculum.data.record_files import RawRecord
from hf_glm_curriculum.lifespan.judges import Judge, SignalJudge, SurveyingJudge, read_verdicts
from hf_glm_curriculum.lifespan.pool import parse_id
from hf_glm_curriculum.lifespan.record_slots import (
    PROVENANCE,
    UNREVIEWED,
    Fields,
    RecordSource,
    provenance,
    slots_of,
    text_digest,
)

if TYPE_CHECKING:
    import datasets
    import pandas as pd


@dataclass(frozen=True)
class Confirmed:
    """The samples that a review kept or fixed.

    Attributes:
        ids: ids of kept samples, good while tokenizer, template and maximal length stay.
        texts: digests of kept and fixed samples' texts.
    """

    ids: frozenset[int]
    texts: frozenset[bytes]

    @classmethod
    def from_data(
        cls,
        data: datasets.Dataset | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    ) -> Confirmed:
        """Read the provenance columns that `corrections.import_annotations` writes.

        Args:
            data: corrected data, as files, folders or a hub id, or a data set.

        Returns:
            Nothing confirmed, if the columns are not there.

        Raises:
            DataError: if the data are malformed.
        """
        source = RecordSource(data)
        ids: set[int] = set()
        texts: set[bytes] = set()
        if source.dataset is None or source.has_provenance:
            for record in source.records():
                _collect(record, ids, texts)
        return cls(frozenset(ids), frozenset(texts))

    def mask(self, cases: pd.DataFrame) -> np.ndarray:
        """Which cases are confirmed, by id or by text: [len(cases)] bool."""
        found = [int(sample_id) in self.ids for sample_id in cases["id"]]
        if self.texts and {"prompt", "response"} <= set(cases.columns):
            pairs = zip(found, cases["prompt"], cases["response"], strict=True)
            found = [known or self._knows(p, r) for known, p, r in pairs]
        return np.array(found, dtype=bool)

    def _knows(self, prompt: object, response: object) -> bool:
        if not isinstance(prompt, str) or not isinstance(response, str):
            return False
        return text_digest(prompt, response) in self.texts


class ConfirmedJudge:
    """Asks another judge about the samples that no annotator has confirmed.

    A confirmed sample is never sent for annotation again and never loses its weight for being
    suspicious: it is MASTERED if it counts as learnt by `SignalJudge`'s rule, RESAMPLE otherwise.
    """

    def __init__(self, inner: Judge, confirmed: Confirmed) -> None:
        """Keep the judge of all other samples, and the confirmed ones."""
        self.inner = inner
        self.confirmed = confirmed
        never = math.inf
        self._trusting = SignalJudge(suspicion_threshold=never, relabel_suspicion=never)

    def __call__(self, cases: pd.DataFrame) -> list[str]:
        """See :class:`judges.Judge`."""
        known = self.confirmed.mask(cases)
        others = cases.loc[~known].reset_index(drop=True)
        verdicts = list(self.inner(others)) if len(others) else []
        read_verdicts(verdicts, len(others))  # before they are spread over the cases
        rest, trusted = iter(verdicts), iter(self._trusting(cases.loc[known]))
        return [next(trusted if k else rest) for k in known]


class SurveyingConfirmedJudge(ConfirmedJudge):
    """A `ConfirmedJudge` around a judge that first looks at a spread sample of the data."""

    inner: SurveyingJudge

    @property
    def survey_rows(self) -> int:
        """See :class:`judges.SurveyingJudge`."""
        return self.inner.survey_rows

    def survey(self, population: pd.DataFrame) -> None:
        """See :class:`judges.SurveyingJudge`."""
        self.inner.survey(population)


def confirmed_judge(inner: Judge, confirmed: Confirmed) -> Judge:
    """A judge that asks `inner` about samples that are not confirmed; `inner` if none are."""
    if not confirmed.ids and not confirmed.texts:
        return inner
    kind = SurveyingConfirmedJudge if isinstance(inner, SurveyingJudge) else ConfirmedJudge
    return kind(inner, confirmed)


def _collect(record: RawRecord, ids: set[int], texts: set[bytes]) -> None:
    """Enter what a record's provenance says."""
    if not _may_be_reviewed(record.fields):
        return
    for slot in slots_of(record):
        state, sample_id = provenance(slot.fields, record.place)
        if state == UNREVIEWED:
            continue
        texts.add(text_digest(*slot.texts))
        if sample_id is not None:
            ids.add(parse_id(sample_id, record.place))


def _may_be_reviewed(fields: Fields) -> bool:
    return bool(fields.get(PROVENANCE)) or "instances" in fields
