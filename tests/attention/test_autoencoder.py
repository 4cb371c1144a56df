"""The graph auto-encoder: causal, reproducible, and near to MinHash."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_glm_curriculum.attention.agreement import encoder_agreement
from hf_glm_curriculum.attention.autoencoder import (
    AutoencoderEncoder,
    GraphAutoencoder,
    fit_autoencoder,
    fitted_on_example,
)
from hf_glm_curriculum.attention.breadth_first import BreadthFirstEncoder
from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.encoders import ExactEncoder, MinHashEncoder
from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.minhash import Permutations
from hf_glm_curriculum.errors import ConfigError, MissingDependencyError
from hf_glm_curriculum.optional import available

pytestmark = [
    pytest.mark.skipif(
        not available("torch_geometric"), reason="needs torch-geometric (extra gae)"
    ),
    # Raised by the import of torch-geometric 2.8 on torch 2.13.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]
CONFIG = PositionGraphConfig(block_size=16, window=32, encoder="gae")


@pytest.fixture(autouse=True)
def _one_thread():
    """Training on so small a graph spends its time waiting for a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def graph_of(turns, config=CONFIG):
    return PositionGraph.from_turns(turns, config)


@pytest.fixture
def turns():
    lengths = np.random.default_rng(0).integers(20, 120, 24)
    return np.repeat(np.arange(24), lengths)


def test_rows_depend_on_nothing_later(turns):
    whole = graph_of(turns)
    rows = whole.nearest_blocks(0, whole.n_blocks, 10)
    for query in range(4, whole.n_blocks, 17):
        other = np.concatenate([turns[: query * 16], np.arange(100, 160)])
        found = graph_of(other).nearest_blocks(0, query + 1, 10)
        np.testing.assert_array_equal(found, rows[: query + 1])


def test_growing_equals_building_at_once(turns):
    whole, grown = graph_of(turns), graph_of(turns[:1])
    rows = []
    for turn in turns[1:]:
        grown.append([turn])
        if grown.n % 16 == 0:
            rows += list(grown.nearest_blocks(len(rows), grown.n // 16, 6))
    np.testing.assert_array_equal(np.array(rows), whole.nearest_blocks(0, len(rows), 6))


def test_the_same_seed_gives_the_same_weights():
    graph = graph_of(np.repeat(np.arange(6), 60))
    models = [fit_autoencoder([graph], epochs=3, seed=seed) for seed in (1, 1, 2)]
    one, same, other = (model.second.lin_l.weight for model in models)
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_fitting_leaves_the_random_state_alone():
    state = torch.get_rng_state()
    GraphAutoencoder(seed=5)
    assert torch.equal(torch.get_rng_state(), state)


def test_fitting_finds_edges():
    graphs = [graph_of(np.repeat(np.arange(12), 50))]
    models = [fit_autoencoder(graphs, epochs=epochs, seed=0) for epochs in (1, 80)]
    exact = ExactEncoder()
    early, late = (
        encoder_agreement(graphs[0], exact, AutoencoderEncoder(model))["cosine"] for model in models
    )
    assert late > early + 0.05


def test_it_agrees_with_minhash_on_a_document_it_has_not_seen(turns):
    found = encoder_agreement(graph_of(turns, PositionGraphConfig(block_size=16, window=32)))
    assert found["cosine"] > 0.55, found
    assert found["rank"] > 0.1 and found["overlap"] > 0.4, found


def test_minhash_agrees_with_exact_jaccard(turns):
    found = encoder_agreement(graph_of(turns), ExactEncoder(), MinHashEncoder(Permutations(512)))
    assert found["cosine"] > 0.98 and found["overlap"] > 0.8, found
    found = encoder_agreement(graph_of(turns), ExactEncoder(), BreadthFirstEncoder())
    assert found["rank"] > 0.4, found


def test_weights_come_back_from_a_file(tmp_path, turns):
    model = fitted_on_example(CONFIG)
    model.save(tmp_path / "model.safetensors")
    other = GraphAutoencoder.load(tmp_path / "model.safetensors")
    graph = graph_of(turns)
    rows = [
        AutoencoderEncoder(m).nearest(graph.neighbourhoods, 0, graph.n_blocks, 5)
        for m in (model, other)
    ]
    np.testing.assert_array_equal(*rows)


def test_a_copy_grows_apart(turns):
    graph = graph_of(turns[:400])
    graph.nearest_blocks(0, 20, 5)
    other = graph.copy()
    other.append(np.arange(500, 700))
    graph.append(turns[400:])
    np.testing.assert_array_equal(
        graph.nearest_blocks(0, graph.n_blocks, 5),
        graph_of(turns).nearest_blocks(0, graph.n_blocks, 5),
    )
    assert other.n == 600


def test_bad_input_is_named():
    with pytest.raises(ConfigError, match="graphs: at least one"):
        fit_autoencoder([PositionGraph.from_length(10)])
    graph = PositionGraph.from_length(64 * 8)
    with pytest.raises(ConfigError, match="encoders: must be two"):
        encoder_agreement(graph, ExactEncoder())


def test_without_the_library_the_extra_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    with pytest.raises(MissingDependencyError, match=r"hf-glm-curriculum\[gae\]"):
        PositionGraph.from_length(10, CONFIG)
