"""The adapter between a trainer and a laned data set."""

from __future__ import annotations

import hashlib
import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_glm_curriculum.checkpoints import resume_folder, run_folder, state_path
from hf_glm_curriculum.curriculum.lane_config import BASE, FAST, REFINE
from hf_glm_curriculum.curriculum.lane_data import LaneDataset
from hf_glm_curriculum.curriculum.lane_effort import Autocast, Checkpointing
from hf_glm_curriculum.curriculum.lane_host import check_host, refuse_rates, steps_of
from hf_glm_curriculum.curriculum.lane_output import write_outputs
from hf_glm_curriculum.curriculum.lane_tally import LaneTally
from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.errors import ConfigError, StateError
from hf_glm_curriculum.reporting_callback import SteppingCallback, as_json
from hf_glm_curriculum.run_scope import RunScope
from hf_glm_curriculum.signals.distributed import sum_over_ranks, world_size
from hf_glm_curriculum.signals.hosts import refuse_host
from hf_glm_curriculum.signals.probe import Subscription, probe_for
from hf_glm_curriculum.storage import load_tensors, save_tensors

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class LaneCallback(SteppingCallback):
    """Trains each optimizer step at the pace of its lane.

    Works on ``transformers.Trainer`` and TRL's ``SFTTrainer`` with the user's own collator. Fast
    steps hold twice the rows at 1.5 times the scheduler's learning rate; refine steps recompute
    activations and run under bfloat16 autocast. ``<output_dir>/<name>/`` gets a picture and the
    totals of each lane.

    Example::

        data = build_lanes(dataset)
        args = TrainingArguments(..., train_sampling_strategy="sequential")
        Trainer(model, args, train_dataset=data, callbacks=[LaneCallback(data)]).train()

    Args:
        lanes: what :func:`build_lanes` returned.
        name: distinguishes several instances on one trainer (folder, state file and metrics).
    """

    def __init__(self, lanes: LaneDataset, *, name: str = "lanes") -> None:
        """Remember the lanes; nothing is touched before training begins.

        Raises:
            ConfigError: if ``lanes`` is something else.
        """
        if not isinstance(lanes, LaneDataset):
            raise ConfigError(
                f"lanes: must be what build_lanes returns, got {type(lanes).__name__}."
            )
        self.plan, self.name = lanes.plan, name
        self._clear()

    def _clear(self) -> None:
        self._data: LaneDataset | None = None
        self._subscription: Subscription | None = None
        self._checkpointing: Checkpointing | None = None
        self._autocast: Autocast | None = None
        self._index: SampleIndex | None = None
        self._rates: list[tuple[dict[str, Any], Any]] = []
        self._window = self._per_epoch = 0
        self._resumed = False
        self._began = 0.0
        self._reporter = None

    def detach(self) -> None:
        """Put everything back; needed only after a run that died of an exception."""
        self._restore_rates()
        if self._subscription is not None:
            self._subscription.close()
        if self._checkpointing is not None:
            self._checkpointing.set(False)
        if self._autocast is not None:
            self._autocast.close()
        self._close_scope()
        self._clear()

    # -- events ------------------------------------------------------------------------------

    def on_init_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Learn how many rows a step holds, before the trainer counts its steps."""
        if not self.plan.config.observe_only:
            self.plan.steps = steps_of(args)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        """Check the host, restore the state and put the hooks on.

        Raises:
            IncompatibleError: for hosts whose steps cannot hold one lane.
            StateError: if the checkpoint's lanes are others.
        """
        self.detach()
        refuse_host(args, purpose="tell the lanes' losses apart")
        self._data = check_host(args, self.plan, train_dataloader)
        refuse_rates(args, self.plan)
        accumulation = args.gradient_accumulation_steps
        self._per_epoch = max(1, math.ceil(len(train_dataloader) / accumulation))
        self._tally = LaneTally(args.device)
        self._resumed = state.global_step > 0
        if self._resumed:
            self._restore(args, state)
        self._begin_report(run_folder(args, state), args, state, control)
        self._scope = RunScope()
        probe = probe_for(model)
        compiled = bool(getattr(args, "torch_compile", False))
        probe.compiled |= compiled
        self._subscription = probe.subscribe(is_live=self._is_live, is_over=self._over)
        if self.plan.acts:
            self._tell()
            self._prepare_effort(model, args, compiled)
        else:
            self._index = SampleIndex.from_dataset(self._data.unsampled)
        self.plan.begun = True

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Lay the epoch out; a resumed one as it was."""
        step = state.global_step
        inside = step % self._per_epoch if self._resumed and not args.ignore_data_skip else 0
        plan = self.plan
        if self._resumed or step == 0:
            plan.epoch = step // self._per_epoch
        else:
            plan.epoch += 1
        plan.first_step, self._window = step - inside, inside
        self._resumed = False
        if plan.acts and self._data is not None:
            self._data.order()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the effort of the step's lane."""
        self._stepping = True
        refine = self._lane() == REFINE
        if self._checkpointing is not None:
            self._checkpointing.set(refine)
        if self._autocast is not None:
            self._autocast.on = refine
        self._began = time.perf_counter()

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Multiply the learning rate for this step alone."""
        if self._lane() != FAST or self.plan.config.fast_lr_factor == 1.0:
            return
        for group in optimizer.param_groups:
            rate = group["lr"]
            self._rates.append((group, rate))
            group["lr"] = rate * self.plan.config.fast_lr_factor

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Give the scheduler its learning rate back before it goes on."""
        self._restore_rates()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Count what the step held."""
        self._stepping = False
        if self._subscription is None:
            return
        self._tally.add(
            self._subscription.drain(),
            self._lane(),
            time.perf_counter() - self._began,
            None if self._index is None else self._lane_of,
            sum_over_ranks if world_size() > 1 else None,
        )
        if self._checkpointing is not None:
            self._checkpointing.set(False)
        self._window += 1

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Write what a resumed run needs beside the checkpoint.

        Raises:
            StateError: if the disk is full or the folder is not writable.
        """
        if self._subscription is None or not state.is_world_process_zero:
            return
        metadata = {"config": as_json(self.plan.config), "lanes": self._fingerprint()}
        folder = run_folder(args, state) / f"checkpoint-{state.global_step}"
        save_tensors(state_path(folder, self.name), self._tally.tensors(), metadata)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Put everything back and draw the lanes."""
        reporter = self._reporter
        self.detach()
        if reporter is None:
            return
        if state.is_world_process_zero:
            write_outputs(run_folder(args, state), self.name, self.plan, self._tally)
        reporter.end()

    # -- helpers -----------------------------------------------------------------------------

    def _metrics(self, state: TrainerState) -> dict[str, float]:
        """Loss, share and pace of each lane."""
        return self._tally.flush()

    def _lane(self) -> int | None:
        """The lane of the step under way; None where steps hold no lane."""
        plan, data = self.plan, self._data
        if data is None or not plan.acts:
            return None
        if plan.pool is not None and plan.pool.at_base(plan.first_step + self._window):
            return BASE
        return int(data.order().lanes[self._window])

    def _lane_of(self, ids: Tensor) -> Tensor:
        """The lane of samples by their content, below -1 where unknown."""
        if self._index is None or self._data is None:
            return torch.full_like(ids, BASE - 1)
        rows = self._index.lookup(ids.cpu())
        lanes = torch.from_numpy(self._data.lanes).long()
        return torch.where(rows >= 0, lanes[rows.clamp(min=0)], BASE - 1).to(ids.device)

    def _prepare_effort(self, model: Any, args: Any, compiled: bool) -> None:
        config = self.plan.config
        if compiled and (config.refine_checkpointing or config.refine_autocast):
            self._say("torch_compile: refine steps run as compiled, without effort of their own")
            return
        if config.refine_checkpointing:
            self._checkpointing = Checkpointing(model)
            if self._checkpointing.given:
                self._say("gradient_checkpointing is on: it stays on in every lane")
            elif not self._checkpointing.possible:
                self._say("the model has no gradient checkpointing: refine steps do without")
        if config.refine_autocast and not (args.bf16 or args.fp16):
            self._autocast = Autocast(model, self._is_live)

    def _over(self) -> bool:
        """Whether the run has ended without telling; if so, everything of it goes."""
        if self._scope is not None and not self._scope.over():
            return False
        self._restore_rates()
        if self._checkpointing is not None:
            self._checkpointing.set(False)
        if self._autocast is not None:
            self._autocast.close()
        return True

    def _tell(self) -> None:
        moved = self._data.layout.moved if self._data is not None else 0
        if moved:
            self._say(
                f"{moved} rows of the fast lane fill no step of their own and are trained in the "
                "refine lane"
            )

    def _restore_rates(self) -> None:
        for group, rate in self._rates:
            group["lr"] = rate
        self._rates = []

    def _fingerprint(self) -> str:
        """What must be the same for an epoch to have the same order."""
        data, config = self._data, self.plan.config
        if data is None or config.observe_only:
            return "observed"
        settings = (config.fast_batch_factor, config.schedule, config.shuffle, config.seed)
        text = f"{settings} {self.plan.steps}".encode() + data.lanes.tobytes()
        return hashlib.sha256(text).hexdigest()[:16]

    def _restore(self, args: TrainingArguments, state: TrainerState) -> None:
        folder = resume_folder(run_folder(args, state), state.global_step)
        path = state_path(folder, self.name)
        if not path.exists():
            self._say(f"{folder} holds no state of {self.name!r}: its counts start anew")
            return
        tensors, metadata = load_tensors(path)
        self._say_changed(metadata.get("config"), self.plan.config)
        if metadata.get("lanes") != self._fingerprint():
            raise StateError(
                f"{path}: belongs to lanes of other rows, settings or batch sizes, so the run "
                "would read other rows than it has left; resume with those of the run."
            )
        self._tally.load(tensors)
