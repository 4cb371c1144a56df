"""Faults planted into clean rows, each labelled and reversible.

Kinds: `wrong_answer` a plausible wrong number or fact; `shuffled` the answer of another prompt;
`truncated` cut mid-way; `prompt_copied` the prompt given back; `other_language` the answer in the
other language; `contradiction` the question of another row in other words with an answer that
contradicts that row.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from hf_glm_curriculum.data.demo.draft import Draft

Row = dict[str, Any]
FAULT_KINDS = (
    "wrong_answer",
    "shuffled",
    "truncated",
    "prompt_copied",
    "other_language",
    "contradiction",
)


def plant_faults(
    rows: list[Row],
    drafts: Sequence[Draft],
    used: set[str],
    share: float,
    kinds: Sequence[str],
    rng: Random,
) -> None:
    """Spoil a share of the rows in place, the kinds in equal numbers as far as rows allow.

    Rows that a kind does not fit (a one-word answer cannot be truncated) are left to the others.

    Args:
        rows: clean rows, changed in place: `response`, `fault`, `meta.clean_response`; for a
            contradiction the whole row.
        drafts: the drafts of the rows, in the same order.
        used: all prompts in use; those of contradictions are added.
        share: share of rows to spoil.
        kinds: kinds to plant.
        rng: source of randomness.
    """
    wanted = round(share * len(rows))
    counts = {kind: wanted // len(kinds) for kind in kinds}
    for kind in list(kinds)[: wanted % len(kinds)]:
        counts[kind] += 1
    planter = _Planter(rows, drafts, used, rng)
    # The pickiest kinds choose first; a shortfall goes to those that fit any row.
    missing = 0
    for kind in sorted(kinds, key=_PICKINESS.index):
        missing = planter.plant(kind, counts[kind] + missing)
    for kind in sorted(kinds, key=_PICKINESS.index):
        missing = planter.plant(kind, missing)


_PICKINESS = (
    "contradiction",
    "other_language",
    "truncated",
    "wrong_answer",
    "shuffled",
    "prompt_copied",
)


class _Planter:
    """Spoils rows one kind at a time, each row at most once."""

    def __init__(
        self, rows: list[Row], drafts: Sequence[Draft], used: set[str], rng: Random
    ) -> None:
        self.rows, self.drafts, self.used, self.rng = rows, drafts, used, rng
        self.free = list(range(len(rows)))
        rng.shuffle(self.free)
        # Rows that a contradiction contradicts stay clean.
        self.partners: set[int] = set()

    def plant(self, kind: str, count: int) -> int:
        """Spoil up to `count` free rows; return how many could not be found."""
        makers: dict[str, Callable[[int], bool]] = {
            "wrong_answer": self._wrong_answer,
            "truncated": self._truncated,
            "prompt_copied": self._prompt_copied,
            "other_language": self._other_language,
            "contradiction": self._contradiction,
        }
        if kind == "shuffled":
            return count - self._shuffled(count)
        kept: list[int] = []
        while self.free and count:
            row = self.free.pop()
            if row not in self.partners and makers[kind](row):
                count -= 1
            else:
                kept.append(row)
        self.free = kept[::-1] + self.free
        return count

    def _spoil(self, row: int, kind: str, response: str, **meta: Any) -> bool:
        entry = self.rows[row]
        if response.strip().lower() == entry["response"].strip().lower():
            return False
        entry["meta"] = {**entry["meta"], "clean_response": entry["response"], **meta}
        entry["response"], entry["fault"] = response, kind
        return True

    def _wrong_answer(self, row: int) -> bool:
        wrong = self.drafts[row].wrong
        return wrong is not None and self._spoil(row, "wrong_answer", wrong)

    def _truncated(self, row: int) -> bool:
        cut = cut_midway(self.rows[row]["response"], self.rng)
        return cut is not None and self._spoil(row, "truncated", cut)

    def _prompt_copied(self, row: int) -> bool:
        return self._spoil(row, "prompt_copied", self.rows[row]["prompt"])

    def _other_language(self, row: int) -> bool:
        twin = self.drafts[row].twin
        if twin is None or not is_in(twin, "zh" if self.drafts[row].language == "en" else "en"):
            return False
        return self._spoil(row, "other_language", twin)

    def _contradiction(self, row: int) -> bool:
        """Replace a row by another row's question in other words with a wrong answer."""
        for _ in range(8):
            partner = self.rng.randrange(len(self.rows))
            source = self.drafts[partner]
            is_free = partner != row and self.rows[partner]["fault"] is None
            if not is_free or partner in self.partners or source.wrong is None:
                continue
            prompts = [prompt for prompt in source.rewordings() if prompt not in self.used]
            if prompts:
                self._replace(row, partner, self.rng.choice(prompts[:4]))
                return True
        return False

    def _replace(self, row: int, partner: int, prompt: str) -> None:
        source = self.rows[partner]
        self.used.add(prompt)
        self.partners.add(partner)
        meta = {**source["meta"], "clean_response": source["response"], "contradicts": partner}
        self.rows[row] = {
            **source,
            "prompt": prompt,
            "response": self.drafts[partner].wrong,
            "fault": "contradiction",
            "meta": meta,
        }

    def _shuffled(self, count: int) -> int:
        """Move answers in a ring within each language, so that no row keeps its own.

        The ring is sorted by category and turned by its largest group: as long as no category
        holds more than half of it, every answer comes from another category.
        """
        chosen = [row for row in reversed(self.free) if row not in self.partners][:count]
        for language in ("en", "zh"):
            ring = [row for row in chosen if self.rows[row]["language"] == language]
            ring.sort(key=lambda row: self.rows[row]["category"])
            answers = [self.rows[row]["response"] for row in ring]
            groups = Counter(self.rows[row]["category"] for row in ring)
            turn = min(max(groups.values(), default=0), max(len(ring) - 1, 0))
            moved = answers[turn:] + answers[:turn]
            for row, answer in zip(ring, moved, strict=True):
                self._spoil(row, "shuffled", answer)
        done = {row for row in chosen if self.rows[row]["fault"] == "shuffled"}
        self.free = [row for row in self.free if row not in done]
        return len(done)


def cut_midway(text: str, rng: Random) -> str | None:
    """Cut a text after 35-75 % of it, in mid-sentence; None if it is too short to tell."""
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    if len(ends) < 6:  # Chinese, or a few words: cut between characters
        ends = list(range(1, len(text) + 1))
    if len(ends) < 6:
        return None
    keep = max(3, round(len(ends) * rng.uniform(0.35, 0.75)))
    cut = text[: ends[keep - 1]].rstrip(" .。!！?？;；:：")
    return cut if len(cut) < len(text.rstrip(" .。!！?？")) else None


def is_in(text: str, language: str) -> bool:
    """Whether a text clearly reads as English (at least two words) or Chinese."""
    chinese = sum("\u4e00" <= character <= "\u9fff" for character in text)
    english = sum(any(c.isascii() and c.isalpha() for c in word) for word in text.split())
    if language == "zh":
        return chinese >= 2 and chinese > 2 * english
    return english >= 2 and not chinese
