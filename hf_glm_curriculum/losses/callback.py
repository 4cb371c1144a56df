"""The adapter between a trainer and a composite loss."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hf_glm_curriculum.checkpoints import run_folder
from hf_glm_curriculum.csv_dump import CsvDump
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.losses.composite import CompositeLoss
from hf_glm_curriculum.losses.objective import CompositeObjective
from hf_glm_curriculum.losses.run_state import restore_state, save_state, will_log
from hf_glm_curriculum.reporting_callback import SteppingCallback
from hf_glm_curriculum.run_scope import RunScope
from hf_glm_curriculum.signals.hosts import refuse_host
from hf_glm_curriculum.signals.probe import Subscription, probe_for

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

_DEBUG_COLUMNS = ["step", "micro_batch", "term", "weight", "loss", "n_tokens"]


class CompositeLossCallback(SteppingCallback):
    """Trains with a composite loss on ``Trainer`` and TRL's ``SFTTrainer``; no second forward.

    The terms are computed inside the training's own forward pass. Weights of samples that other
    callbacks give multiply their token losses, in whatever order the callbacks stand. Evaluation
    keeps the host's own loss.

    Args:
        composite: the loss.
        objective: gives each sample the number of the objective it serves: ids int64 [S] →
            int64 [S]. A batch column "objective" ([B] or [B, T]) does the same.
        columns: names of further batch columns for functions of one's own; they are kept from
            the model.
        full_logits: make [B, T, V] logits for terms that read them where the host has none.
        shares: measure the terms' gradient shares in steps that are logged.
        name: distinguishes several instances (metrics, state file).
        debug_dir: where to dump every term's loss of every micro-batch as CSV.
    """

    def __init__(
        self,
        composite: CompositeLoss,
        *,
        objective: Callable[[Tensor], Tensor] | None = None,
        columns: tuple[str, ...] = (),
        full_logits: bool = False,
        shares: bool = True,
        name: str = "losses",
        debug_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Remember the settings; nothing is touched before training begins."""
        self.composite = composite
        self.name = name
        self.debug_dir = debug_dir
        self.shares = shares
        self._objective = CompositeObjective(composite, objective, tuple(columns), full_logits)
        self._subscription: Subscription | None = None
        self._dump: CsvDump | None = None

    def detach(self) -> None:
        """Take every hook off the model; needed only after a run that died of an exception."""
        if self._subscription is not None:
            self._subscription.close()
        self._close_scope()
        self._subscription = self._reporter = self._dump = None
        self.composite.attached = False

    # -- events ------------------------------------------------------------------------------

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Check the host and the schedules, restore the terms, and put the hooks on.

        Raises:
            IncompatibleError: for hosts whose loss cannot be replaced.
            ConfigError: if a schedule lies outside the run.
            StateError: if the checkpoint's terms are not known here.
        """
        self.detach()
        refuse_host(args, purpose="compose its loss")
        composite = self.composite
        composite.step = state.global_step
        if state.global_step > 0:
            restore_state(composite, args, state, self.name)
        composite.check_run(state.max_steps)
        probe = probe_for(model)
        probe.compiled |= bool(getattr(args, "torch_compile", False))
        self._begin_report(run_folder(args, state), args, state, control)
        self._open_dump(state)
        self._scope = RunScope()
        self._subscription = probe.subscribe(
            is_live=self._is_live, is_over=self._scope.over, objective=self._objective
        )
        composite.attached, composite.locked = True, ""

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Set the step that schedules read; shares are measured if it will be logged."""
        self._stepping = True
        self.composite.step = state.global_step
        self.composite.measure_shares = self.shares and will_log(args, state)

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: Any,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Refuse the step if a term returned NaN or infinity in it.

        Raises:
            StateError: if no other term is left, or the composite says to stop.
        """
        if self._subscription is None:
            return
        bad = self.composite.refuse_nonfinite()
        if not bad:
            return
        _drop_gradients(model, args)
        self._report({f"{n}/nonfinite": 1.0 for n in bad}, args, state, control, model)
        if not any(True for _ in self.composite.acting()):
            raise StateError(
                f"terms: {', '.join(bad)} returned NaN or infinity at step {state.global_step} "
                "and no other term is active; lower the learning rate, or resume from an earlier "
                "checkpoint."
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Let new terms join."""
        self._stepping = False
        if self._subscription is None:
            return
        decided = self.composite.settle()
        for name, reason in decided.items():
            self.composite.edits.append(
                {"step": state.global_step, "term": name, "joined": not reason, "reason": reason}
            )
        joined = {f"{name}/joined": float(not reason) for name, reason in decided.items()}
        self._report(joined, args, state, control)
        self._write_dump(state)

    def _metrics(self, state: TrainerState) -> dict[str, float]:
        """Each term's loss, weight and gradient share."""
        return self.composite.metrics()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Write the terms' settings beside the checkpoint.

        Raises:
            StateError: if the disk is full or the folder is not writable.
        """
        save_state(self.composite, args, state, self.name)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Take the hooks off."""
        reporter = self._reporter
        self.detach()
        if reporter is not None:
            reporter.end()

    # -- helpers -----------------------------------------------------------------------------

    def _open_dump(self, state: TrainerState) -> None:
        monitor = self.composite.monitor
        monitor.history = None
        if self.debug_dir is None or not state.is_world_process_zero:
            return
        monitor.history = []
        self._dump = CsvDump(Path(self.debug_dir) / f"{self.name}_terms.csv", _DEBUG_COLUMNS)
        self._dump.rewind(state.global_step)

    def _write_dump(self, state: TrainerState) -> None:
        history = self.composite.monitor.history
        if self._dump is None or history is None:
            return
        rows = [
            [state.global_step, place, name, weight, float(total / n.clamp(min=1)), int(n)]
            for place, terms in enumerate(history)
            for name, (weight, total, n) in terms.items()
        ]
        history.clear()
        self._dump.write(rows)


def _drop_gradients(model: Any, args: TrainingArguments) -> None:
    """Keep the optimizer step that follows from changing anything."""
    unseen_by_scaler = args.fp16 and not args.max_grad_norm
    for parameter in model.parameters():
        if unseen_by_scaler and parameter.grad is not None:
            # The loss scaler has not looked at gradients yet: infinite ones make it skip the step.
            parameter.grad.fill_(float("inf"))
        else:
            # Optimizers leave parameters without a gradient alone.
            parameter.grad = None
