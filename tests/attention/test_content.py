"""Estimates of block masses against the masses themselves, and the budget they lead to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_glm_curriculum.attention.budget import KeywordRules, first_level, follow_entropy
from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.content import block_masses, spread, summarize_blocks
from hf_glm_curriculum.attention.selection import always_in, budget_counts, choose_numbers


def keys(blocks: int = 6, size: int = 16, width: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, blocks, size, width, generator=torch.Generator().manual_seed(seed))


def probes(tiles: int = 3, count: int = 4, width: int = 8) -> torch.Tensor:
    made = torch.Generator().manual_seed(7)
    return torch.randn(2, 3, tiles, count, width, generator=made) * 2


def true_masses(asked, made, before, scaling):
    scores = torch.einsum("kgtpd,kmbd->kgtpmb", asked, made) * scaling
    scores = scores.logsumexp(-1)
    place = torch.arange(made.shape[1])
    scores = scores.masked_fill(place >= before[:, None, None], -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0).mean(dim=(1, 3))


def test_with_nearly_all_keys_kept_the_mass_is_exact():
    made, asked = keys(), probes()
    before = torch.tensor([2, 6, 0])
    made[:, :, 0] = made[:, :, 1]  # two equal keys are their mean, and their variance is 0
    made[:, :, :2] *= 0.01
    summaries = summarize_blocks(made, outliers=14, order=2)
    found = block_masses(asked, torch.ones(3, 4), summaries, before, 0.5)
    torch.testing.assert_close(found, true_masses(asked, made, before, 0.5), atol=1e-5, rtol=1e-4)
    assert found[:, 2].abs().sum() == 0  # nothing before the first block


def test_second_order_is_exact_in_the_limit_for_normal_keys_and_first_order_is_not():
    made = torch.Generator().manual_seed(1)
    scale = torch.tensor([0.2, 1.0, 0.5]).view(1, 3, 1, 1)
    normal = torch.randn(1, 3, 20_000, 4, generator=made) * scale
    asked = torch.randn(1, 1, 1, 1, 4, generator=made) * 2
    before, weights = torch.tensor([3]), torch.ones(1, 1)
    wanted = true_masses(asked, normal, before, 0.5)
    second = block_masses(asked, weights, summarize_blocks(normal, 0, 2), before, 0.5)
    first = block_masses(asked, weights, summarize_blocks(normal, 0, 1), before, 0.5)
    torch.testing.assert_close(second, wanted, atol=0.02, rtol=0.05)
    assert (first - wanted).abs().max() > 4 * (second - wanted).abs().max()


def test_an_outlier_that_the_mean_washes_out_is_found():
    made = torch.randn(1, 8, 16, 8, generator=torch.Generator().manual_seed(3)) * 0.1
    needle = torch.zeros(8)
    needle[2] = 6.0
    made[0, 3, 5] = needle
    made[0, 3, 6] = -needle  # the mean of the block shows nothing
    asked = needle.view(1, 1, 1, 1, 8)
    before, weights = torch.tensor([8]), torch.ones(1, 1)
    kept = block_masses(asked, weights, summarize_blocks(made, 2, 2), before, 0.3)
    mean = block_masses(asked, weights, summarize_blocks(made, 0, 1), before, 0.3)
    assert kept[0, 0].argmax() == 3 and kept[0, 0, 3] > 0.9
    assert mean[0, 0, 3] < 0.3


def test_summaries_are_those_of_the_parts_joined():
    made = keys(blocks=7)
    whole = summarize_blocks(made, 2, 2)
    parts = summarize_blocks(made[:, :3], 2, 2).join(summarize_blocks(made[:, 3:], 2, 2))
    torch.testing.assert_close(parts.exact, whole.exact)
    torch.testing.assert_close(parts.variance, whole.variance)
    assert whole.first(4).blocks == 4
    assert summarize_blocks(made[:, :0], 2, 2).blocks == 0


def test_absent_probes_do_not_count():
    made, asked = keys(), probes()
    before, weights = torch.tensor([2, 6, 4]), torch.ones(3, 4)
    weights[:, :2] = 0
    summaries = summarize_blocks(made, 1, 2)
    found = block_masses(asked, weights, summaries, before, 0.5)
    alone = block_masses(asked[:, :, :, 2:], torch.ones(3, 2), summaries, before, 0.5)
    torch.testing.assert_close(found, alone)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 3))


def test_entropy_of_even_and_of_sharp_masses():
    even = torch.full((2, 1, 8), 1 / 8)
    sharp = torch.zeros(2, 1, 8)
    sharp[..., 3] = 1
    before = torch.tensor([8])
    assert float(spread(even, before)) == pytest.approx(1.0)
    assert float(spread(sharp, before)) == pytest.approx(0.0)


def test_choices_take_the_preferred_then_the_best_before_the_own_block():
    scores = torch.tensor([[[0.1, 0.9, 0.3, 0.5, 0.7, 0.99]]])
    preferred = torch.tensor([[3, -1, 0]])
    chosen = choose_numbers(scores, preferred, np.array([4]), np.array([5]))
    assert chosen.tolist() == [[[0, 1, 3, 4]]]  # 5 is the own block and cannot be taken
    fewer = choose_numbers(scores, preferred, np.array([1]), np.array([5]))
    assert fewer.tolist() == [[[3]]]


def test_always_in_blocks_and_counts():
    config = PositionGraphConfig(block_size=16, window=32, top_k=64)
    before = np.array([0, 1, 2, 5])
    assert always_in(before, config).tolist() == [
        [-1, -1, -1],
        [0, -1, -1],
        [1, 0, -1],
        [4, 3, 0],
    ]
    assert budget_counts(4, before).tolist() == [0, 1, 2, 3]


def test_budgets_follow_entropy_with_hysteresis():
    config = PositionGraphConfig(budget_entropy=(0.5, 0.8), budget_hysteresis=0.05)
    entropy = np.array([0.52, 0.56, 0.48, 0.44, 0.9, 0.78, 0.74, 0.2])
    assert follow_entropy(entropy, 0, config).tolist() == [0, 1, 1, 0, 2, 2, 1, 0]
    assert first_level(config) == 1
    assert first_level(PositionGraphConfig(top_k=512)) == 0


def test_rules_match_across_pieces_and_scripts(tiny_tokenizer):
    text = "hello, I want my 退款 now. refund please"
    ids = np.asarray(tiny_tokenizer(text).input_ids)
    whole = KeywordRules({"退款": 3072, "refund": 4096, "never": 9999}, tiny_tokenizer)
    whole.append(ids)
    pieces = KeywordRules({"退款": 3072, "refund": 4096, "never": 9999}, tiny_tokenizer)
    for token in ids:
        pieces.append(np.asarray([token]))
    assert whole.found == pieces.found and set(whole.found.values()) == {3072, 4096}
    first, second = sorted(whole.found)
    assert tiny_tokenizer.decode(ids[: first + 1]).endswith("退款")
    positions = np.array([0, first, first + 1, second + 1])
    assert whole.least(positions).tolist() == [0, 0, 3072, 4096]
