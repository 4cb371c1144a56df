"""The reward functions as TRL calls them, without a trainer."""

from __future__ import annotations

import csv
import pickle
from types import SimpleNamespace

import pytest
import torch

from hf_glm_curriculum import (
    DimensionWeights,
    RewardGate,
    RewardPanel,
    RewardShaper,
    ScalarReward,
    StructuredRewardModel,
    combined_reward_function,
    structured_reward_functions,
)
from hf_glm_curriculum.errors import ConfigError, DataError, IncompatibleError
from hf_glm_curriculum.rewards.trl_host import RewardStateCallback, check_reward_host
from tests.conftest import build_model, build_tokenizer
from tests.rewards.scorers import THREE, HashScorer, ScriptedScorer

PROMPTS, COMPLETIONS = ["q"] * 3, ["one", "two", "three"]


class FakeTrainer:
    """The parts of a TRL trainer that a reward function can see."""

    eos_token_ids = (1,)

    def __init__(self, functions, aggregation="normalize_then_sum", reward_weights=None):
        self.reward_funcs = functions
        self.model = torch.nn.Linear(1, 1)
        self.args = SimpleNamespace(reward_weights=reward_weights)
        self.reward_weights = torch.ones(len(functions))
        self.logged: dict[str, list[float]] = {}
        if aggregation is not None:
            self.multi_objective_aggregation = aggregation

    def _log_metric(self, name, value):
        self.logged.setdefault(name, []).append(value)

    def call(self, completions=COMPLETIONS, prompts=PROMPTS, ids=None, step=0, **columns):
        fields = {
            "completion_ids": ids or [[5, 1]] * len(prompts),
            "trainer_state": SimpleNamespace(global_step=step),
            "log_metric": self._log_metric,
            **columns,
        }
        return [f(prompts=prompts, completions=completions, **fields) for f in self.reward_funcs]


def test_one_named_function_a_dimension_and_one_forward_a_batch():
    model = HashScorer()
    functions = structured_reward_functions(model)
    assert [f.__name__ for f in functions] == list(THREE)
    trainer = FakeTrainer(functions)
    rewards = trainer.call()
    assert model.calls == 1
    wanted = model.score_texts(PROMPTS, COMPLETIONS).scores.T
    assert torch.allclose(torch.tensor(rewards), wanted)
    trainer.call()  # the same texts again are a new batch
    trainer.call(["four", "five", "six"])
    assert model.calls == 1 + 1 + 2


def test_none_where_the_gate_is_closed():
    scores, sure = [[0.1, 0.2, 0.3]] * 3, [[0.9, 0.1, 0.9], [0.1, 0.2, 0.1], [0.9] * 3]
    functions = structured_reward_functions(ScriptedScorer(scores, sure), RewardGate())
    trainer = FakeTrainer(functions)
    assert [[None if v is None else round(v, 3) for v in row] for row in trainer.call()] == [
        [0.1, None, 0.1],
        [None, 0.2, 0.2],
        [0.3, None, 0.3],
    ]
    assert trainer.logged["structured/open_factual"] == [pytest.approx(2 / 3)]
    assert trainer.logged["structured/score_compliance"] == [pytest.approx(0.3)]


def test_rows_null_everywhere_are_none_in_every_function():
    def judge(prompts, responses):
        return [None if r == "two" else 0.5 for r in responses]

    panel = RewardPanel(ScalarReward(judge, "a"), ScalarReward(judge, "b"))
    functions = structured_reward_functions(panel, RewardGate(dimensions=("a", "b")))
    assert FakeTrainer(functions).call() == [[0.5, None, 0.5]] * 2
    assert FakeTrainer([combined_reward_function(panel)], None).call() == [[0.5, None, 0.5]]


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "anything"])
def test_other_aggregations_are_refused_before_anything_is_scored(aggregation):
    model = HashScorer()
    trainer = FakeTrainer(structured_reward_functions(model), aggregation)
    with pytest.raises(IncompatibleError, match=f"got '{aggregation}'.*normalize_then_sum"):
        trainer.call()
    assert model.calls == 0
    with pytest.raises(IncompatibleError, match="multi_objective_aggregation"):
        check_reward_host(trainer)


