"""End-to-end training of backbone and heads through `transformers.Trainer`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

from hf_glm_curriculum.reporting import reporter_for
from hf_glm_curriculum.rewards.head_training import local
from hf_glm_curriculum.rewards.model import StructuredRewardModel
from hf_glm_curriculum.rewards.objective import balanced_order, classes, dimension_losses
from hf_glm_curriculum.rewards.rendering import TextRenderer
from hf_glm_curriculum.rewards.reward_data import Examples, RewardData
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig

_EXAMPLE_FIELDS = tuple(Examples.__dataclass_fields__)


def finetune_backbone(
    model: StructuredRewardModel,
    data: RewardData,
    config: RewardTrainingConfig,
    output_dir: Path,
    *,
    report_to: Sequence[str] = (),
    resume: Path | None = None,
    cpu: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
) -> Trainer:
    """Train the opened part of the backbone and the score heads together, in place.

    Early stopping on the mean validation loss of the dimensions; the best epoch's weights stay.
    Adapters are merged at the end.

    Args:
        model: fresh heads on a backbone; `config.tuning.backbone` is opened here.
        data: split.
        config: settings.
        output_dir: of checkpoints and metrics.
        report_to: trackers.
        resume: a checkpoint folder to go on from.
        cpu: train on the CPU even where there is a GPU.
        callbacks: the caller's own.

    Raises:
        ModelError: The backbone lacks what is to be opened.
        MissingDependencyError: Adapters without peft.
    """
    tuning = config.tuning
    if not (tuning.backbone == "lora" and model.config.lora):
        model.open_backbone(tuning.backbone, last_k=tuning.last_k, lora=tuning.lora_settings())
    # Untrained here, and DDP refuses parameters without a gradient.
    model.confidence_heads.requires_grad_(False)
    renderer = model.renderer("cut")
    rows = renderer.encode(data.prompts, data.responses)
    args = _arguments(config, output_dir, report_to, cpu, len(data.splits["train"]))
    trainer = _RewardTrainer(
        model=model,
        args=args,
        train_dataset=_Positions(len(data.splits["train"])),
        eval_dataset=_Positions(len(data.splits["validation"])),
        data_collator=_Collator(data.splits["train"], rows, renderer),
        callbacks=[*callbacks, _Metrics(), EarlyStoppingCallback(config.patience)],
        reward_config=config,
        validation=data.splits["validation"],
        train_examples=data.splits["train"],
        rows=rows,
        renderer=renderer,
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    model.confidence_heads.requires_grad_(True)
    model.merge_lora()
    model.backbone.requires_grad_(False)
    model.eval()
    return trainer


def _arguments(
    config: RewardTrainingConfig,
    output_dir: Path,
    report_to: Sequence[str],
    cpu: bool,
    examples: int,
) -> TrainingArguments:
    tuning = config.tuning
    return TrainingArguments(
        output_dir=str(output_dir),
        num_train_epochs=tuning.backbone_epochs,
        per_device_train_batch_size=tuning.backbone_batch_size,
        gradient_accumulation_steps=tuning.gradient_accumulation,
        learning_rate=tuning.backbone_learning_rate,
        warmup_steps=tuning.warmup,
        max_grad_norm=tuning.max_grad_norm,
        lr_scheduler_type="cosine",
        logging_steps=tuning.logging_steps,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        report_to=list(report_to) or "none",
        seed=config.seed,
        data_seed=config.seed,
        bf16=tuning.bf16,
        gradient_checkpointing=tuning.gradient_checkpointing,
        use_cpu=cpu,
        remove_unused_columns=False,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


class _Positions(Dataset[int]):
    """Positions of examples; the collator knows what lies there."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, position: int) -> int:
        return position


