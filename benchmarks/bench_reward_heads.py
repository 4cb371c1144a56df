"""``reward_heads``: five epochs of heads over cached features, against TRL's ``RewardTrainer``.

The same pairs, backbone (SmolLM2-135M, frozen), batch of 8 pairs, float32 and machine. Ours reads
every distinct text once, keeps its features on disk and trains three heads for five epochs;
``RewardTrainer`` (one scalar head) sends every pair through the backbone in each epoch. TRL is
timed for one epoch after a warm-up step and counted five times (``--full``: all five are run),
without evaluation and saving on either side.
"""

from __future__ import annotations

import random
import tempfile
import time
from typing import Any

import datasets
import torch
from common import parser, record
from transformers import AutoModelForSequenceClassification

from hf_glm_curriculum.data.demo.preferences import demo_preferences
from hf_glm_curriculum.embedded import embedded_model_path
from hf_glm_curriculum.models import load_tokenizer
from hf_glm_curriculum.rewards.head_training import train_heads
from hf_glm_curriculum.rewards.model import StructuredRewardModel
from hf_glm_curriculum.rewards.reward_data import reward_data
from hf_glm_curriculum.rewards.train import features_of, fresh_heads
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig

EPOCHS, BATCH = 5, 8


def ours(rows: list[dict[str, Any]], seed: int) -> dict[str, float]:
    """Seconds of feature caching and of five epochs of three heads."""
    data = reward_data(rows).split(0.1, 0.0, seed)
    data.splits["train"] = data.examples  # the same pairs as the other side trains on
    model = StructuredRewardModel.from_backbone("embedded")
    config = RewardTrainingConfig(epochs=EPOCHS, patience=EPOCHS, batch_size=BATCH, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        features = features_of(model, data, config, folder)
        cached = time.perf_counter()
        heads = fresh_heads(model, features, data, config)
        train_heads(heads, features, data.splits["train"], data.splits["validation"], config)
        done = time.perf_counter()
    return {"features": cached - start, "heads": done - cached, "texts": len(data.prompts)}


def trl(rows: list[dict[str, Any]], seed: int, epochs: int) -> float:
    """Seconds of TRL's trainer over the pairs, the backbone frozen."""
    from transformers import TrainerCallback
    from trl import RewardConfig, RewardTrainer

    source = str(embedded_model_path())
    tokenizer = load_tokenizer(source)
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1)
    model.config.pad_token_id = tokenizer.pad_token_id
    model.model.requires_grad_(False)
    names = ("chosen", "rejected")
    prompts = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    table = {"prompt": prompts} | {
        name: [[{"role": "assistant", "content": row[name]}] for row in rows] for name in names
    }
    marks: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            marks.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        args = RewardConfig(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=BATCH,
            learning_rate=1e-3,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            seed=seed,
            max_length=None,
            gradient_checkpointing=False,
            bf16=False,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = RewardTrainer(
            model=model,
            args=args,
            train_dataset=datasets.Dataset.from_dict(table),
            processing_class=tokenizer,
            callbacks=[Clock()],
        )
        trainer.train()
    # The first step warms up; the others stand for all.
    return (marks[-1] - marks[0]) / (len(marks) - 1) * len(marks)


def main() -> None:
    """Time both sides and record the table."""
    flags = parser(__doc__)
    flags.add_argument("--pairs", type=int, default=192)
    args = flags.parse_args()
    rows = demo_preferences(args.pairs, args.seed, languages=("en",))
    random.Random(args.seed).shuffle(rows)
    torch.manual_seed(args.seed)
    mine = ours(rows, args.seed)
    run = EPOCHS if args.full else 1
    theirs = trl(rows, args.seed, run) * EPOCHS / run
    total = mine["features"] + mine["heads"]
    ratio = total / theirs
    lines = [
        {
            "measure": "ours / RewardTrainer, 5 epochs",
            "value": ratio,
            "target": "≤ 0.25",
            "met": ratio <= 0.25,
        },
        {"measure": "ours, s", "value": total, "note": f"{mine['texts']} distinct texts"},
        {"measure": "… reading texts once, s", "value": mine["features"]},
        {"measure": "… five epochs of three heads, s", "value": mine["heads"]},
        {"measure": "RewardTrainer, s", "value": theirs, "note": f"{run} of 5 epochs run"},
    ]
    record("reward_heads", lines, args.seed, pairs=args.pairs, batch=BATCH, epochs=EPOCHS)


if __name__ == "__main__":
    main()
