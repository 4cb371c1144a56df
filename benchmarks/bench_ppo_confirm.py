"""``ppo_confirm``: what ``gating`` and ``collapse`` say of a small GLM, seen on SmolLM2-135M.

Five updates with LoRA on the embedded model, 16 sums of a number of up to two digits and one of one
("What is 47 + 8?" through its chat template), answers of up to 24 tokens, two epochs. Collapse: the
reward of ``collapse`` summed naively, and with the trainer's defaults. Gating: the noisy factual
head of ``gating`` with the gate at 0.85 and without. Everything is read off the answers drawn in
the first update, before any step, and in the fifth; 16 answers are few, so that only large moves
mean anything. No target: it says whether the same things happen.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from bench_collapse import judge as collapse_judge
from bench_gating import scorer as gating_scorer
from common import parser, record
from datasets import Dataset
from small_ppo import Scorer, is_right, last_number
from transformers import set_seed

from hf_glm_curriculum.models import load_model
from hf_glm_curriculum.rewards.gate import RewardGate
from hf_glm_curriculum.text.words import word_count

ARMS = ("naive sum", "defaults", "no gate", "gate")
UPDATES, ROWS, RESPONSE = 5, 16, 24


def bare(prompt: str) -> str:
    """A prompt as the small GLM's: ``47+8=``."""
    return prompt.removeprefix("What is ").rstrip("?").replace(" ", "") + "="


def one_arm(arm: str, seed: int) -> list[dict[str, float]]:
    """First and last update of an arm."""
    from peft import LoraConfig

    from hf_glm_curriculum.ppo import StructuredPPOConfig, StructuredPPOTrainer

    model, tokenizer = load_model("embedded", dtype=torch.float32)
    asked = [f"What is {a} + {b}?" for a in range(3, 99, 7) for b in range(2, 10)]
    prompts = [[{"role": "user", "content": text}] for text in asked]
    source = gating_scorer(seed).judge if "gate" in arm else collapse_judge
    parts = {"gate": RewardGate(0.85)} if arm == "gate" else {}
    set_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        args = StructuredPPOConfig(
            output_dir=folder,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=ROWS // 8,
            num_ppo_epochs=2,
            response_length=RESPONSE,
            total_updates=UPDATES,
            learning_rate=3e-4,
            lr_scheduler_type="constant",
            structured_defaults=arm == "defaults",
            completion_rows=ROWS,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            seed=seed,
        )
        trainer = StructuredPPOTrainer(
            args=args,
            processing_class=tokenizer,
            model=model,
            reward_model=Scorer(lambda prompt, answer: source(bare(prompt), answer)),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            peft_config=LoraConfig(
                r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"
            ),
            **parts,
        )
        trainer.train()
        lines = (Path(folder) / "completions.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [figures([row for row in rows if row["step"] == step]) for step in (1, UPDATES)]


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What an update's answers are like."""
    answers = [row["response"] for row in rows]
    return {
        "length": statistics.mean(map(word_count, answers)),
        "answered": sum(last_number(a) is not None for a in answers) / len(rows),
        "accuracy": sum(is_right(bare(r["prompt"]), r["response"]) for r in rows) / len(rows),
        "open": sum(row["open"]["factual"] for row in rows) / len(rows),
        "kl": statistics.mean(row["kl"] for row in rows),
    }


def main() -> None:
    """Run every arm in a process of its own and record the table."""
    flags = parser(__doc__)
    flags.add_argument("--arm", choices=ARMS, help="one arm in this process, as JSON")
    args = flags.parse_args()
    if args.arm:
        sys.stdout.write(json.dumps(one_arm(args.arm, args.seed)) + "\n")
        return
    rows = []
    for arm in ARMS:
        command = [sys.executable, __file__, "--seed", str(args.seed), "--arm", arm]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        first, last = json.loads(done.stdout.splitlines()[-1])
        shown = ", ".join(f"{key} {first[key]:.2f} → {last[key]:.2f}" for key in first)
        sys.stderr.write(f"{arm}: {shown}\n")
        rows.append({"measure": f"{arm}: update 1 → update {UPDATES}", "value": shown})
    record(
        "ppo_confirm",
        rows,
        args.seed,
        model="SmolLM2-135M, LoRA",
        updates=UPDATES,
        rows=ROWS,
        response=RESPONSE,
    )


if __name__ == "__main__":
    main()
