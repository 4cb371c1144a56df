"""Held-out loss: what the model thinks of answers it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from hf_glm_curriculum.data.collator import IGNORED
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.progress import progress
from hf_glm_curriculum.reporting import RunReporter, reporter_for
from hf_glm_curriculum.reporting_callback import ResumedEpoch

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
    rows = row_losses(
        model,
        dataset,
        collate,
        batch_size=batch_size,
        description=description,
        show_progress=show_progress,
    )
    of_samples = [total / count for total, count in rows if count]
    tokens = sum(count for _, count in rows)
    if not tokens:
        raise DataError(
            f"held-out data: none of the {len(dataset)} rows has a label token; raise max_length "
            "or give rows with answers"
        )
    loss = sum(total for total, _ in rows) / tokens
    return {
        "loss": loss,
        "sample_loss": sum(of_samples) / len(of_samples),
        "perplexity": math.exp(min(loss, 700.0)),
        "tokens": float(tokens),
        "samples": float(len(of_samples)),
    }


def row_losses(
    model: Any,
    dataset: Any,
    collate: Collate,
    *,
    batch_size: int = 8,
    description: str = "Held-out loss",
    show_progress: bool | None = None,
) -> list[tuple[float, int]]:
    """Summed loss (nats) and label tokens of every row, without gradients.

    Args:
        model: A causal language model on any device; its mode is restored.
        dataset: Rows with ``input_ids`` and ``labels`` (-100 carries no loss).
        collate: Pads a list of rows, such as `SftCollator`.
        batch_size: Rows at once.
        description: The words before the progress bar.
        show_progress: See `progress`.
    """
    device = next(model.parameters()).device
    found: list[tuple[float, int]] = []
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), progress(len(dataset), description, show_progress) as bar:
            for start in range(0, len(dataset), batch_size):
                rows = [dataset[i] for i in range(start, min(start + batch_size, len(dataset)))]
                batch = {name: value.to(device) for name, value in collate(rows).items()}
                sums, counts = sample_losses(model, batch)
                found += zip(sums.tolist(), counts.tolist(), strict=True)
                bar.advance(len(rows))
    finally:
        model.train(was_training)
    return found


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


class HeldOutLossCallback(TrainerCallback):
    """Measures the held-out loss after each epoch and reports it as `heldout/loss`.

    The same measure as `held_out_loss` before and after a run, so that the points make one curve.

    Args:
        dataset: See `held_out_loss`.
        collate: See `held_out_loss`.
        batch_size: Rows at once.
        every: Optimizer steps between two measurements, in place of epochs.
        more: Further data sets by name, whose losses are reported as `heldout/<name>_loss`.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Collate,
        batch_size: int = 8,
        *,
        every: int | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self.dataset, self.collate, self.batch_size = dataset, collate, batch_size
        self.every, self.more = every, more or {}
        self.last: dict[str, float] | None = None
        self._reporter: RunReporter | None = None
        self._epoch = ResumedEpoch()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Join the run's reporting."""
        self._epoch.begin(state)
        self._reporter = reporter_for(args.output_dir)
        self._reporter.begin(args, state, control)

    def on_epoch_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Measure after the epoch that a kill left without its end."""
        if self._epoch.ended_unseen(state) and self.every is None:
            self._measure(args, state, control, model)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Measure and report every so many steps."""
        if self.every is not None and state.global_step % self.every == 0:
            self._measure(args, state, control, model)

    def on_epoch_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Measure and report after an epoch."""
        if self.every is None:
            self._measure(args, state, control, model)

    def _measure(self, args: Any, state: Any, control: Any, model: Any) -> None:
        """The first process measures for all, once a step."""
        if self._reporter is None or not state.is_world_process_zero:
            return
        # Only the step that a run goes on from can have been measured before.
        step = state.global_step
        if step == self._epoch.step and self._reporter.was_told("heldout/loss", step):
            return
        self.last = held_out_loss(
            model, self.dataset, self.collate, batch_size=self.batch_size, show_progress=False
        )
        metrics = {"heldout/loss": self.last["loss"]}
        for name, dataset in self.more.items():
            found = held_out_loss(
                model, dataset, self.collate, batch_size=self.batch_size, show_progress=False
            )
            metrics[f"heldout/{name}_loss"] = found["loss"]
        self._reporter.report(metrics, args, state, control, model)

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Leave the run's reporting."""
        if self._epoch.over_at_once() and self.every is None:
            self._measure(args, state, control, model)
        if self._reporter is not None:
            self._reporter.end()
            self._reporter = None
