"""A run whose answers follow from the prompts alone, for comparing processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import datasets
import torch

from hf_glm_curriculum.ppo import StructuredPPOConfig, StructuredPPOTrainer
from hf_glm_curriculum.rewards.output import StructuredRewardOutput
from tests.conftest import build_model, build_tokenizer

NAMES = ("factual", "logic", "compliance")


class HashedScorer:
    """Scores and confidences that follow from the answer's characters."""

    config = SimpleNamespace(dimensions=NAMES)

    def score_texts(self, prompts: list[str], responses: list[str]) -> StructuredRewardOutput:
        sums = torch.tensor([float(sum(map(ord, r))) for r in responses])
        scores = torch.stack([sums % 10 / 10, sums % 7 / 7, sums % 3 / 3], dim=1)
        # The gate is open for about two thirds: a row that nothing moves has gradients of nothing
        # but rounding, which Adam makes whole steps of.
        confidence = torch.stack(
            [sums % 4 / 6 + 0.6, sums % 5 / 8 + 0.6, sums % 6 / 9 + 0.5], dim=1
        )
        confidence = confidence.clamp(max=1.0)
        return StructuredRewardOutput(scores=scores, confidence=confidence, logits=scores)


class HashedAnswers(StructuredPPOTrainer):
    """Answers of two to nine tokens made of the prompt's, the last of which ends them."""

    def generate(self, query_ids: Any, query_mask: Any, settings: Any, record: Any = None) -> Any:
        found = torch.zeros(len(query_ids), 10, dtype=torch.long)
        for place, (ids, mask) in enumerate(zip(query_ids, query_mask, strict=True)):
            own = ids[mask.bool()]
            length = int(own.sum()) % 8 + 2
            steps = torch.arange(length) * 37 + int(own.sum())
            found[place, :length] = steps % 250 + 5
            found[place, length - 1] = 1
        return found.to(query_ids.device)


def train(folder: str, rows: int, resume: bool = False, **settings: Any) -> HashedAnswers:
    """Three updates of `rows` prompts a process with every structured part on.

    An update takes all four prompts, as one process and two deal prompts in different orders.
    """
    prompts = ["a tree", "the sea", "no birds", "old stones"]
    trainer = HashedAnswers(
        args=StructuredPPOConfig(
            output_dir=folder,
            per_device_train_batch_size=rows,
            total_updates=3,
            num_ppo_epochs=2,
            response_length=10,
            learning_rate=1e-3,
            max_grad_norm=0.5,
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            seed=7,
            **{"save_strategy": "no", **settings},
        ),
        processing_class=build_tokenizer(),
        model=build_model("glm"),
        reward_model=HashedScorer(),
        train_dataset=datasets.Dataset.from_dict({"prompt": prompts}),
    )
    trainer.train(resume_from_checkpoint=resume or None)
    return trainer
