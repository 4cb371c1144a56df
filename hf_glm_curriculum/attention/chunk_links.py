"""What links chunks of documents: order, sections, clauses referred to, documents named."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hf_glm_curriculum.attention.chunk_text import TermVectors
from hf_glm_curriculum.attention.legal_clauses import ChineseReferences, EnglishReferences
from hf_glm_curriculum.attention.marks import MarkStream
from hf_glm_curriculum.attention.outline import KINDS, Outline
from hf_glm_curriculum.attention.structure import TokenDetector, make_detectors

LINKS = {
    "reference": 0.95, "mention": 0.85, "next": 0.6, "previous": 0.6, "heading": 0.5,
    "clause": 0.5, "section": 0.5, "definition": 0.5, "start": 0.2,
}  # fmt: skip
"""Kind of link → how much of a chunk's relevance it hands on."""

_NAME_WORDS = 2  # a shorter name is an ordinary word
_AROUND = 24  # characters around a document's name in which a clause number belongs to it
_FRONT_TITLE = re.compile(r"^title:[ \t]*(.+)$", re.MULTILINE)
_FIRST_HEADING = re.compile(r"^#{1,3}[ \t]+(.+)$", re.MULTILINE)
_NAME_WORD = re.compile(r"[一-鿿]|[^\W_一-鿿]+")
_STATE = re.compile(r"^中华人民共和国")


@dataclass(frozen=True)
class Link:
    """A link from a chunk to another, by their numbers, and its kind (see `LINKS`)."""

    start: int
    end: int
    kind: str


class Document:
    """The chunks of one document in their order, read as one text."""

    def __init__(self, name: str, chunks: Sequence[int], texts: Sequence[str]) -> None:
        """Read a document.

        Args:
            name: Its name.
            chunks: Numbers of its chunks, in their order.
            texts: Their texts.
        """
        self.name, self.chunks, self.texts = name, list(chunks), list(texts)
        self.starts = np.cumsum([0, *(len(text) + 1 for text in texts)])[:-1]
        self.outline = Outline()
        self._found: list[Link] = []

    def chunk_at(self, position: int) -> int:
        """The chunk that a character stands in."""
        return self.chunks[int(np.searchsorted(self.starts, position, "right")) - 1]

    def links(self, structure: Sequence[str]) -> list[Link]:
        """Links inside the document."""
        detectors = [d for d in make_detectors(structure) if not isinstance(d, TokenDetector)]
        stream = MarkStream(detectors)
        for chunk, start, text in zip(self.chunks, self.starts, self.texts, strict=True):
            self._add(chunk, ((at, KINDS[kind]) for at, kind in self.outline.own()), int(start))
            for mark in stream.feed(f"{text}\n"):
                for edge in self.outline.apply(mark, mark.start, mark.known):
                    ends = [(edge.earlier, KINDS[edge.kind])]
                    self._add(self.chunk_at(edge.later), ends, edge.later)
        for one, other in zip(self.chunks, self.chunks[1:], strict=False):
            self._found += [Link(one, other, "next"), Link(other, one, "previous")]
        self._found += [Link(chunk, self.chunks[0], "start") for chunk in self.chunks[1:]]
        return self._found

    def _add(self, chunk: int, ends: Sequence | Iterator, position: int) -> None:
        for at, kind in ends:
            if kind in LINKS and at < position and self.chunk_at(at) != chunk:
                self._found.append(Link(chunk, self.chunk_at(at), kind))


def document_names(documents: Sequence[Document]) -> dict[tuple[str, ...], int]:
    """Names that texts may call documents by, as `name_words` → index of the document.

    The file's name, the title, its first heading, and, of two words or more, what they end with:
    "Privacy Statement" for "Acme General Privacy Statement". Names of two documents are left out.
    """
    owners: dict[tuple[str, ...], set[int]] = {}
    for index, document in enumerate(documents):
        for name in _full_names(document):
            words = name_words(name)
            for first in range(len(words)):
                if len(words) - first >= _NAME_WORDS and (first == 0 or words[0].isascii()):
                    owners.setdefault(words[first:], set()).add(index)
    return {name: next(iter(found)) for name, found in owners.items() if len(found) == 1}


def name_words(name: str) -> tuple[str, ...]:
    """The words of a name in lower case; a Chinese name is cut into its characters."""
    return tuple(_NAME_WORD.findall(_STATE.sub("", name.lower())))


def _full_names(document: Document) -> list[str]:
    text = "\n".join(document.texts)[:4000]
    stem = re.sub(r"\.[A-Za-z0-9]{1,5}$", "", document.name.rpartition("/")[2])
    found = [re.sub(r"[-_]+", " ", stem)]
    for pattern in (_FRONT_TITLE, _FIRST_HEADING):
        match = pattern.search(text)
        if match:
            found.append(match[1])
    return found


class Mentions:
    """Finds where a chunk names another document, and what of that document it means."""

    def __init__(
        self, documents: Sequence[Document], names: Mapping[str, str] | None = None
    ) -> None:
        """Collect names.

        Args:
            documents: The documents.
            names: More names: name → document.
        """
        self._documents = documents
        self._names = document_names(documents)
        numbers = {document.name: index for index, document in enumerate(documents)}
        for name, document in (names or {}).items():
            if document in numbers:
                self._names[name_words(name)] = numbers[document]
        self._lengths = sorted({len(name) for name in self._names}, reverse=True)
        self._vectors: dict[int, TermVectors] = {}

    def links(self, chunk: int, text: str, own: int) -> Iterator[Link]:
        """Links of a chunk of document number `own` to chunks of others."""
        for start, end, index in self._found(text):
            if index != own:
                yield Link(chunk, self._meant(text, start, end, index), "mention")

    def _found(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, document) of each name in a text, the longest at each place."""
        words = [
            (match.start(), match.end(), match[0]) for match in _NAME_WORD.finditer(text.lower())
        ]
        at = 0
        while at < len(words):
            for length in self._lengths:
                run = tuple(word for _, _, word in words[at : at + length])
                index = self._names.get(run)
                if index is not None and len(run) == length:
                    yield words[at][0], words[at + length - 1][1], index
                    at += length - 1
                    break
            at += 1

    def _meant(self, text: str, start: int, end: int, index: int) -> int:
        """The clause that is named beside the document, else the chunk most like the sentence."""
        document = self._documents[index]
        for beside in (
            text[end : end + _AROUND].lstrip('》”" *'),
            text[max(0, start - _AROUND) : start],
        ):
            for detector in (ChineseReferences(), EnglishReferences()):
                for span in detector.inside(beside, 0, False):
                    for name in span.marks[0].names if span.marks else ():
                        if name in document.outline.labels:
                            return document.chunk_at(document.outline.labels[name])
        if index not in self._vectors:
            self._vectors[index] = TermVectors(document.texts)
        alike = self._vectors[index].scores(_sentence_without(text, start, end))
        return document.chunks[int(np.argmax(alike))]


def _sentence_without(text: str, start: int, end: int) -> str:
    """The sentence around a document's name, the name left out: every page may bear that."""
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s)|[。！？\n]", text)]
    first = max((stop for stop in ends if stop <= start), default=0)
    last = min((stop for stop in ends if stop >= end), default=len(text))
    return f"{text[first:start]} {text[end:last]}"


def link_counts(links: Sequence[Link]) -> dict[str, int]:
    """How many links there are of each kind."""
    return dict(Counter(link.kind for link in links))
