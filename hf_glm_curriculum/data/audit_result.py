"""What an audit of records found, and its forms on disk."""

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import datasets

from hf_glm_curriculum.data.audit_html import render_html
from hf_glm_curriculum.storage import atomic_write_text, replacing

_STYLE: dict[str, Any] = {"ensure_ascii": False, "indent": 1}

KINDS = {
    "exact_duplicate": "Same prompt and answer as an earlier row, but for case, width and blanks.",
    "near_duplicate": "Nearly the same text as an earlier row.",
    "contradictory_answers": "Same question as another row, with an answer that excludes its own.",
    "repeated_prompt": "Same question as an earlier row, with another answer; may be meant.",
    "empty_answer": "The answer holds no text.",
    "empty_prompt": "The prompt holds no text.",
    "truncated_answer": "The answer stops in the middle.",
    "prompt_copied": "The answer gives the prompt back.",
    "mojibake": "Text that was decoded with the wrong encoding, or holds control characters.",
    "language_mismatch": "The answer is in another script than its prompt, which asks for none.",
    "length_outlier": "Far longer than the other rows.",
}
NOTES = frozenset({"repeated_prompt", "length_outlier"})
"""Kinds that are worth a look but are no fault by themselves."""


@dataclass(frozen=True, order=True, slots=True)
class Issue:
    """One finding.

    Attributes:
        row: number of the row, from 0.
        kind: a key of `KINDS`.
        detail: what was seen, in a few words.
        other_row: the row it repeats or contradicts, or None.
    """

    row: int
    kind: str
    detail: str = field(compare=False)
    other_row: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class RecordAudit:
    """Findings on a data set.

    Attributes:
        issues: findings, by row and kind.
        rows: number of rows looked at.
        diversity: counts of languages, openings, lengths and labels.
        records: the audited data (columns prompt and response), for excerpts.
    """

    issues: list[Issue]
    rows: int
    diversity: dict[str, Any]
    records: datasets.Dataset = field(repr=False)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of findings of each kind that occurs, in the order of `KINDS`."""
        found = Counter(issue.kind for issue in self.issues)
        return {kind: found[kind] for kind in KINDS if found[kind]}

    def flagged(self, *kinds: str) -> list[int]:
        """Return the rows with a finding of the given kinds; of all that are faults by default."""
        wanted = set(kinds) or set(KINDS) - NOTES
        return sorted({issue.row for issue in self.issues if issue.kind in wanted})

    def summary(self) -> dict[str, Any]:
        """Return rows, flagged rows and the counts by kind, as plain values."""
        return {"rows": self.rows, "flagged_rows": len(self.flagged()), "issues": self.counts}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write summary, diversity and all findings, one a line; no sample text.

        Raises:
            StateError: if the file cannot be written; an older one is left as it was.
        """
        head = json.dumps({"summary": self.summary(), "diversity": self.diversity}, **_STYLE)
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.write(f'{head[: head.rindex("}")].rstrip()},\n "issues": [')
            for number, issue in enumerate(self.issues):
                file.write(",\n  " if number else "\n  ")
                file.write(json.dumps(asdict(issue), ensure_ascii=False))
            file.write("\n ]\n}\n")

    def to_html(self, path: str | os.PathLike[str], title: str = "Data audit") -> None:
        """Write one self-contained page with counts, diversity and excerpts of findings.

        Raises:
            StateError: if the file cannot be written; an older one is left as it was.
        """
        atomic_write_text(path, render_html(self, KINDS, NOTES, title))
