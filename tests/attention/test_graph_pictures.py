"""Pictures and the page of a position graph."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.graph_pictures import (
    block_edges,
    graph_html,
    graph_png,
    pooled_similarities,
    similarity_png,
)
from hf_glm_curriculum.errors import ConfigError, StateError

CONFIG = PositionGraphConfig(block_size=16, window=16, encoder="exact")
TEXT = "# <One> & two\n" + "words and words. " * 20 + "\n## Second\n" + "more of it. " * 30


@pytest.fixture
def graph(tiny_tokenizer):
    return PositionGraph.from_text(TEXT, tiny_tokenizer, CONFIG)


@pytest.mark.pictures
@pytest.mark.parametrize("style", ["auto", "arcs", "matrix"])
def test_edges_are_drawn(graph, tmp_path, style):
    graph_png(graph, tmp_path / "graph.png", style)
    pixels = (
        np.asarray(Image.open(tmp_path / "graph.png").convert("RGB")).reshape(-1, 3).astype(int)
    )
    blue = np.abs(pixels - (0x4C, 0x78, 0xA8)).sum(1) < 100
    assert blue.sum() > 20, "the headings' colour, in marks or the legend"


@pytest.mark.pictures
def test_similarities_are_drawn(graph, tmp_path):
    similarity_png(graph, tmp_path / "near.png")
    colours = np.unique(
        np.asarray(Image.open(tmp_path / "near.png").convert("RGB")).reshape(-1, 3), axis=0
    )
    assert len(colours) > 50


def test_pooling_keeps_the_highest(graph):
    whole = graph.similarities(0, graph.n // 16)
    pooled = pooled_similarities(graph, 7)
    assert pooled.shape[0] <= 7
    assert pooled.max() == whole.max()
    np.testing.assert_array_equal(pooled_similarities(graph, 10_000), whole)


def test_the_page_holds_every_edge_and_escapes_text(graph, tmp_path):
    graph_html(graph, tmp_path / "graph.html")
    page = (tmp_path / "graph.html").read_text("utf-8")
    assert page.count("<rect") == sum(map(len, block_edges(graph).values()))
    assert "&lt;One&gt; &amp; " in page and "<One>" not in page
    assert re.search(r'<input type="checkbox" id="heading" checked>', page)
    assert "http" not in page, "nothing is loaded from elsewhere"


def test_the_page_says_what_it_leaves_out(tmp_path):
    turns = np.repeat(np.arange(3000), 40)
    graph = PositionGraph.from_turns(turns, CONFIG)
    graph_html(graph, tmp_path / "graph.html")
    page = (tmp_path / "graph.html").read_text("utf-8")
    assert page.count("<rect") <= 6010
    assert re.search(r"<p>\d+% of [\d,]+ edges are drawn", page)


@pytest.mark.parametrize("n", [0, 1, 15, 17])
def test_the_shortest_sequences_have_pictures_too(n, tmp_path):
    graph = PositionGraph.from_length(n, CONFIG)
    graph_png(graph, tmp_path / "graph.png")
    similarity_png(graph, tmp_path / "near.png")
    graph_html(graph, tmp_path / "graph.html")
    assert (tmp_path / "graph.html").exists()


def test_bad_input_is_named(graph, tmp_path):
    with pytest.raises(ConfigError, match="style: must be auto, arcs or matrix, got 'tree'"):
        graph_png(graph, tmp_path / "graph.png", "tree")
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot write"):
        graph_html(graph, tmp_path / "file" / "graph.html")
