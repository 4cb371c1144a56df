"""Pooled features of every item, computed once and kept on disk.

A frozen backbone gives a text the same features in every epoch. They are written in shards, each
whole or absent, so that a killed run goes on where it was; a lock keeps two runs from computing
the same ones.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.models import model_fingerprint
from hf_glm_curriculum.progress import progress
from hf_glm_curriculum.rewards.model import StructuredRewardModel
from hf_glm_curriculum.storage import (
    ensure_folder,
    load_tensors,
    locked,
    save_tensors,
    sweep_temporaries,
)

logger = logging.getLogger(__name__)

SHARD = 256
"""Texts a shard: what a kill may cost."""


def feature_key(model: StructuredRewardModel, rows: Sequence[Sequence[int]]) -> str:
    """Sixteen hex digits of everything features depend on: weights, pooling and tokens."""
    digest = hashlib.sha256(model_fingerprint(model.backbone).encode())
    parameter = next(model.backbone.parameters())
    digest.update(f"{model.config.pooling} {parameter.dtype} {SHARD}".encode())
    for row in rows:
        digest.update(torch.as_tensor(row, dtype=torch.int64).numpy().tobytes() + b"|")
    return digest.hexdigest()[:16]


def pooled_features(
    model: StructuredRewardModel,
    prompts: Sequence[str],
    responses: Sequence[str],
    folder: str | os.PathLike[str] | None = None,
    *,
    batch_size: int = 8,
    too_long: str = "cut",
    show_progress: bool | None = None,
) -> Tensor:
    """Features [N, H] float32 of (prompt, response) items, read from disk where they are there.

    Args:
        model: whose backbone reads them.
        prompts: of the items.
        responses: of the items.
        folder: where features are kept, below a key of weights and tokens; None keeps none.
        batch_size: items in one forward pass.
        too_long: as in `TextRenderer`.
        show_progress: see `progress`.

    Raises:
        DataError: A text cannot be rendered.
        StateError: The folder cannot be written.
    """
    renderer = model.renderer(too_long)
    rows = renderer.encode(prompts, responses)
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    parts = [order[start : start + SHARD] for start in range(0, len(order), SHARD)]
    found = torch.empty(len(rows), model.config.hidden_size)

    def compute(part: list[int]) -> Tensor:
        return model.pooled(renderer, [rows[row] for row in part], batch_size)

    with progress(len(rows), "Reading responses (kept for later)", show_progress) as bar:
        if folder is None:
            for part in parts:
                found[part] = compute(part)
                bar.advance(len(part))
            return found
        place = Path(folder) / feature_key(model, rows)
        with locked(ensure_folder(place) / ".lock"):
            sweep_temporaries(place)
            for number, part in enumerate(parts):
                file = place / f"shard-{number:05d}.safetensors"
                features = _read(file, len(part), found.shape[1])
                if features is None:
                    features = compute(part)
                    save_tensors(file, {"features": features})
                found[part] = features
                bar.advance(len(part))
    return found


def _read(file: Path, count: int, width: int) -> Tensor | None:
    """A shard, or None where there is none that fits."""
    if not file.exists():
        return None
    try:
        features = load_tensors(file)[0]["features"]
    except (StateError, KeyError) as error:
        logger.warning("%s is damaged (%s); its features are computed again", file, error)
        return None
    return features if features.shape == (count, width) else None
