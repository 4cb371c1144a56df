"""The adapter between a trainer and the sample life engine."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hf_glm_curriculum.checkpoints import resume_folder, run_folder, state_path
from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.errors import IncompatibleError, StateError
from hf_glm_curriculum.lifespan.config import LifespanConfig
from hf_glm_curriculum.lifespan.debug_dump import SampleDump
from hf_glm_curriculum.lifespan.hosts import notes_on_host, refuse_host
from hf_glm_curriculum.lifespan.judges import Judge, SignalJudge, SurveyingJudge
from hf_glm_curriculum.lifespan.life import SampleLife
from hf_glm_curriculum.lifespan.output import write_outputs
from hf_glm_curriculum.lifespan.sampling import PREFIX, VisitPlan, unsampled
from hf_glm_curriculum.lifespan.text_readings import text_readings
from hf_glm_curriculum.lifespan.texts import DatasetTexts
from hf_glm_curriculum.reporting_callback import SteppingCallback, as_json, at_epoch_end
from hf_glm_curriculum.run_scope import RunScope
from hf_glm_curriculum.signals.distributed import (
    from_first_rank,
    gather_signals,
    rank,
    sum_over_ranks,
    world_size,
)
from hf_glm_curriculum.signals.ledger import SampleLedger, SampleState
from hf_glm_curriculum.signals.probe import SampleProbe, Subscription, probe_for
from hf_glm_curriculum.storage import load_tensors, save_tensors

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)


class SampleLifespanCallback(SteppingCallback):
    """Tracks every sample's life during training and weights it accordingly.

    Works on ``transformers.Trainer`` and TRL's ``SFTTrainer`` with the user's own data set and
    collator. Samples are recognised by the hash of their tokens. At the end of the run
    ``<output_dir>/<name>/`` holds the samples, the observation pool and the data map; the
    checkpoints hold what a resumed run needs.

    Args:
        config: settings; defaults otherwise.
        judge: gives samples in the pool their verdicts; :class:`SignalJudge` otherwise.
        name: distinguishes several instances on one trainer (folder, state file and metrics).
        debug_dir: where to dump every sample's values at every step as CSV.
        neighbours: integers [N, k], rows of the data set that each row is like (-1 for none), in
            place of those the config would look for.

    Attributes:
        ledger: the :class:`SampleLedger` of the run under way or last run.
        sampling: the plan of a ``LifespanSampling`` data set, which enters itself here.
    """

    def __init__(
        self,
        config: LifespanConfig | None = None,
        *,
        judge: Judge | None = None,
        name: str = "lifespan",
        debug_dir: str | os.PathLike[str] | None = None,
        neighbours: Any = None,
    ) -> None:
        """Remember the settings; nothing is touched before training begins."""
        self.config = config or LifespanConfig()
        self.judge: Judge = judge or SignalJudge(self.config.suspicion_threshold)
        self.name = name
        self.debug_dir = debug_dir
        self.sampling: VisitPlan | None = None
        self._neighbours = neighbours
        self._life = SampleLife(self.config, note=name)
        self._probe: SampleProbe | None = None
        self._subscription: Subscription | None = None
        self._resumed = False
        self._dump: SampleDump | None = None
        self._texts: DatasetTexts | None = None
        self._folder = Path()

    @property
    def ledger(self) -> SampleLedger:
        """What is known of every sample."""
        return self._life.ledger

    def detach(self) -> None:
        """Take every hook off the model; needed only after a run that died of an exception."""
        self._unhook()
        self.ledger.close()
        self._reporter = self._dump = None

    def _unhook(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
        self._close_scope()
        self._subscription = self._probe = None
        if self.sampling is not None:
            self.sampling.end()

    # -- events ------------------------------------------------------------------------------

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        processing_class: Any = None,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        """Check the host, restore or start the ledger, and put the hooks on.

        Raises:
            IncompatibleError: for hosts whose losses cannot be told apart by sample.
            StateError: if the checkpoint's state does not fit, or the folder is not writable.
            ModelError: if the model has no decoder with a language-model head.
        """
        self.detach()
        self._folder = run_folder(args, state)
        refuse_host(args, self.config)
        for note in notes_on_host(args):
            self._say(note)
        dataset = unsampled(getattr(train_dataloader, "dataset", None))
        self._probe = probe_for(model)
        self._probe.compiled |= bool(getattr(args, "torch_compile", False))
        index = self._index(dataset)
        self._life = SampleLife(self.config, index, args.device, self.name, self._files())
        # Without an index, ledger rows are in order of sight and name no row of the data set.
        self._texts = DatasetTexts(None if index is None else dataset, processing_class)
        _refuse_textless(self.judge, self._texts)
        if self.sampling is not None:
            self.sampling.begin(args, train_dataloader, indexed=len(self.ledger) > 0)
        self._resumed = state.global_step > 0 and self._restore(state)
        if not self._resumed:
            self._find_neighbours(dataset)
        self._read_texts()
        self._begin_report(self._folder, args, state, control)
        if self.debug_dir is not None and state.is_world_process_zero:
            self._dump = SampleDump(self.debug_dir, self.name, state.global_step)
        self._scope = RunScope()
        self._subscription = self._probe.subscribe(
            self._life.weigh,
            is_live=self._is_live,
            is_over=self._scope.over,
            wants_embedding="drift" in self.config.signals,
            exact=self.config.grad_norm == "exact",
        )

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Draw the epoch's visits, where they are drawn.

        A checkpoint of an epoch's last step was written before that epoch ended: what the end
        would have done is done here.
        """
        inside = self._resumed and not at_epoch_end(state)
        if self._resumed and not inside:
            self._close_epoch(state)
        self._resumed = False
        if self.sampling is not None:
            self._life.flush()
            self.sampling.draw(self._life, again=inside)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """From here to the end of the step, training forwards of the model are observed."""
        self._stepping = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Enter the step's observations on every rank."""
        self._stepping = False
        if self._subscription is None or self._probe is None:
            return
        several = world_size() > 1
        parts = self._subscription.drain()
        self._probe.surprisal.commit(sum_over_ranks if several else None)
        if not parts and not several:
            return
        signals = self._life.absorb(parts, gather_signals if several else None)
        if self._dump is not None:
            self._dump.write(signals, state.global_step)
        if state.global_step % self.config.sync_every == 0:
            self._life.flush()

    def on_epoch_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Let the judge speak on the pool."""
        self._close_epoch(state)

    def _metrics(self, state: TrainerState) -> dict[str, float]:
        """The ledger's summary."""
        self._life.flush()
        self._life.refresh()
        return self._life.summary()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Write what a resumed run needs beside the checkpoint.

        Raises:
            StateError: if the disk is full or the folder is not writable.
        """
        self._life.flush()
        if not state.is_world_process_zero or self._probe is None:
            return
        folder = self._folder / f"checkpoint-{state.global_step}"
        tensors = {**self._life.tensors(), "unigram_counts": self._probe.surprisal.counts}
        if self.sampling is not None:
            tensors |= self.sampling.tensors()
        metadata = {
            "step": str(state.global_step),
            "config": as_json(self.config),
        }
        save_tensors(state_path(folder, self.name), tensors, metadata)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: Any,
        **kwargs: Any,
    ) -> None:
        """Take the hooks off, judge what is left and write the run's results."""
        if self._resumed:
            # It went on from its last step, before that epoch had ended.
            self._close_epoch(state)
        self._life.flush()
        self._judge()
        self._note_flow("end", state)
        self._life.refresh()
        self._unhook()
        if state.is_world_process_zero and self._texts is not None:
            folder = self._folder / self.name
            write_outputs(folder, self._life, self._texts, f"{self.name}/")
        if len(self.ledger) and not bool((self.ledger.column("lifetime") > 0).any()):
            self._say("no sample was observed: none had a label token")
        self.ledger.close()
        self._end_report()
        self._dump = None

    # -- helpers -----------------------------------------------------------------------------

    def _index(self, dataset: Any) -> SampleIndex | None:
        names = getattr(dataset, "column_names", None) or ()
        if not self.config.index_dataset or "input_ids" not in names:
            return None
        return SampleIndex.from_dataset(dataset) if hasattr(dataset, "__len__") else None

    def _files(self) -> Path | None:
        """Where this rank's ledger lies, if it is to lie in files; no two ranks share any."""
        folder = self.config.ledger_folder
        return None if folder is None else Path(folder) / self.name / f"rank{rank()}"

    def _find_neighbours(self, dataset: Any) -> None:
        indexed = dataset if len(self.ledger) else None
        if not self._life.find_neighbours(indexed, self._neighbours):
            self._say(
                "neighbours: the rows are not known before the first step, or the config keeps "
                "none; drift compares a sample with its own last visit only; a datasets.Dataset "
                "with input_ids (Dataset.from_list of a list) lets them be known"
            )

    def _read_texts(self) -> None:
        """Look for rows that ask the same; the texts are the same on every rank and resume."""
        texts, rows = self._texts, len(self.ledger)
        if texts is None or not 1 < rows <= self.config.text_rows or not texts.readable():
            return
        index = self.ledger.index
        places = range(rows) if index.packed_row is None else index.packed_row.tolist()
        samples = zip(places, index.row_ids.tolist(), strict=False)
        found = text_readings([texts.pair(row, sample) for row, sample in samples])
        self._life.set_text_readings(torch.from_numpy(found))

    def _close_epoch(self, state: TrainerState) -> None:
        if self._life.closed_step >= state.global_step:
            return
        self._life.flush()
        self._life.close_epoch(state.global_step)
        self._note_flow(f"epoch {state.epoch or 0:.3g}", state)
        self._judge()
        self._note_flow("judged", state)

    def _note_flow(self, name: str, state: TrainerState) -> None:
        self._life.flow.note(self.ledger, name, state.global_step, float(state.epoch or 0))

    def _restore(self, state: TrainerState) -> bool:
        folder = resume_folder(self._folder, state.global_step)
        path = state_path(folder, self.name)
        if not path.exists():
            self._say(
                f"{folder} holds no state of {self.name!r}: the ledger starts empty at step "
                f"{state.global_step}"
            )
            return False
        tensors, metadata = load_tensors(path)
        self._say_changed(metadata.get("config"), self.config)
        counts = tensors.pop("unigram_counts", None)
        if (
            counts is None
            or self._probe is None
            or counts.shape != self._probe.surprisal.counts.shape
        ):
            raise StateError(
                f"{path}: belongs to a model with another vocabulary; resume from a checkpoint of "
                "this model."
            )
        self._probe.surprisal.load(counts)
        drawn = {name: tensors.pop(name) for name in list(tensors) if name.startswith(PREFIX)}
        self._life.load(tensors)
        if self.sampling is not None:
            self.sampling.load(drawn)
        return True

    def _judge(self) -> None:
        cases = self._life.cases()
        if len(cases) and self._texts is not None:
            cases = self._texts.attach(cases)
        states = self._life.judge(cases, self._verdicts)
        if len(cases):
            counts = {s.name: int((states == s).sum()) for s in SampleState}
            found = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
            logger.info("%s: judged %d samples: %s", self.name, len(cases), found)

    def _verdicts(self, cases: Any) -> list[str]:
        """Ask the judge, on one rank for all; it may want to see first what is usual."""
        judge, texts = self.judge, self._texts

        def ask() -> list[str]:
            if isinstance(judge, SurveyingJudge) and judge.survey_rows and texts is not None:
                judge.survey(texts.attach(self._life.spread(judge.survey_rows)))
            return list(judge(cases))

        return from_first_rank(ask)


def _refuse_textless(judge: Judge, texts: DatasetTexts) -> None:
    """Find out before the first step that a judge will have nothing to read.

    Raises:
        IncompatibleError: naming the ways out.
    """
    if getattr(judge, "needs_text", False) and not texts.readable():
        raise IncompatibleError(
            f"judge: {type(judge).__name__} reads prompts and responses, and the trainer's data "
            "set shows neither text columns nor tokens with a tokenizer to decode them; "
            "pass processing_class=tokenizer to the trainer, keep the text columns "
            "(remove_unused_columns=False), or use SignalJudge."
        )
