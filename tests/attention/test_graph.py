"""The position graph: strict causality, growth, edges, files, and what it refuses."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from hf_glm_curriculum.attention import graph as graph_module
from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.graph_file import load_graph
from hf_glm_curriculum.errors import ConfigError, DataError, StateError

SIZE = 16
TEXT = (
    "# Contract\n\n1. Use\n1.1 Access. The customer may use the service as Section 2.1 says.\n"
    "1.2 Support. Given by mail.\n\n2. Payment\n2.1 Fees. Paid as Section 1.2 provides, monthly.\n"
    "<user>What does 2.1 say?<assistant>As Section 1.1 provides, read it.<eos>\n"
    "## 附则\n第一条　本法适用于合同。\n第二条　依照第一条的规定，应当支付。\n"
    "def run(x):\n    return x\n\nrun(1) ends the text, with Section 2.1 and 第二条 once more.\n"
) * 2


def config(**changes):
    return PositionGraphConfig(**{"block_size": SIZE, "window": 32, "top_k": 128, **changes})


def build(ids, tokenizer, **changes):
    return PositionGraph.from_token_ids(ids, config(**changes), tokenizer)


@pytest.fixture
def ids(tiny_tokenizer):
    return np.array(tiny_tokenizer(TEXT, verbose=False)["input_ids"])


@pytest.mark.parametrize("encoder", ["minhash", "exact", "bfs"])
def test_rows_do_not_depend_on_what_comes_later(ids, tiny_tokenizer, encoder):
    whole = build(ids, tiny_tokenizer, encoder=encoder)
    blocks = whole.n // SIZE + 1
    nearest, tied = whole.nearest_blocks(0, blocks, 12), whole.structural_blocks(0, blocks, 12)
    rng = np.random.default_rng(0)
    for query in range(0, blocks, 3):
        cut = query * SIZE
        for tail in (ids[:0], rng.integers(4, 260, 3 * SIZE), ids[::-1][: 2 * SIZE]):
            other = build(np.concatenate([ids[:cut], tail]), tiny_tokenizer, encoder=encoder)
            np.testing.assert_array_equal(
                other.nearest_blocks(0, query + 1, 12), nearest[: query + 1]
            )
            np.testing.assert_array_equal(
                other.structural_blocks(0, query + 1, 12), tied[: query + 1]
            )


def test_changing_a_token_changes_no_row_up_to_its_block(ids, tiny_tokenizer):
    whole = build(ids, tiny_tokenizer)
    blocks = whole.n // SIZE + 1
    nearest = whole.nearest_blocks(0, blocks, 20)
    changed = 0
    for place in range(0, len(ids), 37):
        other = ids.copy()
        other[place] = tiny_tokenizer("\n")["input_ids"][0]
        rows = build(other, tiny_tokenizer).nearest_blocks(0, blocks, 20)
        last = place // SIZE
        np.testing.assert_array_equal(rows[: last + 1], nearest[: last + 1])
        changed += not np.array_equal(rows, nearest)
    assert changed, "some of the changes break structure that later rows rest on"


@pytest.mark.parametrize("piece", [1, 7, SIZE, 50])
@pytest.mark.parametrize("encoder", ["minhash", "exact", "bfs"])
def test_growing_equals_building_at_once(ids, tiny_tokenizer, piece, encoder):
    whole = build(ids, tiny_tokenizer, encoder=encoder)
    grown = build(ids[:0], tiny_tokenizer, encoder=encoder)
    rows = []
    for begin in range(0, len(ids), piece):
        grown.append(ids[begin : begin + piece])
        done, known = len(rows), grown.n // SIZE + 1
        rows += list(grown.nearest_blocks(done, known, 8))
    assert grown.n == whole.n
    assert grown.edge_kinds == whole.edge_kinds
    np.testing.assert_array_equal(grown.edge_table, whole.edge_table)
    np.testing.assert_array_equal(np.array(rows), whole.nearest_blocks(0, len(rows), 8))
    np.testing.assert_array_equal(
        grown.structural_blocks(0, len(rows), 8), whole.structural_blocks(0, len(rows), 8)
    )


def test_an_edge_is_known_only_when_its_text_is(ids, tiny_tokenizer):
    table = build(ids, tiny_tokenizer).edge_table
    assert (table[:, 0] > table[:, 1]).all(), "every edge leads back"
    assert (table[:, 3] >= table[:, 0]).all()
    grown = build(ids[:0], tiny_tokenizer)
    for count in range(1, len(ids) + 1):
        grown.append(ids[count - 1 : count])
        assert len(grown.edges) == (table[:, 3] <= count).sum()


def test_a_copy_grows_apart(ids, tiny_tokenizer):
    half = len(ids) // 2
    graph = build(ids[:half], tiny_tokenizer)
    graph.nearest_blocks(0, half // SIZE, 8)
    other = graph.copy()
    other.append(ids[::-1][:200])
    graph.append(ids[half:])
    whole = build(ids, tiny_tokenizer)
    np.testing.assert_array_equal(graph.edge_table, whole.edge_table)
    blocks = whole.n // SIZE + 1
    np.testing.assert_array_equal(
        graph.nearest_blocks(0, blocks, 8), whole.nearest_blocks(0, blocks, 8)
    )
    mixed = build(np.concatenate([ids[:half], ids[::-1][:200]]), tiny_tokenizer)
    np.testing.assert_array_equal(other.edge_table, mixed.edge_table)


def test_rows_hold_earlier_blocks_once_each(ids, tiny_tokenizer):
    graph = build(ids, tiny_tokenizer)
    for rows in (graph.nearest_blocks(0, graph.n_blocks, 30),
                 graph.structural_blocks(0, graph.n_blocks, 30)):  # fmt: skip
        assert rows.dtype == np.int32
        for query, row in enumerate(rows):
            kept = row[row >= 0]
            assert (kept < query).all() and len(set(kept)) == len(kept)
            assert (row[len(kept) :] == -1).all(), "filled up at the end"
    nearest = graph.nearest_blocks(0, graph.n_blocks, 30)
    for query, row in enumerate(nearest):
        assert (row >= 0).sum() == min(query, 30)


def test_of_positions_alone_the_nearest_are_the_most_recent():
    graph = PositionGraph.from_length(SIZE * 40, config(encoder="exact"))
    rows = graph.nearest_blocks(0, 40, 6)
    for query, row in enumerate(rows):
        expected = list(range(query - 1, max(-1, query - 7), -1))
        assert row.tolist() == expected + [-1] * (6 - len(expected))


def test_the_section_is_nearer_than_other_text(tiny_tokenizer):
    section = "# Two\n" + "words of the second section. " * 30
    text = "# One\n" + "words of the first section. " * 30 + "\n" + section
    graph = PositionGraph.from_text(text, tiny_tokenizer, config(encoder="exact"))
    heading = text.index("# Two") // SIZE
    last = graph.n_blocks - 1
    count = last - heading
    near = set(graph.nearest_blocks(last, last + 1, count)[0].tolist())
    assert len(near & set(range(heading, last))) >= count - 2
    assert near <= set(range(heading - 2, last)), "beside the section only what its heading touches"


def test_a_clause_referred_to_comes_first(tiny_tokenizer):
    text = "Preamble. " * 20 + "\n1. Fees\n" + "Fees are due. " * 30
    text += "\n2. Other\n" + "Other words. " * 60 + "as Section 1 provides " + "and so on " * 20
    graph = PositionGraph.from_text(text, tiny_tokenizer, config(window=32, encoder="exact"))
    clause, section = text.index("1. Fees") // SIZE, text.index("2. Other") // SIZE
    query = text.index("and so on") // SIZE + 2
    rows = graph.structural_blocks(query, query + 1, 4)[0]
    assert rows.tolist() == [clause, section, clause + 1, 0], "the last is what any query sees"
    assert dict(graph.block_ties(query))[clause] == "reference"
    assert clause in graph.nearest_blocks(query, query + 1, 24)[0]


def test_user_edges_tie_both_ends_blocks():
    graph = PositionGraph.from_token_ids(
        [0] * (SIZE * 20), config(structure=(), turns=False), edges=[(100, 250), (310, 40)]
    )
    assert graph.edge_kinds.count("user") == 2
    assert [250, 100] in graph.edges.tolist(), "the later end first"
    assert 100 // SIZE in graph.structural_blocks(250 // SIZE, 250 // SIZE + 1, 3)[0]
    assert 40 // SIZE in graph.nearest_blocks(310 // SIZE, 310 // SIZE + 1, 6)[0]


def test_user_edges_can_come_with_the_tokens():
    settings = config(structure=(), turns=False)
    whole = PositionGraph.from_token_ids([0] * 320, settings, edges=[(300, 17)])
    grown = PositionGraph.from_token_ids([0] * 160, settings)
    grown.append([0] * 160, edges=[(300, 17)])
    np.testing.assert_array_equal(grown.nearest_blocks(0, 20, 8), whole.nearest_blocks(0, 20, 8))


def test_the_next_block_can_be_asked_for_before_it_has_tokens(tiny_tokenizer):
    graph = PositionGraph.from_token_ids([5] * (2 * SIZE), config(), tiny_tokenizer)
    assert graph.nearest_blocks(2, 3, 2).tolist() == [[1, 0]]
    graph = PositionGraph.from_token_ids([], config(), tiny_tokenizer)
    assert graph.nearest_blocks(0, 1, 2).tolist() == [[-1, -1]]
    assert graph.n_blocks == 0


def test_every_form_of_ids_is_taken(tiny_tokenizer):
    ids = [5, 6, 7] * 20
    expected = build(ids, tiny_tokenizer).edge_table
    for form in (np.array(ids, np.int32), torch.tensor(ids), tuple(ids)):
        np.testing.assert_array_equal(build(form, tiny_tokenizer).edge_table, expected)


def test_without_a_tokenizer_it_says_so_once(caplog):
    graph_module._say_without_tokenizer.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            graph = PositionGraph.from_token_ids([1] * 100, config())
    assert sum("no tokenizer was given" in r.message for r in caplog.records) == 1
    assert set(graph.edge_kinds) == {"start"}


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([(3, 100)], r"edges\[0\]: both positions must be at least 0 and below .* 100"),
        ([(3, -1)], r"edges\[0\]: both positions"),
        ([(3, 4), (5, 5)], r"edges\[1\]: must join two positions"),
        ([(1, 2, 3)], r"edges\[0\]: must be a pair"),
        ([7], r"edges\[0\]: must be a pair"),
        ([(1.5, 2)], r"edges\[0\]: must be a pair"),
        ([("a", 2)], r"edges\[0\]: must be a pair"),
    ],
)
def test_bad_edges_are_named(edges, message):
    with pytest.raises(DataError, match=message):
        PositionGraph.from_token_ids([1] * 100, config(structure=(), turns=False), edges=edges)


@pytest.mark.parametrize("ids", [[[1, 2], [3, 4]], [0.5], [[1], [2, 3]], ["a"]])
def test_bad_ids_are_named(ids):
    with pytest.raises(DataError, match="token ids"):
        PositionGraph.from_token_ids(ids, config(structure=(), turns=False))


def test_blocks_and_positions_outside_are_named(tiny_tokenizer):
    graph = PositionGraph.from_token_ids([5] * 40, config(), tiny_tokenizer)
    for first, last in ((0, 4), (-1, 2), (2, 1)):
        with pytest.raises(DataError, match="must lie between 0 and 3"):
            graph.nearest_blocks(first, last, 4)
        with pytest.raises(DataError, match="must lie between 0 and 3"):
            graph.structural_blocks(first, last, 4)
    for position in (40, -1):
        with pytest.raises(DataError, match="below the graph's length 40"):
            graph.explain(position)
    with pytest.raises(DataError, match="n: must be at least 0"):
        PositionGraph.from_length(-1)


def test_a_file_holds_the_graph(ids, tiny_tokenizer, tmp_path):
    graph = PositionGraph.from_token_ids(
        ids, config(encoder="exact"), tiny_tokenizer, edges=[(300, 2), (111, 40)]
    )
    graph.save(tmp_path / "graph.npz")
    other = PositionGraph.load(tmp_path / "graph.npz", tiny_tokenizer, len(ids))
    assert other.config == graph.config
    blocks = graph.n // SIZE + 1
    np.testing.assert_array_equal(
        other.nearest_blocks(0, blocks, 9), graph.nearest_blocks(0, blocks, 9)
    )
    other.append(ids[:90])
    graph.append(ids[:90])
    np.testing.assert_array_equal(other.edge_table, graph.edge_table)


def test_a_file_says_which_hash_its_signatures_mean(ids, tiny_tokenizer, tmp_path):
    build(ids, tiny_tokenizer, minhash_scheme="legacy", seed=7).save(tmp_path / "graph.npz")
    import json

    with np.load(tmp_path / "graph.npz") as file:
        about = json.loads(bytes(file["about"]))
    assert about["minhash"] == {"scheme": "legacy", "seed": 7, "hash": "sha1_hash32"}
    assert about["block_size"] == SIZE and about["length"] == len(ids)


def test_a_graph_of_another_length_or_tokenizer_is_refused(ids, tiny_tokenizer, tmp_path):
    path = tmp_path / "graph.npz"
    build(ids, tiny_tokenizer).save(path)
    with pytest.raises(StateError, match=f"built for {len(ids)} positions, not for 7"):
        load_graph(path, tiny_tokenizer, length=7)
    with pytest.raises(StateError, match="built with a tokenizer; pass it"):
        load_graph(path)
    tiny_tokenizer.add_tokens(["another"])
    other = type(tiny_tokenizer)(
        tokenizer_object=tiny_tokenizer.backend_tokenizer, chat_template="{{ messages }}"
    )
    with pytest.raises(StateError, match="another tokenizer"):
        load_graph(path, other)


def test_broken_files_are_named(ids, tiny_tokenizer, tmp_path):
    path = tmp_path / "graph.npz"
    with pytest.raises(StateError, match="cannot read"):
        load_graph(path)
    path.write_bytes(b"no archive")
    with pytest.raises(StateError, match="not a saved position graph"):
        load_graph(path)


def test_other_detectors_than_at_saving_are_noticed(ids, tiny_tokenizer, tmp_path, monkeypatch):
    from hf_glm_curriculum.attention import structure

    build(ids, tiny_tokenizer).save(tmp_path / "graph.npz")
    monkeypatch.setitem(structure._REGISTRY, "legal", lambda: ())
    with pytest.raises(StateError, match="other edges"):
        load_graph(tmp_path / "graph.npz", tiny_tokenizer)


def test_an_explanation_names_each_kept_block_and_why(ids, tiny_tokenizer):
    graph = build(ids, tiny_tokenizer)
    position = 20 * SIZE + 3
    found = graph.explain(position)
    kept = found["kept"]
    assert found["block"] == 20 and found["budget"] == 8
    assert len(kept) == 8
    assert [entry["by"] for entry in kept[:4]] == ["own", "first", "window", "window"]
    assert all(entry["reasons"] for entry in kept)
    assert {entry["block"] for entry in kept} <= set(range(21))
    assert any("stands" in reason for entry in kept for reason in entry["reasons"])
    assert all(0 <= entry["similarity"] <= 1 for entry in kept[1:])
    begin = kept[-1]["first"]
    assert kept[-1]["text"] == tiny_tokenizer.decode(ids[begin : begin + 24])


def test_unknown_detectors_are_refused_at_once(tiny_tokenizer):
    with pytest.raises(ConfigError, match="no detector 'legl'"):
        PositionGraph(config(structure=("legl",)), tiny_tokenizer)
