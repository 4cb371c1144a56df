"""Answers to fixed prompts while a model trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hf_glm_curriculum.checkpoints import run_folder
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.evaluation.generation import Prompt, generate_answers
from hf_glm_curriculum.reporting_callback import ReportingCallback, ResumedEpoch
from hf_glm_curriculum.storage import append_line, read_whole_lines, rewind_lines
from hf_glm_curriculum.text.refusals import is_refusal
from hf_glm_curriculum.text.repetition import distinct_n, repeated_ngram_share
from hf_glm_curriculum.text.words import word_count

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class SampleGenerationCallback(ReportingCallback):
    """Answers the same prompts greedily before, during and after training.

    Answers go to ``<output_dir>/<name>/answers.jsonl`` (step, prompt, answer), their length,
    repetition, diversity and refusals to the trackers as ``<name>/…``. The trajectory of the
    training stays what it was: mode, generation settings and random states are given back.

    Args:
        prompts: texts, or turns.
        tokenizer: the trainer's processing class if None.
        every: optimizer steps between two samplings; None samples after each epoch.
        max_new_tokens: longest answer.
        batch_size: prompts answered together.
        name: of folder and metrics.

    Raises:
        ConfigError: there is no prompt, or ``every`` is below 1.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        tokenizer: Any = None,
        *,
        every: int | None = None,
        max_new_tokens: int = 64,
        batch_size: int = 8,
        name: str = "samples",
    ) -> None:
        if not prompts:
            raise ConfigError("prompts: needs one at least, got none")
        if every is not None and every < 1:
            raise ConfigError(f"every: must be at least 1 step, got {every}")
        self.prompts, self.tokenizer, self.every = list(prompts), tokenizer, every
        self.max_new_tokens, self.batch_size, self.name = max_new_tokens, batch_size, name
        self.answers: list[str] = []
        """The last answers, in the order of the prompts."""
        self._tokenizer: Any = None
        self._path = Path("answers.jsonl")
        self._epoch = ResumedEpoch()
        self._done = -1

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        """Take lines of steps that a resumed run repeats out of the file; answer once.

        Raises:
            ConfigError: there is no tokenizer.
        """
        self._tokenizer = self.tokenizer if self.tokenizer is not None else processing_class
        if self._tokenizer is None:
            raise ConfigError("tokenizer: the trainer has no processing_class; pass tokenizer=")
        self._path = run_folder(args, state) / self.name / "answers.jsonl"
        if state.is_world_process_zero:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._rewind(state.global_step)
        self._epoch.begin(state)
        self._begin_report(run_folder(args, state), args, state, control)
        if state.global_step == 0:
            self._sample(args, state, control, model)

    def _rewind(self, step: int) -> None:
        """Keep the answers up to a step; those of the step itself if they are all there."""
        rewind_lines(self._path, step)
        there = sum(row.get("step") == step for row in read_whole_lines(self._path))
        self._done = step if there == len(self.prompts) else -1
        if there and self._done != step:
            rewind_lines(self._path, step, again=True)

    def on_epoch_begin(
        self, args: Any, state: TrainerState, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Answer after the epoch that a kill left without its end."""
        if self._epoch.ended_unseen(state) and self.every is None:
            self._sample(args, state, control, model)

    def on_step_end(
        self, args: Any, state: TrainerState, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Answer every so many steps."""
        if self.every is not None and state.global_step % self.every == 0:
            self._sample(args, state, control, model)

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Answer after an epoch."""
        if self.every is None:
            self._sample(args, state, control, model)

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Leave the run's reporting."""
        if self._epoch.over_at_once() and self.every is None:
            self._sample(args, state, control, model)
        self._end_report()

    def _sample(self, args: Any, state: TrainerState, control: Any, model: Any) -> None:
        """The first process answers for all, once a step; nothing of it is left in the run."""
        if self._reporter is None or not state.is_world_process_zero:
            return
        if self._done == state.global_step:
            return
        if _is_sharded(model):
            self._say("parameters are sharded over processes, so no answers are sampled")
            return
        devices = [model.device] if getattr(model, "device", None) is not None else []
        used = [device for device in devices if device.type == "cuda"]
        with torch.random.fork_rng(devices=used):
            self.answers = generate_answers(
                model,
                self._tokenizer,
                self.prompts,
                max_new_tokens=self.max_new_tokens,
                batch_size=self.batch_size,
                show_progress=False,
            )
        for prompt, answer in zip(self.prompts, self.answers, strict=True):
            row = {"step": state.global_step, "prompt": prompt, "answer": answer}
            append_line(self._path, json.dumps(row, ensure_ascii=False))
        n = len(self.answers)
        metrics = {
            "words": sum(map(word_count, self.answers)) / n,
            "repetition": sum(repeated_ngram_share(a, 3) for a in self.answers) / n,
            "distinct_2": distinct_n(self.answers, 2),
            "refused": sum(map(is_refusal, self.answers)) / n,
        }
        self._report(metrics, args, state, control, model)


def _is_sharded(model: Any) -> bool:
    """Whether a forward needs every process (FSDP2's DTensors, DeepSpeed ZeRO-3, FSDP1)."""
    if type(model).__name__ == "FullyShardedDataParallel":
        return True
    marks = ("placements", "ds_id", "_is_flat_param")
    return any(hasattr(one, mark) for one in model.parameters() for mark in marks)
