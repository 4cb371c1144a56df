from __future__ import annotations

import math

import pytest
import torch

from hf_glm_curriculum import (
    DimensionWeights,
    ProgressiveUnlock,
    RewardGate,
    RewardPanel,
    RewardShaper,
    ScalarReward,
)
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.pipeline import RewardPipeline
from tests.rewards.scorers import THREE, HashScorer, ScriptedScorer

PROMPTS, RESPONSES = ["q"] * 3, ["one answer", "two answers here", "three"]


def test_nothing_set_gives_the_scores_and_their_mean():
    model = HashScorer()
    wanted = model.score_texts(PROMPTS, RESPONSES).scores
    batch = RewardPipeline(model).score(PROMPTS, RESPONSES)
    assert torch.equal(batch.shaped, wanted) and batch.mask.all()
    assert torch.allclose(batch.reward, wanted.mean(dim=1))
    one = RewardPipeline(HashScorer(("factual",))).score(PROMPTS, RESPONSES)
    assert torch.equal(one.reward, one.scores[:, 0])


def test_gate_weights_and_shaper_in_their_order():
    scores = [[0.2, 0.5, 0.9], [0.4, 0.5, 0.7], [0.9, 0.5, 0.8]]
    sure = [[0.9, 0.9, 0.9], [0.9, 0.1, 0.9], [0.1, 0.2, 0.9]]
    shaper = RewardShaper(missing_eos_penalty=1.0)
    pipeline = RewardPipeline(
        ScriptedScorer(scores, sure), RewardGate(), DimensionWeights(), shaper
    )
    batch = pipeline.score(PROMPTS, RESPONSES, ended=[True, True, False])
    opened = [[True] * 3, [True, False, True], [False, False, True]]
    assert batch.mask.tolist() == opened
    # factual is open in rows 0 and 1 only: mean 0.3, deviation 0.1.
    assert batch.shaped[:2, 0].tolist() == pytest.approx([-1, 1], abs=1e-4)
    plain = shaper.moments.standardise(torch.tensor(scores), 0.01).clamp(-5, 5)
    weights = torch.tensor([2.0, 1.0, 0.5])
    wanted = (plain * torch.tensor(opened) * weights).sum(1) / 3.5 - torch.tensor([0, 0, 1.0])
    assert torch.allclose(batch.reward, wanted, atol=1e-5)
    assert batch.plain_reward[0].item() == pytest.approx((2 * 0.2 + 0.5 + 0.45) / 3.5)


def test_unlocking_decides_what_is_open_and_what_weighs():
    unlock = ProgressiveUnlock(THREE, target=0.5, min_steps=1, window=1)
    model = ScriptedScorer([[0.6, 0.1, 0.9]] * 3, [[0.1, 0.99, 0.99]] * 3)
    pipeline = RewardPipeline(model, RewardGate(), DimensionWeights(), unlock=unlock)
    first, second = (pipeline.score(PROMPTS, RESPONSES) for _ in range(2))
    # Locked: only factual is there to fall back on, and it alone is the reward.
    assert first.mask[0].tolist() == [True, False, False]
    assert first.reward[0].item() == pytest.approx(0.6)
    assert second.mask[0].tolist() == [False, True, False]
    assert first.metrics()["structured/unlock_stage"] == 0
    assert second.metrics()["structured/unlock_stage"] == 1


def test_evaluation_moves_nothing():
    pipeline = RewardPipeline(
        HashScorer(),
        RewardGate(0.3),
        shaper=RewardShaper(),
        unlock=ProgressiveUnlock(THREE, min_steps=1, window=1),
    )
    pipeline.score(PROMPTS, RESPONSES)
    before = pipeline.state_dict()
    pipeline.score(PROMPTS, [r + "!" for r in RESPONSES], update=False)
    assert pipeline.state_dict() == before


def test_state_goes_on_where_it_was():
    def make():
        unlock = ProgressiveUnlock(THREE, target=0.4, min_steps=2, window=2)
        return RewardPipeline(HashScorer(), RewardGate(0.5), None, RewardShaper(), unlock=unlock)

    first, second = make(), make()
    batches = [[f"answer {i} {j}" for j in range(3)] for i in range(8)]
    for batch in batches[:4]:
        first.score(PROMPTS, batch)
    second.load_state_dict(first.state_dict())
    for batch in batches[4:]:
        one, two = (p.score(PROMPTS, batch) for p in (first, second))
        assert torch.equal(one.reward, two.reward) and torch.equal(one.mask, two.mask)


def test_rows_null_in_every_dimension_are_null_and_nothing_else():
    def judge(prompts, responses):
        return [None if r == "three" else 0.25 for r in responses]

    panel = RewardPanel(ScalarReward(judge, "a"), ScalarReward(judge, "b"))
    for gate in (None, RewardGate(dimensions=("a", "b"))):
        batch = RewardPipeline(panel, gate).score(PROMPTS, RESPONSES)
        assert batch.mask.tolist() == [[True, True], [True, True], [False, False]]
        assert batch.reward[:2].tolist() == [0.25, 0.25] and math.isnan(batch.reward[2])
        assert batch.metrics()["structured/reward"] == 0.25


def test_metrics_name_every_dimension():
    found = RewardPipeline(HashScorer(), RewardGate(0.5), shaper=RewardShaper()).score(
        PROMPTS, RESPONSES
    )
    names = {f"structured/{kind}_{d}" for kind in ("score", "confidence", "open") for d in THREE}
    metrics = found.metrics()
    assert names <= metrics.keys()
    assert {"structured/refusal_rate", "structured/length", "structured/reward"} <= metrics.keys()
    share = found.mask[:, 0].float().mean().item()
    assert metrics["structured/open_factual"] == pytest.approx(share)


def test_parts_of_other_dimensions_are_refused():
    model = HashScorer(("helpful", "honest"))
    with pytest.raises(ConfigError, match="gate: is of the dimensions factual"):
        RewardPipeline(model, RewardGate({"factual": 0.5}))
    with pytest.raises(ConfigError, match="shaper: is of the dimensions factual"):
        RewardPipeline(model, shaper=RewardShaper())
    with pytest.raises(ConfigError, match="weights: unknown dimension 'helpful'"):
        RewardPipeline(model, weights=DimensionWeights())
    with pytest.raises(ConfigError, match="order: unknown dimension"):
        RewardPipeline(model, unlock=ProgressiveUnlock(THREE))
    # Weights in another order are put into the model's.
    pipeline = RewardPipeline(model, weights=DimensionWeights(honest=3, helpful=1))
    assert pipeline.weights.vector().tolist() == [1, 3]


def test_what_the_model_gives_is_checked():
    with pytest.raises(DataError, match=r"logic of row 0 must lie in \[0, 1\], got 1.5"):
        RewardPipeline(ScriptedScorer([[0.5, 1.5, 0.5]], [[1.0] * 3])).score(["p"], ["r"])
    with pytest.raises(DataError, match="returned 1 rows for 2"):
        RewardPipeline(ScriptedScorer([[0.5] * 3], [[1.0] * 3])).score(["p"] * 2, ["r"] * 2)
    model = ScriptedScorer([[0.5] * 3], [[1.0] * 3])
    RewardPipeline(model, score_options={"too_long": "cut"}).score(["p"], ["r"])
    assert model.options == {"too_long": "cut"}
