"""A small GLM that adds two numbers, pre-trained here, and PPO on it.

What ``gating`` and ``collapse`` share. The sums held out from pre-training are never PPO's prompts
either: accuracy is always that on them, of answers sampled at temperature 1.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from transformers import (
    GlmConfig,
    GlmForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
    set_seed,
)

from hf_glm_curriculum.ppo import StructuredPPOConfig, StructuredPPOTrainer
from hf_glm_curriculum.rewards.output import StructuredRewardOutput
from hf_glm_curriculum.rewards.scorers import ScorerConfig

DIMENSIONS = ("factual", "logic", "compliance")
HELD_OUT = 0.2
DRAWS = 2
"""Answers sampled to each held-out prompt."""
Answer = Callable[[int, int, bool, random.Random], str]
"""What the pre-training text answers to a + b, right or wrong."""


@dataclass
class Task:
    """Sums up to 99 + 9, and how the pre-training text answers them."""

    answer: Answer
    response_length: int = 6
    knows: float = 0.8
    """Accuracy at which pre-training on right answers ends."""
    says: float = 0.45
    """Accuracy at which pre-training on unreliable answers ends."""
    right: float = 0.4
    """Share of right ones among the unreliable."""
    name: str = "sums"

    def prompts(self, held_out: bool) -> list[str]:
        """All prompts of one side of the split, in a fixed order."""
        pairs = [(a, b) for a in range(100) for b in range(1, 10)]
        random.Random(0).shuffle(pairs)
        cut = round(HELD_OUT * len(pairs))
        return [f"{a}+{b}=" for a, b in (pairs[:cut] if held_out else pairs[cut:])]

    def text(self, prompt: str, generator: random.Random, reliable: bool = False) -> str:
        """A pre-training answer to a prompt."""
        right = reliable or generator.random() < self.right
        return self.answer(*operands(prompt), right, generator)


def operands(prompt: str) -> tuple[int, int]:
    """The two numbers of a prompt."""
    a, b = prompt.rstrip("=").split("+")
    return int(a), int(b)


def last_number(answer: str) -> int | None:
    """What an answer says the sum is."""
    found = re.findall(r"\d+", answer)
    return int(found[-1]) if found else None


def is_right(prompt: str, answer: str) -> bool:
    """Whether an answer ends in the sum."""
    return last_number(answer) == sum(operands(prompt))


def uniform(*parts: object) -> float:
    """A number in [0, 1) that is always the same for the same parts."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


# -- pre-training --------------------------------------------------------------------------------

RATE = 2e-3


def new_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Words and single digits; any text round-trips."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=340,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def new_model(tokenizer: Any, seed: int) -> GlmForCausalLM:
    """A random GLM of 2.4 million parameters."""
    set_seed(seed)
    config = GlmConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=640,
        num_hidden_layers=5,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    return GlmForCausalLM(config)


def pretrain(task: Task, work: Path, seed: int, most_steps: int = 2000) -> Path:
    """Folder of a model that can add and says so half of the time, made once a seed.

    It learns from right answers until it is right in ``task.knows`` of held-out sums, then from
    unreliable ones until it is right in ``task.says`` of them.
    """
    folder = work / f"{task.name}_seed{seed}"
    if (folder / "config.json").exists():
        return folder
    generator = random.Random(seed)
    prompts = task.prompts(held_out=False)
    tokenizer = new_tokenizer([p + task.text(p, generator) for p in prompts])
    model = new_model(tokenizer, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.1)
    held_out = task.prompts(held_out=True) * DRAWS
    reliable = True
    for step in range(1, most_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / 50)
        rows = [(p, task.text(p, generator, reliable)) for p in generator.sample(prompts, 32)]
        loss = model(**answer_batch(tokenizer, rows)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0:
            answers = sample(model, tokenizer, held_out, task.response_length, seed)
            share = sum(map(is_right, held_out, answers)) / len(held_out)
            print(f"pre-training, step {step}: accuracy {share:.2f}", flush=True)
            if not reliable and share <= task.says:
                break
            reliable = reliable and share < task.knows
    partial = Path(tempfile.mkdtemp(dir=_made(work)))
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)
    return folder


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def answer_batch(tokenizer: Any, rows: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """Rows padded on the right; the loss is the answers' and their ends'."""
    ids, labels = [], []
    for prompt, answer in rows:
        first = tokenizer(prompt)["input_ids"]
        rest = [*tokenizer(answer)["input_ids"], tokenizer.eos_token_id]
        ids.append([*first, *rest])
        labels.append([-100] * len(first) + rest)
    width = max(map(len, ids))
    pad = tokenizer.pad_token_id
    return {
        "input_ids": torch.tensor([row + [pad] * (width - len(row)) for row in ids]),
        "labels": torch.tensor([row + [-100] * (width - len(row)) for row in labels]),
        "attention_mask": torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in ids]),
    }


