"""Reward models without weights, for tests of what stands around one."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import torch

from hf_glm_curriculum.rewards.output import StructuredRewardOutput
from hf_glm_curriculum.rewards.scorers import ScorerConfig

THREE = ("factual", "logic", "compliance")


def output(scores, confidence) -> StructuredRewardOutput:
    scores = torch.as_tensor(scores, dtype=torch.float32)
    confidence = torch.as_tensor(confidence, dtype=torch.float32)
    return StructuredRewardOutput(scores=scores, confidence=confidence, logits=torch.logit(scores))


@dataclass
class HashScorer:
    """Scores and confidences that look random and depend on nothing but the texts."""

    dimensions: tuple[str, ...] = THREE
    calls: int = 0

    def __post_init__(self):
        self.config = ScorerConfig(self.dimensions)

    def score_texts(self, prompts, responses, **options):
        self.calls += 1
        rows = [
            [self._unit(kind, name, p, r) for kind in ("s", "c") for name in self.dimensions]
            for p, r in zip(prompts, responses, strict=True)
        ]
        table = torch.tensor(rows, dtype=torch.float32).view(-1, 2, len(self.dimensions))
        return output(table[:, 0], table[:, 1])

    @staticmethod
    def _unit(*parts) -> float:
        return (zlib.crc32("|".join(parts).encode()) % 1009) / 1009


@dataclass
class ScriptedScorer:
    """Gives the scores and confidences it is told to, whatever the texts."""

    scores: list
    confidence: list
    dimensions: tuple[str, ...] = THREE
    options: dict = field(default_factory=dict)

    def __post_init__(self):
        self.config = ScorerConfig(self.dimensions)

    def score_texts(self, prompts, responses, **options):
        self.options = options
        return output(self.scores, self.confidence)
