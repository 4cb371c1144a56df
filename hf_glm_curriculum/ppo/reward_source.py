"""Whatever a user has for a reward, as scores and confidences [B, D].

Structured reward models read texts; sequence classifiers read token ids where they share the
policy's tokenizer and texts where not; functions are TRL's reward functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from hf_glm_curriculum.errors import ConfigError, DataError, IncompatibleError, ModelError
from hf_glm_curriculum.ppo.modules import hidden_states
from hf_glm_curriculum.ppo.packing import READING_FILL, PackedRows, by_length
from hf_glm_curriculum.ppo.rollout import Rollout
from hf_glm_curriculum.rewards.rendering import tokenizers_agree
from hf_glm_curriculum.rewards.scorers import scores_of

Scores = tuple[Tensor, Tensor]


class RewardSource(nn.Module):
    """A reward of D dimensions behind one call; a module, so that trainers move and freeze it."""

    dimensions: tuple[str, ...] = ()
    bounded = False
    """Whether scores are levels in [0, 1] with calibrated confidences, as gates need."""

    def scores(self, rollout: Rollout) -> Scores:
        """Scores and confidences of every row, [B, D] float32 each; NaN is null.

        Raises:
            DataError: if the reward fails or answers something else.
        """
        raise NotImplementedError

    @property
    def config(self) -> Any:
        """What a `RewardPipeline` asks of a scorer: itself, for its dimensions."""
        return self

    @property
    def score_texts(self) -> Callable[..., Any]:
        """Structured scorers' own; the trainer goes through `scores`."""
        raise IncompatibleError("reward_model: is scored through the rollout, not by texts alone")


class StructuredSource(RewardSource):
    """`StructuredRewardModel`, `RewardEnsemble`, `ScalarReward`, `RewardPanel`."""

    bounded = True

    def __init__(self, scorer: Any, chunk: int) -> None:
        super().__init__()
        self.scorer, self.chunk = scorer, chunk
        # An ensemble is no module: what it is made of has to be moved and frozen all the same.
        self.models = nn.ModuleList(_modules(scorer))
        self.dimensions = tuple(scorer.config.dimensions)

    def scores(self, rollout: Rollout) -> Scores:
        """Scores of prompts and answers as texts."""
        output = self.scorer.score_texts(rollout.prompt_texts, rollout.responses)
        scores, confidence = scores_of(output)
        device = rollout.lengths.device
        return scores.float().to(device), confidence.float().to(device)


class ClassifierSource(RewardSource):
    """A sequence classifier: its logits at the last real token; a label is a dimension."""

    def __init__(self, model: Any, policy_tokenizer: Any, tokenizer: Any, chunk: int) -> None:
        super().__init__()
        self.model, self.chunk = model, chunk
        _check_classifier(model)
        self.dimensions = _labels(model)
        same = tokenizer is None or tokenizers_agree(policy_tokenizer, tokenizer)
        self.tokenizer = None if same else tokenizer
        size = getattr(model.config, "vocab_size", None)
        if same and size is not None and size < len(policy_tokenizer):
            raise IncompatibleError(
                f"reward_model: reads {size:,} token ids, the policy's tokenizer has "
                f"{len(policy_tokenizer):,}; pass the reward model's own tokenizer as "
                "reward_processing_class, and texts are tokenised again"
            )

    @torch.no_grad()
    def scores(self, rollout: Rollout) -> Scores:
        """Logits of every row, trimmed and sorted by length."""
        found = torch.empty(len(rollout), len(self.dimensions), device=rollout.lengths.device)
        if self.tokenizer is not None:
            rows = self._retokenised(rollout)
            found.copy_(torch.cat([self._logits(part) for part in rows]))
        else:
            lengths, all_rows = rollout.total_lengths, range(len(rollout))
            for part in by_length(lengths, all_rows, self.chunk, READING_FILL):
                found[part] = self._logits(rollout.packed(part))
        if not bool(torch.isfinite(found).all()):
            row = int((~torch.isfinite(found)).any(dim=1).nonzero()[0])
            raise DataError(
                f"reward_model: gave a reward that is not finite for row {row}; use float32 or "
                "bfloat16 in place of float16, or another checkpoint"
            )
        return found, torch.ones_like(found)

    def _logits(self, rows: PackedRows) -> Tensor:
        model: Any = self.model
        hidden = hidden_states(getattr(model, model.base_model_prefix), rows)
        index = torch.arange(len(hidden), device=hidden.device)
        return model.score(hidden[index, rows.last_places()]).float()

    def _retokenised(self, rollout: Rollout) -> list[PackedRows]:
        tokenizer = cast(Any, self.tokenizer)
        device = rollout.lengths.device
        texts = [p + r for p, r in zip(rollout.prompt_texts, rollout.responses, strict=True)]
        rows = []
        for start in range(0, len(texts), self.chunk):
            batch = tokenizer(
                texts[start : start + self.chunk],
                padding=True,
                padding_side="right",
                return_tensors="pt",
            ).to(device)
            total = batch["attention_mask"].sum(dim=1)
            ids = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 0)
            rows.append(PackedRows(ids, batch["attention_mask"], total - 1, total * 0 + 1, 1))
        return rows


