"""The reward of a `ppo` run: rules by name, reward models by folder or hub id, or an ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_glm_curriculum.commands.ppo_config import PpoCommandConfig
from hf_glm_curriculum.commands.run_models import model_of
from hf_glm_curriculum.config_types import nearest
from hf_glm_curriculum.errors import ConfigError, ModelError
from hf_glm_curriculum.rewards.rules import RULES, rule_rewards

Table = list[dict[str, float | None]]
"""A row an answer: dimension → number."""


@dataclass
class LoadedReward:
    """A reward as the trainer takes it, and as answers are scored with it outside of training.

    Attributes:
        model: for the trainer's `reward_model`.
        tokenizer: for its `reward_processing_class`.
        dimensions: names of the scores.
        structured: whether it gives levels in [0, 1] with confidences.
        name: what it is called in the report.
    """

    model: Any
    tokenizer: Any
    dimensions: tuple[str, ...]
    structured: bool
    name: str

    def score(
        self, prompts: Sequence[str], answers: Sequence[str], columns: Sequence[Mapping[str, Any]]
    ) -> tuple[Table, Table]:
        """Scores and confidences of answers; None is null.

        Args:
            prompts: texts.
            answers: texts.
            columns: what rules read of each row.

        Raises:
            DataError: A rule or model cannot score them.
        """
        if not answers:
            return [], []
        if isinstance(self.model, dict):
            fields = {name: [row.get(name) for row in columns] for name in columns[0]}
            found = [f(list(prompts), list(answers), **fields) for f in self.model.values()]
            return self._table(zip(*found, strict=True)), [{} for _ in answers]
        if self.structured:
            output = self.model.score_texts(list(prompts), list(answers))
            return (
                self._table(output.scores.tolist()),
                self._table(output.confidence.tolist()),
            )
        from hf_glm_curriculum.rewards.scalar import ScalarReward

        scorer = ScalarReward(self.model, self.dimensions[0], self.tokenizer)
        values = scorer.raw(list(prompts), list(answers), too_long="cut").tolist()
        return self._table([value] for value in values), [{} for _ in answers]

    def _table(self, rows: Any) -> Table:
        return [
            {
                name: None if value is None or value != value else round(float(value), 4)
                for name, value in zip(self.dimensions, row, strict=True)
            }
            for row in rows
        ]


def check_reward_names(config: PpoCommandConfig) -> None:
    """Refuse names that can be no reward, before anything loads.

    Raises:
        ConfigError: Nothing is named, a name is neither rule nor model, or both kinds are mixed.
        ModelError: A run has not saved its model.
    """
    if not config.reward:
        raise ConfigError(
            f"reward: needs the folder of a reward run, a reward model, or a rule out of "
            f"{', '.join(RULES)}; pass --reward length to try it out"
        )
    rules = [name for name in config.reward if _is_rule(name)]
    for name in config.reward:
        if not _is_rule(name) and "/" not in name and not Path(name).expanduser().exists():
            raise ConfigError(
                f"reward: {name!r} is no rule and no folder; {nearest(name, RULES)} (a hub id has "
                "the form owner/name)"
            )
        if not _is_rule(name):
            model_of(name)
    if rules and len(rules) < len(config.reward):
        raise ConfigError(
            f"reward: rules ({', '.join(rules)}) and reward models do not mix; name either"
        )


def load_reward(config: PpoCommandConfig) -> LoadedReward:
    """Load what `reward` names.

    Raises:
        ConfigError: As `check_reward_names`.
        ModelError: A model cannot be loaded, or several do not go together.
    """
    check_reward_names(config)
    shown = ", ".join(config.reward)
    if _is_rule(config.reward[0]):
        rules = rule_rewards(config.reward, length_target=config.length_target)
        return LoadedReward(rules, None, tuple(rules), False, f"rules: {shown}")
    loaded = [_load_model(model_of(name)) for name in config.reward]
    if len(loaded) == 1:
        return LoadedReward(*loaded[0], name=shown)
    return LoadedReward(*_together([one[0] for one in loaded], config), name=shown)


def _is_rule(name: str) -> bool:
    return name in RULES and not Path(name).is_dir()


def _together(models: Sequence[Any], config: PpoCommandConfig) -> tuple[Any, Any, Any, bool]:
    """Models of the same dimensions as an ensemble, others side by side."""
    from hf_glm_curriculum.rewards.ensemble import RewardEnsemble
    from hf_glm_curriculum.rewards.scalar import RewardPanel

    if not all(hasattr(model, "score_texts") for model in models):
        raise ModelError(
            f"reward: {', '.join(config.reward)}: plain sequence classifiers have no scale in "
            "common with others; name one alone, or structured reward models"
        )
    same = len({tuple(model.config.dimensions) for model in models}) == 1
    joined: Any = RewardEnsemble(models, config.ensemble_penalty) if same else RewardPanel(*models)
    return joined, joined.tokenizer, tuple(joined.config.dimensions), True


def _load_model(source: str) -> tuple[Any, Any, tuple[str, ...], bool]:
    """A structured reward model, or a sequence classifier with one output.

    Raises:
        ModelError: It is neither, or cannot be loaded.
    """
    from transformers import AutoConfig

    from hf_glm_curriculum.models import resolve_model
    from hf_glm_curriculum.rewards.config import StructuredRewardConfig
    from hf_glm_curriculum.rewards.model import StructuredRewardModel

    try:
        source = resolve_model(source)
        kind = AutoConfig.from_pretrained(source)
    except (OSError, ValueError, KeyError, ModelError) as error:
        raise _no_reward_model(source, error) from error
    if isinstance(kind, StructuredRewardConfig):
        model = StructuredRewardModel.from_pretrained(source)
        return model, model.tokenizer, tuple(model.config.dimensions), True
    return _load_classifier(source, kind)


def _no_reward_model(source: str, error: Exception) -> ModelError:
    """One line; a path that is not there is most likely a run that has not been made."""
    if not Path(source).exists():
        return ModelError(
            f"reward: {source!r} is neither a folder here nor a model on the hub; to make one of "
            f"demo data: hf-glm-curriculum reward --demo 600 --output-dir {source}"
        )
    reason = " ".join(str(error).split())[:300]
    return ModelError(
        f"reward: cannot load {source!r} ({reason}); name the folder of a reward run, a reward "
        "model, or a rule"
    )


def _load_classifier(source: str, kind: Any) -> tuple[Any, Any, tuple[str, ...], bool]:
    from transformers import AutoModelForSequenceClassification

    from hf_glm_curriculum.models import load_tokenizer
    from hf_glm_curriculum.rewards.scalar import ScalarReward

    classifies = any("SequenceClassification" in name for name in kind.architectures or ())
    if not classifies or kind.num_labels != 1:
        found = ", ".join(kind.architectures or ()) or kind.model_type
        raise ModelError(
            f"reward: {source!r} holds {found} with {kind.num_labels} labels, and a reward model "
            "has a trained head with one; train one with hf-glm-curriculum reward"
        )
    tokenizer = load_tokenizer(source)
    try:
        model = AutoModelForSequenceClassification.from_pretrained(source)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"reward: cannot load {source!r} ({reason}); check the folder") from error
    model.eval()
    if hasattr(model, "score"):
        return model, tokenizer, ("reward",), False
    # An encoder, which no trainer reads by its last token: texts go through its own tokenizer.
    return ScalarReward(model, "reward", tokenizer), tokenizer, ("reward",), True


def reward_parts(config: PpoCommandConfig, reward: LoadedReward) -> dict[str, Any]:
    """Gate, weights, shaper, unlocking and KL controller for the trainer, as far as they are set.

    What is left out takes the trainer's default.

    Raises:
        ConfigError: A setting names an unknown dimension or is out of range.
    """
    from hf_glm_curriculum.rewards.gate import RewardGate
    from hf_glm_curriculum.rewards.kl import KLController
    from hf_glm_curriculum.rewards.shaper import RewardShaper
    from hf_glm_curriculum.rewards.unlock import ProgressiveUnlock

    use, names = config.use, reward.dimensions
    structured = is_structured(config, reward)
    parts: dict[str, Any] = {}
    if structured:
        parts["gate"] = RewardGate(use.gate_threshold, use.gate_fallback, names)
    if use.dimension_weights:
        parts["weights"] = _weights(use.dimension_weights, names)
    if use.unlock:
        _known("unlock", use.unlock, names)
        parts["unlock"] = ProgressiveUnlock(
            use.unlock, use.unlock_target, use.unlock_min_updates, use.unlock_max_updates
        )
    if use.length_band:
        least, most = use.length_band
        parts["shaper"] = RewardShaper(dimensions=names, length_band=(least, most))
    controls = use.target_kl is not None or (structured and use.kl_kappa != 1.0)
    if controls and config.kl_coef > 0:
        kappa = use.kl_kappa if structured and "factual" in names and len(names) > 1 else 0.0
        parts["kl_controller"] = KLController(
            config.kl_coef, kappa, target=use.target_kl, dimensions=names
        )
    return parts


def is_structured(config: PpoCommandConfig, reward: LoadedReward) -> bool:
    """Whether scores pass a gate and what else structured rewards have."""
    return reward.structured if config.use.structured is None else config.use.structured


def _weights(given: Mapping[str, float], names: Sequence[str]) -> Any:
    from hf_glm_curriculum.rewards.weights import DimensionWeights

    _known("dimension_weights", given, names)
    usual = DimensionWeights()
    if set(names) <= set(usual.dimensions):
        return DimensionWeights.of({**usual.weights, **given}).reordered(names)
    return DimensionWeights.of({name: given.get(name, 1.0) for name in names})


def _known(field: str, given: Any, names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise ConfigError(f"{field}: the reward has no {name!r}; {nearest(name, names)}")
