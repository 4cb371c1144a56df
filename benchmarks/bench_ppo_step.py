"""``ppo_step``: one update of ours over one of TRL 1.12's ``PPOTrainer`` on SmolLM2-135M.

The same 16 of 48 real prompts (self-instruct, chat template, 4 × 4 rows), answers of up to 48
tokens that may end before, two epochs, float32, a SmolLM2 sequence classifier with a random head as
the reward. Both draw the same answers. Full fine-tuning: the same policy, value model and reference
in both. LoRA (rank 16, every linear layer): TRL's own run with the separate, fully trained value
model it asks for; ours with the adapter switched off as the reference and a value head on the
policy's trunk.

Every arm is a process of its own, so that its memory peak is its own. Peaks are resident memory
above what the process held before it loaded a model. Time is processor time of one whole update,
generation and scoring included, after a warm-up of one tiny generation and backward. On a machine
that others use it depends on them, so the arithmetic of all matrix products is counted too. The
second epoch runs with Adam's states in place, so one update shows the peak of all. bf16 and
gradient checkpointing are off: TRL's PPO would ignore them. The pad token is not the EOS token, as
TRL takes every pad id for padding.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import parser, record
from datasets import Dataset
from memory import MemoryWatch
from planted_faults import self_instruct
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import AutoModelForSequenceClassification

from hf_glm_curriculum.embedded import embedded_model_path
from hf_glm_curriculum.models import load_model

ARMS = ("TRL full", "TRL LoRA", "ours full", "ours LoRA")
ROWS, PER_DEVICE, RESPONSE, EPOCHS = 16, 4, 48, 2
PAD = "<|endoftext|>"
FIGURES = ("objective/scores", "objective/kl", "objective/entropy")


def settings(folder: str, seed: int) -> dict[str, Any]:
    """What both trainers are told."""
    return {
        "output_dir": folder,
        "per_device_train_batch_size": PER_DEVICE,
        "gradient_accumulation_steps": ROWS // PER_DEVICE,
        "num_mini_batches": 1,
        "num_ppo_epochs": EPOCHS,
        "response_length": RESPONSE,
        "total_episodes": ROWS,
        "stop_token": "eos",
        "learning_rate": 1e-5,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "seed": seed,
    }


def prompts(tokenizer: Any, seed: int) -> Dataset:
    """Prompts as token ids, of unequal lengths, for three updates.

    On the last batch of its data TRL steps after every micro-batch, so that must not be the one.
    """
    rows = self_instruct()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    texts = [rows[i].prompt for i in order[: 3 * ROWS].tolist()]
    ids = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )["input_ids"]
        for text in texts
    ]
    return Dataset.from_list([{"input_ids": one} for one in ids])


def classifier(pad: int, seed: int) -> Any:
    """A sequence classifier on the policy's backbone, with a random head."""
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(
        str(embedded_model_path()), num_labels=1, dtype=torch.float32
    )
    torch.nn.init.normal_(model.score.weight, std=0.02)
    model.config.pad_token_id = pad
    return model


def trainer_for(
    arm: str, tokenizer: Any, policy: Any, data: Dataset, folder: str, seed: int
) -> Any:
    """A trainer of an arm, ready for its one update."""
    lora = arm.endswith("LoRA")
    parts: dict[str, Any] = {"processing_class": tokenizer, "model": policy, "ref_model": None}
    parts |= {"train_dataset": data, "reward_model": classifier(tokenizer.pad_token_id, seed)}
    if lora:
        from peft import LoraConfig

        parts["peft_config"] = LoraConfig(
            r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"
        )
    if arm != "ours LoRA":
        parts["value_model"] = classifier(tokenizer.pad_token_id, seed + 1)
    if arm.startswith("TRL"):
        from trl.experimental.ppo import PPOConfig, PPOTrainer

        args = PPOConfig(**settings(folder, seed), num_sample_generations=0)
        return PPOTrainer(args=args, **parts)
    from hf_glm_curriculum.ppo import StructuredPPOConfig, StructuredPPOTrainer

    return StructuredPPOTrainer(args=StructuredPPOConfig(**settings(folder, seed)), **parts)


def warm_up(policy: Any) -> None:
    """Load what the first passes load."""
    ids = torch.randint(5, 1000, (2, 8))
    policy.generate(ids, max_new_tokens=2, do_sample=False, pad_token_id=0)
    policy(input_ids=ids, labels=ids).loss.backward()
    policy.zero_grad(set_to_none=True)


class Arithmetic(TorchDispatchMode):
    """Counts the floating-point operations of matrix products, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it."""
        found = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.operations += formula(*args, **(kwargs or {}), out_val=found)
        return found


