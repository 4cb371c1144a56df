"""``loss_swap``: how long a training under way takes to change its objective.

A GLM trains on one of two loss terms; ``control set`` weighs the other in. Measured: wall-clock
seconds from the command's write to the beginning of the first step that trains with the new
weights, the time the file must lie still included (0.2 s), as medians of the switches. Beside it,
what a stop and restart costs at the least: loading the embedded model and making a trainer anew
(no data, no optimizer state).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from bench_gates import model_of
from common import parser, record
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_glm_curriculum import CompositeLoss, CompositeLossCallback, LossSwapCallback
from hf_glm_curriculum.losses.control_files import set_terms
from hf_glm_curriculum.losses.terms import CausalLMLoss, ZLoss
from hf_glm_curriculum.models import load_model


class Switcher(TrainerCallback):
    """Asks for the other weights now and then, and takes the time until they are there."""

    def __init__(self, composite: CompositeLoss, folder: Path, every: int) -> None:
        self.composite, self.folder, self.every = composite, folder, every
        self.seconds: list[float] = []
        self.steps: list[float] = []
        self._asked: tuple[float, float] | None = None
        self._began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look whether what was asked for is there."""
        self._began = time.perf_counter()
        weight = self.composite.state_dict()["terms"]["z"]["weight"]
        if self._asked is not None and weight == self._asked[1]:
            self.seconds.append(time.perf_counter() - self._asked[0])
            self._asked = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask."""
        self.steps.append(time.perf_counter() - self._began)
        if self._asked is None and state.global_step % self.every == 0:
            wanted = 1e-3 if (state.global_step // self.every) % 2 else 1e-4
            self._asked = (time.perf_counter(), wanted)
            set_terms(self.folder, [f"loss.z={wanted}"])


def trainer_of(model: Any, folder: Path, steps: int, callbacks: list[Any]) -> Trainer:
    """A trainer on random tokens."""
    rows = torch.randint(2, 4096, (64, 128)).tolist()
    data = Dataset.from_dict({"input_ids": rows, "labels": rows})
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=8,
        logging_steps=1000,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(model, args, train_dataset=data, callbacks=callbacks)


def main() -> None:
    """Measure and record."""
    flags = parser(__doc__)
    flags.add_argument("--switches", type=int, default=8)
    args = flags.parse_args()
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        composite = CompositeLoss({"lm": CausalLMLoss(), "z": ZLoss()}, {"z": 1e-4})
        switcher = Switcher(composite, folder, every=6)
        callbacks = [CompositeLossCallback(composite), LossSwapCallback(composite), switcher]
        trainer_of(model_of(6, 256), folder, 6 * (args.switches + 1), callbacks).train()
        start = time.perf_counter()
        model, _ = load_model("embedded", dtype=torch.float32)
        trainer_of(model, folder, 1, [])
        restart = time.perf_counter() - start
    step = statistics.median(switcher.steps)
    record(
        "loss_swap",
        [
            {
                "measure": "from the command to the step that trains with it, s",
                "value": statistics.median(switcher.seconds),
                "claim": "2 h → 0.3 s",
                "note": f"{len(switcher.seconds)} switches, at most {max(switcher.seconds):.2f} s; "
                f"a step takes {step:.2f} s",
            },
            {"measure": "loading the model and making a trainer again, s", "value": restart},
        ],
        args.seed,
        model="GLM, 6 blocks of 256",
        batch="8 × 128",
        switches=args.switches,
    )


if __name__ == "__main__":
    main()