class _BalancedSampler(Sampler[int]):
    """Every class equally often; an epoch's order depends on seed and epoch alone."""

    def __init__(self, groups: Tensor, seed: int, balanced: bool) -> None:
        self.groups, self.seed, self.balanced, self.epoch = groups, seed, balanced, 0

    def __iter__(self) -> Iterator[int]:
        order = balanced_order(self.groups, self.seed, self.epoch, self.balanced)
        return iter(order[: len(self.groups)].tolist())

    def __len__(self) -> int:
        return len(self.groups)

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate at the start of an epoch."""
        self.epoch = epoch


class _Collator:
    """Positions → padded tokens of the items they need, and the examples over these items."""

    def __init__(
        self, examples: Examples, rows: Sequence[Sequence[int]], renderer: TextRenderer
    ) -> None:
        self.examples, self.rows, self.renderer = examples, rows, renderer

    def __call__(self, positions: list[int]) -> dict[str, Tensor]:
        batch, items = local(self.examples, torch.tensor(positions))
        tokens = self.renderer.pad([self.rows[item] for item in items.tolist()])
        return {**tokens.tensors(), **{name: getattr(batch, name) for name in _EXAMPLE_FIELDS}}


class _RewardTrainer(Trainer):
    """The stock trainer with a loss over pairs and ratings, and two learning rates."""

    def __init__(
        self,
        *,
        reward_config: RewardTrainingConfig,
        train_examples: Examples,
        validation: Examples,
        rows: Sequence[Sequence[int]],
        renderer: TextRenderer,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.reward_config, self.train_examples = reward_config, train_examples
        self.validation, self.rows, self.renderer = validation, rows, renderer
        # The loss is a mean already: the trainer has to divide it by the accumulation steps.
        self.model_accepts_loss_kwargs = False

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **unused: Any
    ) -> Any:
        """Mean loss of the examples in a batch."""
        batch = Examples(*(inputs.pop(name) for name in _EXAMPLE_FIELDS))
        outputs = model(**inputs)
        weight = self.reward_config.center_weight
        sums, counts = dimension_losses(outputs.logits, batch, weight)
        loss = sums.sum() / counts.sum().clamp(min=1)
        return (loss, outputs) if return_outputs else loss

    def create_optimizer(self, model: Any = None) -> Any:
        """AdamW with the heads' learning rate for the heads."""
        if self.optimizer is None:
            own: Any = self.model
            tuning, config = self.reward_config.tuning, self.reward_config
            base = [p for p in own.backbone.parameters() if p.requires_grad]
            groups = [
                {"params": base, "lr": tuning.backbone_learning_rate, "weight_decay": 0.0},
                {
                    "params": list(own.score.parameters()),
                    "lr": config.learning_rate,
                    "weight_decay": config.weight_decay,
                },
            ]
            self.optimizer = torch.optim.AdamW(groups)
        return self.optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Examples drawn equally often from every class."""
        groups = classes(self.train_examples, len(self.model.config.dimensions))  # pyright: ignore
        return _BalancedSampler(groups, self.reward_config.seed, self.reward_config.balanced)

    def evaluate(self, *unused: Any, **also_unused: Any) -> dict[str, float]:
        """Mean validation loss of every dimension."""
        model: Any = self.accelerator.unwrap_model(self.model)
        items = self.validation.items()
        logits = torch.zeros(len(self.rows), len(model.config.dimensions))
        size = self.reward_config.feature_batch_size
        rows = [self.rows[item] for item in items.tolist()]
        features = model.pooled(self.renderer, rows, size)
        with torch.no_grad():
            device = model.score.standardize.mean.device
            logits[items] = model.score(features.to(device)).float().cpu()
        sums, counts = dimension_losses(logits, self.validation)
        losses = (sums / counts)[counts > 0]
        names = [n for n, c in zip(model.config.dimensions, counts, strict=True) if c > 0]
        found = {f"eval_loss_{name}": float(v) for name, v in zip(names, losses, strict=True)}
        found["eval_loss"] = float(losses.mean())
        model.train()
        self.log(dict(found))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        return found


class _Metrics(TrainerCallback):
    """The trainer's log into the run folder's `metrics.jsonl`."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Join the run's reporter."""
        reporter_for(args.output_dir).begin(args, state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Write a line."""
        reporter_for(args.output_dir).trainer_log(args, state, logs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the reporter."""
        reporter_for(args.output_dir).end()


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of `finetune_backbone` in a folder."""
    found = {
        int(step): path
        for path in folder.glob("checkpoint-*")
        if (step := path.name.removeprefix("checkpoint-")).isdigit()
        and (path / "trainer_state.json").exists()
    }
    return found[max(found)] if found else None
