"""Structured rewards inside PPO: what is open trains, what is closed says nothing."""

from __future__ import annotations

import csv
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hf_glm_curriculum.rewards.gate import RewardGate
from hf_glm_curriculum.rewards.kl import KLController
from hf_glm_curriculum.rewards.monitor import RewardHackingMonitor
from hf_glm_curriculum.rewards.output import StructuredRewardOutput
from hf_glm_curriculum.rewards.reinforcement import NegativeReinforcement
from hf_glm_curriculum.rewards.unlock import ProgressiveUnlock
from hf_glm_curriculum.rewards.weights import DimensionWeights

pytestmark = pytest.mark.ppo

NAMES = ("factual", "logic", "compliance")


class Scorer:
    """Scores by rules, so that every number is known; a dimension can be set to a constant."""

    def __init__(self, confident: Any = 1.0, constant=None, names=NAMES):
        self.config = SimpleNamespace(dimensions=names)
        self.confident, self.constant = confident, constant or {}

    def score_texts(self, prompts, responses):
        rows = []
        for response in responses:
            size = len(response)
            raw = [sum(map(ord, response)) % 10 / 10, (response.count("e") % 3) / 3, (size % 5) / 5]
            rows.append([self.constant.get(n, s) for n, s in zip(NAMES, raw, strict=True)])
        scores = torch.tensor(rows)
        confidence = torch.as_tensor(self.confident).expand_as(scores).clone()
        return StructuredRewardOutput(scores=scores, confidence=confidence, logits=scores)


@pytest.fixture
def run(tiny_tokenizer, policy, prompts, settings, seeded):
    """`run(scorer, parts={}, **settings)` → the trainer after its updates."""
    from hf_glm_curriculum.ppo import StructuredPPOTrainer

    def train(scorer, parts=None, **own):
        base = {
            "per_device_train_batch_size": 4,
            "response_length": 8,
            "total_updates": 2,
            "structured_defaults": False,
        }
        seeded()
        trainer = StructuredPPOTrainer(
            args=settings(**{**base, **own}),
            processing_class=tiny_tokenizer,
            model=policy(),
            reward_model=scorer,
            train_dataset=prompts,
            **(parts or {}),
        )
        trainer.train()
        return trainer

    return train


def parameters(trainer):
    return dict(trainer.bare_model.named_parameters())


def differs(one, other):
    a, b = parameters(one), parameters(other)
    return max(float((a[n] - b[n]).detach().abs().max()) for n in a)


def closed(*names):
    return torch.tensor([0.0 if n in names else 1.0 for n in NAMES])


def test_a_closed_dimension_says_nothing(run):
    gate = {"gate": RewardGate(0.85)}
    one = run(Scorer(closed("logic")), gate)
    other = run(Scorer(closed("logic"), {"logic": 0.99}), gate)
    assert differs(one, other) == 0
    assert not parameters(one)["value_model.score.weight"][1].any()
    assert parameters(one)["value_model.score.weight"][0].any()


@pytest.mark.parametrize("mode", ["per_dimension", "scalar"])
@pytest.mark.parametrize("name", NAMES)
def test_every_open_dimension_is_heard(run, mode, name):
    plain = run(Scorer(), advantage_mode=mode)
    loud = run(Scorer(constant={name: 1.0}), advantage_mode=mode)
    assert differs(plain, loud) > 1e-5


def test_one_dimension_alone_is_scalar_ppo(run):
    """With the other weights at 0, streams and sum are the same thing.

    For one update: from the second on, the critic has learned beside two others on one trunk.
    """
    weights = {"factual": 1.0, "logic": 0.0, "compliance": 0.0}
    streams = run(Scorer(), {"weights": DimensionWeights.of(weights)}, total_updates=1)
    parts = {"weights": DimensionWeights.of(weights)}
    scalar = run(Scorer(), parts, advantage_mode="scalar", total_updates=1)
    a, b = parameters(streams), parameters(scalar)
    policy = [n for n in a if n.startswith("policy.")]
    assert max(float((a[n] - b[n]).detach().abs().max()) for n in policy) < 1e-5


def test_locked_dimensions_open_in_their_order(run):
    unlock = ProgressiveUnlock(NAMES, target=0.0, min_steps=1, max_steps=1)
    one = run(Scorer(), {"unlock": unlock}, total_updates=3)
    opened = [
        [entry[f"structured/open_{n}"] for n in NAMES]
        for entry in one.state.log_history
        if "structured/open" in entry
    ]
    assert opened == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_wrong_rows_weigh_more_and_the_mean_stays_one(run):
    parts = {"negative_reinforcement": NegativeReinforcement(threshold=0.3)}
    one = run(Scorer(), parts, total_updates=1, per_device_train_batch_size=16)
    rollout = one.rollout(next(iter(one.dataloader)))
    judged = one.judge.judge(rollout)
    raw = torch.where(judged.scored.scores[:, 0] < 0.3, 3.0, 1.0)
    assert len(raw.unique()) == 2
    mean = (raw * rollout.lengths).sum() / rollout.lengths.sum()
    assert torch.allclose(judged.weights, raw / mean)


