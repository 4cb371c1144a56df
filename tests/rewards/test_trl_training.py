"""Real runs of two steps with the newest TRL."""

from __future__ import annotations

import warnings

import pytest
import torch
from datasets import Dataset

from hf_glm_curriculum import (
    DimensionWeights,
    ProgressiveUnlock,
    RewardGate,
    RewardHackingMonitor,
    RewardPanel,
    RewardShaper,
    RewardStateCallback,
    ScalarReward,
    StructuredRewardModel,
    combined_reward_function,
    structured_reward_functions,
)
from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.reporting import read_metrics
from hf_glm_curriculum.rewards.pictures import gate_openness_png
from tests.conftest import build_model, build_tokenizer
from tests.rewards.scorers import THREE, HashScorer

pytestmark = pytest.mark.new_trl

SETTINGS = {
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 6,
    "max_steps": 2,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "learning_rate": 1e-2,
    "beta": 0.0,  # a reference model would be loaded by a name that these models do not have
    "bf16": False,
    "disable_tqdm": True,
}


def trainer_of(kind: str, functions, tmp_path, callbacks=(), **settings):
    import trl

    config, trainer = getattr(trl, f"{kind}Config"), getattr(trl, f"{kind}Trainer")
    args = config(output_dir=str(tmp_path), **{**SETTINGS, **settings})
    tokenizer = build_tokenizer()
    tokenizer.padding_side = "left"
    data = Dataset.from_dict({"prompt": ["one", "two", "three", "four"] * 2})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trainer(
            model=build_model(),
            reward_funcs=functions,
            args=args,
            train_dataset=data,
            processing_class=tokenizer,
            callbacks=list(callbacks),
        )


def train(trainer):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    return trainer


GDPO = {"multi_objective_aggregation": "normalize_then_sum"}


def test_grpo_with_everything_on(tmp_path):
    model = HashScorer()
    functions = structured_reward_functions(
        model,
        RewardGate(0.6),
        DimensionWeights(),
        RewardShaper(),
        unlock=ProgressiveUnlock((("factual", "logic"), "compliance"), max_steps=1, min_steps=0),
        debug_dir=tmp_path / "debug",
    )
    callbacks = [RewardStateCallback(functions), RewardHackingMonitor()]
    trainer = trainer_of("GRPO", functions, tmp_path, callbacks, **GDPO)
    before = [p.clone() for p in trainer.model.parameters()]
    train(trainer)
    assert model.calls == 2  # one forward a batch, for three functions
    assert trainer.reward_weights.tolist() == [2.0, 1.0, 0.5]
    assert any(
        not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True)
    )
    steps = [line for line in read_metrics(tmp_path) if "structured/open_factual" in line]
    assert len(steps) == 2
    assert steps[0]["structured/open_compliance"] == 0 and steps[1]["structured/unlock_stage"] == 1
    for name in THREE:
        assert f"rewards/{name}/mean" in steps[1]
    assert any("reward_monitor/alarms" in line for line in read_metrics(tmp_path))
    assert gate_openness_png(trainer.state.log_history, tmp_path / "gates.png")
    assert len((tmp_path / "debug" / "rewards.csv").read_text().splitlines()) == 1 + 8


def test_grpo_with_the_default_aggregation_is_refused_before_the_first_step(tmp_path):
    functions = structured_reward_functions(HashScorer(), RewardGate())
    trainer = trainer_of("GRPO", functions, tmp_path)
    with pytest.raises(IncompatibleError, match="'normalize_then_sum'"):
        train(trainer)
    assert trainer.state.global_step == 0
    # The callback tells before anything is generated.
    model = HashScorer()
    functions = structured_reward_functions(model)
    trainer = trainer_of("GRPO", functions, tmp_path, [RewardStateCallback(functions)])
    with pytest.raises(IncompatibleError, match="'normalize_then_sum'"):
        train(trainer)
    assert model.calls == 0


def advantages(trainer) -> torch.Tensor:
    """What the last batch's rows count, by TRL's own reckoning."""
    return torch.tensor(list(trainer._logs["advantages"])[-4:])


def test_a_closed_dimension_does_not_count_as_a_reward_of_zero(tmp_path):
    """Row 0 is closed in the one dimension in which the other rows earn 0.9 and 0.1."""

    def table(column):
        values = {"first": [None, 0.9, 0.1, 0.5], "second": [0.5, 0.5, 0.5, 0.5]}[column]
        return lambda prompts, responses: values

    panel = RewardPanel(*(ScalarReward(table(name), name) for name in ("first", "second")))
    functions = structured_reward_functions(panel)
    trainer = train(trainer_of("GRPO", functions, tmp_path, max_steps=1, **GDPO))
    found = advantages(trainer)
    assert found[0].item() == pytest.approx(0.0, abs=1e-4)  # the mean of its group: it says nothing
    assert found[1] > 0.5 and found[2] < -0.5


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_rows_none_in_every_dimension_do_not_move_the_policy(kind, tmp_path):
    def judge(prompts, responses):
        return [None, 0.9, 0.1, 0.4]

    panel = RewardPanel(ScalarReward(judge, "a"), ScalarReward(judge, "b"))
    if kind == "GRPO":
        functions, settings = structured_reward_functions(panel), GDPO
    else:
        functions, settings = combined_reward_function(panel), {}
    found = advantages(train(trainer_of(kind, functions, tmp_path, max_steps=1, **settings)))
    assert found[0].item() == 0.0
    assert torch.isfinite(found).all() and found[1] > 0 > found[2]


def test_rloo_takes_the_combined_function_and_refuses_the_list(tmp_path):
    gate, weights = RewardGate(0.6), DimensionWeights()
    function = combined_reward_function(HashScorer(), gate, weights, RewardShaper())
    trainer = train(trainer_of("RLOO", function, tmp_path, [RewardStateCallback(function)]))
    logged = [line for line in trainer.state.log_history if "structured/open_logic" in line]
    assert len(logged) == 2 and "rewards/structured_reward/mean" in logged[0]
    functions = structured_reward_functions(HashScorer(), gate)
    with pytest.raises(IncompatibleError, match="combined_reward_function"):
        train(trainer_of("RLOO", functions, tmp_path))


def test_grpo_with_a_real_reward_model(tmp_path):
    model = StructuredRewardModel.from_backbone(
        build_model(seed=1).base_model, tokenizer=build_tokenizer()
    )
    functions = structured_reward_functions(model, RewardGate(0.5))
    trainer = train(trainer_of("GRPO", functions, tmp_path, **GDPO))
    scores = [line["structured/score_factual"] for line in trainer.state.log_history[:2]]
    assert all(0 < score < 1 for score in scores)


def test_resumed_equals_straight(tmp_path):
    def run(folder, **settings):
        functions = structured_reward_functions(HashScorer(), RewardGate(0.6), None, RewardShaper())
        callbacks = [RewardStateCallback(functions)]
        given = {**GDPO, "save_strategy": "steps", "save_steps": 1, "max_steps": 2, **settings}
        return trainer_of("GRPO", functions, folder, callbacks, **given), functions

    straight, functions = run(tmp_path / "a")
    train(straight)
    wanted = functions[0].shared.pipeline.state_dict()
    resumed, functions = run(tmp_path / "b")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    got = functions[0].shared.pipeline.state_dict()
    assert got["shaper"]["moments"]["count"] == wanted["shaper"]["moments"]["count"]
    assert got["shaper"]["moments"]["mean"] == pytest.approx(wanted["shaper"]["moments"]["mean"])
