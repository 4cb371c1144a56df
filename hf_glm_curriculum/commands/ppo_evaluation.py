"""Greedy answers to fixed held-out prompts before and after a `ppo` run, checked and scored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_glm_curriculum.commands.console import say
from hf_glm_curriculum.commands.ppo_config import PpoCommandConfig
from hf_glm_curriculum.commands.ppo_reward import LoadedReward
from hf_glm_curriculum.commands.run_state import cached
from hf_glm_curriculum.storage import atomic_write_json, atomic_write_text

SCORES_FILE = "scores.json"
_STAGES = ("before", "after")


@dataclass
class PpoEvaluation:
    """What the policy answers at the stages of a run, kept so that a run that goes on has it.

    Attributes:
        config: settings.
        tokenizer: the policy's.
        reward: scores the answers.
        questions: held-out prompts; each gets its answers, verdicts and scores.
        fingerprint: of the policy before training and the prompts.
        folder: where the results go, `evaluation/` of the run.
        answers: stage → `evaluate_answers` figures.
        scores: stage → dimension → mean score, confidence, share above the gate, rows.
    """

    config: PpoCommandConfig
    tokenizer: Any
    reward: LoadedReward
    questions: list[dict[str, Any]]
    fingerprint: str
    folder: Path
    answers: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)

    def measure(self, stage: str, model: Any, step: int) -> None:
        """Answer and score at a stage, or take what an earlier part of the run found there.

        Args:
            stage: "before" or "after".
            model: the policy.
            step: updates done.

        Raises:
            StateError: The results cannot be written.
        """
        if not self.questions:
            return
        say(f"Answering {len(self.questions)} held-out prompts {stage} training …")
        path = self.folder / "cache" / f"{stage}_answers.json"
        found = cached(path, self._key(step), lambda: self._answered(stage, model))
        self._take(stage, found)
        self._write()

    def _answered(self, stage: str, model: Any) -> dict[str, Any]:
        from hf_glm_curriculum.evaluation.generation import generate_answers

        prompts = [question["messages"] or question["prompt"] for question in self.questions]
        answers = generate_answers(
            model,
            self.tokenizer,
            prompts,
            max_new_tokens=self.config.max_new_tokens,
            description=f"Answering {stage} training",
        )
        texts = [question["prompt"] for question in self.questions]
        columns = [question["columns"] for question in self.questions]
        scores, confidence = self.reward.score(texts, answers, columns)
        return {"answers": answers, "scores": scores, "confidence": confidence}

    def _take(self, stage: str, found: Mapping[str, Any]) -> None:
        """Put answers, verdicts and scores to the questions, and sum them up."""
        from hf_glm_curriculum.evaluation.answers import evaluate_answers, judge_answers

        answers, checks = found["answers"], [question["check"] for question in self.questions]
        verdicts = judge_answers(answers, checks)
        rows = zip(
            self.questions, answers, verdicts, found["scores"], found["confidence"], strict=True
        )
        for question, answer, verdict, scores, confidence in rows:
            question |= {stage: answer, f"correct_{stage}": verdict, f"scores_{stage}": scores}
            question[f"confidence_{stage}"] = confidence
        categories = [question["category"] or "other" for question in self.questions]
        self.answers[stage] = evaluate_answers(answers, checks, categories)
        self.scores[stage] = {
            name: _summary(name, found["scores"], found["confidence"], self._threshold)
            for name in self.reward.dimensions
        }

    @property
    def _threshold(self) -> float:
        return self.config.use.gate_threshold

    def _key(self, step: int) -> str:
        """Changes with everything the answers depend on."""
        prompts = [[q["prompt"], q["messages"], q["columns"]] for q in self.questions]
        config = self.config
        parts = [step, self.fingerprint, prompts, config.max_new_tokens, config.reward]
        parts += [config.length_target, config.ensemble_penalty]
        parts += [] if not step else [config.learning_rate, config.seed, config.updates]
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]

    def _write(self) -> None:
        """`generations.jsonl`, `answers.json` and `scores.json` as far as the run has come."""
        hidden = ("check", "columns", "messages")
        rows = ({k: v for k, v in q.items() if k not in hidden} for q in self.questions)
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace").decode("utf-8")
        atomic_write_text(self.folder / "generations.jsonl", text)
        atomic_write_json(self.folder / "answers.json", self.answers)
        atomic_write_json(self.folder / SCORES_FILE, self.scores)


def score_rows(scores: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(dimension, before, after) as text, for tables."""
    rows = []
    for name in scores.get("after", {}):
        stages = (scores.get(stage, {}).get(name, {}).get("score") for stage in _STAGES)
        rows.append((name, *("–" if value is None else f"{value:.3f}" for value in stages)))
    return rows  # type: ignore[return-value]


def _summary(
    name: str,
    scores: Sequence[Mapping[str, Any]],
    confidence: Sequence[Mapping[str, Any]],
    threshold: float,
) -> dict[str, Any]:
    """Mean score and confidence of one dimension, and how many rows would pass the gate."""
    known = [row[name] for row in scores if row.get(name) is not None]
    sure = [row[name] for row in confidence if row.get(name) is not None]
    return {
        "n": len(known),
        "score": sum(known) / len(known) if known else None,
        "confidence": sum(sure) / len(sure) if sure else None,
        "open_share": sum(value >= threshold for value in sure) / len(sure) if sure else None,
    }
