"""Chunks of documents: links, related chunks, selection along links, order, copies."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hf_glm_curriculum.attention.chunk_graph import Chunk, ChunkGraph, cut
from hf_glm_curriculum.attention.chunk_text import TermVectors, terms
from hf_glm_curriculum.errors import ConfigError, DataError

AGREEMENT = [
    "# Cloud Service Agreement\n\n1. Use\n1.1 Access. The customer may use the service.",
    "1.2 Support. Help is given by mail on working days.",
    "2. Money\n2.1 Fees. All amounts are due within thirty days of the invoice.",
    "2.2 Late. Interest accrues as Section 2.1 provides.",
]
ORDER = [
    "Order Form\n\nThe parties agree on a discount, see "
    "Section 2.1 of the Cloud Service Agreement.",
    "Delivery happens in May.",
]
LAW = ["第一条　为了规范。\n第二条　本法所称合同。", "第三条　依照第二条的规定，应当支付。"]
RULES = ["细则\n依照《合同法》第三条办理。", "其他事项。"]


@pytest.fixture
def graph():
    chunks = [
        Chunk(text, name, order=order)
        for name, texts in (("agreement.md", AGREEMENT), ("order.md", ORDER),
                            ("合同法", LAW), ("rules", RULES))
        for order, text in enumerate(texts)
    ]  # fmt: skip
    return ChunkGraph(chunks)


def kinds(graph, start, end):
    return {link.kind for link in graph.links if (link.start, link.end) == (start, end)}


def test_neighbours_and_the_beginning_are_linked(graph):
    assert kinds(graph, 0, 1) == {"next"}
    assert {"previous", "start"} <= kinds(graph, 1, 0)
    assert kinds(graph, 3, 4) == set(), "another document begins there"


def test_a_reference_links_to_the_clause(graph):
    assert "reference" in kinds(graph, 3, 2)
    assert "reference" in kinds(graph, 7, 6)


def test_a_chunk_is_linked_to_the_clause_it_lies_in(graph):
    assert "clause" in kinds(graph, 3, 2), "2.2 lies in 2."


def test_a_document_named_with_a_clause_links_to_that_clause(graph):
    assert kinds(graph, 4, 2) == {"mention"}
    assert kinds(graph, 8, 7) == {"mention"}


def test_a_document_named_alone_links_to_what_is_most_like_the_sentence():
    name = "general-privacy-policy.md"
    graph = ChunkGraph(
        [Chunk("Privacy Policy", name),
         Chunk("Cookies are small files kept in the browser.", name, order=1),
         Chunk("The cookies are set as our Privacy Policy says.", "terms.md")]
    )  # fmt: skip
    assert kinds(graph, 2, 1) == {"mention"}


def test_given_names_find_documents():
    chunks = [Chunk("Everything on fees.", "doc-17"), Chunk("The MSA on fees applies.", "other")]
    assert not any(link.kind == "mention" for link in ChunkGraph(chunks).links)
    named = ChunkGraph(chunks, names={"MSA": "doc-17"})
    assert kinds(named, 1, 0) == {"mention"}


def test_chunks_are_ordered_before_they_are_linked():
    chunks = [
        Chunk("third", "a", order=3),
        Chunk("first", "a", order=1),
        Chunk("second", "a", order=2),
    ]
    graph = ChunkGraph(chunks)
    assert kinds(graph, 1, 2) == {"next"} and "next" in kinds(graph, 2, 0)
    assert graph.context_order([0, 1, 2]) == [1, 2, 0]


def test_sections_given_link_their_chunks():
    chunks = [Chunk(str(n), "a", section="S" if n else "", order=n) for n in range(5)]
    assert "section" in kinds(ChunkGraph(chunks), 4, 1)


def test_related_chunks_come_with_their_links(graph):
    found = graph.related(4, 3)
    assert found[0].index == 2 and found[0].kinds == ("mention",)
    assert all(0 <= entry.similarity <= 1 for entry in found)
    assert 4 not in [entry.index for entry in found]
    assert graph.related(2, 8) != [], "links count from either end"


def test_selection_follows_a_citation_that_shares_no_words(graph):
    scores = graph.scores("discount the parties agree on")
    plain = np.argsort(-scores, kind="stable")[:2].tolist()
    assert plain[0] == 4 and 2 not in plain
    assert graph.select(scores, 2) == [4, 2]


def test_relevance_never_falls_and_goes_one_link_a_step(graph):
    scores = np.zeros(len(graph.chunks))
    scores[8] = 1.0
    one, two = graph.relevance(scores), graph.relevance(scores, steps=2)
    assert (one >= scores).all() and (two >= one).all()
    assert one[7] == pytest.approx(0.85), "by mention"
    assert one[6] == 0 and two[6] == pytest.approx(0.85 * 0.95), "and then by reference"


def test_copies_are_left_out():
    text = " ".join(f"word{n}" for n in range(80))
    chunks = [Chunk(text, "a"), Chunk("something else entirely", "b"), Chunk(text + " more", "c")]
    graph = ChunkGraph(chunks)
    assert graph.without_copies([2, 1, 0]) == [2, 1]
    assert graph.select([0.5, 0.1, 0.6], 3) == [2, 1]
    assert graph.context_order([0, 2, 1]) == [0, 1]


def test_documents_come_in_the_order_of_their_best_chunk(graph):
    assert graph.context_order([5, 3, 0, 4]) == [4, 5, 0, 3]


def test_embeddings_can_give_the_scores():
    chunks = [Chunk(str(n), "a", order=n, embedding=vector)
              for n, vector in enumerate([(1, 0), (0, 1), (1, 1)])]  # fmt: skip
    scores = ChunkGraph(chunks).embedding_scores([2, 0])
    np.testing.assert_allclose(scores, [1, 0, 0.5**0.5])


def test_chinese_terms_are_pairs_of_characters():
    assert terms("合同法 and THE Law") == ["合同", "同法", "and", "the", "law"]
    vectors = TermVectors(["股东会由全体股东组成", "董事会对股东会负责", "other"])
    assert np.argmax(vectors.scores("全体股东")) == 0
    assert vectors.scores("").tolist() == [0, 0, 0]


def test_cutting_keeps_every_paragraph():
    text = "# A\n\none\n\ntwo\n\n## B\n\n" + "long " * 50
    pieces = cut(text, 40)
    assert "\n\n".join(pieces) == text
    assert [piece.split("\n")[0] for piece in pieces] == ["# A", "## B", "long " * 50]


def test_no_chunks_make_an_empty_graph():
    graph = ChunkGraph([])
    assert graph.links == [] and graph.select([], 4) == []


@pytest.mark.parametrize(
    ("chunk", "message"),
    [({"document": "a"}, r"chunks\[0\]: must have text"),
     ({"text": "a", "page": 3}, r"got text, page"),
     ({"text": 7}, r"chunks\[0\]: must have text")],
)  # fmt: skip
def test_bad_chunks_are_named(chunk, message):
    with pytest.raises(DataError, match=message):
        ChunkGraph([chunk])


def test_bad_calls_are_named(graph):
    with pytest.raises(DataError, match="must be at least 0 and below 10, got 10"):
        graph.related(10)
    with pytest.raises(DataError, match="one finite number for each of 10 chunks"):
        graph.select([1.0], 3)
    with pytest.raises(DataError, match="one finite number"):
        graph.select([float("nan")] * 10, 3)
    with pytest.raises(DataError, match=r"chunks\[0\].embedding: is missing"):
        graph.embedding_scores([1.0])
    with pytest.raises(ConfigError, match="no detector"):
        ChunkGraph([{"text": "a"}], structure=("nothing",))


def test_cited_articles_are_found_across_real_documents(shared_data):
    """Each citing sentence in a document of its own; the cited article is the answer."""
    cited = re.compile(r"(?<!》)第[一二三四五六七八九十百]+条")
    documents, tasks = {}, []
    for path in sorted((shared_data / "longdoc_zh_statutes").glob("*_law.md")):
        law = path.read_text("utf-8")
        name = re.search(r"^# (?:中华人民共和国)?(.+)$", law, re.MULTILINE)[1]
        for line in law.split("\n"):
            body = line.rpartition("**")[2]
            found = cited.search(body)
            if found and f"**{found[0]}**" in law:
                law = law.replace(body, "")
                query = body.replace(found[0], f"《{name}》{found[0]}", 1)
                tasks.append((query, name, f"**{found[0]}**"))
        documents[name] = law
    documents |= {f"annex {n}": query for n, (query, *_) in enumerate(tasks)}
    graph = ChunkGraph.from_documents(documents, 600)
    plain = linked = asked = 0
    for query, name, answer in tasks:
        gold = [n for n, c in enumerate(graph.chunks) if c.document == name and answer in c.text]
        scores = graph.scores(query)
        asked += bool(gold)
        plain += bool(gold) and gold[0] in np.argsort(-scores, kind="stable")[:4]
        linked += bool(gold) and gold[0] in graph.select(scores, 4)
    assert asked > 40
    assert linked / asked > plain / asked + 0.2, (asked, plain, linked)
