"""Detectors of structure: Markdown headings, legal clauses, definitions in code.

A detector is registered under a name that ``PositionGraphConfig.structure`` lists; your own ones
join with `register_detector`. Detectors of text see one line at a time (`marks.Detector`); a
detector of token ids is a `TokenDetector`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hf_glm_curriculum.attention.code_structure import Calls, Dedents, Definitions
from hf_glm_curriculum.attention.legal_clauses import (
    ChineseClauses,
    ChineseReferences,
    EnglishClauses,
    EnglishReferences,
)
from hf_glm_curriculum.attention.markdown_headings import MarkdownHeadings, UnderlinedHeadings
from hf_glm_curriculum.attention.marks import Detector, Mark
from hf_glm_curriculum.errors import ConfigError


@dataclass(frozen=True)
class TokenDetector:
    """Tokens that open a section by themselves, such as a separator in the vocabulary.

    Attributes:
        ids: Token id → rank of the section it opens; a section ends those of its rank and deeper.
        kind: "heading", "clause" or "definition".
    """

    ids: Mapping[int, int]
    kind: str = "heading"

    def marks(self, ids: Sequence[int], first: int) -> Iterator[Mark]:
        """Marks of tokens `ids`, the first of which stands at position `first`, in tokens."""
        for position, token in enumerate(ids, first):
            rank = self.ids.get(token)
            if rank is not None:
                yield Mark(self.kind, position, position + 1, rank)


DetectorFactory = Callable[[], Iterable[Detector | TokenDetector]]

_REGISTRY: dict[str, DetectorFactory] = {
    "markdown": lambda: (MarkdownHeadings(), UnderlinedHeadings()),
    "legal": lambda: (
        EnglishClauses(),
        ChineseClauses(),
        EnglishReferences(),
        ChineseReferences(),
    ),
    "code": lambda: (Dedents(), Definitions(), Calls()),
}


def register_detector(name: str, factory: DetectorFactory) -> None:
    """Add a detector under a name for ``PositionGraphConfig.structure``.

    Args:
        name: The name; a known one is replaced.
        factory: Makes the detectors that the name stands for. They are shared by every graph, so
            they must keep no state between calls.
    """
    _REGISTRY[name] = factory


def make_detectors(names: Iterable[str]) -> list[Detector | TokenDetector]:
    """The detectors of some names.

    Raises:
        ConfigError: A name is not registered; the message lists those that are.
    """
    found: list[Detector | TokenDetector] = []
    for name in names:
        if name not in _REGISTRY:
            near = difflib.get_close_matches(str(name), _REGISTRY, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"structure: there is no detector {name!r}; {hint}"
                f"known: {', '.join(sorted(_REGISTRY))}; add your own with register_detector."
            )
        found += _REGISTRY[name]()
    return found
