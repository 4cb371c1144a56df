"""The adapter between a trainer, a mixture and the gates of a model."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_glm_curriculum.checkpoints import resume_folder, run_folder, state_path
from hf_glm_curriculum.csv_dump import CsvDump
from hf_glm_curriculum.errors import ConfigError, IncompatibleError
from hf_glm_curriculum.migration.config import MigrationConfig
from hf_glm_curriculum.migration.gates import LayerGates
from hf_glm_curriculum.migration.injection import Injection
from hf_glm_curriculum.migration.objectives import (
    DatasetTags,
    Mixture,
    Objectives,
    SourceColumn,
)
from hf_glm_curriculum.migration.output import write_outputs
from hf_glm_curriculum.migration.schedule import (
    INSTRUCTION,
    OTHER,
    PRETRAIN,
    MigrationSchedule,
    effective_ratio,
    schedule_for,
)
from hf_glm_curriculum.migration.tally import ObjectiveTally
from hf_glm_curriculum.reporting_callback import SteppingCallback, as_json
from hf_glm_curriculum.run_scope import RunScope
from hf_glm_curriculum.signals.distributed import sum_over_ranks, world_size
from hf_glm_curriculum.signals.hosts import refuse_host
from hf_glm_curriculum.signals.microbatch import Microbatch, SampleSignals
from hf_glm_curriculum.signals.probe import SampleProbe, Subscription, probe_for
from hf_glm_curriculum.storage import load_tensors, save_tensors

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)

_DEBUG_COLUMNS = ["step", "id", "objective", "loss", "n_tokens", "weight"]
_STRADDLED = (
    "packing: the last token of a packed sample predicts the first of the next, whose objective "
    "may be another; mask the first label of every sample (-100), as SFTTrainer and "
    "DataCollatorWithFlattening do."
)


class ObjectiveMigrationCallback(SteppingCallback):
    """Moves a run from pre-training to instruction tuning, each layer at its own pace.

    Works on ``transformers.Trainer`` and TRL's ``SFTTrainer``. Rows are told apart by their
    content (a mixture or tokenised data sets), or by a ``source`` tensor in the batch.

    Args:
        config: settings; defaults otherwise.
        mixture: a ``CurriculumMixture`` that the trainer reads; its ratios follow the schedule.
        pretrain_source: name of the pre-training source.
        instruction_source: name of the instruction source.
        tags: without a mixture, tokenised data sets by the names of their sources. Without either,
            batches carry a ``source`` tensor: 0 pre-training, 1 instruction.
        name: distinguishes several instances on one trainer (folder, state file and metrics).
        debug_dir: where to dump every sample's objective, loss and weight at every step as CSV.

    Raises:
        ConfigError: if a source name is unknown, the mixture gives pre-training no share, or both
            mixture and tags are given.
        DataError: if two data sets of ``tags`` share a sample.
    """

    def __init__(
        self,
        config: MigrationConfig | None = None,
        *,
        mixture: Mixture | None = None,
        pretrain_source: str = "pretrain",
        instruction_source: str = "instruction",
        tags: Mapping[str, Any] | None = None,
        name: str = "migration",
        debug_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Remember the settings; no model is touched before training begins."""
        if mixture is not None and tags is not None:
            raise ConfigError("tags: a mixture tells its sources apart itself; leave tags out.")
        self.config = config or MigrationConfig()
        self.mixture = mixture
        self.name = name
        self.debug_dir = debug_dir
        self.schedule: MigrationSchedule | None = None
        """The config laid over the run under way or last run."""
        sources = mixture if tags is None else DatasetTags(tags)
        self._objectives = Objectives(sources, pretrain_source, instruction_source)
        self._injection = None if mixture is None else Injection(mixture, instruction_source)
        self._clear()

    def _clear(self) -> None:
        self._gates: LayerGates | None = None
        self._column: SourceColumn | None = None
        self._subscription: Subscription | None = None
        self._probe: SampleProbe | None = None
        self._reporter = None
        self._dump: CsvDump | None = None
        self._knows_packing = False
        self._logged_step = 0

    def detach(self) -> None:
        """Take every hook off the model; needed only after a run that died of an exception."""
        if self._subscription is not None:
            self._subscription.close()
        if self._gates is not None:
            self._gates.detach()
        if self._column is not None:
            self._column.close()
        self._close_scope()
        if self._probe is not None and self._probe.compiled:
            torch.compiler.reset()  # compiled code does not notice that the gates are gone
        self._clear()

    # -- events ------------------------------------------------------------------------------

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Check schedule and host, restore the state, put the gates on, ask for the first ratio.

        Raises:
            ConfigError: if the schedule does not fit the run, or the mixture's ratios it.
            IncompatibleError: for hosts whose losses cannot be told apart by sample.
            ModelError: if the model's layers are not found.
            StateError: if the checkpoint's state does not fit.
        """
        self.detach()
        refuse_host(args, purpose="weight objectives apart")
        self.schedule = schedule_for(self.config, state.max_steps)
        gates = LayerGates(model)
        self._tally = ObjectiveTally(self._note, args.device)
        self._logged_step = state.global_step
        restored = state.global_step > 0 and self._restore(args, state)
        if self._injection is not None and not restored:
            self._injection.mixture.connect(args)
            if self._asks:
                self._injection.begin(self.schedule, state.global_step)
        self._begin_report(run_folder(args, state), args, state, control)
        self._open_dump(state)
        self._hook(model, gates, bool(getattr(args, "torch_compile", False)))

    def _hook(self, model: Any, gates: LayerGates, compiled: bool) -> None:
        self._scope = scope = RunScope()
        self._column = SourceColumn(model)
        self._probe = probe = probe_for(model)
        probe.compiled |= compiled
        self._gates = gates
        if self._weighs:
            gates.attach(self._is_live, scope.over)
        self._subscription = probe.subscribe(self._weigh, is_live=self._is_live, is_over=self._over)
        if probe.compiled:
            torch.compiler.reset()

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Set the step's layer weights; training forwards count from here to the step's end."""
        self._stepping = True
        if self._gates is not None and self.schedule is not None:
            self._gates.set_weights(self.schedule.weights(state.global_step, self._gates.blocks))

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Count what the step held and ask for the next step's ratio."""
        self._stepping = False
        if self._subscription is None or self._gates is None:
            return
        self._gates.forget()
        parts = self._subscription.drain()
        self._tally.add(parts, sum_over_ranks if world_size() > 1 else None)
        if self._dump is not None:
            self._write_dump(parts, state)
        if self._injection is not None and self.schedule is not None and self._asks:
            self._injection.ask(self.schedule, state.global_step)

    def _metrics(self, state: TrainerState) -> dict[str, float]:
        """Ratios, losses and weights of the steps since the last log."""
        schedule, gates = self.schedule, self._gates
        if schedule is None or gates is None:
            return {}
        # The weights that the steps before this log were trained with.
        step = max(0, state.global_step - 1)
        found = self._tally.flush(state.global_step - self._logged_step)
        self._logged_step = state.global_step
        unknown = found.pop("unknown")
        if unknown:
            self._say(
                f"{unknown:.0f} samples belong to no known source: such samples train at weight 1 "
                "in every layer. Was the data tokenised or truncated again?"
            )
        found["progress"] = schedule.progress(step)
        if self._injection is not None:
            found |= self._injection.report(state.global_step)
        weights = schedule.weights(step, gates.blocks)
        return found | _layer_summary(weights, found.get("ratio_trained", 0.0))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Write what a resumed run needs beside the checkpoint.

        Raises:
            StateError: if the disk is full or the folder is not writable.
        """
        if self._gates is None or not state.is_world_process_zero:
            return
        metadata = {"step": str(state.global_step), "config": as_json(self.config)}
        metadata["logged_step"] = str(self._logged_step)
        if self._injection is not None:
            metadata["injection"] = json.dumps(self._injection.state_dict(state.global_step))
        folder = run_folder(args, state) / f"checkpoint-{state.global_step}"
        save_tensors(state_path(folder, self.name), self._tally.tensors(), metadata)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Take the hooks off and draw the run."""
        blocks = 0 if self._gates is None else self._gates.blocks
        reporter, schedule = self._reporter, self.schedule
        self.detach()
        if reporter is None or schedule is None:
            return
        if state.is_world_process_zero:
            write_outputs(
                run_folder(args, state), self.name, schedule, blocks, self._tally.totals()
            )
        reporter.end()

    # -- what hooks call ---------------------------------------------------------------------

    @property
    def _note(self) -> str:
        return f"{self.name}.objective"

    @property
    def _weighs(self) -> bool:
        return self.config.gates and not self.config.observe_only

    @property
    def _asks(self) -> bool:
        """Whether the mixture's ratios follow the schedule."""
        return self._injection is not None and not self.config.observe_only

    def _over(self) -> bool:
        """Whether the run has ended without telling; if so, everything of it goes."""
        if self._scope is not None and not self._scope.over():
            return False
        if self._gates is not None:
            self._gates.detach()
        if self._column is not None:
            self._column.close()
        return True

    def _weigh(self, batch: Microbatch) -> Tensor:
        """The head weight of every sample, [S]; tells the gates whose samples they are."""
        column = None if self._column is None else self._column.values
        code = self._objectives.of(batch, column)
        batch.notes[self._note] = code
        loss = batch.loss
        if not self._weighs or self._gates is None or loss is None:
            return torch.ones_like(code, dtype=torch.float32)
        objective = code.clamp(max=OTHER)
        segments = batch.segments.index if batch.count > batch.labels.shape[0] else None
        if segments is not None and not self._knows_packing:
            self._refuse_straddled(batch)
        return self._gates.assign(objective, segments, loss.dtype)

    def _refuse_straddled(self, batch: Microbatch) -> None:
        straddled = (batch.target >= 0) & (batch.target != batch.segments.index)
        if bool(straddled.any()):
            raise IncompatibleError(_STRADDLED)
        self._knows_packing = True

    # -- helpers -----------------------------------------------------------------------------

    def _restore(self, args: TrainingArguments, state: TrainerState) -> bool:
        folder = resume_folder(run_folder(args, state), state.global_step)
        path = state_path(folder, self.name)
        if not path.exists():
            self._say(
                f"{folder} holds no state of {self.name!r}: its counts start anew at step "
                f"{state.global_step}"
            )
            return False
        tensors, metadata = load_tensors(path)
        self._say_changed(metadata.get("config"), self.config)
        self._tally.load(tensors)
        self._logged_step = int(metadata.get("logged_step", state.global_step))
        if self._injection is not None and "injection" in metadata:
            self._injection.load_state_dict(json.loads(metadata["injection"]))
        return True

    def _open_dump(self, state: TrainerState) -> None:
        if self.debug_dir is None or not state.is_world_process_zero:
            return
        self._dump = CsvDump(Path(self.debug_dir) / f"{self.name}_samples.csv", _DEBUG_COLUMNS)
        self._dump.rewind(state.global_step)

    def _write_dump(self, parts: list[SampleSignals], state: TrainerState) -> None:
        for part in parts:
            columns = (part.ids, part.notes[self._note], part.loss, part.n_tokens, part.weight)
            rows = zip(*(column.cpu().tolist() for column in columns), strict=True)
            if self._dump is not None:
                self._dump.write([[state.global_step, *row] for row in rows])


def _layer_summary(weights: Tensor, ratio: float) -> dict[str, float]:
    """Weights and effective ratio at the embeddings, the middle block and the head."""
    effective = effective_ratio(ratio, weights)
    places = {"bottom": 0, "middle": weights.shape[1] // 2, "top": weights.shape[1] - 1}
    found = {}
    for place, layer in places.items():
        found[f"weight_pretrain_{place}"] = float(weights[PRETRAIN, layer])
        found[f"weight_instruction_{place}"] = float(weights[INSTRUCTION, layer])
        found[f"effective_ratio_{place}"] = float(effective[layer])
    return found
