"""Rows with a rule that tiny models can learn, one rule a dimension."""

from __future__ import annotations

import random

from hf_glm_curriculum.rewards.reward_data import RewardData, reward_data

DIMENSIONS = ("factual", "logic")
_GOOD = {"factual": "aaaa", "logic": "1111"}
_BAD = {"factual": "zzzz", "logic": "9999"}


def preference_rows(count: int, seed: int = 0, source: str | None = None) -> list[dict]:
    """`count` pairs a dimension: good answers are full of one letter, bad ones of another."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        for dimension in DIMENSIONS:
            noise = [rng.choice("bcdefg") for _ in range(3)]
            good, bad = (
                "".join(rng.sample([*part[dimension], *noise], 7)) for part in (_GOOD, _BAD)
            )
            rows.append(
                {
                    "prompt": f"{dimension} {number} {seed}",
                    "chosen": good,
                    "rejected": bad,
                    "dimension": dimension,
                    "source": source or f"s{number % 2}",
                }
            )
    return rows


def rating_rows(count: int) -> list[dict]:
    """Ratings of one dimension each, the other null."""
    rows = []
    for number in range(count):
        name = DIMENSIONS[number % 2]
        good = number % 4 < 2
        text = (_GOOD if good else _BAD)[name]
        rows.append(
            {
                "prompt": f"rate {number}",
                "response": f"{text}{number % 7}",
                **dict.fromkeys(DIMENSIONS),
                name: 0.9 if good else 0.1,
            }
        )
    return rows


def tiny_data(count: int = 40, seed: int = 0) -> RewardData:
    """Split pairs of both dimensions."""
    data = reward_data(preference_rows(count, seed), dimensions=DIMENSIONS)
    return data.split(0.2, 0.2, seed=0)
