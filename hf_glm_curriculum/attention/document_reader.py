"""Reads token ids as a document: which marks they bring, at which positions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.marks import Mark, MarkStream
from hf_glm_curriculum.attention.structure import TokenDetector, make_detectors
from hf_glm_curriculum.attention.token_text import TokenText
from hf_glm_curriculum.attention.turns import turn_detectors


class Finding(NamedTuple):
    """A mark, the position it stands at, and how many tokens make it known."""

    mark: Mark
    position: int
    known: int


class DocumentReader:
    """Runs the detectors of a config over token ids that arrive in pieces of any size."""

    def __init__(self, tokenizer: Any, config: PositionGraphConfig) -> None:
        """Start before the first token.

        Raises:
            ConfigError: ``structure`` names an unknown detector.
        """
        detectors = make_detectors(config.structure)
        text = [d for d in detectors if not isinstance(d, TokenDetector)]
        if config.turns:
            text += turn_detectors(tokenizer)
        self._by_token = [d for d in detectors if isinstance(d, TokenDetector)]
        self._stream = MarkStream(text)
        self._text = TokenText(tokenizer)

    def read(self, ids: np.ndarray, first: int) -> list[Finding]:
        """Take tokens that stand from position `first` on; findings as they become known."""
        marks = self._stream.feed(self._text.append(ids))
        found = [self._placed(mark) for mark in marks]
        for detector in self._by_token:
            tokens: Sequence[int] = ids.tolist()
            found += [Finding(m, m.start, m.known) for m in detector.marks(tokens, first)]
        return sorted(found, key=lambda finding: finding.known) if self._by_token else found

    def _placed(self, mark: Mark) -> Finding:
        return Finding(mark, self._text.token_of(mark.start), self._text.tokens_for(mark.known))

    def copy(self) -> DocumentReader:
        """An independent copy."""
        other = object.__new__(DocumentReader)
        other._by_token = self._by_token
        other._stream, other._text = self._stream.copy(), self._text.copy()
        return other


class TurnReader:
    """Reads turns from given numbers, one a position, instead of from text."""

    def __init__(self) -> None:
        """Start before the first position."""
        self._last = -1

    def read(self, turns: np.ndarray, first: int) -> list[Finding]:
        """Take turn numbers of positions from `first` on; a new number begins a turn."""
        before = np.concatenate(([self._last], turns[:-1])) if len(turns) else turns
        starts = np.flatnonzero((turns != before) & (turns >= 0))
        if len(turns):
            self._last = int(turns[-1])
        places = (int(start) + first for start in starts)
        return [Finding(Mark("turn", place, place + 1), place, place + 1) for place in places]

    def copy(self) -> TurnReader:
        """An independent copy."""
        other = TurnReader()
        other._last = self._last
        return other


_FINGERPRINTS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """A digest of a tokenizer's kind, size, chat template and a thousand of its tokens."""
    found = _FINGERPRINTS.get(tokenizer)
    if found is None:
        size = len(tokenizer)
        ids = np.unique(np.linspace(0, max(0, size - 1), 1000).astype(int)).tolist()
        tokens = [str(tokenizer.convert_ids_to_tokens(token)) for token in ids]
        parts = [str(size), str(getattr(tokenizer, "chat_template", "")), *tokens]
        found = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
        _FINGERPRINTS[tokenizer] = found
    return found