def test_trainers_that_only_sum_get_the_combined_function():
    trainer = FakeTrainer(structured_reward_functions(HashScorer()), None)
    with pytest.raises(IncompatibleError, match="FakeTrainer has no multi_objective_aggregation"):
        trainer.call()
    model = HashScorer()
    weights = DimensionWeights()
    function = combined_reward_function(model, weights=weights)
    (rewards,) = FakeTrainer([function], None).call()
    scores = model.score_texts(PROMPTS, COMPLETIONS).scores
    assert rewards == pytest.approx((scores @ torch.tensor([2.0, 1, 0.5]) / 3.5).tolist())
    assert function.__name__ == "structured_reward"


def test_one_dimension_goes_anywhere():
    for aggregation in (None, "sum_then_normalize"):
        functions = structured_reward_functions(HashScorer(("factual",)))
        assert len(FakeTrainer(functions, aggregation).call()[0]) == 3


def test_weights_become_the_trainers():
    functions = structured_reward_functions(HashScorer(), weights=DimensionWeights())
    trainer = FakeTrainer([*functions, len])
    check_reward_host(trainer)
    assert trainer.reward_weights.tolist() == [2.0, 1.0, 0.5, 1.0]
    trainer = FakeTrainer(functions, reward_weights=[2.0, 1.0, 0.5])
    trainer.call()
    assert trainer.reward_weights.tolist() == [2.0, 1.0, 0.5]
    trainer = FakeTrainer(functions, reward_weights=[1.0, 1.0, 1.0])
    with pytest.raises(IncompatibleError, match=r"reward_weights: the trainer's are \[1.0"):
        check_reward_host(trainer)
    plain = FakeTrainer(structured_reward_functions(HashScorer()), reward_weights=[3.0, 1, 1])
    check_reward_host(plain)
    assert plain.reward_weights.tolist() == [1, 1, 1]


def test_missing_eos_and_wanted_refusals_are_seen():
    shaper = RewardShaper(normalize=False, missing_eos_penalty=0.5, refusal_penalty=0.25)
    model = ScriptedScorer([[0.8] * 3] * 3, [[1.0] * 3] * 3)
    trainer = FakeTrainer(structured_reward_functions(model, shaper=shaper))
    texts = ["I can't help with that.", "I can't help with that.", "Fine."]
    ids = [[5, 1], [5, 1], [5, 6]]
    rewards = trainer.call(texts, ids=ids, refusal_ok=[True, False, False])
    assert rewards[0] == pytest.approx([0.8, 0.55, 0.3])
    assert trainer.logged["structured/unfinished_rate"] == [pytest.approx(1 / 3)]


def test_evaluation_does_not_move_the_running_state():
    functions = structured_reward_functions(HashScorer(), shaper=RewardShaper())
    trainer = FakeTrainer(functions)
    trainer.call()
    before = functions[0].shared.pipeline.state_dict()
    trainer.model.eval()
    trainer.call(["x", "y", "z"])
    assert functions[0].shared.pipeline.state_dict() == before
    trainer.model.train()
    trainer.call(["x", "y", "z"])
    assert functions[0].shared.pipeline.state_dict() != before


def test_conversations():
    model = HashScorer()
    functions = structured_reward_functions(model)
    prompts = [[{"role": "user", "content": "q"}]] * 3
    completions = [[{"role": "assistant", "content": text}] for text in COMPLETIONS]
    plain = FakeTrainer(functions).call()
    assert FakeTrainer(functions).call(completions, prompts) == plain
    parts = [[{"role": "user", "content": [{"type": "text", "text": "q"}]}]] * 3
    assert FakeTrainer(functions).call(completions, parts) == plain
    several = [[*prompts[0], {"role": "assistant", "content": "a"}, *prompts[0]]] * 3
    assert FakeTrainer(functions).call(completions, several) != plain
    with pytest.raises(DataError, match="must be texts or lists of messages, got int"):
        FakeTrainer(functions).call([1, 2, 3])
    with pytest.raises(DataError, match="every turn needs the text 'content'"):
        FakeTrainer(functions).call([[{"role": "assistant"}]] * 3)


