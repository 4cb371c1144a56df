"""One arm of ``stage_switch``: a run that ends pre-training and enters instruction tuning.

All arms of a seed share the steps before the longest window: they are trained once and forked.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from stage_data import END, PAD, StageData
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    GlmConfig,
    GlmForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from hf_glm_curriculum import CurriculumMixture, MigrationConfig, ObjectiveMigrationCallback

TEXT, INSTRUCTIONS = "text", "instructions"


@dataclass
class Plan:
    """Sizes of a run; steps are optimizer steps."""

    pretrain_steps: int = 800
    sft_steps: int = 40
    fork: int = 716
    rows: int = 12
    width: int = 128
    vocabulary: int = 2048
    hidden: int = 128
    blocks: int = 6
    learning_rate: float = 2e-3
    warmup: int = 40
    decay: float = 0.2
    """Share of pre-training, at its end, in which the learning rate falls to that of tuning."""
    sft_rate: float = 0.3
    """Learning rate of instruction tuning, as a share of the peak."""
    early: float = 0.1
    """Share of the instruction steps that counts as right after the switch."""

    @property
    def max_steps(self) -> int:
        """Steps of the whole run."""
        return self.pretrain_steps + self.sft_steps

    @property
    def early_steps(self) -> int:
        """Steps right after the switch."""
        return round(self.early * self.sft_steps)


@dataclass
class Arm:
    """How the switch is made."""

    name: str
    config: MigrationConfig
    rewarm: int = 0
    """Steps after the switch in which the learning rate rises from 0 again."""


def hard(plan: Plan, name: str = "hard switch", rewarm: int = 0) -> Arm:
    """Text up to the switch, instructions from then on."""
    nothing = MigrationConfig(
        window=1.0 / plan.pretrain_steps,
        pretrain_steps=plan.pretrain_steps,
        start_ratio=0.0,
        increment=0.0,
        post_ramp=0,
        gates=False,
    )
    return Arm(name, nothing, rewarm)


def migrating(plan: Plan, name: str = "migration", **settings: Any) -> Arm:
    """The default schedule, or one with other settings."""
    return Arm(name, MigrationConfig(pretrain_steps=plan.pretrain_steps, **settings))


def collate(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Pad on the right."""
    width = max(len(row["input_ids"]) for row in rows)
    fills = {"input_ids": PAD, "labels": -100}
    batch = {
        name: torch.tensor([row[name] + [fill] * (width - len(row[name])) for row in rows])
        for name, fill in fills.items()
    }
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    batch["attention_mask"] = (torch.arange(width) < lengths[:, None]).long()
    return batch


def new_model(plan: Plan, data: StageData) -> GlmForCausalLM:
    """A random GLM."""
    config = GlmConfig(
        vocab_size=data.vocabulary,
        hidden_size=plan.hidden,
        intermediate_size=3 * plan.hidden,
        num_hidden_layers=plan.blocks,
        num_attention_heads=plan.hidden // 32,
        num_key_value_heads=max(1, plan.hidden // 64),
        head_dim=32,
        max_position_embeddings=2 * plan.width,
        pad_token_id=PAD,
        eos_token_id=END,
        tie_word_embeddings=True,
    )
    return GlmForCausalLM(config)


@dataclass
class Curves(TrainerCallback):
    """Held-out losses before, right after and long after the switch, and hidden states."""

    plan: Plan
    data: StageData
    steps: list[int] = field(default_factory=list)
    text: list[float] = field(default_factory=list)
    instructions: list[float] = field(default_factory=list)
    similarity: dict[str, list[float]] = field(default_factory=dict)
    first: list[Tensor] = field(default_factory=list)

    def due(self, step: int) -> bool:
        """Whether to measure after ``step`` steps: at each right after the switch, else some."""
        plan = self.plan
        switch, early = plan.pretrain_steps, plan.pretrain_steps + plan.early_steps
        if switch <= step <= early:
            return True
        every = 20 if step < switch else 10
        return step % every == 0 or step == plan.max_steps

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **k: Any
    ) -> None:
        """Measure where the arms fork."""
        if state.global_step:
            self.first = hidden_states(model, self.data)
            self._measure(state.global_step, model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **k: Any) -> None:
        """Measure where it is due."""
        step = state.global_step
        if self.first and self.due(step):
            self._measure(step, model)
        if self.first and step in (
            self.plan.pretrain_steps + self.plan.early_steps,
            self.plan.max_steps,
        ):
            now = hidden_states(model, self.data)
            place = "final" if step == self.plan.max_steps else "early"
            self.similarity[place] = [cka(a, b) for a, b in zip(self.first, now, strict=True)]

    def _measure(self, step: int, model: Any) -> None:
        self.steps.append(step)
        self.text.append(heldout_loss(model, self.data.heldout_pretrain))
        self.instructions.append(heldout_loss(model, self.data.heldout_instruction))


@torch.no_grad()
def heldout_loss(model: Any, rows: Any, size: int = 32) -> float:
    """Mean loss of the label tokens, nats."""
    model.eval()
    total, count = 0.0, 0
    for start in range(0, len(rows), size):
        batch = collate([rows[i] for i in range(start, min(start + size, len(rows)))])
        tokens = int((batch["labels"][:, 1:] >= 0).sum())
        total += float(model(**batch).loss) * tokens
        count += tokens
    model.train()
    return total / count


