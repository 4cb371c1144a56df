"""Held-out loss and answers at the stages of a run, kept so that a run that goes on has them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_glm_curriculum.commands.console import say
from hf_glm_curriculum.commands.run_state import cached
from hf_glm_curriculum.commands.training_settings import FREE_SETTINGS, TrainingSettings
from hf_glm_curriculum.config import to_dict
from hf_glm_curriculum.storage import atomic_write_json, atomic_write_text


@dataclass
class StageEvaluation:
    """Measures a model on held-out data before and after training.

    Attributes:
        config: The run's settings.
        model: The model under training.
        tokenizer: Its tokenizer.
        heldout: Rows with input_ids and labels; None measures nothing.
        questions: Held-out rows to be answered; each gets its answers and verdicts.
        fingerprint: Of the training data.
        folder: Where the results go, `evaluation/` of the run.
        more: Further held-out sets by name, of which only the loss is measured.
        heldout_loss: Stage → `held_out_loss` figures.
        answers: Stage → `evaluate_answers` figures.
        more_loss: Name → stage → `held_out_loss` figures.
    """

    config: TrainingSettings
    model: Any
    tokenizer: Any
    heldout: Any
    questions: list[dict[str, Any]]
    fingerprint: str
    folder: Path
    more: dict[str, Any] = field(default_factory=dict)
    heldout_loss: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    more_loss: dict[str, dict[str, Any]] = field(default_factory=dict)

    def measure(self, stage: str, step: int) -> None:
        """Measure at a stage, or take what an earlier part of the run measured there.

        Args:
            stage: "before" or "after".
            step: Optimizer steps done.

        Raises:
            StateError: The results cannot be written.
        """
        if self.heldout is None:
            return
        count = len(self.heldout) + sum(len(one) for one in self.more.values())
        say(f"Evaluating {stage} training on {count} held-out samples …")
        key = self._key(step)
        self.heldout_loss[stage] = self._loss(self.heldout, f"{stage}_loss", key)
        for name, heldout in self.more.items():
            found = self._loss(heldout, f"{stage}_{name}_loss", key)
            self.more_loss.setdefault(name, {})[stage] = found
        self._answer(stage, key)

    def _loss(self, heldout: Any, name: str, key: str) -> dict[str, Any]:
        from hf_glm_curriculum.data.collator import SftCollator
        from hf_glm_curriculum.evaluation.heldout import held_out_loss

        collate = SftCollator(self.tokenizer.pad_token_id)
        size = self.config.batch_size
        return cached(
            self.folder / "cache" / f"{name}.json",
            key,
            lambda: held_out_loss(self.model, heldout, collate, batch_size=size),
        )

    def _answer(self, stage: str, key: str) -> None:
        from hf_glm_curriculum.evaluation.answers import evaluate_answers
        from hf_glm_curriculum.evaluation.generation import generate_answers

        prompts = [question["prompt"] for question in self.questions]
        answers = cached(
            self.folder / "cache" / f"{stage}_answers.json",
            key,
            lambda: {
                "answers": generate_answers(
                    self.model,
                    self.tokenizer,
                    prompts,
                    max_new_tokens=self.config.max_new_tokens,
                    description=f"Answering {stage} training",
                )
            },
        )["answers"]
        checks = [question["check"] for question in self.questions]
        categories = [question["category"] or "other" for question in self.questions]
        if answers:
            self.answers[stage] = evaluate_answers(answers, checks, categories)
        self._write(stage, answers, checks)

    def _key(self, step: int) -> str:
        """Changes with everything an evaluation depends on."""
        config = {k: v for k, v in to_dict(self.config).items() if k not in FREE_SETTINGS}
        parts = [str(step), self.fingerprint, config, self.questions]
        sets = [one for one in (self.heldout, *self.more.values()) if one is not None]
        parts += [[len(one), one[0]["input_ids"]] for one in sets]
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]

    def _write(self, stage: str, answers: list[str], checks: list[Any]) -> None:
        """`generations.jsonl`, `answers.json` and the losses as far as the run has come."""
        from hf_glm_curriculum.evaluation.answers import judge_answers

        verdicts = judge_answers(answers, checks)
        for question, answer, verdict in zip(self.questions, answers, verdicts, strict=True):
            question |= {stage: answer, f"correct_{stage}": verdict}
        rows = ({k: v for k, v in q.items() if k != "check"} for q in self.questions)
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace").decode("utf-8")
        atomic_write_text(self.folder / "generations.jsonl", text)
        atomic_write_json(self.folder / "answers.json", self.answers)
        atomic_write_json(self.folder / "heldout.json", self.heldout_loss)
        for name, losses in self.more_loss.items():
            atomic_write_json(self.folder / f"heldout_{name}.json", losses)
