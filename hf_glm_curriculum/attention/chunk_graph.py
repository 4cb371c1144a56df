"""A graph over the chunks of a retrieval index: what belongs together beyond similar wording."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_glm_curriculum.attention.chunk_links import LINKS, Document, Link, Mentions, link_counts
from hf_glm_curriculum.attention.chunk_text import TermVectors, duplicate_groups
from hf_glm_curriculum.errors import DataError

_FIELDS = ("text", "document", "section", "order", "embedding")


@dataclass(frozen=True)
class Chunk:
    """A piece of a document.

    Attributes:
        text: Its text.
        document: The document's name.
        section: The section it belongs to, if known; chunks of one section are linked.
        order: Where it stands in the document; chunks are sorted by it.
        embedding: Its vector, if the index has one.
    """

    text: str
    document: str = ""
    section: str = ""
    order: float = 0.0
    embedding: Sequence[float] | None = None


@dataclass(frozen=True)
class Related:
    """A chunk that is related to another.

    Attributes:
        index: Its number.
        similarity: Jaccard similarity of the neighbourhoods in the graph, two steps wide.
        kinds: Kinds of the direct links between the two; none for chunks related by neighbours.
    """

    index: int
    similarity: float
    kinds: tuple[str, ...]


class ChunkGraph:
    """Chunks, and links by order, section, reference and mention of another document.

    Attributes:
        chunks: The chunks, in the order given.
        links: The links between them, by number.
    """

    def __init__(
        self,
        chunks: Iterable[Chunk | Mapping[str, Any]],
        *,
        structure: Sequence[str] = ("markdown", "legal"),
        names: Mapping[str, str] | None = None,
        duplicate_threshold: float = 0.8,
    ) -> None:
        """Link chunks.

        Args:
            chunks: Chunks, or mappings with their fields.
            structure: Detectors of sections and references, as in ``PositionGraphConfig``.
            names: What texts call a document: name → document. Names are also taken from the
                documents' names, titles and first headings.
            duplicate_threshold: Chunks whose shingles have at least this Jaccard similarity
                (estimated) are copies of each other.

        Raises:
            DataError: A chunk lacks its text or has an unknown field.
            ConfigError: An unknown detector.
        """
        self.chunks = [_checked(number, chunk) for number, chunk in enumerate(chunks)]
        self._vectors = TermVectors([chunk.text for chunk in self.chunks]) if self.chunks else None
        self._groups = duplicate_groups([c.text for c in self.chunks], duplicate_threshold)
        self.links = self._linked(structure, names)
        self._out: list[dict[int, set[str]]] = [{} for _ in self.chunks]
        for link in self.links:
            self._out[link.start].setdefault(link.end, set()).add(link.kind)
        self._near = self._neighbourhoods()

    @classmethod
    def from_documents(
        cls, documents: Mapping[str, str], size: int = 1000, **options: Any
    ) -> ChunkGraph:
        """Cut documents into chunks at headings and blank lines, and link them.

        Args:
            documents: Name → text.
            size: Characters of a chunk at most, unless one paragraph is longer.
            options: As of the class.

        Raises:
            ConfigError: An unknown detector.
        """
        pieces = [
            Chunk(text, name, order=order)
            for name, whole in documents.items()
            for order, text in enumerate(cut(whole, size))
        ]
        return cls(pieces, **options)

    def _linked(self, structure: Sequence[str], names: Mapping[str, str] | None) -> list[Link]:
        members: dict[str, list[int]] = {}
        for number, chunk in enumerate(self.chunks):
            members.setdefault(chunk.document, []).append(number)
        documents = []
        for name, numbers in members.items():
            numbers.sort(key=lambda number: self.chunks[number].order)
            documents.append(Document(name, numbers, [self.chunks[n].text for n in numbers]))
        found = [link for document in documents for link in document.links(structure)]
        mentions = Mentions(documents, names)
        for index, document in enumerate(documents):
            for number in document.chunks:
                found += mentions.links(number, self.chunks[number].text, index)
            found += self._sections(document)
        return list(dict.fromkeys(found))

    def _sections(self, document: Document) -> Iterable[Link]:
        """Links of chunks to the first of their section."""
        first: dict[str, int] = {}
        for number in document.chunks:
            section = self.chunks[number].section
            if section and first.setdefault(section, number) != number:
                yield Link(number, first[section], "section")

    def _neighbourhoods(self) -> list[frozenset[int]]:
        """Each chunk's neighbours within two steps, in either direction, itself among them."""
        beside: list[set[int]] = [{number} for number in range(len(self.chunks))]
        for link in self.links:
            if link.kind != "start":  # a neighbour of all chunks of a document tells none apart
                beside[link.start].add(link.end)
                beside[link.end].add(link.start)
        return [frozenset().union(*(beside[near] for near in around)) for around in beside]

    def link_counts(self) -> dict[str, int]:
        """How many links there are of each kind."""
        return link_counts(self.links)

    def related(self, index: int, count: int = 8) -> list[Related]:
        """Chunks related to one: those it links to or that link to it, then by neighbourhood.

        Raises:
            DataError: There is no chunk of this number.
        """
        self._check([index])
        around = self._near[index]
        candidates = {other for near in around for other in self._near[near]} - {index}
        found = []
        for other in candidates:
            kinds = self._out[index].get(other, set()) | self._out[other].get(index, set())
            weight = max((LINKS[kind] for kind in kinds), default=0.0)
            similarity = len(around & self._near[other]) / len(around | self._near[other])
            entry = Related(other, similarity, tuple(sorted(kinds)))
            found.append((-weight, -similarity, abs(other - index), entry))
        return [entry for *_, entry in sorted(found, key=lambda row: row[:3])[:count]]

    def scores(self, query: str) -> np.ndarray:
        """Plain similarity of a query to every chunk (TF-IDF cosine): float64 [chunks]."""
        return np.zeros(0) if self._vectors is None else self._vectors.scores(query)

    def embedding_scores(self, query: Sequence[float]) -> np.ndarray:
        """Cosine of a query's vector with every chunk's embedding: float64 [chunks].

        Raises:
            DataError: A chunk has no embedding, or the lengths differ.
        """
        missing = [n for n, chunk in enumerate(self.chunks) if chunk.embedding is None]
        if missing:
            raise DataError(f"chunks[{missing[0]}].embedding: is missing; give every chunk one.")
        try:
            table = np.array([chunk.embedding for chunk in self.chunks], np.float64)
            vector = np.asarray(query, np.float64)
            norms = np.linalg.norm(table, axis=1) * np.linalg.norm(vector)
            return table @ vector / np.maximum(norms, 1e-12)
        except ValueError as error:
            raise DataError(f"embedding: all must have one length: {error}.") from error

    def relevance(self, scores: Any, seeds: int = 8, steps: int = 1) -> np.ndarray:
        """Scores after relevance has gone along the links: float64 [chunks].

        A chunk gets the highest of its own score and, for each chunk that links to it, that
        one's score times the kind's weight (`chunk_links.LINKS`).

        Args:
            scores: Similarity of each chunk to the query, 0 or more.
            seeds: So many best chunks hand their relevance on.
            steps: How many links it goes along.

        Raises:
            DataError: Not one finite score for each chunk.
        """
        found = self._checked_scores(scores).copy()
        front = np.argsort(-found, kind="stable")[:seeds].tolist()
        for _ in range(steps):
            reached: dict[int, float] = {}
            for number in front:
                for other, kinds in self._out[number].items():
                    value = found[number] * max(LINKS[kind] for kind in kinds)
                    if value > max(found[other], reached.get(other, 0.0)):
                        reached[other] = value
            for other, value in reached.items():
                found[other] = value
            front = list(reached)
        return found

    def select(self, scores: Any, count: int, *, seeds: int = 8, steps: int = 1) -> list[int]:
        """The chunks to give to a model: most relevant along the links, copies left out.

        Args:
            scores: Similarity of each chunk to the query, 0 or more.
            count: How many.
            seeds: As in `relevance`.
            steps: As in `relevance`.

        Returns:
            Numbers of chunks, the most relevant first.

        Raises:
            DataError: Not one finite score for each chunk.
        """
        relevance = self.relevance(scores, seeds, steps)
        order = np.argsort(-relevance, kind="stable").tolist()
        return self.without_copies(order)[:count]

    def without_copies(self, indices: Sequence[int]) -> list[int]:
        """The given chunks, of near copies only the first.

        Raises:
            DataError: There is no chunk of a number.
        """
        self._check(indices)
        first = {}
        for index in indices:
            first.setdefault(self._groups[index], index)
        return list(first.values())

    def context_order(self, indices: Sequence[int]) -> list[int]:
        """The given chunks in reading order.

        Documents come in the order of their first chunk in `indices`, chunks by their place in
        the document, so that what is read first is what later chunks build on.

        Raises:
            DataError: There is no chunk of a number.
        """
        self._check(indices)
        documents: dict[str, int] = {}
        for index in indices:
            documents.setdefault(self.chunks[index].document, len(documents))
        kept = self.without_copies(indices)
        return sorted(
            kept, key=lambda i: (documents[self.chunks[i].document], self.chunks[i].order, i)
        )

    def _check(self, indices: Sequence[int]) -> None:
        for index in indices:
            if not 0 <= index < len(self.chunks):
                raise DataError(
                    f"chunk: must be at least 0 and below {len(self.chunks)}, got {index}."
                )

    def _checked_scores(self, scores: Any) -> np.ndarray:
        found = np.asarray(scores, np.float64)
        if found.shape != (len(self.chunks),) or not np.isfinite(found).all():
            raise DataError(
                f"scores: must be one finite number for each of {len(self.chunks)} chunks, got "
                f"shape {found.shape}."
            )
        return found


def _checked(number: int, chunk: Chunk | Mapping[str, Any]) -> Chunk:
    if isinstance(chunk, Chunk):
        return chunk
    unknown = [name for name in chunk if name not in _FIELDS]
    if unknown or not isinstance(chunk.get("text"), str):
        given = ", ".join(map(str, chunk)) or "nothing"
        raise DataError(
            f"chunks[{number}]: must have text and may have {', '.join(_FIELDS[1:])}; got {given}."
        )
    return Chunk(**chunk)


def cut(text: str, size: int) -> list[str]:
    """Cut a text into pieces at headings and blank lines.

    Args:
        text: The text.
        size: Characters of a piece at most, unless one paragraph is longer.
    """
    found: list[str] = []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        if not paragraph.strip():
            continue
        heading = paragraph.lstrip().startswith("#")
        if found and not heading and len(found[-1]) + len(paragraph) + 2 <= size:
            found[-1] += f"\n\n{paragraph}"
        else:
            found.append(paragraph)
    return found
