"""How far training is: a bar on a terminal, one line an epoch everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback

from hf_glm_curriculum.commands.console import say
from hf_glm_curriculum.evaluation.heldout import HeldOutLossCallback
from hf_glm_curriculum.progress import ProgressBar, progress


class TrainingProgress(TrainerCallback):
    """Shows steps and loss while training, and a line after each epoch.

    Args:
        lifespan: The callback whose ledger counts the samples by state, if there is one.
        heldout: The callback that measures the held-out loss, if there is one.
        phases: Step → what training is called from there on, with a line when it begins; epochs
            have no line then.
    """

    def __init__(
        self,
        lifespan: Any = None,
        heldout: HeldOutLossCallback | None = None,
        phases: Mapping[int, str] | None = None,
    ) -> None:
        self.lifespan, self.heldout, self.phases = lifespan, heldout, phases or {}
        self._words = "Training"
        self._stack = ExitStack()
        self._bar = ProgressBar()
        self._losses: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the bar."""
        if state.is_world_process_zero:
            begun = [words for step, words in self.phases.items() if step <= state.global_step]
            self._words = begun[-1] if begun else self._words
            self._bar = self._stack.enter_context(progress(state.max_steps, self._words))
            self._bar.advance(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move the bar, and say what begins."""
        self._bar.advance()
        words = self.phases.get(state.global_step)
        if words is not None and state.is_world_process_zero:
            self._words = words
            self._tell(f"step {state.global_step:,} of {state.max_steps:,}", f"{words} begins")

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Show the latest loss."""
        if logs and "loss" in logs:
            self._losses.append(float(logs["loss"]))
            self._bar.describe(f"{self._words}, loss {self._losses[-1]:.3f}")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write one line on the epoch."""
        if not state.is_world_process_zero or self.phases or self.lifespan is None:
            return
        counts = self.lifespan.ledger.to_pandas()["state"].value_counts()
        moved = ", ".join(f"{n} {s.lower()}" for s, n in counts.items() if s != "TRAINING")
        self._tell(
            f"epoch {round(state.epoch or 0, 2):g} of {state.num_train_epochs:g}",
            f"left training: {moved or 'none'}",
        )

    def _tell(self, first: str, last: str) -> None:
        """Write a line on what has been trained since the last one."""
        parts = [first]
        if self._losses:
            parts.append(f"training loss {sum(self._losses) / len(self._losses):.3f}")
        if self.heldout is not None and self.heldout.last is not None:
            parts.append(f"held-out loss {self.heldout.last['loss']:.3f}")
        parts.append(last)
        say("  " + " · ".join(parts))
        self._losses = []

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the bar."""
        self.close()

    def close(self) -> None:
        """Take the bar off the terminal; also after an exception, which no event tells of."""
        self._stack.close()
        self._bar = ProgressBar()


class UpdateLines(TrainerCallback):
    """A line on every tenth part of a PPO run, where no bar can be shown; for the first rank."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Write the figures that matter."""
        step, every = state.global_step, max(1, state.max_steps // 10)
        if not logs or "objective/kl" not in logs:
            return
        if step % every and step not in (1, state.max_steps):
            return
        reward = logs.get("structured/plain_reward", logs.get("objective/scores"))
        figures = {
            "reward": reward,
            "KL": logs["objective/kl"],
            "tokens": logs.get("structured/tokens", logs.get("structured/length")),
        }
        told = [f"{name} {value:.3g}" for name, value in figures.items() if value is not None]
        say("  " + " · ".join([f"update {step:,} of {state.max_steps:,}", *told]))
