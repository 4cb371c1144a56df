"""Rewards by rules."""

import json
import pickle

import pytest

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.rules import RULES, rule_rewards

NUMBER = {"kind": "number", "value": 4}
CHECKS = [json.dumps(NUMBER), NUMBER, None, "null", {"kind": "exact", "value": "four"}]
ANSWERS = ["It is 4.", "It is 5.", "4", "4", "four"]
PROMPTS = ["What is 2 + 2?"] * 5


def test_length_is_highest_at_its_target_and_falls_both_ways():
    rule = rule_rewards(["length"], length_target=4)["length"]
    answers = ["", "one two", "one two three four", "a b c d e f", "a b c d e f g h i j"]
    assert rule(PROMPTS, answers) == [0.0, 0.5, 1.0, 0.5, 0.0]


def test_answers_are_checked_by_their_rows_check():
    rules = rule_rewards(["correct", "logic", "factual", "compliance"])
    found = {name: f(PROMPTS, ANSWERS, answer_check=CHECKS) for name, f in rules.items()}
    assert found["correct"] == [1.0, 0.0, None, None, 1.0]
    assert found["logic"] == [1.0, 0.0, None, None, None]
    assert found["factual"] == [None, None, None, None, 1.0]
    assert found["compliance"] == [None] * 5
    assert rules["correct"](PROMPTS, ANSWERS) == [None] * 5, "no column, nothing to say"


def test_text_rules():
    rules = rule_rewards(["no_repetition", "no_refusal", "same_language"])
    answers = ["yes yes yes yes yes yes", "I'm sorry, but I can't help with that.", "北京是首都。"]
    prompts = ["Which is it, then?"] * 3
    assert rules["no_repetition"](prompts, answers)[0] < 0.5
    assert rules["no_refusal"](prompts, answers) == [1.0, 0.0, 1.0]
    assert rules["same_language"](prompts, answers)[2] == 0.0
    assert rules["same_language"](["1 + 1"], ["2"]) == [None]


def test_conversations_names_and_pickles():
    rule = pickle.loads(pickle.dumps(rule_rewards(["length"], length_target=2)["length"]))
    assert rule.__name__ == "length"
    prompts = [[{"role": "user", "content": "Say two words."}]]
    assert rule(prompts, [[{"role": "assistant", "content": "two words"}]]) == [1.0]
    assert set(rule_rewards(list(RULES))) == set(RULES)


def test_bad_arguments():
    with pytest.raises(ConfigError, match="'lenght' is no rule; did you mean length"):
        rule_rewards(["lenght"])
    with pytest.raises(ConfigError, match="twice"):
        rule_rewards(["length", "length"])
    with pytest.raises(ConfigError, match="length_target: must be above 0, got 0"):
        rule_rewards(["length"], length_target=0)
    with pytest.raises(DataError, match="needs one prompt and one answer_check a completion"):
        rule_rewards(["correct"])["correct"](["a", "b"], ["c"])
