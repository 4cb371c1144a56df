"""Neighbours and drift against naive versions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.errors import ConfigError, StateError
from hf_glm_curriculum.signals.ledger import SampleLedger
from hf_glm_curriculum.signals.neighbours import (
    checked_neighbours,
    embedding_neighbours,
    minhash_neighbours,
)
from tests.signals.test_ledger import signals


def topics(n: int, per_topic: int, seed: int = 0) -> list[list[int]]:
    """Rows of 40 tokens, two thirds from their topic's 60 tokens, the rest from a shared 2000."""
    rng = np.random.default_rng(seed)
    rows = []
    for row in range(n):
        own = 5000 + 60 * (row // per_topic) + rng.choice(60, 28, replace=False)
        rows.append(rng.permutation([*own, *(1000 + rng.integers(0, 2000, 12))]).tolist())
    return rows


def jaccard(one: list[int], two: list[int]) -> float:
    return len(set(one) & set(two)) / len(set(one) | set(two))


def found(rows: list[list[int]], count: int = 5, **columns) -> np.ndarray:
    data = Dataset.from_dict({"input_ids": rows, **columns})
    return minhash_neighbours(data, SampleIndex.from_dataset(data), count).numpy()


def test_neighbours_are_the_rows_of_greatest_jaccard_similarity():
    rows = topics(300, per_topic=6)
    table = found(rows)
    hits = 0
    for row, neighbours in enumerate(table):
        naive = sorted(
            (other for other in range(300) if other != row),
            key=lambda other: -jaccard(rows[row], rows[other]),
        )[:5]
        hits += len(set(naive) & set(neighbours.tolist()))
    assert hits / (300 * 5) > 0.9
    first, last = (
        np.mean([jaccard(rows[row], rows[table[row, place]]) for row in range(300)])
        for place in (0, 4)
    )
    assert first > last  # most alike first


def test_rows_without_anything_alike_have_no_neighbours():
    rng = np.random.default_rng(1)
    alone = [rng.integers(0, 100_000, 30).tolist() for _ in range(50)]
    assert (found(alone) == -1).all()
    assert (found([[1, 2, 3]]) == -1).all()


def test_tokens_of_a_template_make_nothing_alike():
    rng = np.random.default_rng(2)
    template = list(range(40))
    rows = [template + rng.integers(100, 100_000, 10).tolist() for _ in range(100)]
    assert jaccard(rows[0], rows[1]) > 0.6
    assert (found(rows) >= 0).mean() < 0.02  # but for chance


def test_of_equal_rows_the_first_stands_for_all():
    rows = topics(12, per_topic=6)
    table = found([*rows, rows[0]])
    assert (table[12] == -1).all() and not (table == 12).any()
    assert set(table[0].tolist()) == {1, 2, 3, 4, 5}


def test_padding_is_no_token():
    rows = topics(30, per_topic=6)
    padded = [row + [7] * 20 for row in rows]
    mask = [[1] * 40 + [0] * 20 for _ in rows]
    assert (found(padded, attention_mask=mask) == found(rows)).all()


def test_packed_rows_have_neighbours_by_sample():
    rows = topics(30, per_topic=6)
    packed = [[*rows[i], *rows[i + 1], *rows[i + 2]] for i in range(0, 30, 3)]
    assert (found(packed, seq_lengths=[[40] * 3] * 10) == found(rows)).all()


def test_embedding_neighbours_equal_a_full_sort():
    generator = torch.Generator().manual_seed(0)
    embedding = torch.nn.functional.normalize(torch.randn(5000, 16, generator=generator), dim=1)
    seen = torch.rand(5000, generator=generator) > 0.3
    table = embedding_neighbours(embedding, seen, 4)
    cosine = embedding @ embedding.T
    cosine[:, ~seen] = -torch.inf
    cosine.fill_diagonal_(-torch.inf)
    assert (table[~seen] == -1).all()
    assert torch.equal(table[seen].long(), cosine.topk(4).indices[seen])
    few = embedding_neighbours(embedding[:3], torch.tensor([True, True, False]), 4)
    assert few.tolist() == [[1, -1, -1, -1], [0, -1, -1, -1], [-1] * 4]


class NaiveDrift:
    """The definition, one sample at a time."""

    def __init__(self, table: list[list[int]]) -> None:
        self.table = table
        self.last: dict[int, np.ndarray] = {}
        self.distance: dict[int, float | None] = {}
        self.drift: dict[int, float] = {}

    def step(self, embeddings: dict[int, np.ndarray]) -> None:
        before = dict(self.last)
        self.last.update(embeddings)
        for row, own in embeddings.items():
            known = [self.last[j] for j in self.table[row] if j in self.last]
            now = None
            if known:
                mean = np.mean(known, axis=0)
                now = 1 - float(own @ mean / np.linalg.norm(mean))
            if row in before:
                then = self.distance[row]
                moved = 1 - float(own @ before[row])
                self.drift[row] = moved if now is None or then is None else abs(now - then)
            self.distance[row] = now


def test_drift_equals_the_naive_version():
    rng = np.random.default_rng(3)
    table = [
        [int(j) if rng.random() > 0.4 else -1 for j in rng.integers(0, 20, 3)] for _ in range(20)
    ]
    table[4] = [-1, -1, -1]
    ledger = SampleLedger(SampleIndex(np.arange(20)), drift=True, neighbours=3)
    ledger.set_neighbours(torch.tensor(table))
    naive = NaiveDrift([[j for j in row if j >= 0] for row in table])
    for _ in range(25):
        rows = rng.choice(20, 5, replace=False)
        vectors = rng.normal(size=(5, 64))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        step = signals(rows.tolist(), [1.0] * 5)
        step.embedding = torch.tensor(vectors, dtype=torch.float32)
        ledger.observe(step)
        naive.step(dict(zip(rows.tolist(), vectors, strict=True)))
        drift = ledger.column("drift")
        for row in range(20):
            expected = naive.drift.get(row, np.nan)
            assert float(drift[row]) == pytest.approx(expected, abs=3e-3, nan_ok=True)


def test_new_neighbours_take_distances_anew():
    ledger = SampleLedger(SampleIndex(np.arange(3)), drift=True, neighbours=2)
    step = signals([0, 1], [1.0, 1.0])
    step.embedding = torch.zeros(2, 64)
    step.embedding[0, 0] = step.embedding[1, 1] = 1
    ledger.observe(step)
    assert torch.isnan(ledger.column("neighbour_distance")).all()
    ledger.set_neighbours(torch.tensor([[1], [0], [0]]))
    distance = ledger.column("neighbour_distance")
    assert distance[:2].tolist() == pytest.approx([1, 1]) and torch.isnan(distance[2])
    turned = signals([0], [1.0])
    turned.embedding = step.embedding[1:]
    ledger.observe(turned)
    assert float(ledger.column("drift")[0]) == pytest.approx(1)  # from distance 1 to 0


def test_neighbours_are_saved(tmp_path):
    ledger = SampleLedger(SampleIndex(np.arange(6)), drift=True, neighbours=2)
    ledger.set_neighbours(torch.tensor([[1, 2], [0, -1], [-1, -1]]))
    ledger.save(tmp_path / "a.safetensors")
    loaded = SampleLedger.load(tmp_path / "a.safetensors")
    assert loaded.neighbour_count == 2
    assert torch.equal(loaded.column("neighbours"), ledger.column("neighbours"))
    loaded.add(torch.tensor([77]))
    assert loaded.column("neighbours")[-1].tolist() == [-1, -1]


def test_a_million_samples_with_neighbours_fit_the_budget():
    ledger = SampleLedger(SampleIndex(np.arange(1_000_000)), drift=True, neighbours=5)
    assert ledger.nbytes <= 300e6


def test_neighbours_that_do_not_fit_are_named():
    with pytest.raises(ConfigError, match=r"neighbours: must be integers \[3, k\]"):
        checked_neighbours([[1], [2]], 3)
    with pytest.raises(ConfigError, match=r"rows 0\.\.2, or -1 for none, got values from 0 to 3"):
        checked_neighbours([[1], [3], [0]], 3)
    assert checked_neighbours(np.array([[1], [2], [-1]]), 3).dtype == torch.int32
    with pytest.raises(StateError, match="keeps no neighbours"):
        SampleLedger(SampleIndex(np.arange(3)), drift=True).set_neighbours(torch.zeros(3, 1).int())
