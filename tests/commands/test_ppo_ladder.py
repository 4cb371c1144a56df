"""The debugging ladder of `docs/methods/ppo.md`, climbed by a tiny random model.

The rungs are the shipped configs; only sizes and learning rate suit 30,000 random parameters.
"""

from __future__ import annotations

import json

import pytest
import torch

from hf_glm_curriculum import StructuredRewardModel
from hf_glm_curriculum.evaluation.run_folder import read_json_lines

pytestmark = pytest.mark.ppo

SMALL = (
    *("--no-lora", "--max-new-tokens", 8, "--temperature", 1.0, "--learning-rate", 0.02),
    *("--kl-coef", 0.001, "--answers", 0, "--demo", 0, "--save-steps", 100, "--cpu"),
)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """Prompts that are answered rightly by any vowel that stands alone."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    check = {"kind": "contains", "any_of": list("aeiou")}
    rows = [{"prompt": f"question {n}", "answer_check": check} for n in range(32)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def climb(cli, tiny_folder, prompts, tmp_path):
    """`climb(config, *flags)` → a run's metrics by name, first and last five updates averaged."""

    def call(config, *flags):
        status, _, errors = cli(
            *("ppo", "--config", f"configs/ppo/{config}.yaml", "--model", tiny_folder),
            *("--prompts", prompts, "--output-dir", tmp_path / "run", *SMALL, *flags),
        )
        assert status == 0, errors
        lines = read_json_lines(tmp_path / "run" / "metrics.jsonl")
        lines = [line for line in lines if "objective/kl" in line]
        return {
            name: tuple(sum(m[name] for m in part) / 5 for part in (lines[:5], lines[-5:]))
            for name in lines[0]
        }

    return call


def test_first_rung_answers_come_to_the_length_asked_for(climb):
    metrics = climb("ladder_1_length", "--length-target", 4, "--updates", 24)
    first, last = metrics["structured/score_length"]
    assert last > first + 0.15
    kl_first, kl_last = metrics["objective/kl"]
    assert kl_last > kl_first >= 0


def test_second_rung_answers_become_right_without_repeating(climb):
    metrics = climb("ladder_2_rules", "--updates", 24)
    first, last = metrics["structured/score_correct"]
    assert last > first + 0.15
    assert metrics["structured/score_no_repetition"][1] > 0.5


def test_third_rung_a_reward_model_in_the_place_of_the_rules(climb, tiny_folder, tmp_path):
    torch.manual_seed(3)
    model = StructuredRewardModel.from_backbone(
        str(tiny_folder), head_hidden_size=32, confidence_hidden_size=4, max_tokens=128
    )
    model.save_pretrained(tmp_path / "reward")
    metrics = climb("ladder_3_reward_model", "--updates", 24, "--reward", tmp_path / "reward")
    names = model.config.dimensions
    opened = {name: metrics[f"structured/open_{name}"][0] for name in names}
    assert sum(opened.values()) == pytest.approx(1), "none is sure, so the surest of a row opens"
    first, last = metrics[f"structured/score_{max(opened, key=opened.get)}"]
    assert last > first + 0.005