def one_process(arm: str, seed: int, profile: Path | None) -> dict[str, Any]:
    """One update in this process."""
    torch.set_num_threads(1)
    # What is imported lazily belongs to neither arm's memory.
    import peft
    import trl.experimental.ppo  # noqa: F401

    import hf_glm_curriculum.ppo  # noqa: F401

    del peft
    watch = MemoryWatch()
    base = watch.base["resident"]
    policy, tokenizer = load_model(dtype=torch.float32)
    tokenizer.pad_token, tokenizer.padding_side = PAD, "left"
    # What is kept of a mapped file is neither arm's doing either.
    policy = copy.deepcopy(policy)
    warm_up(policy)
    data = prompts(tokenizer, seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_for(arm, tokenizer, policy, data, folder, seed)
        before = watch.highest()
        start, wall = time.process_time(), time.perf_counter()
        counter = Arithmetic()
        if profile is None:
            with counter:
                trainer.train()
        else:
            profiled(trainer, profile)
        seconds, waited = time.process_time() - start, time.perf_counter() - wall
        peak = watch.highest()
    log = next(entry for entry in trainer.state.log_history if "objective/scores" in entry)
    lengths = [len(row) for row in data["input_ids"]]
    return {
        "arm": arm,
        "seconds": seconds,
        "wall": waited,
        "operations": counter.operations,
        "loaded": before["resident"],
        "peak": peak["resident"],
        "anonymous": peak["anonymous"],
        "base": base,
        "prompt_tokens": [min(lengths), statistics.mean(lengths), max(lengths)],
        "log": {
            name: float(value) for name, value in log.items() if isinstance(value, float | int)
        },
    }


def profiled(trainer: Any, path: Path) -> None:
    """Train, and write where the time goes."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as found:
        trainer.train()
    table = found.key_averages().table(sort_by="self_cpu_time_total", row_limit=40)
    path.write_text(table, "utf-8")


def measured(arm: str, seed: int, keep: Path | None) -> dict[str, Any]:
    """An arm in a process of its own, or what an earlier call kept of it."""
    file = None if keep is None else keep / f"{arm.replace(' ', '_')}_seed{seed}.json"
    if file is not None and file.exists():
        return json.loads(file.read_text("utf-8"))
    command = [sys.executable, __file__, "--seed", str(seed), "--arm", arm]
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=quiet)
    found = json.loads(done.stdout.splitlines()[-1])
    sys.stderr.write(f"{arm}: {found['seconds']:.0f} s, {found['peak']:,.0f} MiB\n")
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found), "utf-8")
    return found


def table(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Lines of the result."""
    rows = []
    for kind, most_time, most_memory in (("full", 0.75, 0.80), ("LoRA", 0.60, 0.60)):
        ours, theirs = found[f"ours {kind}"], found[f"TRL {kind}"]
        for key, name, unit, limit in (
            ("seconds", "time of an update", "s", most_time),
            ("peak", "peak memory", "MiB", most_memory),
        ):
            mine, other = _median(ours, key), _median(theirs, key)
            ratio = mine / other
            rows.append(
                {
                    "measure": f"{name}, {kind}: ours / TRL",
                    "value": ratio,
                    "target": f"≤ {limit}",
                    "met": ratio <= limit,
                    "note": f"{mine:,.0f} and {other:,.0f} {unit}",
                }
            )
        counts = [_median(one, "operations") / 1e12 for one in (ours, theirs)]
        rows.append(
            {
                "measure": f"arithmetic of an update, {kind}: ours / TRL",
                "value": counts[0] / counts[1],
                "note": f"{counts[0]:.1f} and {counts[1]:.1f} Tflop",
            }
        )
    rows += [_figures(found, name) for name in FIGURES]
    return [*rows, *(_details(arm, found[arm]) for arm in ARMS)]


def _median(results: list[dict[str, Any]], key: str) -> float:
    return statistics.median(one[key] for one in results)


def _figures(found: dict[str, list[dict[str, Any]]], name: str) -> dict[str, Any]:
    values = {arm: statistics.mean(one["log"][name] for one in found[arm]) for arm in ARMS}
    shown = ", ".join(f"{arm} {value:.3f}" for arm, value in values.items())
    return {"measure": f"{name} of the first update", "value": shown}


def _details(arm: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    one = results[0]
    parts = [f"{one['loaded']:,.0f} MiB before the update, {one['base']:,.0f} without models"]
    for phase in ("rollout", "score", "optimize"):
        if f"ppo/seconds_{phase}" in one["log"]:
            parts.append(f"{phase} {one['log'][f'ppo/seconds_{phase}']:.0f} s of {one['wall']:.0f}")
    value = f"{_median(results, 'seconds'):.0f} s, {_median(results, 'peak'):,.0f} MiB"
    return {"measure": f"{arm}: processor time, peak", "value": value, "note": ", ".join(parts)}


def main() -> None:
    """Measure every arm and record the table."""
    flags = parser(__doc__)
    flags.add_argument("--arm", choices=ARMS, help="one update in this process, as JSON")
    flags.add_argument("--profile", type=Path, help="with --arm: write a profile to this file")
    flags.add_argument("--keep", type=Path, help="folder that keeps each arm's figures")
    args = flags.parse_args()
    if args.arm:
        found = one_process(args.arm, args.seed, args.profile)
        sys.stdout.write(json.dumps(found) + "\n")
        return
    seeds = range(args.seed, args.seed + (3 if args.full else 1))
    found = {arm: [measured(arm, seed, args.keep) for seed in seeds] for arm in ARMS}
    shortest, mean, longest = found[ARMS[0]][0]["prompt_tokens"]
    torch.set_num_threads(1)
    record(
        "ppo_step",
        table(found),
        args.seed,
        rows=f"{ROWS} (micro-batches of {PER_DEVICE})",
        response=RESPONSE,
        epochs=EPOCHS,
        prompt_tokens=f"{shortest} to {longest}, mean {mean:.0f}",
        updates=f"{len(seeds)} an arm",
    )


if __name__ == "__main__":
    main()
