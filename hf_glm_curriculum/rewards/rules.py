"""Rewards that are rules: functions of prompts, completions and columns, in TRL's form.

They need no model, so that a policy that does not learn from one of them has a fault elsewhere: the
first rungs of the debugging ladder. Every rule gives a number in [0, 1], or None where it has
nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hf_glm_curriculum.config_types import nearest
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.construct import RULE_DIMENSIONS, own_check
from hf_glm_curriculum.rewards.trl_functions import completion_text, prompt_text
from hf_glm_curriculum.text.checks import check_answer
from hf_glm_curriculum.text.language import detect_language
from hf_glm_curriculum.text.refusals import is_refusal
from hf_glm_curriculum.text.repetition import repeated_ngram_share
from hf_glm_curriculum.text.words import word_count

CHECK_COLUMN = "answer_check"
"""The column with what makes an answer right; see `text.checks`."""

_NGRAM = 3

Judged = Callable[[str, str, Any], float | None]
"""(prompt, answer, its row's check) → the reward."""


class RuleReward:
    """A rule as a TRL reward function, under the rule's name.

    Args:
        name: of the rule, which becomes `__name__`.
        judge: gives one row's reward.
    """

    def __init__(self, name: str, judge: Judged) -> None:
        self.__name__ = name
        self.judge = judge

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """One number in [0, 1], or None, a row.

        Args:
            prompts: B texts or conversations.
            completions: B texts or lists of messages.
            **columns: further columns of the data, of which `answer_check` is read.

        Raises:
            DataError: A text or a check is malformed, or a column has another length.
        """
        checks = columns.get(CHECK_COLUMN)
        checks = [None] * len(completions) if checks is None else checks
        if not len(prompts) == len(completions) == len(checks):
            raise DataError(
                f"{self.__name__}: needs one prompt and one {CHECK_COLUMN} a completion, got "
                f"{len(prompts)}, {len(checks)} and {len(completions)}"
            )
        rows = zip(prompts, completions, checks, strict=True)
        return [self.judge(prompt_text(p), completion_text(c), check) for p, c, check in rows]

    def __repr__(self) -> str:
        return f"RuleReward({self.__name__!r})"


def rule_rewards(names: Sequence[str], *, length_target: float = 30.0) -> dict[str, RuleReward]:
    """Rewards by their rules' names, each a dimension.

    Args:
        names: keys of `RULES`.
        length_target: words and Han characters that the rule `length` asks for.

    Raises:
        ConfigError: A name is unknown or given twice, or the target is not above 0.
    """
    if not length_target > 0:
        raise ConfigError(f"length_target: must be above 0, got {length_target}")
    for name in names:
        if name not in RULES:
            raise ConfigError(f"reward: {name!r} is no rule; {nearest(name, RULES)}")
        if list(names).count(name) > 1:
            raise ConfigError(f"reward: {name!r} is named twice; keep one")
    judges: dict[str, Judged] = {**_JUDGES, "length": partial(_length, length_target)}
    return {name: RuleReward(name, judges[name]) for name in names}


def _length(target: float, prompt: str, answer: str, check: Any) -> float:
    """1 at the target, falling in proportion to 0 at none or twice as many words."""
    return max(0.0, 1.0 - abs(word_count(answer) - target) / target)


def _correct(prompt: str, answer: str, check: Any) -> float | None:
    found = own_check({CHECK_COLUMN: check})
    return None if found is None else float(check_answer(answer, found))


def _correct_in(dimension: str, prompt: str, answer: str, check: Any) -> float | None:
    found = own_check({CHECK_COLUMN: check})
    if found is None or RULE_DIMENSIONS.get(str(found.get("kind"))) != dimension:
        return None
    return float(check_answer(answer, found))


def _fresh(prompt: str, answer: str, check: Any) -> float:
    return 1.0 - repeated_ngram_share(answer, _NGRAM)


def _willing(prompt: str, answer: str, check: Any) -> float:
    return float(not is_refusal(answer))


def _same_language(prompt: str, answer: str, check: Any) -> float | None:
    wanted = detect_language(prompt)
    return None if wanted == "other" else float(detect_language(answer) == wanted)


_JUDGES: Mapping[str, Judged] = {
    "correct": _correct,
    "factual": partial(_correct_in, "factual"),
    "logic": partial(_correct_in, "logic"),
    "compliance": partial(_correct_in, "compliance"),
    "no_repetition": _fresh,
    "no_refusal": _willing,
    "same_language": _same_language,
}

RULES: Mapping[str, str] = {
    "length": "1 at length_target words, less the further from it",
    "correct": "1 where the answer passes the row's answer_check; nothing without one",
    "factual": "the same, for checks of kinds exact, contains and choice alone",
    "logic": "the same, for checks of kinds number, sequence and yes_no alone",
    "compliance": "the same, for checks of kinds format, language and refusal alone",
    "no_repetition": "1 less the share of 3-grams that the answer repeats",
    "no_refusal": "1 unless the answer declines",
    "same_language": "1 where the answer is in the prompt's language",
}
"""Name → what it rewards."""