@torch.no_grad()
def sample(model: Any, tokenizer: Any, prompts: Sequence[str], length: int, seed: int) -> list[str]:
    """An answer to every prompt at temperature 1, without touching the random state."""
    batch = tokenizer(list(prompts), return_tensors="pt", padding=True)
    training = model.training
    model.eval()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            do_sample=True,
            top_k=0,
            max_new_tokens=length,
            pad_token_id=tokenizer.pad_token_id,
        )
    model.train(training)
    answers = made[:, batch["input_ids"].shape[1] :]
    return tokenizer.batch_decode(answers, skip_special_tokens=True)


# -- PPO -----------------------------------------------------------------------------------------


class Scorer:
    """A structured scorer made of a function of prompt and answer.

    Args:
        judge: (prompt, answer) → D pairs of score and confidence.
    """

    def __init__(self, judge: Callable[[str, str], Sequence[tuple[float, float]]]) -> None:
        self.judge = judge
        self.config = ScorerConfig(DIMENSIONS)

    def score_texts(
        self, prompts: Sequence[str], responses: Sequence[str], **options: Any
    ) -> StructuredRewardOutput:
        """Scores and confidences [B, D]."""
        pairs = torch.tensor([self.judge(p, r) for p, r in zip(prompts, responses, strict=True)])
        return StructuredRewardOutput(scores=pairs[:, :, 0], confidence=pairs[:, :, 1])


@dataclass
class Watch(TrainerCallback):
    """Measures held-out answers before the first update and after every ``every``-th."""

    task: Task
    measure: Callable[[Sequence[str], Sequence[str]], dict[str, float]]
    every: int
    curve: list[dict[str, float]] = field(default_factory=list)

    def look(self, policy: Any, tokenizer: Any, step: int) -> None:
        """Sample and measure."""
        prompts = self.task.prompts(held_out=True) * DRAWS
        answers = sample(policy, tokenizer, prompts, self.task.response_length, seed=step)
        self.curve.append({"update": step, **self.measure(prompts, answers)})

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Where the run starts."""
        self.look(kwargs["model"].policy, kwargs["processing_class"], 0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Where it is due."""
        if state.global_step % self.every == 0:
            self.look(kwargs["model"].policy, kwargs["processing_class"], state.global_step)


def ppo(
    task: Task,
    model_folder: Path,
    scorer: Scorer,
    watch: Watch,
    updates: int,
    seed: int,
    parts: dict[str, Any],
    **settings: Any,
) -> list[dict[str, float]]:
    """Train a copy of the pre-trained model; what the trainer logged, an entry an update."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_folder)
    folder = tempfile.mkdtemp()
    defaults: dict[str, Any] = {
        "output_dir": folder,
        "per_device_train_batch_size": 64,
        "gradient_accumulation_steps": 1,
        "num_ppo_epochs": 4,
        "num_mini_batches": 1,
        "response_length": task.response_length,
        "total_updates": updates,
        "learning_rate": 3e-4,
        "lr_scheduler_type": "constant",
        "value_model_kind": "shared",
        "completion_rows": 0,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "seed": seed,
    }
    set_seed(seed)
    try:
        trainer = StructuredPPOTrainer(
            args=StructuredPPOConfig(**(defaults | settings)),
            processing_class=tokenizer,
            model=GlmForCausalLM.from_pretrained(model_folder),
            reward_model=scorer,
            train_dataset=datasets.Dataset.from_dict({"prompt": task.prompts(held_out=False)}),
            callbacks=[watch],
            **parts,
        )
        trainer.train()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [entry for entry in trainer.state.log_history if "objective/kl" in entry]
