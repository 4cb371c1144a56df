"""Finds, in the records, samples whose text a run had decoded from tokens.

Such a text stands in a chat template and may be cut at the maximal length, so it is compared piece
by piece: every turn of the record must stand in the decoded prompt, and the record's response must
begin with the decoded one.
"""

from __future__ import annotations

from collections import defaultdict

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.lifespan.answers import FIX, Answer
from hf_glm_curriculum.lifespan.pool import PoolRow, id_text
from hf_glm_curriculum.lifespan.record_slots import Slot

_KEY = 24
"""Characters of a response by which candidates are looked up."""


class DecodedTexts:
    """Pool rows with decoded text, and the best fit for each among the records compared so far.

    The best fit is the record whose turns cover most of the decoded prompt; among equals the one
    at the row the run had it at.
    """

    def __init__(self) -> None:
        self._by_start: dict[str, list[PoolRow]] = defaultdict(list)
        self._lengths: set[int] = set()
        self._alike: dict[int, list[PoolRow]] = defaultdict(list)
        self._best: dict[int, tuple[tuple[int, bool], set[bytes]]] = {}

    def add(self, row: PoolRow) -> None:
        """Look for a row of the pool from now on."""
        if not (row.prompt or "").strip():
            self._alike[row.row].append(row)
            return
        start = (row.response or "").strip()[:_KEY]
        if start:
            self._by_start[start].append(row)
            self._lengths.add(len(start))

    def compare(self, number: int, key: bytes, slot: Slot) -> None:
        """Compare one record with all rows that are looked for.

        Args:
            number: its place in the data.
            key: digest of its text.
            slot: its text.
        """
        if not self._lengths and not self._alike:
            return
        response = slot.texts[1].strip()
        parts = [part.strip() for part in slot.parts]
        for length in self._lengths:
            for row in self._by_start.get(response[:length], ()):
                prompt = row.prompt or ""
                starts = response.startswith((row.response or "").strip())
                if starts and all(part in prompt for part in parts):
                    self._note(row, number, key, parts)
        for row in self._alike.get(number, ()):
            if all(part in (row.response or "") for part in (*parts, response)):
                self._note(row, number, key, parts)

    def found(self, row: PoolRow, answer: Answer) -> bytes | None:
        """The digest of the record that a row of the pool was made from, None if there is none.

        Raises:
            DataError: if several records fit equally well, or a correction could not be told
                from the prompt.
        """
        best = self._best.get(row.id)
        if best is None:
            return None
        if len(best[1]) > 1:
            raise DataError(
                f"{answer.place}: {len(best[1])} records fit what the run saw of row {row.row} "
                f"({id_text(row.id)}), which was cut; correct that sample in the data by hand"
            )
        if answer.decision == FIX and not (row.prompt or "").strip():
            raise DataError(
                f"{answer.place}: the run trained on prompt and response of row {row.row} alike, "
                "so a correction cannot be told apart; keep or drop the sample, or train on the "
                "response only"
            )
        return next(iter(best[1]))

    def _note(self, row: PoolRow, number: int, key: bytes, parts: list[str]) -> None:
        score = (sum(map(len, parts)), number == row.row)
        best = self._best.get(row.id)
        if best is None or score > best[0]:
            self._best[row.id] = (score, {key})
        elif score == best[0]:
            best[1].add(key)
