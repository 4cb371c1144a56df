"""The audit of training data: files by content, records by the rules of `audit_text`."""

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import datasets
import numpy as np

from hf_glm_curriculum.data.audit_diversity import LABEL_COLUMNS, DiversityCounter
from hf_glm_curriculum.data.audit_duplicates import candidate_pairs, near_duplicate, signatures
from hf_glm_curriculum.data.audit_endings import closing_mark, ending
from hf_glm_curriculum.data.audit_files import FileAudit, audit_files
from hf_glm_curriculum.data.audit_result import KINDS, Issue, RecordAudit
from hf_glm_curriculum.data.audit_text import (
    asks_for_other_script,
    contradiction,
    copied,
    is_empty,
    mojibake,
    normalise,
    question_key,
    script,
)
from hf_glm_curriculum.data.record_files import RawRecord
from hf_glm_curriculum.data.record_formats import canonical
from hf_glm_curriculum.data.records import dataset_of, load_records
from hf_glm_curriculum.data.scratch import scratch_array
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.progress import ProgressBar, progress

__all__ = ["KINDS", "FileAudit", "Issue", "RecordAudit", "audit_files", "audit_records"]

ROWS_PER_BATCH = 1000
_ENDING_PEERS = {"long": (20, 0.85), "short": (50, 0.97)}  # least peers, least share finished
_MARK_PEERS = (50, 0.85)
_MOST_MARKS = 1000
_SIGN_PEERS = (20, 0.6)
_SCRIPT_PEERS = (50, 0.97)
_OUTLIER_SCORE = 6.0
_ASKED_ANSWERS = 8  # answers to one prompt that a new one is compared with


def audit_records(
    records: datasets.Dataset | Sequence[dict[str, Any]] | str | os.PathLike[str],
    *,
    near_threshold: float = 0.8,
    num_perm: int = 64,
    seed: int = 1,
    language: Callable[[str], str] | None = None,
) -> RecordAudit:
    """Look for faulty, repeated and contradictory records, and count how varied they are.

    One pass over the rows and one over the candidate pairs. Memory holds some 50 bytes a row and
    150 a finding; texts and the ``4 * num_perm`` bytes of a row's signature lie in temporary files
    where they are many (texts that are given as a list stay where they are).

    Args:
        records: a data set with prompt and response, rows in any SFT format, or a path or id for
            `load_records`.
        near_threshold: least Jaccard similarity of near duplicates, in (0, 1].
        num_perm: MinHash permutations.
        seed: seed of the permutations.
        language: text -> language name for the diversity counts; the script by default.

    Returns:
        The findings; see `audit_result.KINDS` for what each kind means.

    Raises:
        DataError: if there is no row, or a row does not fit.
        ConfigError: if a setting is out of range.
    """
    if not 0 < near_threshold <= 1:
        raise ConfigError(f"near_threshold: must be in (0, 1], got {near_threshold}")
    if num_perm < 16:
        raise ConfigError(f"num_perm: must be at least 16, got {num_perm}")
    data, labels = _as_dataset(records)
    if len(data) == 0:
        raise DataError("records: there are 0 rows, needs at least one; check the file")
    audit = _Audit(data, labels, DiversityCounter(language))
    with progress(len(data), "auditing rows") as bar:
        table = audit.read(num_perm, seed, bar)
    audit.compare_exactly()
    pairs = candidate_pairs(table, near_threshold)
    with progress(len(pairs), "comparing near duplicates") as bar:
        audit.compare_nearly(pairs, near_threshold, bar)
    audit.judge_against_peers()
    return audit.result()


