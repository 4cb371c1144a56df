"""Structured rewards as TRL reward functions, for GRPO and RLOO.

GRPO takes one function a dimension and must normalise each before it sums
(`multi_objective_aggregation="normalize_then_sum"`, the decoupling of GDPO, arXiv 2601.05242): the
default sums first, where a closed dimension counts as a reward of 0. RLOO only sums, and takes one
combined function.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hf_glm_curriculum.csv_dump import CsvDump
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.rewards.gate import RewardGate
from hf_glm_curriculum.rewards.pipeline import RewardPipeline, ScoredBatch
from hf_glm_curriculum.rewards.scorers import StructuredScorer
from hf_glm_curriculum.rewards.shaper import RewardShaper
from hf_glm_curriculum.rewards.trl_host import GatedReward, check_reward_host, host_of
from hf_glm_curriculum.rewards.unlock import ProgressiveUnlock
from hf_glm_curriculum.rewards.weights import DimensionWeights
from hf_glm_curriculum.signals.distributed import rank

Texts = Sequence[Any]


class SharedRewards:
    """What the functions of one reward model share: the pipeline, and the batch scored last.

    TRL calls the functions one after the other on the same batch; the model scores it once.
    """

    def __init__(
        self,
        pipeline: RewardPipeline,
        *,
        weighted: bool,
        refusal_column: str,
        debug_dir: str | os.PathLike[str] | None,
    ) -> None:
        self.pipeline = pipeline
        self.weighted = weighted
        self.refusal_column = refusal_column
        self.debug_dir = debug_dir
        self._forget()

    def batch(
        self, caller: str, prompts: Texts, completions: Texts, fields: Mapping[str, Any]
    ) -> ScoredBatch:
        """The batch, scored now unless another function has just had it scored."""
        texts = [prompt_text(p) for p in prompts], [completion_text(c) for c in completions]
        host = host_of(fields)
        if host is not None and not self._checked:
            check_reward_host(host)
            self._checked = True
        # A function that comes back with the texts it had is on a new batch.
        if self._scored is None or texts != self._texts or caller in self._served:
            self._texts, self._served = texts, set()
            self._scored = self._score(*texts, fields, host)
        self._served.add(caller)
        return self._scored

    def _score(
        self, prompts: list[str], responses: list[str], fields: Mapping[str, Any], host: Any
    ) -> ScoredBatch:
        training = host is None or bool(getattr(host.model, "training", True))
        ids = fields.get("completion_ids")
        scored = self.pipeline.score(
            prompts,
            responses,
            n_tokens=None if ids is None else [len(row) for row in ids],
            ended=_ended(ids, host),
            refusal_ok=_refusal_ok(fields.get(self.refusal_column), len(responses)),
            update=training,
        )
        log_metric = fields.get("log_metric")
        if log_metric is not None:
            for name, value in scored.metrics().items():
                log_metric(name, value)
        if self.debug_dir is not None and training:
            self._write_debug(scored, getattr(fields.get("trainer_state"), "global_step", 0))
        return scored

    def _write_debug(self, scored: ScoredBatch, step: int) -> None:
        kinds = ("score", "confidence", "open", "shaped")
        columns = ["step", "row", "reward", *(f"{k}_{n}" for n in scored.dimensions for k in kinds)]
        if self._dump is None:
            name = "rewards.csv" if rank() == 0 else f"rewards-rank{rank()}.csv"
            self._dump = CsvDump(Path(self.debug_dir or ".") / name, columns)
            self._dump.rewind(step - 1)
        tables = (scored.scores, scored.confidence, scored.mask.float(), scored.shaped)
        values = torch.stack([t.float().cpu() for t in tables], dim=2).flatten(1).tolist()
        rewards = scored.reward.tolist()
        self._dump.write([step, row, rewards[row], *values[row]] for row in range(len(values)))

    def _forget(self) -> None:
        self._texts: tuple[list[str], list[str]] | None = None
        self._scored: ScoredBatch | None = None
        self._served: set[str] = set()
        self._dump: CsvDump | None = None
        self._checked = False

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the batch under way, which belongs to the process."""
        kept = ("pipeline", "weighted", "refusal_column", "debug_dir")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


