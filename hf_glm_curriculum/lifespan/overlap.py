"""Nearest samples by the words that their prompts share."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from hf_glm_curriculum.text.words import words

_RARE_WORDS = 24
"""Words of a prompt, rarest first, by which candidates are looked up."""
_CANDIDATES = 4096
"""Prompts compared at most for one of those words."""


class WordOverlap:
    """Finds prompts with similar words, in any mix of English and Chinese.

    The similarity is the Jaccard index of the sets of words (single Han characters), each word
    weighted by log(1 + N / prompts with it), so that a template's words count next to nothing.
    """

    def __init__(self, prompts: Sequence[str]) -> None:
        """Index N prompts; positions in the sequence name them."""
        self._words = [frozenset(word.lower() for word in words(prompt)) for prompt in prompts]
        self._places: dict[str, list[int]] = defaultdict(list)
        for place, found in enumerate(self._words):
            for word in found:
                self._places[word].append(place)
        counts = Counter({word: len(places) for word, places in self._places.items()})
        total = len(prompts)
        self._weight = {word: math.log1p(total / count) for word, count in counts.items()}

    def nearest(
        self,
        prompt: str,
        count: int = 3,
        least: float = 0.15,
        without: frozenset[int] = frozenset(),
    ) -> list[tuple[int, float]]:
        """The prompts most similar to one.

        Args:
            prompt: any text, indexed or not.
            count: how many at most.
            least: similarity from which a prompt counts.
            without: positions to leave out, such as the prompt's own.

        Returns:
            (position, similarity in (0, 1]) pairs, most similar first.
        """
        own = frozenset(word.lower() for word in words(prompt))
        known = sorted((w for w in own if w in self._places), key=lambda w: len(self._places[w]))
        near = {p for word in known[:_RARE_WORDS] for p in self._places[word][:_CANDIDATES]}
        scored = ((self._similarity(own, self._words[p]), -p) for p in near - without)
        best = heapq.nlargest(count, (pair for pair in scored if pair[0] >= least))
        return [(-place, similarity) for similarity, place in best]

    def _similarity(self, one: frozenset[str], other: frozenset[str]) -> float:
        shared = sum(self._weight[word] for word in one & other)
        # A word that no indexed prompt has is as rare as a word can be.
        rarest = math.log1p(len(self._words))
        both = sum(self._weight.get(word, rarest) for word in one | other)
        return shared / both if both else 0.0
