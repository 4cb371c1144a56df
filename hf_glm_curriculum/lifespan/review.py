"""Decisions about samples of the pool, saved one by one, by several people at once."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hf_glm_curriculum.errors import DataError, StateError
from hf_glm_curriculum.lifespan.answers import DECISIONS, Answer, check_answer
from hf_glm_curriculum.lifespan.pool import ObservationPool, id_text
from hf_glm_curriculum.storage import append_line, writing

REVIEW_FILE = "review.jsonl"
_LOCK_SECONDS = 10.0


@dataclass(frozen=True)
class Decision:
    """The last word on a sample.

    Attributes:
        id: the sample's id.
        row: its row of the training data, for people who read the file.
        decision: "keep", "fix", "drop", or None after a decision was taken back.
        response: the corrected response of a fix, else None.
        reviewer: who or which session decided.
        time: when, in ISO form, UTC.
        version: how many decisions the sample has had, this one included.
        line: of the file it stands on, from 1.
    """

    id: int
    row: int
    decision: str | None
    response: str | None
    reviewer: str
    time: str
    version: int
    line: int


class ReviewConflict(StateError):
    """Somebody else decided about the sample since it was shown.

    Attributes:
        current: what they decided.
    """

    def __init__(self, current: Decision) -> None:
        """Say who decided what."""
        self.current = current
        super().__init__(
            f"sample {id_text(current.id)}: {current.reviewer or 'another session'} decided "
            f"{current.decision or 'to take the decision back'} at {current.time}; look at it and "
            "decide again"
        )


class ReviewStore:
    """The decisions about one pool, in an append-only JSONL file next to it.

    Every decision is one line, on disk before `decide` returns; the last line about a sample
    holds. Writers in any number of threads and processes take turns by a file lock. A line that
    a crash left torn was never acknowledged: readers pass over it and the next writer removes it.
    """

    def __init__(self, pool: ObservationPool, path: str | os.PathLike[str] | None = None) -> None:
        """Read the decisions made so far.

        Args:
            pool: what is reviewed.
            path: the file of decisions; ``review.jsonl`` next to the pool by default.

        Raises:
            StateError: if the file cannot be read, or a line before the last is malformed.
        """
        self.pool = pool
        self.path = Path(path) if path is not None else pool.path.with_name(REVIEW_FILE)
        self._guard = threading.RLock()
        self._forget()
        self.refresh()

    def decisions(self) -> dict[int, Decision]:
        """Sample id → the last decision, for samples of the pool that have one."""
        with self._guard:
            known = self.pool.by_id
            return {k: d for k, d in self._last.items() if d.decision is not None and k in known}

    def last(self, sample_id: int) -> Decision | None:
        """The last entry about a sample, which may be one that took a decision back."""
        with self._guard:
            return self._last.get(sample_id)

    def version(self, sample_id: int) -> int:
        """How many decisions a sample has had; `decide` asks for it."""
        last = self.last(sample_id)
        return last.version if last else 0

    def answers(self) -> list[Answer]:
        """The decisions as `corrections.import_annotations` takes them.

        Raises:
            DataError: if an entry does not fit the pool's sample.
        """
        return [
            check_answer(d.decision or "", d.response, self.pool.by_id[k], self._place(d))
            for k, d in self.decisions().items()
        ]

    def refresh(self) -> None:
        """Read what other tabs and processes have decided since.

        Raises:
            StateError: if the file cannot be read, or a line before the last is malformed.
        """
        with self._guard:
            try:
                with self.path.open("rb") as file:
                    # Another file, or one that was cut, no longer has the line read last.
                    file.seek(self._offset - len(self._newest))
                    if file.read(len(self._newest)) != self._newest:
                        self._forget()
                        file.seek(0)
                    tail = file.read()
            except FileNotFoundError:
                self._forget()
                return
            except OSError as error:
                raise StateError(
                    f"cannot read {self.path}: {error.strerror}; check its permissions"
                ) from error
            whole = tail[: tail.rfind(b"\n") + 1]
            for line in whole.splitlines(keepends=True):
                self._take(line)

    def decide(
        self,
        sample_id: int,
        decision: str | None,
        response: str | None = None,
        *,
        expected_version: int,
        reviewer: str = "",
    ) -> Decision:
        """Save a decision.

        Args:
            sample_id: of a sample in the pool.
            decision: "keep", "fix" or "drop"; None takes the last decision back.
            response: the corrected response of a fix.
            expected_version: `version` of the sample when it was shown to whoever decides.
            reviewer: who decides, for the file.

        Returns:
            The decision as saved.

        Raises:
            DataError: if the sample is not in the pool or the answer is malformed.
            ReviewConflict: if the sample has been decided since `expected_version`.
            StateError: if the file cannot be written; it is then as it was before.
        """
        row = self.pool.by_id.get(sample_id)
        if row is None:
            raise DataError(f"sample {id_text(sample_id)} is not in {self.pool.path}")
        if decision is not None:
            response = check_answer(decision, response, row, "decision").response
        entry = {
            "id": sample_id,
            "row": row.row,
            "decision": decision,
            "response": response if decision is not None else None,
            "reviewer": reviewer,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with self._guard, self._locked():
            self.refresh()
            self._repair()
            current = self._last.get(sample_id)
            if current is not None and current.version != expected_version:
                raise ReviewConflict(current)
            append_line(self.path, json.dumps(entry, ensure_ascii=False), durable=True)
            self.refresh()
            return self._last[sample_id]

    # -- the file ----------------------------------------------------------------------------

    def _forget(self) -> None:
        self._last: dict[int, Decision] = {}
        self._offset = self._line = 0
        self._newest = b""

    def _take(self, raw: bytes) -> None:
        """Enter one whole line."""
        try:
            fields = json.loads(raw) if raw.strip() else None
        except ValueError:
            fields = {}
        if fields is not None and not _is_entry(fields):
            raise StateError(
                f"{self.path}, line {self._line + 1}: not a decision, got {raw[:60]!r}; repair "
                "the line or delete it"
            )
        self._line += 1
        self._offset += len(raw)
        self._newest = raw
        if fields is None:
            return
        sample_id = fields["id"]
        before = self._last.get(sample_id)
        self._last[sample_id] = Decision(
            id=sample_id,
            row=int(fields.get("row") or 0),
            decision=fields["decision"],
            response=fields.get("response"),
            reviewer=str(fields.get("reviewer") or ""),
            time=str(fields.get("time") or ""),
            version=before.version + 1 if before else 1,
            line=self._line,
        )

    def _place(self, decision: Decision) -> str:
        return f"{self.path}, line {decision.line}"

    def _locked(self) -> Any:
        """The lock that every writer of the file takes."""
        lock = FileLock(f"{self.path}.lock", timeout=_LOCK_SECONDS)
        with writing(self.path):
            try:
                return lock.acquire()
            except Timeout as error:
                raise StateError(
                    f"{self.path}: another process has held its lock for {_LOCK_SECONDS:.0f} s; "
                    "end that process, then decide again"
                ) from error

    def _repair(self) -> None:
        """Under the lock: end a whole last line that lacks its line break, remove a torn one."""
        if not self.path.exists():
            return
        with writing(self.path), self.path.open("r+b") as file:
            file.seek(self._offset)
            torn = file.read()
            if not torn:
                return
            try:
                whole = _is_entry(json.loads(torn))
            except ValueError:
                whole = False
            if whole:
                file.write(b"\n")
            else:
                file.truncate(self._offset)
            file.flush()
            os.fsync(file.fileno())
        self.refresh()


def _is_entry(fields: Any) -> bool:
    """Whether a line of the file is a decision."""
    return (
        isinstance(fields, Mapping)
        and isinstance(fields.get("id"), int)
        and fields.get("decision", "") in (None, *DECISIONS)
        and isinstance(fields.get("response"), str | None)
    )
