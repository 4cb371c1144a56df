"""``signals_overhead``: a training step with ``SampleLifespanCallback()`` over one without.

SmolLM2-135M, 8 × 256 tokens, no accumulation, full and LoRA, plain ``Trainer``. Blocks of steps
with and without the callback alternate on the same model, so that drifts of the machine fall on
both; the ratio is that of the medians. On a CPU the clock is the process's own CPU time, which
other processes of the machine hardly touch; on a GPU it is the wall's, between synchronisations.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import torch
from common import parser, record
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.models import load_model

TARGETS = {"hidden": 1.03, "exact lora": 1.15, "exact full": 1.6}


class StepClock(TrainerCallback):
    """Seconds from the start of each optimizer step to the start of the next."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def _mark(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            self.marks.append(time.perf_counter())
        else:
            self.marks.append(time.process_time())

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the start of a step."""
        self._mark()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the end of the last step; what other callbacks write then comes later."""
        self._mark()

    @property
    def steps(self) -> list[float]:
        """Seconds of each step but the first (allocation)."""
        times = [b - a for a, b in zip(self.marks, self.marks[1:], strict=False)]
        return times[1:]


def block(model: torch.nn.Module, rows: Dataset, extra: list[TrainerCallback], steps: int) -> list:
    """Train a few steps and return their seconds."""
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            max_steps=steps + 1,
            report_to="none",
            save_strategy="no",
            logging_steps=1000,
            disable_tqdm=True,
            learning_rate=1e-6,
            use_cpu=not torch.cuda.is_available(),
        )
        # The clock comes first, so that its marks span all that the callbacks do in a step.
        trainer = Trainer(model=model, args=args, train_dataset=rows, callbacks=[clock, *extra])
        trainer.train()
    return clock.steps


def measure(lora: bool, config: LifespanConfig, blocks: int, steps: int, seed: int) -> float:
    """Median seconds with the callback over median seconds without."""
    model, _ = load_model()
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 40000, (64, 256), generator=generator)
    rows = Dataset.from_dict({"input_ids": tokens.tolist(), "labels": tokens.tolist()})
    plain: list[float] = []
    watched: list[float] = []
    for _ in range(blocks):
        plain += block(model, rows, [], steps)
        watched += block(model, rows, [SampleLifespanCallback(config)], steps)
    return float(torch.tensor(watched).median() / torch.tensor(plain).median())


def main() -> None:
    """Run every condition and record the ratios."""
    args = parser(__doc__).parse_args()
    blocks, steps = (6, 6) if args.full else (2, 2)
    rows = []
    for kind in ("hidden", "exact"):
        for name in ("lora", "full"):
            config = LifespanConfig(grad_norm=kind)
            ratio = measure(name == "lora", config, blocks, steps, args.seed)
            target = TARGETS.get(kind) or TARGETS[f"{kind} {name}"]
            rows.append(
                {
                    "measure": f"step time with / without, {name}, {kind} norms",
                    "value": ratio,
                    "target": f"≤ {target}",
                    "met": ratio <= target,
                }
            )
    record(
        "signals_overhead",
        rows,
        args.seed,
        model="SmolLM2-135M",
        batch="8 × 256",
        blocks=blocks,
        steps=steps,
    )


if __name__ == "__main__":
    main()