def test_kl_coefficient_is_each_rows_own(run, tmp_path):
    controller = KLController(0.1, kappa=2.0, margin=0.0)
    run(
        Scorer(constant={"factual": 0.1}),
        {"kl_controller": controller},
        total_updates=1,
        debug_dir=str(tmp_path / "d"),
    )
    with (tmp_path / "d" / "ppo.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    for row in rows:
        scores = torch.tensor([[float(row[f"scores_{n}"]) for n in NAMES]])
        expected = float(controller.coefficients(scores)[0])
        assert float(row["kl_coefficient"]) == pytest.approx(expected, rel=1e-5)
    assert len({row["kl_coefficient"] for row in rows}) > 1


def test_target_kl_moves_the_coefficient_and_is_kept(run):
    controller = KLController(0.1, kappa=0.0, target=100.0, horizon=10)
    one = run(Scorer(), {"kl_controller": controller}, total_updates=2)
    # KL lies far below the target: −20 % an update of 4 rows over a horizon of 10.
    assert controller.base == pytest.approx(0.1 * (1 - 0.2 * 4 / 10) ** 2)
    assert one.judge.state_dict()["kl"] == {"base": controller.base}


def test_defaults_are_on_for_structured_rewards_and_off_for_functions(run):
    one = run(Scorer(), structured_defaults=None, total_updates=1)
    parts = one.judge.parts
    assert parts.gate is not None and parts.shaper is not None
    assert parts.kl_controller is not None and parts.negative_reinforcement is not None
    assert one.judge.pipeline.weights.weights == {"factual": 2, "logic": 1, "compliance": 0.5}
    plain = run(lambda prompts, completions, **c: [1.0 * len(x) for x in completions])
    assert plain.judge.parts.gate is None


def test_a_row_of_which_nothing_is_known_trains_nothing(run):
    def some(prompts, completions, **columns):
        return [None, *[float(len(c)) for c in completions[1:]]]

    one = run(some, total_updates=1)
    judged = one.judge.judge(one.rollout(next(iter(one.dataloader))))
    assert judged.weights.tolist() == [0, 1, 1, 1]
    assert all(torch.isfinite(p).all() for p in parameters(one).values())


def test_columns_and_completions_reach_functions_and_files(run, tmp_path):
    seen = []

    def watch(prompts, completions, target, completion_ids, **columns):
        seen.append((prompts, completions, target, completion_ids))
        return [float(t) for t in target]

    run({"factual": watch, "style": lambda completions, **c: [0.5] * len(completions)})
    prompts, completions, target, ids = seen[-1]
    assert len(prompts) == len(completions) == len(target) == len(ids) == 4
    lines = (tmp_path / "run" / "completions.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 8
    assert rows[-4]["scores"] == {"factual": target[0], "style": 0.5}
    assert rows[-4]["response"] == completions[0]
    assert rows[-4]["length"] == len(ids[0])


def test_classifier_labels_are_dimensions(run, classifier):
    model = classifier(labels=3)
    model.config.id2label = dict(enumerate(NAMES))
    one = run(model, total_updates=1)
    assert one.judge.source.dimensions == NAMES
    torch.nn.init.constant_(model.score.weight[1], 100.0)
    assert differs(one, run(model, total_updates=1)) > 1e-5


def test_reward_of_another_tokenizer_reads_texts(run, classifier, tiny_tokenizer):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: 259 - i for token, i in tiny_tokenizer.get_vocab().items()}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    other = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")
    model = classifier()
    one = run(model, {"reward_processing_class": other}, total_updates=1)
    rollout = one.rollout(next(iter(one.dataloader)))
    found = one.judge.source.scores(rollout)[0][:, 0]
    for i in range(4):
        text = rollout.prompt_texts[i] + rollout.responses[i]
        ids = other(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            hidden = model.model(ids).last_hidden_state[0, -1]
            assert found[i] == pytest.approx(float(model.score(hidden)), abs=1e-5)


def test_the_monitor_sees_what_it_needs(run):
    monitor = RewardHackingMonitor(window=6, patience=1)
    run(Scorer(), {"callbacks": [monitor]}, total_updates=2)
    known = set(monitor.state_dict()["series"])
    assert {"reward", "length", "diversity", "refusals", "kl", "entropy"} <= known
    assert {f"dimension_{n}" for n in NAMES} <= known


def test_conversations_and_token_ids_are_prompts_too(run, tiny_tokenizer, policy, settings):
    import datasets

    from hf_glm_curriculum.ppo import StructuredPPOTrainer

    talk = [[{"role": "user", "content": "hello"}], [{"role": "user", "content": "a b c"}]] * 4
    ids = [
        tiny_tokenizer.apply_chat_template(t, add_generation_prompt=True)["input_ids"] for t in talk
    ]
    found = []
    for column in ({"prompt": talk}, {"messages": talk}, {"input_ids": ids}):
        torch.manual_seed(0)
        one = StructuredPPOTrainer(
            args=settings(per_device_train_batch_size=4, total_updates=1, response_length=4),
            processing_class=tiny_tokenizer,
            model=policy(),
            reward_model=lambda prompts, completions, **c: [1.0] * len(prompts),
            train_dataset=datasets.Dataset.from_dict(column),
        )
        found.append([row["input_ids"] for row in one.train_dataset])
    assert found[0] == found[1] == found[2] == ids