class FunctionSource(RewardSource):
    """Functions ``f(prompts, completions, **columns)``, one for each dimension.

    They get the prompts as the data holds them, the answers as texts, every other column of the
    data as a list under its name, and ``completion_ids``. None says nothing about a row.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = dict(functions)
        self.dimensions = tuple(self.functions)

    def scores(self, rollout: Rollout) -> Scores:
        """One column a function."""
        ids = [
            row[:length]
            for row, length in zip(
                rollout.response_ids.tolist(), rollout.lengths.tolist(), strict=True
            )
        ]
        fields = {**rollout.columns, "completion_ids": ids}
        columns = [
            self._column(name, function, rollout, fields)
            for name, function in self.functions.items()
        ]
        found = torch.tensor(columns, dtype=torch.float32, device=rollout.lengths.device).T
        return found, torch.ones_like(found)

    def _column(
        self, name: str, function: Callable[..., Any], rollout: Rollout, fields: dict[str, Any]
    ) -> list[float]:
        try:
            given = function(
                prompts=list(rollout.prompts),
                completions=list(rollout.responses),
                # Lists of its own: what one function does to them is nothing to the next.
                **{column: list(values) for column, values in fields.items()},
            )
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            raise DataError(
                f"reward {name!r}: raised {type(error).__name__}: {reason}; it is called as "
                f"{name}(prompts=[…], completions=[…], {', '.join(sorted(fields))})"
            ) from error
        return _numbers(name, given, len(rollout))


def reward_source(
    reward: Any, policy_tokenizer: Any, tokenizer: Any = None, chunk: int = 64
) -> RewardSource:
    """Make a source of what the user gave.

    Args:
        reward: a structured scorer, a sequence classifier, a function, a list of functions or a
            mapping from dimension to function.
        policy_tokenizer: the policy's.
        tokenizer: the reward model's own, where it is a classifier with another tokenizer.
        chunk: rows of one forward pass.

    Raises:
        ModelError: if it is none of these.
        ConfigError: if two functions have one name.
        IncompatibleError: if a classifier cannot read the policy's token ids.
    """
    if isinstance(reward, RewardSource):
        return reward
    if hasattr(reward, "score_texts") and hasattr(getattr(reward, "config", None), "dimensions"):
        return StructuredSource(reward, chunk)
    if isinstance(reward, nn.Module):
        return ClassifierSource(reward, policy_tokenizer, tokenizer, chunk)
    return FunctionSource(_named(reward))


def _named(reward: Any) -> dict[str, Callable[..., Any]]:
    if isinstance(reward, Mapping):
        named = [(str(name), function) for name, function in reward.items()]
    elif callable(reward):
        named = [(_name(reward, "reward"), reward)]
    elif isinstance(reward, Sequence) and not isinstance(reward, str):
        named = [(_name(f, f"reward_{i}"), f) for i, f in enumerate(reward)]
    else:
        named = []
    if not named or not all(callable(function) for _, function in named):
        raise ModelError(
            "reward_model: must be a StructuredRewardModel (or ensemble), a sequence classifier, a "
            f"function, or functions by dimension; got {type(reward).__name__}"
        )
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"reward_model: two functions have one name ({', '.join(names)}); pass a mapping from "
            "dimension to function"
        )
    return dict(named)


def _name(function: Any, otherwise: str) -> str:
    """A function's name; partials and objects have none, and lambdas one that says nothing."""
    name = getattr(function, "__name__", otherwise)
    return otherwise if name == "<lambda>" else name


def _numbers(name: str, given: Any, rows: int) -> list[float]:
    """What a function returned, None as NaN.

    Raises:
        DataError: if it is no list of `rows` numbers.
    """
    values = given.tolist() if isinstance(given, Tensor) else given
    try:
        values = list(values)
    except TypeError:
        raise DataError(
            f"reward {name!r}: must return a list of {rows} numbers, got {type(given).__name__}"
        ) from None
    if len(values) != rows:
        raise DataError(
            f"reward {name!r}: must return one number for each of {rows} answers, got {len(values)}"
        )
    return [_number(name, place, value) for place, value in enumerate(values)]


def _number(name: str, place: int, value: Any) -> float:
    if value is None:
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"reward {name!r}: must be a finite number, or None to say nothing; got {value!r} for "
            f"row {place}"
        )
    return number


def _modules(scorer: Any) -> list[nn.Module]:
    """The torch modules inside scorers that are none themselves."""
    if isinstance(scorer, nn.Module):
        return []
    inner = [getattr(scorer, name, None) for name in ("members", "scorers", "model")]
    parts = [p for one in inner for p in (one if isinstance(one, list) else [one])]
    found = [p for p in parts if isinstance(p, nn.Module)]
    deeper = [p for p in parts if p is not None and not isinstance(p, nn.Module | str)]
    return found + [m for p in deeper if not callable(p) for m in _modules(p)]


def _check_classifier(model: Any) -> None:
    prefix = getattr(model, "base_model_prefix", "")
    if not hasattr(model, "score") or not isinstance(getattr(model, prefix, None), nn.Module):
        raise ModelError(
            f"reward_model: {type(model).__name__} is no decoder with a score head; pass "
            "AutoModelForSequenceClassification of a decoder, a ScalarReward around another "
            "model, or a function"
        )


def _labels(model: Any) -> tuple[str, ...]:
    """A dimension for every output: the labels' names where they have any."""
    count = model.score.weight.shape[0]
    names = [str(model.config.id2label.get(i, f"LABEL_{i}")) for i in range(count)]
    if count == 1:
        return ("reward",)
    return tuple(name.lower().replace(" ", "_") for name in names)