class DimensionReward(GatedReward):
    """One dimension as a TRL reward function: a number where it is open, None where it is closed.

    Its `__name__` is the dimension's, under which TRL logs it.
    """

    def __init__(self, shared: SharedRewards, dimension: str) -> None:
        self.shared, self.dimension = shared, dimension
        self.__name__ = dimension

    def __call__(self, prompts: Texts, completions: Texts, **fields: Any) -> list[float | None]:
        """Shaped scores of the dimension.

        Args:
            prompts: B texts or conversations.
            completions: B texts or lists of messages.
            **fields: what TRL passes besides.

        Returns:
            B numbers; None where the gate is closed, the dimension locked or the score null.

        Raises:
            IncompatibleError: if the trainer would count a None as a reward of 0.
            DataError: if the texts or scores do not fit.
        """
        scored = self.shared.batch(self.dimension, prompts, completions, fields)
        column = scored.dimensions.index(self.dimension)
        values, mask = scored.shaped[:, column].tolist(), scored.mask[:, column].tolist()
        return [value if opened else None for value, opened in zip(values, mask, strict=True)]

    def __repr__(self) -> str:
        return f"DimensionReward({self.dimension!r})"


class CombinedReward:
    """All dimensions as one TRL reward function, for RLOO or any trainer that only sums."""

    def __init__(self, shared: SharedRewards, name: str) -> None:
        self.shared = shared
        self.__name__ = name

    def __call__(self, prompts: Texts, completions: Texts, **fields: Any) -> list[float | None]:
        """The weighted reward of every row; None where every dimension is null.

        Args:
            prompts: B texts or conversations.
            completions: B texts or lists of messages.
            **fields: what TRL passes besides.

        Raises:
            DataError: if the texts or scores do not fit.
        """
        values = self.shared.batch(self.__name__, prompts, completions, fields).reward.tolist()
        return [None if value != value else value for value in values]

    def __repr__(self) -> str:
        return f"CombinedReward({self.__name__!r})"


def structured_reward_functions(
    model: StructuredScorer,
    gate: RewardGate | None = None,
    weights: DimensionWeights | None = None,
    shaper: RewardShaper | None = None,
    *,
    unlock: ProgressiveUnlock | None = None,
    score_options: Mapping[str, Any] | None = None,
    refusal_column: str = "refusal_ok",
    debug_dir: str | os.PathLike[str] | None = None,
) -> list[DimensionReward]:
    """One TRL reward function a dimension, for `GRPOTrainer(reward_funcs=...)`.

    The trainer needs `GRPOConfig(multi_objective_aggregation="normalize_then_sum")`. Rollouts by
    vLLM need nothing else: the functions see texts. The reward model stays on its own device.
    `RewardStateCallback(functions)` keeps the running state in checkpoints.

    Args:
        model: scores texts; a `StructuredRewardModel`, `RewardEnsemble` or `RewardPanel`.
        gate: closes dimensions of rows; all open without it.
        weights: become the trainer's `reward_weights` where the user set none; a factor on the
            rewards themselves would be normalised away.
        shaper: normalisation and penalties.
        unlock: which dimensions are in use.
        score_options: handed to `model.score_texts`, such as ``{"too_long": "cut"}``.
        refusal_column: column of the data set that says where a refusal is called for.
        debug_dir: where to write every row's scores, confidences and gates as CSV.

    Returns:
        D functions, picklable, in the order of the model's dimensions.

    Raises:
        ConfigError: if gate, weights, shaper or unlock are of other dimensions than the model.
    """
    pipeline = RewardPipeline(
        model, gate, weights, shaper, unlock=unlock, score_options=score_options
    )
    shared = SharedRewards(
        pipeline,
        weighted=weights is not None,
        refusal_column=refusal_column,
        debug_dir=debug_dir,
    )
    return [DimensionReward(shared, name) for name in pipeline.dimensions]


