"""Rewards that are one number already, as a dimension beside others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hf_glm_curriculum.errors import ConfigError, DataError, ModelError
from hf_glm_curriculum.rewards.backbones import default_pooling
from hf_glm_curriculum.rewards.config import check_dimensions
from hf_glm_curriculum.rewards.dimensions import check_scores
from hf_glm_curriculum.rewards.output import StructuredRewardOutput
from hf_glm_curriculum.rewards.rendering import TextRenderer, check_texts
from hf_glm_curriculum.rewards.scorers import ScorerConfig, StructuredScorer

RewardCallable = Callable[[Sequence[str], Sequence[str]], Sequence[float | None]]


class ScalarReward:
    """A scalar reward model, or a function, as one dimension in [0, 1].

    s = σ((x − centre)/scale) for a model, whose x is any real number; a function's values are
    taken as they are unless `squash` says otherwise. The gate and the KL gap compare levels: a
    model trained on preferences has none until `calibrate` centres it on rewards it gave.

    Args:
        reward: an `AutoModelForSequenceClassification` with `num_labels=1`, or a function of
            (prompts, responses) that returns one number, or None for "nothing to say", a row.
        name: of the dimension.
        tokenizer: of the model; not needed for a function.
        squash: whether σ is applied; by default for models only.
        centre: what becomes 0.5.
        scale: what is one logit.
        confidence: in [0, 1], said of every row.
        max_length: tokens that the model reads; its own limit without it.

    Raises:
        ModelError: if the model has another number of labels than 1, or no tokenizer.
        ConfigError: if a number is out of range.
    """

    def __init__(
        self,
        reward: nn.Module | RewardCallable,
        name: str = "scalar",
        tokenizer: Any = None,
        *,
        squash: bool | None = None,
        centre: float = 0.0,
        scale: float = 1.0,
        confidence: float = 1.0,
        max_length: int | None = None,
    ) -> None:
        self.reward, self.tokenizer = reward, tokenizer
        self.config = ScorerConfig(check_dimensions((name,)))
        self.is_model = isinstance(reward, nn.Module)
        self.squash = self.is_model if squash is None else squash
        self.centre, self.scale, self.confidence = float(centre), float(scale), float(confidence)
        if not self.scale > 0 or not 0 <= self.confidence <= 1:
            raise ConfigError(
                f"scale, confidence: must be above 0 and in [0, 1], got {scale} and {confidence}"
            )
        self._renderer = _renderer(reward, tokenizer, max_length) if self.is_model else None

    def raw(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        batch_size: int = 8,
        too_long: str = "error",
    ) -> Tensor:
        """The reward as it is, float64 [B] on the CPU; NaN where a function returned None.

        Args:
            prompts: B texts.
            responses: B texts.
            batch_size: rows in one forward pass of a model.
            too_long: what a response does that is longer than a model reads, "error" or "cut".

        Raises:
            DataError: if the texts do not match, or a function returns another number of values.
            ModelError: if a model gives a number that is not finite.
        """
        check_texts(prompts, responses)
        if not len(responses):
            return torch.zeros(0, dtype=torch.float64)
        if self._renderer is None:
            return self._called(prompts, responses)
        self._renderer.too_long = too_long
        rows = self._renderer.encode(prompts, responses)
        starts = _starts(rows, batch_size)
        values = torch.cat([self._forward(rows[i : i + batch_size]) for i in starts])
        bad = (~torch.isfinite(values)).nonzero().flatten()
        if len(bad):
            raise ModelError(
                f"{self.config.dimensions[0]}: the scalar reward model gave "
                f"{float(values[bad[0]])} for row {int(bad[0])}; use float32 or bfloat16"
            )
        return values

    def score_texts(
        self, prompts: Sequence[str], responses: Sequence[str], **options: Any
    ) -> StructuredRewardOutput:
        """Scores, confidence and logits, [B, 1] float32; a None is NaN with confidence 0.

        Args:
            prompts: B texts.
            responses: B texts.
            **options: as `raw` takes them.

        Raises:
            DataError: if a value that is not squashed lies outside [0, 1], or as `raw` does.
        """
        known = {k: v for k, v in options.items() if k in ("batch_size", "too_long")}
        values = self.raw(prompts, responses, **known)[:, None]
        logits = (values - self.centre) / self.scale
        scores = torch.sigmoid(logits) if self.squash else values
        if not self.squash:
            check_scores(scores, self.config.dimensions)
            logits = torch.logit(scores, eps=1e-6)
        null = torch.isnan(scores)
        sure = torch.full_like(scores, self.confidence).masked_fill(null, 0.0)
        return StructuredRewardOutput(
            scores=scores.float(), confidence=sure.float(), logits=logits.float()
        )

    def calibrate(self, values: Sequence[float] | Tensor) -> ScalarReward:
        """Set the centre to the median of raw rewards and the scale to their deviation.

        Args:
            values: raw rewards of typical responses, at least two different ones; see `raw`.

        Returns:
            This object.

        Raises:
            DataError: if the values do not differ or are not finite.
        """
        known = torch.as_tensor(values, dtype=torch.float64)
        spread = float(known.std(correction=0)) if known.numel() else 0.0
        if not 0.0 < spread < float("inf"):
            raise DataError(
                f"values: need two different finite rewards to set a scale, got {known.numel()} "
                f"with deviation {spread:g}"
            )
        self.centre, self.scale = float(known.median()), spread
        return self

    def _called(self, prompts: Sequence[str], responses: Sequence[str]) -> Tensor:
        given = list(self.reward(prompts, responses))
        name = self.config.dimensions[0]
        if len(given) != len(responses):
            raise DataError(
                f"{name}: the function returned {len(given)} values for {len(responses)} rows; "
                "return one value, or None, for each"
            )
        wrong = [row for row, value in enumerate(given) if value is not None and value != value]
        if wrong:
            raise DataError(
                f"{name}: the function gave NaN for row {wrong[0]}; return None instead"
            )
        numbers = [float("nan") if value is None else float(value) for value in given]
        return torch.tensor(numbers, dtype=torch.float64)

    @torch.no_grad()
    def _forward(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """One batch, padded with the model's own pad token, which it looks for itself."""
        model: Any = self.reward
        pad = model.config.get_text_config().pad_token_id
        if pad is None and len(rows) > 1:
            return torch.cat([self._forward([row]) for row in rows])
        batch = self._renderer.pad(rows)  # type: ignore[union-attr]
        if pad is not None:
            batch.input_ids.masked_fill_(batch.attention_mask == 0, pad)
        was_training = model.training
        model.eval()
        try:
            device = next(model.parameters()).device
            out = model(**{name: tensor.to(device) for name, tensor in batch.tensors().items()})
        finally:
            model.train(was_training)
        return out.logits[:, 0].double().cpu()