def test_pickles_with_its_state_and_stays_shared():
    functions = structured_reward_functions(HashScorer(), RewardGate(0.5), shaper=RewardShaper())
    FakeTrainer(functions).call()
    again = pickle.loads(pickle.dumps(functions))
    assert [f.__name__ for f in again] == list(THREE)
    assert len({id(f.shared) for f in again}) == 1
    texts = ["a", "b", "c"]
    assert FakeTrainer(again).call(texts) == FakeTrainer(functions).call(texts)
    assert pickle.loads(pickle.dumps(combined_reward_function(HashScorer()))).__name__


def test_pickles_with_a_real_reward_model():
    model = StructuredRewardModel.from_backbone(
        build_model().base_model, tokenizer=build_tokenizer(), head_hidden_size=8
    )
    functions = structured_reward_functions(model, RewardGate(0.5))
    again = pickle.loads(pickle.dumps(functions))
    for one, two in zip(FakeTrainer(again).call(), FakeTrainer(functions).call(), strict=True):
        assert [v is None for v in one] == [v is None for v in two]
        known = [[v for v in values if v is not None] for values in (one, two)]
        assert known[0] == pytest.approx(known[1])


def test_every_row_is_dumped(tmp_path):
    functions = structured_reward_functions(HashScorer(), RewardGate(0.5), debug_dir=tmp_path)
    trainer = FakeTrainer(functions)
    rewards = trainer.call(step=4)
    trainer.call(["a", "b", "c"], step=5)
    rows = list(csv.DictReader((tmp_path / "rewards.csv").read_text().splitlines()))
    assert [row["step"] for row in rows] == ["4"] * 3 + ["5"] * 3
    for row, value in zip(rows[:3], rewards[1], strict=True):
        assert (row["open_logic"] == "1.0") is (value is not None)
        assert value is None or float(row["shaped_logic"]) == pytest.approx(value)
    # A run resumed at step 5 repeats it, and says it once.
    again = structured_reward_functions(HashScorer(), RewardGate(0.5), debug_dir=tmp_path)
    FakeTrainer(again).call(["a", "b", "c"], step=5)
    assert len((tmp_path / "rewards.csv").read_text().splitlines()) == 7


def test_state_in_checkpoints(tmp_path, caplog):
    def begin(functions, step, **args):
        fields = {"multi_objective_aggregation": "normalize_then_sum", **args}
        given = SimpleNamespace(output_dir=str(tmp_path), **fields)
        state = SimpleNamespace(global_step=step, is_world_process_zero=True)
        callback = RewardStateCallback(functions)
        callback.on_train_begin(given, state, None)
        return callback, given, state

    functions = structured_reward_functions(HashScorer(), shaper=RewardShaper())
    callback, args, state = begin(functions, 0)
    FakeTrainer(functions).call()
    state.global_step = 3
    callback.on_save(args, state, None)
    again = structured_reward_functions(HashScorer(), shaper=RewardShaper())
    begin(again, 3)
    texts = ["a", "b", "c"]
    assert FakeTrainer(again).call(texts) == FakeTrainer(functions).call(texts)
    begin(again, 9)
    assert "holds no state of 'structured_rewards'" in caplog.text
    with pytest.raises(IncompatibleError, match="multi_objective_aggregation"):
        begin(functions, 0, multi_objective_aggregation="sum_then_normalize")


def test_unknown_names_are_refused_when_the_functions_are_made():
    with pytest.raises(ConfigError, match="weights: unknown dimension 'factual'"):
        structured_reward_functions(HashScorer(), weights=DimensionWeights(factuality=1.0))
