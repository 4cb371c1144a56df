"""``ppo_confirm``: what ``gating`` and ``collapse`` say of a small GLM, seen on SmolLM2-135M.

The embedded model first learns to answer, as every policy has before PPO: 40 steps of 16 rows on
the text of ``collapse`` (sums up to 99 + 9 answered in sentences of several lengths, 40 % of them
right, 12 % refusals, 3 % nothing). As it comes it does not know where an answer ends: of its
answers to such sums most were cut off at 24 tokens, and a penalty for cut answers then is one for
long ones. Then five updates with LoRA, 32 sums each, answers of up to 24 tokens, two epochs.
Collapse: the reward of ``collapse`` summed naively, and with the trainer's defaults. Gating: the
noisy factual head of ``gating`` with the gate at 0.85 and without. Everything is read off answers
sampled to sums held out of both, before the first update and after the fifth. No target: it says
whether the same things happen.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from bench_collapse import TASK
from bench_collapse import judge as collapse_judge
from bench_gating import scorer as gating_scorer
from common import parser, record
from datasets import Dataset
from planted_faults import REPOSITORY
from small_ppo import Scorer, Watch, answer_batch, is_right, last_number, sample
from transformers import set_seed

from hf_glm_curriculum.models import load_model
from hf_glm_curriculum.rewards.gate import RewardGate
from hf_glm_curriculum.text.words import word_count

ARMS = ("naive sum", "defaults", "no gate", "gate")
UPDATES, ROWS, RESPONSE = 5, 32, 24
HELD_OUT_ROWS = 96
LEARN_STEPS, LEARN_RATE = 40, 1e-4
KEYS = ("length", "answered", "accuracy")


def policy(work: Path, seed: int) -> Path:
    """Folder of the model that has learned to answer, made once a seed."""
    folder = work / f"policy_seed{seed}"
    if (folder / "config.json").exists():
        return folder
    model, tokenizer = load_model("embedded", dtype=torch.float32)
    set_seed(seed)
    generator = random.Random(seed)
    prompts = TASK.prompts(held_out=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARN_RATE)
    model.train()
    for step in range(1, LEARN_STEPS + 1):
        rows = [(p, TASK.text(p, generator)) for p in generator.sample(prompts, 16)]
        loss = model(**answer_batch(tokenizer, rows)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            sys.stderr.write(f"learning to answer, step {step}: loss {loss.item():.2f}\n")
    work.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=work))
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)
    return folder


def measured(prompts: Sequence[str], answers: Sequence[str]) -> dict[str, float]:
    """What answers are like."""
    return {
        "length": statistics.mean(map(word_count, answers)),
        "answered": sum(last_number(a) is not None for a in answers) / len(answers),
        "accuracy": sum(map(is_right, prompts, answers)) / len(answers),
    }


class Looks(Watch):
    """Looks at a part of the held-out sums, which is enough for a mean."""

    def look(self, policy: Any, tokenizer: Any, step: int) -> None:
        """Sample and measure."""
        prompts = self.task.prompts(held_out=True)[:HELD_OUT_ROWS]
        answers = sample(policy, tokenizer, prompts, RESPONSE, seed=step)
        self.curve.append({"update": step, **self.measure(prompts, answers)})


def one_arm(arm: str, seed: int, work: Path) -> list[dict[str, float]]:
    """Held-out answers before and after an arm."""
    from peft import LoraConfig

    from hf_glm_curriculum.ppo import StructuredPPOConfig, StructuredPPOTrainer

    model, tokenizer = load_model(str(policy(work, seed)), dtype=torch.float32)
    tokenizer.padding_side = "left"
    scorer = gating_scorer(seed) if "gate" in arm else Scorer(collapse_judge)
    parts = {"gate": RewardGate(0.85)} if arm == "gate" else {}
    watch = Looks(TASK, measured, every=UPDATES)
    set_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        args = StructuredPPOConfig(
            output_dir=folder,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=ROWS // 16,
            num_ppo_epochs=2,
            response_length=RESPONSE,
            total_updates=UPDATES,
            learning_rate=3e-4,
            lr_scheduler_type="constant",
            structured_defaults=arm == "defaults",
            completion_rows=0,
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
            reward_model=scorer,
            train_dataset=Dataset.from_dict({"prompt": TASK.prompts(held_out=False)}),
            peft_config=LoraConfig(
                r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"
            ),
            callbacks=[watch],
            **parts,
        )
        trainer.train()
    last = [entry for entry in trainer.state.log_history if "objective/kl" in entry][-1]
    return [watch.curve[0], watch.curve[-1] | {"kl": last["objective/kl"]}]


def main() -> None:
    """Run every arm in a process of its own and record the table."""
    flags = parser(__doc__)
    flags.add_argument("--arm", choices=ARMS, help="one arm in this process, as JSON")
    flags.add_argument("--work", type=Path, default=REPOSITORY / "runs" / "ppo_confirm")
    args = flags.parse_args()
    torch.set_num_threads(1)
    if args.arm:
        sys.stdout.write(json.dumps(one_arm(args.arm, args.seed, args.work)) + "\n")
        return
    rows = []
    for arm in ARMS:
        command = [sys.executable, __file__, "--seed", str(args.seed), "--arm", arm]
        done = subprocess.run(
            [*command, "--work", str(args.work)], check=True, stdout=subprocess.PIPE, text=True
        )
        first, last = json.loads(done.stdout.splitlines()[-1])
        shown = ", ".join(f"{key} {first[key]:.2f} → {last[key]:.2f}" for key in KEYS)
        sys.stderr.write(f"{arm}: {shown}\n")
        note = f"KL {last['kl']:.2f} nats in the last update"
        rows.append({"measure": f"{arm}: before → after", "value": shown, "note": note})
    record(
        "ppo_confirm",
        rows,
        args.seed,
        model="SmolLM2-135M, LoRA",
        updates=UPDATES,
        rows=ROWS,
        response=RESPONSE,
        held_out=f"{HELD_OUT_ROWS} sums",
    )


if __name__ == "__main__":
    main()