class RewardPanel:
    """Scorers side by side: the columns of all of them, in order, as one scorer.

    ``RewardPanel(structured_model, ScalarReward(old_model, "helpful", tokenizer))`` has four
    dimensions.

    Raises:
        ModelError: if there is no scorer, or a dimension occurs twice.
    """

    def __init__(self, *scorers: StructuredScorer) -> None:
        names = [name for scorer in scorers for name in scorer.config.dimensions]
        twice = sorted({name for name in names if names.count(name) > 1})
        if not scorers or twice:
            raise ModelError(
                f"scorers: need at least one, and every dimension once, got {names or 'none'}; "
                "give a ScalarReward another name"
            )
        self.scorers = list(scorers)
        self.config = ScorerConfig(tuple(names))

    @property
    def tokenizer(self) -> Any:
        """The first scorer's tokenizer; every scorer reads texts with its own."""
        return getattr(self.scorers[0], "tokenizer", None)

    def score_texts(
        self, prompts: Sequence[str], responses: Sequence[str], **options: Any
    ) -> StructuredRewardOutput:
        """Scores, confidence and logits of every scorer, [B, D] float32 on the CPU.

        Args:
            prompts: B texts.
            responses: B texts.
            **options: handed on to each scorer.

        Raises:
            DataError: as the scorers do.
        """
        outputs = [s.score_texts(prompts, responses, **options).to_tuple() for s in self.scorers]
        columns = zip(*outputs, strict=True)
        return StructuredRewardOutput(
            *(torch.cat([part.float().cpu() for part in column], dim=1) for column in columns)
        )


def _renderer(model: Any, tokenizer: Any, max_length: int | None) -> TextRenderer:
    labels = getattr(model.config, "num_labels", None)
    if labels != 1:
        raise ModelError(
            f"reward: a scalar reward model has num_labels=1, got {labels}; with more, only the "
            "first would be read. Use StructuredRewardModel for several dimensions"
        )
    config = model.config.get_text_config()
    own = getattr(config, "max_position_embeddings", None)
    limits = [size for size in (max_length, own) if size]
    pair = default_pooling(model.config) == "cls"
    return TextRenderer(tokenizer, min(limits) if limits else None, pair=pair)


def _starts(rows: Sequence[Any], batch_size: int) -> range:
    if batch_size < 1:
        raise DataError(f"batch_size: must be at least 1, got {batch_size}")
    return range(0, len(rows), batch_size)
