"""Shannon entropy of a text's own characters and units, in bits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

ARTICLE_BANDS = ((2.5, 3.5), (3.2, 4.1), (5.8, 6.5))
"""Bits of character entropy that the articles name for older data, and for the two peaks of newer.

They measure script and length more than anything asked: printed, not used."""


def shannon_entropy(symbols: Iterable[object]) -> float:
    """−Σ p log₂ p over the symbols' own frequencies, bits; 0 without any."""
    counts = Counter(symbols).values()
    total = sum(counts)
    found = -sum(count / total * math.log2(count / total) for count in counts)
    return max(0.0, found)


def character_entropy(text: str) -> float:
    """Entropy of a text's characters, bits a character."""
    return shannon_entropy(text)