def combined_reward_function(
    model: StructuredScorer,
    gate: RewardGate | None = None,
    weights: DimensionWeights | None = None,
    shaper: RewardShaper | None = None,
    *,
    unlock: ProgressiveUnlock | None = None,
    score_options: Mapping[str, Any] | None = None,
    refusal_column: str = "refusal_ok",
    debug_dir: str | os.PathLike[str] | None = None,
    name: str = "structured_reward",
) -> CombinedReward:
    """One TRL reward function over all dimensions, for `RLOOTrainer(reward_funcs=...)`.

    Args:
        model: as in `structured_reward_functions`, and so are the other arguments.
        gate: closes dimensions of rows.
        weights: of the dimensions in the sum; equal without it.
        shaper: normalisation and penalties.
        unlock: which dimensions are in use.
        score_options: handed to `model.score_texts`.
        refusal_column: column of the data set that says where a refusal is called for.
        debug_dir: where to write every row's scores, confidences and gates as CSV.
        name: under which TRL logs the reward.

    Raises:
        ConfigError: if gate, weights, shaper or unlock are of other dimensions than the model.
    """
    pipeline = RewardPipeline(
        model, gate, weights, shaper, unlock=unlock, score_options=score_options
    )
    shared = SharedRewards(
        pipeline, weighted=False, refusal_column=refusal_column, debug_dir=debug_dir
    )
    return CombinedReward(shared, name)


def prompt_text(prompt: Any) -> str:
    """A prompt as one text: a single user turn's content, or the turns with their roles.

    Raises:
        DataError: if it is neither text nor a list of messages with text.
    """
    if isinstance(prompt, str):
        return prompt
    turns = [(_field(turn, "role"), _content(turn)) for turn in _messages(prompt)]
    if len(turns) == 1:
        return turns[0][1]
    return "\n".join(f"{role}: {content}" for role, content in turns)


def completion_text(completion: Any) -> str:
    """A completion as one text: its messages' contents, a line break between them.

    Raises:
        DataError: if it is neither text nor a list of messages with text.
    """
    if isinstance(completion, str):
        return completion
    return "\n".join(_content(turn) for turn in _messages(completion))


def _messages(value: Any) -> list[Any]:
    if isinstance(value, list) and value:
        return value
    raise DataError(
        f"prompts, completions: must be texts or lists of messages, got {type(value).__name__} "
        f"{str(value)[:40]!r}"
    )


def _field(turn: Any, name: str) -> str:
    if isinstance(turn, Mapping) and isinstance(turn.get(name), str):
        return turn[name]
    raise DataError(f"messages: every turn needs the text {name!r}, got {str(turn)[:80]!r}")


def _content(turn: Any) -> str:
    """The text of a turn, whose content may be a list of parts."""
    if isinstance(turn, Mapping) and isinstance(turn.get("content"), list):
        parts = [part for part in turn["content"] if part.get("type") == "text"]
        return "\n".join(_field(part, "text") for part in parts)
    if isinstance(turn, Mapping) and turn.get("content", "") is None:
        return ""  # a turn that only calls a tool
    return _field(turn, "content")


def _ended(ids: Sequence[Sequence[int]] | None, host: Any) -> list[bool] | None:
    """Whether each completion's last token ends a sequence; None where nobody says what does."""
    tokenizer = getattr(host, "processing_class", None)
    known = getattr(host, "eos_token_ids", None) or getattr(tokenizer, "eos_token_id", None)
    if ids is None or known is None:
        return None
    ends = {known} if isinstance(known, int) else set(known)
    return [len(row) > 0 and int(row[-1]) in ends for row in ids]


def _refusal_ok(column: Any, number: int) -> list[bool] | None:
    if not isinstance(column, list | tuple) or len(column) != number:
        return None
    return [bool(value) for value in column]