@torch.no_grad()
def hidden_states(model: Any, data: StageData, rows: int = 16) -> list[Tensor]:
    """Embeddings and every block's output at each token of held-out text: [tokens, hidden]."""
    model.eval()
    batch = collate([data.heldout_pretrain[i] for i in range(rows)])
    found = model(**batch, output_hidden_states=True).hidden_states
    model.train()
    return [hidden.reshape(-1, hidden.shape[-1]).double() for hidden in found]


def cka(one: Tensor, other: Tensor) -> float:
    """Linear centred kernel alignment (Kornblith et al. 2019) of [tokens, hidden] features."""
    one, other = one - one.mean(0), other - other.mean(0)
    cross = (one.T @ other).square().sum()
    return float(cross / ((one.T @ one).norm() * (other.T @ other).norm()))


class Stop(TrainerCallback):
    """Saves and stops where the arms fork."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask for both."""
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def rate(step: int, plan: Plan, rewarm: int) -> float:
    """Warm-up, plateau, a linear fall that ends with pre-training, and one to 0 over tuning."""
    if step < plan.pretrain_steps:
        left = (plan.pretrain_steps - step) / (plan.decay * plan.pretrain_steps)
        fall = plan.sft_rate + (1.0 - plan.sft_rate) * min(1.0, left)
        return min(fall, (step + 1) / plan.warmup)
    done = step - plan.pretrain_steps
    again = min(1.0, (done + 1) / rewarm) if rewarm else 1.0
    return plan.sft_rate * again * (1.0 - done / plan.sft_steps)


def trainer_for(
    arm: Arm, plan: Plan, data: StageData, folder: Path, seed: int, callbacks: list[Any]
) -> Trainer:
    """A trainer whose mixture follows the arm's schedule."""
    set_seed(seed)
    model = new_model(plan, data)
    # Steps hold a fixed number of rows, so rows are the unit in which arms can be made equal.
    mixture = CurriculumMixture(
        {TEXT: data.pretrain, INSTRUCTIONS: data.instruction},
        {TEXT: 1.0, INSTRUCTIONS: 0.0},
        seed=seed,
        unit="rows",
    )
    migration = ObjectiveMigrationCallback(
        arm.config, mixture=mixture, pretrain_source=TEXT, instruction_source=INSTRUCTIONS
    )
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=plan.max_steps,
        per_device_train_batch_size=plan.rows,
        max_grad_norm=1.0,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        ignore_data_skip=True,
        seed=seed,
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
    )
    schedule = LambdaLR(optimizer, lambda step: rate(step, plan, arm.rewarm))
    return Trainer(
        model=model,
        args=args,
        train_dataset=mixture,
        data_collator=collate,
        callbacks=[migration, *callbacks],
        optimizers=(optimizer, schedule),
    )


def base_checkpoint(plan: Plan, data: StageData, work: Path, seed: int) -> Path:
    """Train the steps that all arms share, unless an earlier call has."""
    folder = work / f"base_seed{seed}"
    checkpoint = folder / f"checkpoint-{plan.fork}"
    if not (checkpoint / "trainer_state.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        trainer_for(hard(plan), plan, data, folder, seed, [Stop(plan.fork)]).train()
    return checkpoint


def _relevant(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without those of gates that are off."""
    config = dict(settings["config"])
    if not config["gates"]:
        for name in ("gamma_bottom", "gamma_top", "pretrain_floor", "instruction_floor"):
            del config[name]
    return {**settings, "config": config}


def run_arm(arm: Arm, plan: Plan, data: StageData, work: Path, seed: int) -> dict[str, Any]:
    """Train an arm from the fork, unless its result is there; returns curves and totals."""
    kept = work / f"{arm.name.replace(' ', '_')}_seed{seed}.json"
    settings = {"plan": dataclasses.asdict(plan), "config": dataclasses.asdict(arm.config)}
    settings |= {"rewarm": arm.rewarm}
    if kept.exists():
        found = json.loads(kept.read_text("utf-8"))
        if _relevant(found["settings"]) == _relevant(json.loads(json.dumps(settings))):
            return found
    checkpoint = base_checkpoint(plan, data, work, seed)
    curves = Curves(plan, data)
    folder = work / kept.stem
    shutil.rmtree(folder, ignore_errors=True)
    trainer = trainer_for(arm, plan, data, folder, seed, [curves])
    trainer.train(resume_from_checkpoint=str(checkpoint))
    written = json.loads((folder / "migration" / "schedule.json").read_text("utf-8"))
    found = {
        "arm": arm.name,
        "seed": seed,
        "settings": settings,
        "steps": curves.steps,
        "text": curves.text,
        "instructions": curves.instructions,
        "similarity": curves.similarity,
        "label_tokens": written["label_tokens"],
        "rows": trainer.train_dataset.drawn(plan.max_steps),  # type: ignore[union-attr]
    }
    kept.write_text(json.dumps(found), "utf-8")
    return found
