"""Held-out loss: what the model thinks of answers it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.data.collator import IGNORED
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.progress import progress

Collate = Callable[[Sequence[Any]], dict[str, Tensor]]


def held_out_loss(
    model: Any,
    dataset: Any,
    collate: Collate,
    *,
    batch_size: int = 8,
    description: str = "Held-out loss",
    show_progress: bool | None = None,
) -> dict[str, float]:
    """Mean loss over the label tokens of a data set, without gradients.

    Args:
        model: A causal language model on any device; its mode is restored.
        dataset: Rows with ``input_ids`` and ``labels`` (-100 carries no loss).
        collate: Pads a list of rows, such as `SftCollator`.
        batch_size: Rows at once.
        description: The words before the progress bar.
        show_progress: See `progress`.

    Returns:
        ``loss`` (nats a token), ``sample_loss`` (mean over samples of their mean, nats),
        ``perplexity``, ``tokens`` and ``samples``.

    Raises:
        DataError: The data set is empty or has no label token.
    """
    device = next(model.parameters()).device
    total, of_samples = [], []
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), progress(len(dataset), description, show_progress) as bar:
            for start in range(0, len(dataset), batch_size):
                rows = [dataset[i] for i in range(start, min(start + batch_size, len(dataset)))]
                batch = {name: value.to(device) for name, value in collate(rows).items()}
                sums, counts = sample_losses(model, batch)
                total.append((float(sums.sum()), int(counts.sum())))
                of_samples += (sums / counts.clamp(min=1))[counts > 0].tolist()
                bar.advance(len(rows))
    finally:
        model.train(was_training)
    tokens = sum(count for _, count in total)
    if not tokens:
        raise DataError(
            f"held-out data: none of the {len(dataset)} rows has a label token; raise max_length "
            "or give rows with answers"
        )
    loss = sum(part for part, _ in total) / tokens
    return {
        "loss": loss,
        "sample_loss": sum(of_samples) / len(of_samples),
        "perplexity": math.exp(min(loss, 700.0)),
        "tokens": float(tokens),
        "samples": float(len(of_samples)),
    }


def sample_losses(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Summed loss and number of label tokens of each row.

    Args:
        model: A causal language model.
        batch: ``input_ids``, ``attention_mask`` and ``labels``, [B, T] each.

    Returns:
        [B] float32 sums in nats, [B] int64 counts.
    """
    labels = batch["labels"][:, 1:]
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    used = labels != IGNORED
    # Only label positions are expanded to float32: most of a prompt's logits are never needed.
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1][used].float(), labels[used], reduction="none"
    )
    rows = used.nonzero()[:, 0]
    sums = torch.zeros(len(labels), device=losses.device).index_add_(0, rows, losses)
    return sums, used.sum(1)
