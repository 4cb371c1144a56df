"""Rank metrics against scikit-learn, ties and by-kind figures by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.evaluation.detection import (
    auroc,
    average_precision,
    bootstrap_interval,
    by_row,
    detection_report,
    midranks,
    pool_quality,
    precision_at,
)

samples = st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=60)


@given(samples)
@settings(max_examples=200, deadline=None)
def test_rank_metrics_equal_scikit_learn_with_many_ties(pairs):
    labels, scores = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs], dtype=float)
    if labels.any() and not labels.all():
        assert auroc(labels, scores) == pytest.approx(roc_auc_score(labels, scores))
        expected = average_precision_score(labels, scores)
        assert average_precision(labels, scores) == pytest.approx(expected)


def test_metrics_equal_scikit_learn_on_continuous_scores():
    rng = np.random.default_rng(3)
    labels = rng.random(500) < 0.2
    scores = rng.normal(size=500) + labels
    assert auroc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert average_precision(labels, scores) == pytest.approx(
        average_precision_score(labels, scores), abs=1e-12
    )


def test_one_class_alone_has_no_auroc():
    assert np.isnan(auroc([True, True], [1.0, 2.0]))
    assert np.isnan(auroc([False, False], [1.0, 2.0]))
    assert np.isnan(average_precision([False, False], [1.0, 2.0]))
    assert np.isnan(bootstrap_interval([False, False], [1.0, 2.0])).all()


def test_midranks_of_ties():
    assert midranks([5.0, 1.0, 5.0, 5.0]).tolist() == [3.0, 1.0, 3.0, 3.0]


def test_precision_at_k_expects_over_a_straddling_tie():
    labels, scores = [True, True, False, False], [3.0, 2.0, 2.0, 1.0]
    assert precision_at(labels, scores, 1) == 1.0
    # Second place is one of the two tied samples: (1 + 0.5) / 2.
    assert precision_at(labels, scores, 2) == 0.75
    assert precision_at(labels, scores, 3) == pytest.approx(2 / 3)
    assert precision_at(labels, scores, 4) == 0.5
    assert precision_at([False, True], [1.0, 1.0], 1) == 0.5
    with pytest.raises(DataError, match=r"k: must lie in 1\.\.4"):
        precision_at(labels, scores, 5)


def test_pool_quality_counts_and_empty_pools():
    quality = pool_quality([True, True, False, False], [True, False, True, False])
    assert quality == {"size": 2, "hits": 1, "precision": 0.5, "recall": 0.5}
    assert pool_quality([True, False], [False, False])["precision"] is None
    assert pool_quality([False, False], [True, False])["recall"] is None


def test_bootstrap_interval_holds_the_truth_and_repeats():
    covered = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        labels = np.arange(150) < 50
        scores = rng.normal(size=150) + 1.0 * labels
        low, high = bootstrap_interval(labels, scores, draws=300, seed=seed)
        covered += low <= 0.7602 <= high  # Φ(1/√2) for unit normals one apart
    assert covered >= 34
    first = bootstrap_interval(labels, scores, draws=100, seed=1)
    assert first == bootstrap_interval(labels, scores, draws=100, seed=1)
    assert first != bootstrap_interval(labels, scores, draws=100, seed=2)


def test_detection_report_by_kind_leaves_other_kinds_out():
    faults = [None] * 6 + ["shuffled"] * 2 + ["truncated"] * 2
    suspicion = [0, 1, 2, 3, 4, np.nan, 9, 8, -1, -2]
    states = ["TRAINING"] * 5 + ["OBSERVED", "RELABEL", "RELABEL", "MASTERED", "TRAINING"]
    report = detection_report(faults, suspicion, states, draws=50)
    assert report["n"] == 10 and report["n_faulty"] == 4 and report["n_unscored"] == 1
    assert report["kinds"]["shuffled"]["auroc"] == 1.0
    assert report["kinds"]["truncated"]["auroc"] == 0.0
    assert report["kinds"]["shuffled"]["flagged_recall"] == 1.0
    assert report["kinds"]["truncated"]["pool_recall"] == 0.5
    assert report["auroc"] == 0.5
    assert report["flagged"] == {"size": 2, "hits": 2, "precision": 1.0, "recall": 0.5}
    assert report["pool"]["size"] == 4
    assert report["precision_at"] == {"k": 4, "value": 0.5}


def test_clean_data_give_a_report_without_numbers():
    report = detection_report([None, None], [1.0, 2.0], ["TRAINING", "TRAINING"])
    assert report["auroc"] is None and report["auroc_interval"] is None
    assert report["precision_at"] == {"k": 0, "value": None}
    assert report["kinds"] == {}


def test_wrong_lengths_and_unknown_scores_are_named():
    with pytest.raises(DataError, match="one entry a sample"):
        detection_report([None], [1.0, 2.0], ["TRAINING"])
    with pytest.raises(DataError, match="1 of 2 are not"):
        auroc([True, False], [1.0, np.nan])
    with pytest.raises(DataError, match="shapes"):
        auroc([True], [1.0, 2.0])


def test_faults_in_the_order_of_ledger_rows():
    assert by_row({3: "shuffled"}, [5, 3, -1]) == [None, "shuffled", None]
