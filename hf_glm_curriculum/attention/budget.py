"""How many keys a tile may see: a fixed number, more where attention spreads, more by rule."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.token_text import TokenText

RULE_REACH = 256
"""Characters in front of new text that are searched again, for matches that began there."""


def first_level(config: PositionGraphConfig) -> int:
    """The budget a sequence begins with: the largest that top_k covers, else the smallest."""
    fitting = [level for level, keys in enumerate(config.budgets) if keys <= config.top_k]
    return fitting[-1] if fitting else 0


def follow_entropy(entropy: np.ndarray, level: int, config: PositionGraphConfig) -> np.ndarray:
    """The budget of each tile in turn, from the entropy of its attention.

    The level moves up when the entropy passes a bound by more than the hysteresis, and down when
    it falls as far below one.

    Args:
        entropy: float [T], shares of the largest possible entropy, in the order of the text.
        level: where the tile before the first stood.
        config: bounds and hysteresis.

    Returns:
        int64 [T], places in ``config.budgets``.
    """
    bounds, slack = config.budget_entropy, config.budget_hysteresis
    levels = np.empty(len(entropy), dtype=np.int64)
    for place, value in enumerate(entropy.tolist()):
        while level < len(bounds) and value > bounds[level] + slack:
            level += 1
        while level > 0 and value < bounds[level - 1] - slack:
            level -= 1
        levels[place] = level
    return levels


class KeywordRules:
    """Finds the configured expressions in the text of one sequence as it grows."""

    def __init__(self, rules: dict[str, int], tokenizer: Any) -> None:
        """Start with an empty text.

        Args:
            rules: regular expression → least budget in keys from its first match on.
            tokenizer: of the model, to read the text from token ids.
        """
        self._rules = [(re.compile(pattern), keys) for pattern, keys in rules.items()]
        self._text = TokenText(tokenizer)
        self._tail = ""
        self._seen = 0
        self.tokens = 0
        """Tokens read so far."""
        self.found: dict[int, int] = {}
        """Position of the token that completed a rule's first match → least budget in keys."""

    def append(self, ids: np.ndarray) -> None:
        """Add tokens, int [count]."""
        self.tokens += len(ids)
        new = self._text.append(ids)
        text = self._tail + new
        before = self._seen - len(self._tail)
        left = []
        for pattern, keys in self._rules:
            match = pattern.search(text)
            if match is None:
                left.append((pattern, keys))
                continue
            token = self._text.tokens_for(before + max(match.end(), 1)) - 1
            self.found[token] = max(keys, self.found.get(token, 0))
        self._rules = left
        self._seen += len(new)
        self._tail = text[-RULE_REACH:]

    def copy(self) -> KeywordRules:
        """An independent copy."""
        other = object.__new__(KeywordRules)
        other._rules, other._text = list(self._rules), self._text.copy()
        other._tail, other._seen, other.tokens = self._tail, self._seen, self.tokens
        other.found = dict(self.found)
        return other

    def least(self, positions: np.ndarray) -> np.ndarray:
        """Least budget in keys of tiles that begin at ``positions`` [T]; 0 where no rule holds."""
        least = np.zeros(len(positions), dtype=np.int64)
        for place, keys in self.found.items():
            least = np.where(positions > place, np.maximum(least, keys), least)
        return least
