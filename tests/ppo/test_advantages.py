"""GAE, whitening and the streams of dimensions against numbers worked out by hand."""

import pytest
import torch

from hf_glm_curriculum.ppo.advantages import (
    combined_advantages,
    generalised_advantages,
    kl_per_token,
    state_mask,
    terminal_columns,
    token_mask,
    token_rewards,
    whiten,
)


def test_masks_follow_lengths():
    lengths = torch.tensor([1, 3])
    assert token_mask(lengths, 3).tolist() == [[True, False, False], [True, True, True]]
    assert state_mask(lengths, 3).tolist() == [[True, True, False], [True, True, True]]


def test_score_goes_after_the_last_token_or_to_it():
    lengths = torch.tensor([1, 4, 3])
    assert terminal_columns(lengths, 4).tolist() == [1, 3, 3]
    assert terminal_columns(lengths, 4, "last").tolist() == [0, 3, 2]


def test_token_rewards_carry_the_penalty_in_every_stream():
    kl = torch.tensor([[0.5, 0.25, 0.0]])
    rewards = token_rewards(torch.tensor([[1.0, -2.0]]), kl, torch.tensor([0.1]), torch.tensor([2]))
    assert torch.allclose(rewards[0, :, 0], torch.tensor([-0.05, -0.025, 1.0]))
    assert torch.allclose(rewards[0, :, 1], torch.tensor([-0.05, -0.025, -2.0]))


def test_gae_by_hand():
    """γ = 0.5, λ = 0.5, r = (1, 2, 3), V = (0.5, 1, 2).

    δ₂ = 3 − 2 = 1; δ₁ = 2 + 0.5·2 − 1 = 2; δ₀ = 1 + 0.5·1 − 0.5 = 1;
    A₂ = 1; A₁ = 2 + 0.25·1 = 2.25; A₀ = 1 + 0.25·2.25 = 1.5625.
    """
    rewards = torch.tensor([[[1.0], [2.0], [3.0]]])
    values = torch.tensor([[[0.5], [1.0], [2.0]]])
    advantages, returns = generalised_advantages(rewards, values, 0.5, 0.5)
    assert advantages.flatten().tolist() == [1.5625, 2.25, 1.0]
    assert returns.flatten().tolist() == [2.0625, 3.25, 3.0]


def test_whitening_by_hand():
    """Values 1, 3, 5 on the mask: mean 3, unbiased variance 4."""
    values = torch.tensor([[1.0, 3.0], [5.0, 100.0]])
    mask = torch.tensor([[True, True], [True, False]])
    assert torch.allclose(whiten(values, mask), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    kept = whiten(values, mask, shift=False)
    assert torch.allclose(kept, torch.tensor([[2.0, 3.0], [4.0, 0.0]]))


def test_one_value_has_no_spread():
    values, mask = torch.tensor([[7.0, 0.0]]), torch.tensor([[True, False]])
    assert whiten(values, mask).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_estimators(estimator):
    policy, reference = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -2.0]])
    mask = torch.tensor([[True, False]])
    found = kl_per_token(policy, reference, mask, estimator)
    expected = 0.5 if estimator == "k1" else float(torch.exp(torch.tensor(-0.5)) - 1 + 0.5)
    assert found[0, 0] == pytest.approx(expected)
    assert found[0, 1] == 0


EQUAL = torch.ones(2)


def test_one_dimension_is_plain_whitening():
    torch.manual_seed(0)
    stream, tokens = torch.randn(4, 6, 1), torch.ones(4, 6, dtype=torch.bool)
    opened = torch.ones(4, 1, dtype=torch.bool)
    for spread in (0.0, 1.0):
        found = combined_advantages(stream, tokens, opened, torch.ones(1), spread)
        assert torch.equal(found, whiten(stream[:, :, 0], tokens))


def streams_and_masks(rows=8, columns=5):
    torch.manual_seed(0)
    streams = torch.randn(rows, columns, 2)
    tokens, opened = (torch.ones(rows, n, dtype=torch.bool) for n in (columns, 2))
    return streams, tokens, opened


def test_dimensions_have_equal_say_whatever_their_scale():
    streams, tokens, opened = streams_and_masks()
    loud = streams * torch.tensor([1000.0, 1.0])
    same, other = (combined_advantages(s, tokens, opened, EQUAL, 0.0) for s in (streams, loud))
    assert torch.allclose(other, same, atol=1e-4)


def test_on_one_scale_a_quiet_dimension_stays_quiet():
    streams, tokens, opened = streams_and_masks()
    quiet = streams * torch.tensor([1.0, 0.01])
    heard, unheard = (
        combined_advantages(quiet, tokens, opened, EQUAL, spread) for spread in (0.0, 1.0)
    )
    alone = whiten(streams[:, :, 0], tokens)
    assert (unheard - alone).abs().max() < 0.05 < (heard - alone).abs().max()
    # As they are: the weighted sum, whitened.
    weighted = combined_advantages(streams, tokens, opened, torch.tensor([2.0, 1.0]), 1.0)
    assert torch.allclose(weighted, whiten(streams @ torch.tensor([2.0, 1.0]), tokens), atol=1e-5)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_a_closed_row_moves_neither_the_spread_nor_the_mean_of_its_dimension(spread):
    streams, tokens, opened = streams_and_masks()
    opened[0, 0] = False
    streams[0, :, 0] = 0.0
    found = combined_advantages(streams, tokens, opened, EQUAL, spread)
    changed = streams.clone()
    changed[0, :, 0] = 50.0  # a constant: what is alone in a closed stream is taken about its mean
    again = combined_advantages(changed, tokens, opened, EQUAL, spread)
    assert torch.allclose(again, found, atol=1e-5)


def test_being_open_pays_nothing():
    """Two rows that differ in nothing but a closed dimension, whose critic sees too little."""
    streams, tokens, opened = torch.zeros(4, 3, 2), torch.ones(4, 3, dtype=torch.bool), None
    streams[:, :, 0] = torch.tensor([5.0, 5.0, 0.0, 0.0])[:, None]
    streams[:, :, 1] = torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None]
    opened = torch.tensor([[True, True], [True, True], [False, True], [False, True]])
    found = combined_advantages(streams, tokens, opened, EQUAL, 1.0)
    assert torch.allclose(found[:2], found[2:], atol=1e-5) and found[0, 0] > 0.5


def test_a_locked_dimension_leaves_the_others_their_weight():
    streams, tokens, opened = streams_and_masks()
    opened[:, 0] = False
    streams[:, :, 0] = 0.0
    found = combined_advantages(streams, tokens, opened, EQUAL, 0.0)
    assert torch.allclose(found, whiten(streams[:, :, 1], tokens), atol=1e-5)


def test_rows_with_nothing_open_are_zero():
    streams, tokens = torch.randn(3, 4, 2), torch.ones(3, 4, dtype=torch.bool)
    opened = torch.tensor([[True, True], [False, False], [True, False]])
    assert not combined_advantages(streams, tokens, opened, EQUAL, 0.0)[1].any()