class _Audit:
    """The state of one audit: compact columns, one entry a row, and the findings."""

    def __init__(
        self, data: datasets.Dataset, labels: list[str], diversity: DiversityCounter
    ) -> None:
        rows = len(data)
        self.data = data
        self.labels = labels
        self.diversity = diversity
        self.issues: list[Issue] = []
        self.record_hash = np.empty(rows, np.uint64)
        self.question_hash = np.empty(rows, np.uint64)
        self.lengths = np.empty(rows, np.int64)
        self.answer_lengths = np.empty(rows, np.int64)
        self.skipped = np.zeros(rows, bool)  # empty or repeated: left out of later comparisons
        self.peers: dict[str, list[int]] = {}  # group -> [rows, of these finished]
        self.loose: dict[str, list[int]] = {}  # group -> rows that do not end as sentences do
        self.marks: Counter[str] = Counter()  # closing mark -> rows
        self.mark_hash = np.zeros(rows, np.uint64)  # 0: not to be judged by it
        self.signs: dict[str, list[tuple[int, str]]] = {}  # language -> rows with a sign of a cut
        self.scripts = {"same": 0, "prompts": 0}
        self.foreign: list[tuple[int, str]] = []

    def add(self, row: int, kind: str, detail: str, other: int | None = None) -> None:
        """Note a finding."""
        self.issues.append(Issue(row, kind, sys.intern(detail), other))

    def read(self, num_perm: int, seed: int, bar: ProgressBar) -> np.ndarray:
        """Judge every row by itself; return the signatures, uint32 [rows, num_perm]."""
        table = scratch_array((len(self.data), num_perm), np.uint32)
        for row, sketch in enumerate(signatures(self._texts(bar), num_perm, seed)):
            table[row] = sketch
        return table

    def _texts(self, bar: ProgressBar) -> Iterator[str]:
        """Yield what near duplicates are found by, for each row after judging it."""
        row = 0
        for batch in self.data.iter(batch_size=ROWS_PER_BATCH):
            columns: dict[str, list[Any]] = batch  # pyright: ignore[reportAssignmentType]
            for i, (prompt, answer) in enumerate(
                zip(columns["prompt"], columns["response"], strict=True)
            ):
                labels = {name: columns[name][i] for name in self.labels}
                yield self._read_row(row, prompt, answer, labels)
                row += 1
            bar.advance(len(columns["prompt"]))

    def _read_row(self, row: int, prompt: str, answer: str, labels: dict[str, Any]) -> str:
        """Judge one row and keep what later comparisons need."""
        if not isinstance(prompt, str) or not isinstance(answer, str):
            raise DataError(f"row {row}: prompt and response must be text, got null; drop the row")
        asked, answered = normalise(prompt), normalise(answer)
        question = question_key(asked)
        text = f"{question}\n{question_key(answered)}"
        self.record_hash[row] = _hash(f"{asked}\n{answered}")
        self.question_hash[row] = _hash(question)
        self.lengths[row], self.answer_lengths[row] = len(prompt) + len(answer), len(answer)
        self.diversity.add(asked, answered, labels)
        for name, value in (("prompt", prompt), ("answer", answer)):
            damage = mojibake(value)
            if damage:
                self.add(row, "mojibake", f"{name}: {damage}")
        if not asked:
            self.add(row, "empty_prompt", "no text")
        if is_empty(answer):
            self.add(row, "empty_answer", f"{len(answer)} characters, none of them text")
            self.skipped[row] = True
            return text
        copy = copied(asked, answered)
        if copy:
            self.add(row, "prompt_copied", copy)
        else:
            self._note_ending(row, answer)
            self._note_script(row, asked, answered)
        return text

    def _note_ending(self, row: int, answer: str) -> None:
        """Flag an answer that is cut for certain; keep one that only its peers can judge."""
        found = ending(answer)
        mark = closing_mark(answer)
        if mark in self.marks or len(self.marks) < _MOST_MARKS:
            self.marks[mark] += 1
        self.mark_hash[row] = 0 if found.reason else _hash(mark)
        if found.reason:
            self.add(row, "truncated_answer", found.reason)
        if found.peers:
            tally = self.peers.setdefault(found.peers, [0, 0])
            tally[0] += 1
            tally[1] += found.finished
            if not found.finished and not found.reason:
                self.loose.setdefault(found.peers, []).append(row)
        if found.sign and not found.reason:
            self.signs.setdefault(found.language, []).append((row, found.sign))

    def _note_script(self, row: int, prompt: str, answer: str) -> None:
        """Keep a row whose answer is in another script than its prompt."""
        asked, answered = script(prompt), script(answer)
        if "other" in (asked, answered) or len(answer) < 4:
            return
        self.scripts["prompts"] += 1
        self.scripts["same"] += asked == answered
        if asked != answered and not asks_for_other_script(prompt, answered):
            self.foreign.append((row, f"prompt in {asked}, answer in {answered}"))

    def compare_exactly(self) -> None:
        """Find rows of equal text, and rows of one question with different answers."""
        for group in _groups(self.record_hash, ~self.skipped):
            for row in group[1:]:
                self.add(row, "exact_duplicate", "same prompt and answer", group[0])
                self.skipped[row] = True
        for group in _groups(self.question_hash, ~self.skipped):
            self._compare_answers(group)

    def _compare_answers(self, group: list[int]) -> None:
        """Compare the answers to one question; the first few stand for all."""
        known: list[tuple[int, str]] = []
        told: set[int] = set()
        for row in group:
            record = self._record(row)
            prompt, answer = normalise(record[0]), normalise(record[1])
            clash = None
            for other, other_answer in known:
                clash = contradiction(prompt, other_answer, answer)
                if clash:
                    self.add(row, "contradictory_answers", clash, other)
                    if other not in told:
                        self.add(other, "contradictory_answers", clash, row)
                    told |= {row, other}
                    break
            if known and not clash:
                self.add(row, "repeated_prompt", "same question, another answer", known[0][0])
            if len(known) < _ASKED_ANSWERS:
                known.append((row, answer))

    def compare_nearly(self, pairs: np.ndarray, threshold: float, bar: ProgressBar) -> None:
        """Prove candidate pairs (later row, earlier row), sorted by the later one."""
        for later, earlier in pairs.tolist():
            bar.advance()
            if self.skipped[later] or self.skipped[earlier]:
                continue
            similarity = near_duplicate(self._record(earlier), self._record(later), threshold)
            if similarity is not None:
                self.add(later, "near_duplicate", f"similarity {similarity:.2f}", earlier)
                self.skipped[later] = True

    def judge_against_peers(self) -> None:
        """Flag what is odd only because nearly all other rows are otherwise."""
        self._judge_endings()
        count = self.scripts["prompts"]
        if count >= _SCRIPT_PEERS[0] and self.scripts["same"] >= _SCRIPT_PEERS[1] * count:
            for row, detail in self.foreign:
                self.add(row, "language_mismatch", detail)
        for row, detail in _outliers(self.lengths):
            self.add(row, "length_outlier", detail)

    def _judge_endings(self) -> None:
        """Flag unfinished answers where their peers are finished; a sign asks for fewer of them."""
        accused: dict[int, str] = {}
        for language, rows in self.signs.items():
            tallies = [t for group, t in self.peers.items() if group.startswith(language)]
            count, finished = (sum(column) for column in zip((0, 0), *tallies, strict=True))
            if count >= _SIGN_PEERS[0] and finished >= _SIGN_PEERS[1] * count:
                accused |= dict(rows)
        for group, (count, finished) in self.peers.items():
            least, share = _ENDING_PEERS[group.rsplit(" ", 1)[1]]
            if count >= least and finished >= share * count:
                detail = f"no full stop, as {100 * finished / count:.0f} % of like answers have"
                accused = dict.fromkeys(self.loose.get(group, []), detail) | accused
        mark, with_it = max(self.marks.items(), key=lambda one: one[1], default=("", 0))
        judged = int(np.count_nonzero(self.mark_hash))
        if mark and judged >= _MARK_PEERS[0] and with_it >= _MARK_PEERS[1] * judged:
            detail = (
                f"no last line with {mark!r}, as {100 * with_it / judged:.0f} % of answers have"
            )
            others = np.flatnonzero((self.mark_hash != 0) & (self.mark_hash != _hash(mark)))
            accused = dict.fromkeys(others.tolist(), detail) | accused
        for row, detail in accused.items():
            self.add(row, "truncated_answer", detail)

    def result(self) -> RecordAudit:
        """Return the findings in order."""
        distinct = len(np.unique(self.question_hash))
        diversity = self.diversity.summary(len(self.data), distinct, self.answer_lengths)
        return RecordAudit(sorted(self.issues), len(self.data), diversity, self.data)

    def _record(self, row: int) -> tuple[str, str]:
        record = self.data[row]
        return record["prompt"], record["response"]


