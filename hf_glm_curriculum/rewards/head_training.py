"""Training the heads on features that never change: epochs, early stopping, checkpoints."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ModelError, StateError
from hf_glm_curriculum.rewards.heads import RewardHeads
from hf_glm_curriculum.rewards.objective import balanced_order, classes, dimension_losses
from hf_glm_curriculum.rewards.reward_data import Examples
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig
from hf_glm_curriculum.storage import load_tensors, save_tensors

EpochHook = Callable[[int, dict[str, float]], None]


@dataclass
class HeadState:
    """Where the training of heads is; written after every epoch.

    Attributes:
        epoch: epochs done.
        step: optimizer steps done.
        best: [D] best validation loss of each dimension.
        best_epoch: [D] int64, the epoch it was reached in.
        weights: the best weights so far, by their names in `RewardHeads`.
        history: one dictionary an epoch.
    """

    epoch: int
    step: int
    best: Tensor
    best_epoch: Tensor
    weights: dict[str, Tensor]
    history: list[dict[str, float]] = field(default_factory=list)


def train_heads(
    heads: RewardHeads,
    features: Tensor,
    train: Examples,
    validation: Examples,
    config: RewardTrainingConfig,
    *,
    checkpoint: Path | None = None,
    on_epoch: EpochHook | None = None,
    seed: int | None = None,
) -> HeadState:
    """Train heads in place on pooled features and keep each dimension's best.

    Heads share no weight, so each stops by its own validation loss. Resuming from the checkpoint
    equals an uninterrupted run bit for bit.

    Args:
        heads: fresh heads, standardised already.
        features: [N, H] float32 of all items.
        train: examples to learn from.
        validation: examples to stop by.
        config: settings.
        checkpoint: a file kept after every epoch and gone on from where it is there.
        on_epoch: called with the epoch and its metrics.
        seed: in place of the config's.

    Raises:
        ModelError: The loss is not finite.
        StateError: The checkpoint cannot be written.
    """
    seed = config.seed if seed is None else seed
    optimizer = torch.optim.AdamW(
        heads.heads.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    with torch.no_grad():
        inputs = heads.standardize(features)
    state = _load(checkpoint, heads, optimizer) or _fresh(heads)
    names = list(heads.heads)
    steps = math.ceil(len(train) / config.batch_size)
    while state.epoch < config.epochs and not _stopped(state, config.patience):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed * 7919 + state.epoch)  # dropout, the same after a resume
            loss = _epoch(heads, inputs, train, config, optimizer, state, seed, steps)
        found = validation_losses(heads, inputs, validation)
        _keep_best(state, heads, found)
        state.epoch += 1
        metrics = {"loss": loss, **_named("eval_loss", names, found)}
        state.history.append(metrics)
        _save(checkpoint, heads, optimizer, state)
        if on_epoch is not None:
            on_epoch(state.epoch, metrics)
    heads.load_state_dict(state.weights)
    heads.eval()
    return state


def validation_losses(heads: RewardHeads, inputs: Tensor, examples: Examples) -> Tensor:
    """[D] mean loss of each dimension on standardised features; NaN where nothing is known."""
    heads.eval()
    with torch.no_grad():
        sums, counts = dimension_losses(_logits(heads, inputs), examples)
    return torch.where(counts > 0, sums / counts.clamp(min=1), torch.nan)


def _logits(heads: RewardHeads, inputs: Tensor) -> Tensor:
    return torch.cat([head(inputs) for head in heads.heads.values()], dim=-1)


def _needed_logits(heads: RewardHeads, inputs: Tensor, batch: Examples) -> Tensor:
    """[n, D] logits where the batch speaks of them and zeros elsewhere: an item needs one head."""
    needed = torch.zeros(len(inputs), len(heads.heads), dtype=torch.bool)
    needed[batch.pairs, batch.pair_dimension[:, None]] = True
    known = ~torch.isnan(batch.ratings)
    needed[batch.rated] |= known
    columns = []
    for column, head in enumerate(heads.heads.values()):
        rows = needed[:, column].nonzero().flatten()
        values = head(inputs[rows]).squeeze(1)
        columns.append(inputs.new_zeros(len(inputs)).index_copy(0, rows, values))
    return torch.stack(columns, dim=1)


def _fresh(heads: RewardHeads) -> HeadState:
    width = len(heads.heads)
    infinite = torch.full((width,), float("inf"))
    zeros = torch.zeros(width, dtype=torch.int64)
    return HeadState(0, 0, infinite, zeros, copy.deepcopy(heads.state_dict()))


def _epoch(
    heads: RewardHeads,
    inputs: Tensor,
    train: Examples,
    config: RewardTrainingConfig,
    optimizer: torch.optim.Optimizer,
    state: HeadState,
    seed: int,
    steps: int,
) -> float:
    """One pass; returns the mean training loss."""
    heads.train()
    width = len(heads.heads)
    total = steps * config.epochs
    summed = torch.zeros(2)
    order = balanced_order(classes(train, width), seed, state.epoch, config.balanced)
    for part in _batches(order, config.batch_size):
        batch, items = local(train, part)
        logits = _needed_logits(heads, inputs[items], batch)
        sums, counts = dimension_losses(logits, batch, config.center_weight)
        loss = sums.sum() / counts.sum().clamp(min=1)
        if not torch.isfinite(loss):
            raise ModelError(
                f"the loss became {float(loss.detach())} at step {state.step}; lower learning_rate "
                f"(now {config.learning_rate:g})"
            )
        for group in optimizer.param_groups:
            group["lr"] = (
                config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1, state.step / total)))
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        state.step += 1
        summed += torch.stack([sums.detach().sum(), counts.sum()])
    return float(summed[0] / summed[1].clamp(min=1))


def _batches(order: Tensor, size: int) -> Iterator[Tensor]:
    yield from order.split(size)


def local(examples: Examples, part: Tensor) -> tuple[Examples, Tensor]:
    """A batch of examples with items numbered within it, and the items it needs.

    Args:
        examples: all of them.
        part: positions among pairs, then ratings.

    Returns:
        The batch, and [n] int64 items in the order of its numbers.
    """
    count = len(examples.pairs)
    pairs, rated = part[part < count], part[part >= count] - count
    items = torch.cat([examples.pairs[pairs].flatten(), examples.rated[rated]])
    used, inverse = torch.unique(items, return_inverse=True)
    split = 2 * len(pairs)
    batch = Examples(
        inverse[:split].reshape(-1, 2),
        examples.pair_dimension[pairs],
        examples.pair_source[pairs],
        inverse[split:],
        examples.ratings[rated],
        examples.rated_source[rated],
    )
    return batch, used


def _keep_best(state: HeadState, heads: RewardHeads, found: Tensor) -> None:
    """Copy the weights of the heads that are better than ever."""
    for column, name in enumerate(heads.heads):
        # Without a validation example nothing says which epoch is best: the last one stays.
        unknown = bool(found[column].isnan())
        if unknown or found[column] < state.best[column]:
            if not unknown:
                state.best[column] = found[column]
                state.best_epoch[column] = state.epoch
            for key, value in heads.heads[name].state_dict().items():
                state.weights[f"heads.{name}.{key}"] = value.detach().clone()


def _stopped(state: HeadState, patience: int) -> bool:
    return state.epoch > 0 and bool((state.epoch - 1 - state.best_epoch >= patience).all())


def _named(prefix: str, names: list[str], values: Tensor) -> dict[str, float]:
    return {f"{prefix}_{name}": float(v) for name, v in zip(names, values, strict=True)}


# -- checkpoints -------------------------------------------------------------------------------


def _save(path: Path | None, heads: RewardHeads, optimizer: Any, state: HeadState) -> None:
    if path is None:
        return
    tensors = {f"now.{name}": value for name, value in heads.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in state.weights.items()}
    for number, entry in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in entry.items()}
    tensors["best"], tensors["best_epoch"] = state.best, state.best_epoch
    if state.history:
        names = sorted(state.history[0])
        rows = [[entry[name] for name in names] for entry in state.history]
        tensors["history"] = torch.tensor(rows, dtype=torch.float64)
    save_tensors(path, tensors, {"epoch": str(state.epoch), "step": str(state.step)})


def _load(path: Path | None, heads: RewardHeads, optimizer: Any) -> HeadState | None:
    """Put heads and optimizer where the checkpoint left them; None where there is none."""
    if path is None or not path.exists():
        return None
    tensors, about = load_tensors(path)
    try:
        heads.load_state_dict(_under("now", tensors))
        weights = _under("best", tensors)
        entries: dict[int, dict[str, Tensor]] = {}
        for key, value in _under("optimizer", tensors).items():
            number, _, name = key.partition(".")
            entries.setdefault(int(number), {})[name] = value
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": entries, "param_groups": groups})
        state = HeadState(
            int(about["epoch"]), int(about["step"]), tensors["best"], tensors["best_epoch"], weights
        )
    except (KeyError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StateError(f"{path} is of another training ({reason}); delete it") from error
    names = sorted(["loss", *(f"eval_loss_{name}" for name in heads.heads)])
    rows = tensors["history"].tolist() if "history" in tensors else []
    state.history = [dict(zip(names, row, strict=True)) for row in rows]
    return state


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in tensors.items()
        if name.startswith(f"{prefix}.")
    }
