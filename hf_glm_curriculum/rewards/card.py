"""The model card: what a reward model measures, how well, and from which confidence to trust it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hf_glm_curriculum.storage import atomic_write_text

CARD_FILE = "README.md"
_COLUMNS = (
    ("pairs", "pairs"),
    ("pairwise_accuracy", "pairwise accuracy"),
    ("level_accuracy", "right side of 0.5"),
    ("ece_before", "ECE before calibration"),
    ("ece", "ECE"),
    ("auroc", "AUROC of confidence"),
    ("open_share", "gates open"),
)


def write_card(model: Any, folder: str | os.PathLike[str]) -> Path:
    """Write `README.md` beside a model's weights and return its path.

    Raises:
        StateError: The file cannot be written.
    """
    path = Path(folder) / CARD_FILE
    atomic_write_text(path, render_card(model.config, model.added_parameters()))
    return path


def render_card(config: Any, parameters: Mapping[str, float]) -> str:
    """The card's text, from what the config says of thresholds, calibration and training.

    Args:
        config: a `StructuredRewardConfig`.
        parameters: from `StructuredRewardModel.added_parameters`.
    """
    training = config.training
    name = training.get("backbone") or getattr(config.backbone_config, "_name_or_path", "") or ""
    parts = [
        _front_matter(config),
        "# Structured reward model",
        f"Scores a response in {len(config.dimensions)} dimension(s): "
        f"**{', '.join(config.dimensions)}**. Each score lies in [0, 1]; 0.5 is where chosen and "
        "rejected responses of the validation split average. Each comes with a calibrated "
        "confidence: the probability that the score lies on the right side of 0.5.",
        f"Backbone: `{name or config.backbone_config.model_type}`, pooled by `{config.pooling}`; "
        f"{parameters['added']:,} parameters of heads, {parameters['share']:.2%} of the backbone.",
        "## Use",
        _usage(),
        "## Threshold",
        f"Trust a dimension from a confidence of **{config.gate_threshold:g}** on "
        f"(`RewardGate(threshold={config.gate_threshold:g})`); below it the dimension should say "
        "nothing.",
        "## Measured",
        _measured(config),
    ]
    if training:
        parts += ["## Training", _facts(training)]
    parts += ["## Limits", _limits(config)]
    return "\n\n".join(parts) + "\n"


def _front_matter(config: Any) -> str:
    head = {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["reward-model", "hf-glm-curriculum", *config.dimensions],
    }
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---"


def _usage() -> str:
    return (
        "```python\n"
        "from hf_glm_curriculum import StructuredRewardModel\n\n"
        'model = StructuredRewardModel.from_pretrained("<this repository>")\n'
        "out = model.score_texts([prompt], [response])\n"
        "out.scores, out.confidence  # [1, D] each, columns as model.config.dimensions\n"
        "```"
    )


def _measured(config: Any) -> str:
    """Tables of the figures a training run left in the config."""
    if not config.calibration:
        return "Nothing was measured: the heads are as they were made, and their scores are noise."
    parts = []
    for split, figures in config.calibration.items():
        if not isinstance(figures, Mapping):
            continue
        rows = [(name, figures[name]) for name in config.dimensions if figures.get(name)]
        if rows:
            parts += [f"On {split}:", _table(rows)]
    return "\n\n".join(parts)


def _table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    used = [(key, title) for key, title in _COLUMNS if any(r.get(key) is not None for _, r in rows)]
    lines = ["| dimension | " + " | ".join(title for _, title in used) + " |"]
    lines.append("|" + " --- |" * (len(used) + 1))
    for name, figures in rows:
        cells = [_cell(figures.get(key)) for key, _ in used]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def _facts(training: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in training.items())


def _limits(config: Any) -> str:
    known = config.calibration.get("unseen sources")
    shift = (
        "The figures on unseen sources above say how far that goes."
        if known
        else "No source was held out to say how far that goes."
    )
    return (
        "Scores and confidences hold for responses like those trained on. A policy trained "
        f"against this model leaves that distribution on purpose. {shift} Collect responses from "
        "the policy, rank them and train the heads again."
    )
