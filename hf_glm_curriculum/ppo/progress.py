"""A progress bar that shows what an update is doing and what came of the last."""

from __future__ import annotations

from typing import Any

from transformers import ProgressCallback


class PPOProgress(ProgressCallback):
    """The trainer's bar with reward, KL and gate of the last update, and the phase under way."""

    def phase(self, name: str) -> None:
        """Say what the update under way is at."""
        if self.training_bar is not None:
            self.training_bar.set_description(name)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Put the figures that matter beside the bar, in place of printing all."""
        if self.training_bar is None or not logs:
            return
        shown = {
            "reward": logs.get("structured/plain_reward", logs.get("objective/scores")),
            "kl": logs.get("objective/kl"),
            "open": logs.get("structured/open"),
        }
        found = {name: f"{value:.3g}" for name, value in shown.items() if value is not None}
        if found:
            self.training_bar.set_postfix(found, refresh=False)
