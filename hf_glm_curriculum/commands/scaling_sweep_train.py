"""One run of a sweep: a new model trained on so many tokens, and its held-out loss."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from hf_glm_curriculum.commands.host_trainer import ending_in_time
from hf_glm_curriculum.commands.scaling_corpus import Corpus
from hf_glm_curriculum.commands.scaling_sweep_config import ScalingSweepConfig
from hf_glm_curriculum.commands.scratch_model import ScratchConfig, new_model
from hf_glm_curriculum.scaling.counting import attention_flops_per_token, count_parameters
from hf_glm_curriculum.scaling.sweep import DIVERGED, FINISHED, Cell

_REFERENCE_WIDTH = 64
_WORSE_THAN_START = 1.5


class _Steps(TrainerCallback):
    """Tells how many tokens were read, and stops a run whose loss is no number any more."""

    def __init__(self, advance: Callable[[float], None], tokens: int, ceiling: float) -> None:
        self.advance, self.tokens, self.ceiling = advance, tokens, ceiling
        self.diverged = False
        self.begun = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count what an earlier process did."""
        self.begun = state.global_step
        self.advance(self.tokens * state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count."""
        self.advance(self.tokens)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Look at the loss."""
        loss = (logs or {}).get("loss")
        if loss is not None and (not math.isfinite(loss) or loss > self.ceiling):
            self.diverged = control.should_training_stop = True


def train_cell(
    config: ScalingSweepConfig,
    cell: Cell,
    corpus: Corpus,
    folder: Path,
    advance: Callable[[float], None],
) -> dict[str, Any]:
    """Train one model, from its last whole checkpoint if there is one.

    Args:
        config: Of the sweep.
        cell: The run.
        corpus: Its data.
        folder: Its folder; checkpoints in it are gone at the end.
        advance: Called with tokens as they are read.

    Returns:
        A row of the sweep's table; see `sweep.COLUMNS`.

    Raises:
        ModelError: transformers refuses the sizes.
        StateError: The folder cannot be written.
    """
    began = time.perf_counter()
    model = _model(config, cell, corpus)
    steps = cell.tokens // config.step_tokens
    rate = config.learning_rate * _REFERENCE_WIDTH / cell.hidden_size
    watch = _Steps(advance, config.step_tokens, _WORSE_THAN_START * math.log(config.vocab_size))
    trainer = ending_in_time(Trainer)(
        model=model,
        args=_arguments(config, folder, steps, rate),
        train_dataset=_Rows(corpus.train[: max(config.batch_size, cell.tokens // config.length)]),
        eval_dataset=_Rows(corpus.held_out),
        data_collator=_stack,
        callbacks=[watch],
    )
    trainer.remove_callback(PrinterCallback)
    checkpoint = whole_checkpoint(folder)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    loss = float("nan") if watch.diverged else float(trainer.evaluate()["eval_loss"])
    for path in folder.glob("checkpoint-*"):
        shutil.rmtree(path, ignore_errors=True)
    return {
        **_facts(config, cell, corpus, model, steps),
        "loss": loss,
        "learning_rate": rate,
        "status": FINISHED if math.isfinite(loss) else DIVERGED,
        "seconds": round(time.perf_counter() - began, 2),
    }


def _model(config: ScalingSweepConfig, cell: Cell, corpus: Corpus) -> Any:
    """A new model of the cell's shape."""
    heads = cell.hidden_size // config.head_size
    sizes = ScratchConfig(
        architecture=cell.architecture,  # type: ignore[arg-type]
        hidden_size=cell.hidden_size,
        layers=cell.layers,
        heads=heads,
        kv_heads=heads // 2 if heads % 2 == 0 else heads,
        intermediate_size=max(16, round(cell.hidden_size * 8 / 3 / 16) * 16),
        vocab_size=config.vocab_size,
    )
    return new_model(sizes, corpus.tokenizer, config.length, config.seed)


def _facts(
    config: ScalingSweepConfig, cell: Cell, corpus: Corpus, model: Any, steps: int
) -> dict[str, Any]:
    """What is known of a run without training it."""
    count = count_parameters(model)
    tokens = steps * config.step_tokens
    width = cell.hidden_size // config.head_size * config.head_size
    scores = attention_flops_per_token(cell.layers, width, config.length)
    return {
        "run": cell.name,
        "architecture": cell.architecture,
        "layers": cell.layers,
        "hidden_size": cell.hidden_size,
        "N": count.by(config.parameters),
        "D": tokens,
        "unique_tokens": min(tokens, corpus.tokens),
        "flops": 6 * count.matmul * tokens,
        "attention_flops": scores * tokens,
        "parameters_total": count.total,
        "parameters_matmul": count.matmul,
        "parameters_non_embedding": count.non_embedding,
    }


def _arguments(
    config: ScalingSweepConfig, folder: Path, steps: int, rate: float
) -> TrainingArguments:
    every = max(1, steps // (config.saves + 1)) if config.saves else steps + 1
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=4 * config.batch_size,
        learning_rate=rate,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, round(config.warmup * steps)),
        weight_decay=config.weight_decay,
        adam_beta2=0.95,
        logging_steps=max(1, steps // 20),
        save_strategy="steps" if config.saves else "no",
        save_steps=every,
        save_total_limit=1,
        report_to="none",
        seed=config.seed,
        data_seed=config.seed,
        use_cpu=config.cpu,
        remove_unused_columns=False,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def whole_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose state can be read; a kill while saving leaves one that cannot."""
    found = sorted(
        (path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit()),
        key=lambda path: -int(path.name[11:]),
    )
    for path in found:
        try:
            json.loads((path / "trainer_state.json").read_text("utf-8"))
        except (OSError, ValueError):
            continue
        return path
    return None


class _Rows(torch.utils.data.Dataset):
    """Rows of tokens; every token is a label."""

    def __init__(self, rows: Any) -> None:
        self.rows = torch.from_numpy(rows).long()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[place], "labels": self.rows[place]}


def _stack(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
