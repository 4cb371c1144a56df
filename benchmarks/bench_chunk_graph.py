"""``chunk_graph``: retrieval of the clause that a passage cites, with and without the graph.

Two tasks on real statutes and a real contract (``longdoc_zh_statutes``, ``common_paper_CSA``).
*Within*: a sentence that cites a clause of its own document is the query. *Across*: the sentences
that cite a clause are taken out of each law or contract and put into a document of their own,
"§ 8.4" becoming "§ 8.4 of the Cloud Service Agreement" and 第四十八条 becoming
《公司法》第四十八条, as an order form or a regulation writes it. The answer is the chunk with the
cited clause; all documents share one index. Plain retrieval takes the chunks most like the query
(TF-IDF cosine), the chunk graph starts from the same scores and takes as many.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import parser, record

from hf_glm_curriculum.attention.chunk_graph import Chunk, ChunkGraph, cut

DATA = Path(os.environ.get("HGC_DATA") or Path(__file__).parents[2] / "shared" / "data")
SIZE = 600
COUNTS = (4, 8, 16)
ANNEX = 20  # citing sentences in a document of their own
_ARTICLE = re.compile(r"(?<!》)第[一二三四五六七八九十百千零]+条(?:之[一二三四五六七八九十])?")
_SECTION = re.compile(r"Sections? (\d+\.\d+)")
_TAG = re.compile(r"<[^>\n]*>")


@dataclass(frozen=True)
class Citation:
    """A sentence of a document, the clause it cites, and how that clause begins."""

    document: str
    sentence: str
    cited: str
    answer: str


def statutes() -> dict[str, str]:
    """Name of the law → its text."""
    found = {}
    for path in sorted((DATA / "longdoc_zh_statutes").glob("*.md")):
        text = path.read_text("utf-8")
        title = re.search(r"^# (?:中华人民共和国)?(.+)$", text, re.MULTILINE)
        found[f"{title[1] if title else path.stem}"] = text
    return found


def chinese_citations(name: str, text: str) -> Iterator[Citation]:
    """Sentences that cite an article of their own law."""
    for line in text.split("\n"):
        head = re.match(r"\*\*(第.+?条(?:之.)?)\*\*", line)
        body = line[head.end() :] if head else line
        for sentence in re.split(r"(?<=[。；])", body):
            for cited in dict.fromkeys(_ARTICLE.findall(sentence)):
                answer = f"**{cited}**"
                if answer in text and not (head and head[1] == cited):
                    yield Citation(name, sentence.strip(), cited, answer)


def english_citations(name: str, text: str) -> Iterator[Citation]:
    """Sentences of the contract that cite a section; its ids say where the sections are."""
    for line in text.split("\n"):
        for sentence in re.split(r"(?<=[.;])\s+(?=[A-Z(<])", line):
            for number in dict.fromkeys(_SECTION.findall(_TAG.sub("", sentence))):
                at = text.find(f'id="{number}"')
                if at >= 0:
                    answer = _TAG.sub("", text[at:].split(">", 1)[1][:200])[:30]
                    plain = re.sub(r"^\s*[\w.]{1,3}\.\s+", "", _TAG.sub("", sentence)).strip()
                    yield Citation(name, plain, f"Section {number}", answer)


def citations() -> tuple[dict[str, str], list[Citation]]:
    """Documents as plain text, and their citations."""
    documents = statutes()
    found = [c for name, text in documents.items() for c in chinese_citations(name, text)]
    contract = (DATA / "longdoc_contracts_en" / "common_paper_CSA.md").read_text("utf-8")
    found += english_citations("Cloud Service Agreement", contract)
    documents["Cloud Service Agreement"] = _TAG.sub("", contract)
    return documents, found


def moved(citation: Citation) -> str:
    """The sentence as another document writes it, the cited document named."""
    if citation.cited.startswith("Section"):
        full = f"{citation.cited} of the {citation.document}"
    else:
        full = f"《{citation.document}》{citation.cited}"
    return citation.sentence.replace("本法" + citation.cited, citation.cited).replace(
        citation.cited, full, 1
    )


def within() -> tuple[ChunkGraph, list[tuple[str, str, str]]]:
    """The index, and (query, document of the answer, beginning of the answer)."""
    documents, found = citations()
    graph = ChunkGraph.from_documents(documents, SIZE)
    return graph, [(c.sentence, c.document, c.answer) for c in found]


def across() -> tuple[ChunkGraph, list[tuple[str, str, str]]]:
    """The same with the citing sentences in documents of their own."""
    documents, found = citations()
    chunks: list[Chunk] = []
    for name, text in documents.items():
        for citation in found:
            if citation.document == name:
                text = text.replace(citation.sentence, "")
        chunks += [Chunk(part, name, order=n) for n, part in enumerate(cut(text, SIZE))]
    for first in range(0, len(found), ANNEX):
        whole = "\n\n".join(map(moved, found[first : first + ANNEX]))
        name = f"annex {first // ANNEX}"
        chunks += [Chunk(part, name, order=n) for n, part in enumerate(cut(whole, SIZE))]
    return ChunkGraph(chunks), [(moved(c), c.document, c.answer) for c in found]


def recall(graph: ChunkGraph, tasks: list[tuple[str, str, str]]) -> dict[int, np.ndarray]:
    """Count of chunks → answers found plainly, and by the graph: bool [answers, 2]."""
    hits: dict[int, list[tuple[bool, bool]]] = {count: [] for count in COUNTS}
    for query, document, answer in tasks:
        gold = [
            number
            for number, chunk in enumerate(graph.chunks)
            if chunk.document == document and answer in chunk.text and query not in chunk.text
        ][:1]
        if not gold:
            continue
        scores = graph.scores(query)
        plain = np.argsort(-scores, kind="stable").tolist()
        for count in COUNTS:
            hits[count].append((gold[0] in plain[:count], gold[0] in graph.select(scores, count)))
    return {count: np.array(found) for count, found in hits.items()}


def main() -> None:
    """Measure both tasks and record the table."""
    args = parser(__doc__).parse_args()
    rows: list[dict[str, Any]] = []
    sizes: dict[str, Any] = {"chunk_characters": SIZE}
    for name, task in (("within", within), ("across documents", across)):
        graph, tasks = task()
        found = recall(graph, tasks)
        sizes[name] = f"{len(found[COUNTS[0]])} citations in {len(graph.chunks)} chunks"
        for count, (plain, linked) in ((n, hits.mean(0)) for n, hits in found.items()):
            rows.append(
                {
                    "measure": f"{name}: recall of the cited clause in {count} chunks, graph",
                    "value": float(linked),
                    "target": "above plain similarity",
                    "met": bool(linked > plain),
                    "note": f"plain similarity: {plain:.3f}",
                }
            )
    record("chunk_graph", rows, args.seed, **sizes)


if __name__ == "__main__":
    main()
