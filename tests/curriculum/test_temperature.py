"""Temperatures by entropy and by rarity against hand-made ones; fitting, calibration, state."""

from __future__ import annotations

import math

import pytest
import torch
from datasets import Dataset

from hf_glm_curriculum import TemperatureField
from hf_glm_curriculum.curriculum.temperature_ranks import BINS, RunningRanks, rarity
from hf_glm_curriculum.errors import ConfigError, DataError, IncompatibleError, StateError
from tests.conftest import build_model

CORPUS = [[0, 0, 0, 0, 1, 1, 2, 3], [0, 0, 1, 1, 2, 3, 3, 2], [0, 1, 2, 4]]
# counts: 0 → 7, 1 → 5, 2 → 4, 3 → 3, 4 → 1, 5 never; 20 in all
SHARES = torch.tensor([0, 7, 12, 16, 19, 20]) / 20


def test_rarity_is_the_share_of_more_frequent_tokens():
    assert torch.allclose(rarity(torch.tensor([7, 5, 4, 3, 1, 0])).float(), SHARES)
    assert rarity(torch.tensor([2, 2, 4])).tolist() == [0.5, 0.5, 0.0]


def test_frequency_field_by_token_and_expected():
    field = TemperatureField.fit(CORPUS, 6)
    tokens = torch.arange(6)
    assert torch.allclose(field.of_tokens(tokens), 0.7 + 0.6 * SHARES)
    assert field.of_tokens(torch.tensor([0, 5])).tolist() == pytest.approx([0.7, 1.3])
    logits = torch.randn(3, 4, 6)
    by_hand = (logits.softmax(-1) * (0.7 + 0.6 * SHARES)).sum(-1)
    assert torch.allclose(field.temperatures(logits), by_hand)


@pytest.mark.parametrize("rows", ["lists", "flat", "tensor", "dataset", "stream"])
def test_any_stream_of_tokens_fits_alike(rows):
    forms = {
        "lists": CORPUS,
        "flat": [t for row in CORPUS for t in row],
        "tensor": torch.tensor([t for row in CORPUS for t in row]).view(4, 5),
        "dataset": Dataset.from_dict({"input_ids": CORPUS}),
        "stream": iter([[-100, *row] for row in CORPUS]),
    }
    assert TemperatureField.fit(forms[rows], 6).token_counts.tolist() == [7, 5, 4, 3, 1, 0]


def test_wrong_tokens_are_refused():
    with pytest.raises(DataError, match="below vocab_size=4, got 4"):
        TemperatureField.fit(CORPUS, 4)
    with pytest.raises(DataError, match="at least one token"):
        TemperatureField.fit([], 4)
    with pytest.raises(IncompatibleError, match="counted for 6 tokens, the model has 7"):
        TemperatureField.fit(CORPUS, 6).temperatures(torch.zeros(2, 7))
    with pytest.raises(IncompatibleError, match="no temperatures of tokens"):
        TemperatureField().of_tokens(torch.tensor([0]))


@pytest.mark.parametrize("mean", [0.85, 1.0, 1.05])
def test_the_corpus_mean_of_a_frequency_field_is_the_wanted_one(mean):
    field = TemperatureField.fit(CORPUS, 6, mean=mean)
    tokens = torch.tensor([t for row in CORPUS for t in row])
    assert field.of_tokens(tokens).mean().item() == pytest.approx(mean, abs=1e-6)
    assert field.of_tokens(torch.tensor([0, 5])).tolist() == pytest.approx([0.7, 1.3])


def test_a_mean_out_of_reach_is_refused():
    with pytest.raises(ConfigError, match=r"mean: must lie from"):
        TemperatureField.fit(CORPUS, 6, mean=1.299)
    with pytest.raises(ConfigError, match="between low and high"):
        TemperatureField(mean=1.3)


@pytest.mark.parametrize(
    "settings",
    [
        {"low": 0.0},
        {"high": math.inf},
        {"source": "rarity"},
        {"half_life": 0},
        {"source": "frequency"},
        {"token_counts": torch.ones(3)},
        {"source": "frequency", "token_counts": torch.zeros(3)},
    ],
)
def test_settings_that_make_no_field(settings):
    with pytest.raises(ConfigError):
        TemperatureField(**settings)