def _as_dataset(records: Any) -> tuple[datasets.Dataset, list[str]]:
    """Return a data set with prompt and response, and which label columns it has."""
    if isinstance(records, str | os.PathLike):
        records = load_records(records)
    if not isinstance(records, datasets.Dataset) or not {"prompt", "response"} <= set(
        records.column_names
    ):
        raw = (RawRecord(f"row {row}", dict(fields)) for row, fields in enumerate(records))
        wanted = ("prompt", "response", *LABEL_COLUMNS)
        rows = (row for one in raw for row in canonical(one, "sft"))
        records = dataset_of({n: row[n] for n in wanted if n in row} for row in rows)
        if len(records) == 0:
            raise DataError("records: there are 0 rows, needs at least one; check the file")
    labels = [name for name in LABEL_COLUMNS if name in records.column_names]
    return records.select_columns(["prompt", "response", *labels]).with_format(None), labels


def _hash(text: str) -> int:
    """Return 64 bits that tell texts apart."""
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
    )


def _groups(values: np.ndarray, chosen: np.ndarray) -> Iterator[list[int]]:
    """Yield the chosen rows that share a value, ascending, for each value that several have."""
    rows = np.flatnonzero(chosen)
    order = rows[np.argsort(values[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(values[order].view(np.int64))) + 1
    for first, last in zip((0, *starts), (*starts, len(order)), strict=True):
        if last - first > 1:
            yield order[first:last].tolist()


def _outliers(lengths: np.ndarray) -> Iterator[tuple[int, str]]:
    """Yield rows far longer than the rest: robust score of the logarithm of their length."""
    if len(lengths) < 50:
        return
    logs = np.log1p(lengths)
    middle = np.median(logs)
    spread = 1.4826 * np.median(np.abs(logs - middle))
    score = (logs - middle) / max(float(spread), 0.25)
    for row in np.flatnonzero(score > _OUTLIER_SCORE).tolist():
        typical = int(np.expm1(middle))
        yield row, f"{lengths[row]} characters; the median is {typical}"