def test_an_uncalibrated_entropy_field_follows_its_formula():
    logits = torch.tensor([[0.0, 0.0, -math.inf], [50.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    wanted = [0.7 + 0.6 * (1 - 1 / 2), 0.7, 0.7 + 0.6 * (1 - 1 / 3)]
    assert TemperatureField().temperatures(logits).tolist() == pytest.approx(wanted)


def test_ranks_are_those_of_what_was_counted():
    ranks = RunningRanks(top=16.0, power=0.5)
    readings = torch.rand(20_000).pow(3) * 9
    ranks.add(readings)
    ranks.commit()
    asked = readings[:500]
    exact = (readings[None] < asked[:, None]).float().mean(1)
    assert torch.allclose(ranks.rank(asked, asked), exact, atol=2e-2)
    assert (ranks.rank(torch.linspace(0, 20, 999), torch.zeros(999)).diff() >= 0).all()


def test_what_is_added_counts_from_the_commit_on_and_fades():
    ranks = RunningRanks(top=1.0)
    default = torch.tensor([0.25])
    ranks.add(torch.tensor([0.1, 0.1]))
    assert ranks.rank(torch.tensor([0.5]), default).item() == 0.25
    ranks.commit(half_life=10)
    assert ranks.rank(torch.tensor([0.5]), default).item() == 1.0
    ranks.add(torch.full((10,), 0.9), torch.ones(10))
    ranks.commit(half_life=10)
    assert ranks.counts.sum().item() == pytest.approx(2 * 0.5 + 10)
    assert ranks.rank(torch.tensor([0.5]), default).item() == pytest.approx(1 / 11)
    assert len(ranks.counts) == BINS


@pytest.mark.parametrize("source", ["entropy", "frequency"])
@pytest.mark.parametrize("mean", [None, 0.9])
def test_calibration_gives_the_mean_on_its_text(source, mean):
    model = build_model()
    with torch.no_grad():
        model.lm_head.weight *= 12  # else all positions know as little as each other
    rows = [torch.randint(4, 260, (n,)).tolist() for n in torch.randint(20, 60, (80,)).tolist()]
    counts = {"token_counts": torch.rand(260)} if source == "frequency" else {}
    field = TemperatureField(source=source, mean=mean, **counts).calibrate(model.train(), rows)
    assert model.training
    assert field.ranks.counts.sum().item() == sum(len(row) - 1 for row in rows)
    model.eval()
    found = []
    with torch.no_grad():
        for row in rows:
            found.append(field.temperatures(model(torch.tensor([row])).logits[0, :-1]))
    assert torch.cat(found).mean().item() == pytest.approx(mean or 1.0, abs=0.01)
    assert torch.cat(found).min() < 0.75
    assert torch.cat(found).max() > 1.25
    assert field.summary()["mean"] == pytest.approx(mean or 1.0, abs=0.01)


def test_calibration_counts_labels_only_where_there_are_any():
    rows = [{"input_ids": [5, 6, 7, 8, 9], "labels": [-100, -100, 7, 8, 9]}, [4, 5]]
    field = TemperatureField().calibrate(build_model(), rows)
    assert field.ranks.counts.sum().item() == 3 + 1


def test_the_opposite_field_mirrors_the_field():
    logits = torch.randn(50, 40) * 3
    hot = TemperatureField(1.3, 0.7).temperatures(logits)
    assert torch.allclose(hot, 2.0 - TemperatureField(0.7, 1.3).temperatures(logits))


def test_a_constant_field_is_constant():
    assert TemperatureField(0.9, 0.9).temperatures(torch.randn(3, 5)).tolist() == pytest.approx(
        [0.9] * 3
    )
    assert TemperatureField(1.0, 1.0).neutral
    assert not TemperatureField(1.0, 1.1).constant


def test_save_and_load(tmp_path):
    made = TemperatureField.fit(CORPUS, 6, mean=0.9, online=True, half_life=50)
    made.observe(torch.rand(30))
    made.commit()
    made.save(tmp_path / "field.safetensors")
    again = TemperatureField.load(tmp_path / "field.safetensors")
    logits = torch.randn(20, 6)
    assert torch.equal(again.temperatures(logits), made.temperatures(logits))
    assert torch.equal(again.of_tokens(torch.arange(6)), made.of_tokens(torch.arange(6)))
    assert (again.online, again.half_life, again.mean) == (True, 50, 0.9)


def test_other_files_are_refused(tmp_path):
    from hf_glm_curriculum.storage import save_tensors

    save_tensors(tmp_path / "other.safetensors", {"x": torch.ones(1)})
    with pytest.raises(StateError, match="no temperature field"):
        TemperatureField.load(tmp_path / "other.safetensors")
    with pytest.raises(StateError):
        TemperatureField.load(tmp_path / "none.safetensors")
