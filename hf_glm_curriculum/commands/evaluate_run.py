"""Measuring models one after the other, each measure kept as it is done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from hf_glm_curriculum.commands.console import say
from hf_glm_curriculum.commands.evaluate_config import EvaluateConfig, named_models
from hf_glm_curriculum.commands.reproduction import file_digest
from hf_glm_curriculum.commands.run_models import model_of
from hf_glm_curriculum.commands.run_state import cached
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.evaluation.measured import Measured
from hf_glm_curriculum.evaluation.prompt_sets import bundled, find_xstest, read_xstest, spread
from hf_glm_curriculum.models import EMBEDDED

_RELEVANT = {
    "loss": ("data", "max_length"),
    "answers": ("data", "limit", "max_new_tokens"),
    "refusals": ("limit", "max_new_tokens", "xstest"),
    "red_team": ("limit", "max_new_tokens"),
    "forgetting": ("max_length",),
    "rewards": ("data", "limit", "max_new_tokens", "reward_model", "gate_threshold"),
    "tasks": ("tasks", "tasks_path", "limit"),
}
"""Settings that a measure's figures depend on."""

_BUNDLED = {"answers": "questions", "red_team": "red_team"}
_ROW = "evaluation_row"
COMPLIANCE = "compliance"
"""The dimension that refusals, and answers where a refusal was due, say something about."""


@dataclass
class Inputs:
    """What every model is measured on.

    Attributes:
        records: The user's rows with prompt and response, or None.
        questions: Rows to be answered: prompt, check, category, reference.
        sources: What they are, a line each, for the page.
        digest: Of the user's data.
    """

    records: Any
    questions: list[dict[str, Any]]
    sources: list[str] = field(default_factory=list)
    digest: str = ""


def read_inputs(config: EvaluateConfig) -> Inputs:
    """The user's records, and the questions to answer.

    Raises:
        DataError: A file is missing or malformed.
    """
    if "forgetting" in config.measures:
        _general_texts(config)  # refused before a model is loaded
    questions = bundled("questions")
    sources = [f"{len(questions)} bundled questions with checkable answers"]
    if not config.data:
        return Inputs(None, spread(questions, config.limit, "category", "language"), sources)
    from hf_glm_curriculum.data.record_files import data_files
    from hf_glm_curriculum.data.records import load_records

    files = [file for name in config.data for file in data_files(Path(name).expanduser())]
    records = load_records(files)
    names = records.column_names
    own = [
        {
            "prompt": row["prompt"],
            "check": _check(row.get("answer_check")),
            "category": str(row["category"]) if "category" in names else "yours",
        }
        for row in records.to_list()
    ]
    sources.append(f"{len(own)} rows of {', '.join(config.data)}")
    rows = spread(own, config.limit, "category") + spread(questions, config.limit, "category")
    digest = hashlib.sha256("".join(file_digest(file) for file in files).encode()).hexdigest()
    return Inputs(records, rows, sources, digest)


def _check(value: Any) -> Any:
    """A row's check: a mapping, or the JSON text that mixed columns are kept as."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(f"answer_check: must be a check or null, got {value!r}") from error
    return {k: v for k, v in value.items() if v is not None} if value else None


class Subject:
    """One model under test; loaded when the first measure needs it."""

    def __init__(self, name: str, path: str, config: EvaluateConfig) -> None:
        """Remember where it is."""
        self.name, self.path, self._config = name, model_of(path), config
        self._loaded: tuple[Any, Any] | None = None

    def load(self) -> tuple[Any, Any]:
        """Model and tokenizer.

        Raises:
            ModelError: It cannot be loaded.
        """
        if self._loaded is None:
            import torch

            from hf_glm_curriculum.models import load_model

            model, tokenizer = load_model(self.path, self._config.dtype)
            if torch.cuda.is_available() and not self._config.cpu:
                model = model.to("cuda")  # pyright: ignore[reportArgumentType]
            self._loaded = model.eval(), tokenizer
        return self._loaded

    def answer(self, prompts: Any) -> list[str]:
        """Greedy answers."""
        from hf_glm_curriculum.evaluation.generation import generate_answers

        model, tokenizer = self.load()
        return generate_answers(
            model,
            tokenizer,
            prompts,
            max_new_tokens=self._config.max_new_tokens,
            batch_size=self._config.batch_size,
            description=f"{self.name} answers",
        )

    def stamp(self) -> str:
        """Changes when the model on disk does."""
        return folder_stamp(self.path)


def folder_stamp(path: str) -> str:
    """Changes when a model's folder does; a hub id is its own stamp."""
    folder = Path(path).expanduser()
    if path == EMBEDDED or not folder.is_dir():
        return path
    kinds = (".safetensors", ".bin", ".json", ".jsonl", ".yaml", ".yml")
    files = sorted(p for p in folder.iterdir() if p.suffix in kinds)
    return f"{folder.resolve()} " + " ".join(
        f"{p.name}:{p.stat().st_size}:{p.stat().st_mtime_ns}" for p in files
    )


def measure_models(config: EvaluateConfig, inputs: Inputs) -> dict[str, dict[str, Measured]]:
    """Measure → model → what was found; what a killed run has measured is not measured again.

    Raises:
        HfGlmCurriculumError: A model, data or settings do not allow a measure.
    """
    folder = Path(config.output_dir).expanduser() / "measures"
    found: dict[str, dict[str, Measured]] = {}
    for name, path in named_models(config.models):
        subject = Subject(name, path, config)
        work = _work(config, inputs, subject, found)
        for measure in config.measures:
            make = work.get(measure)
            if make is None:
                continue
            key = _key(config, measure, subject, inputs)
            place = folder / file_name(name) / f"{measure}.json"
            say(f"{name}: {measure.replace('_', ' ')} …")
            value = cached(place, key, lambda make=make: make().to_dict())
            found.setdefault(measure, {})[name] = Measured(**value)
        del subject  # before the next one loads
    return found


def _work(
    config: EvaluateConfig,
    inputs: Inputs,
    subject: Subject,
    found: Mapping[str, Mapping[str, Measured]],
) -> dict[str, Callable[[], Measured]]:
    """Measure → what makes it, for those there is something to measure with."""
    from hf_glm_curriculum.evaluation.model_measures import measure_answers
    from hf_glm_curriculum.evaluation.safety import measure_red_team, measure_refusals

    red_team = spread(bundled("red_team"), config.limit, "category", "language")
    work: dict[str, Callable[[], Measured]] = {
        "answers": lambda: measure_answers(subject.answer, inputs.questions),
        "refusals": lambda: measure_refusals(subject.answer, refusal_rows(config)),
        "red_team": lambda: measure_red_team(subject.answer, red_team),
        "forgetting": lambda: _forgetting(config, subject),
    }
    if inputs.records is not None:
        work["loss"] = lambda: _loss(config, inputs, subject)
    if config.reward_model:
        work["rewards"] = lambda: _rewards(config, inputs, subject, found)
    if config.tasks:
        work["tasks"] = lambda: _tasks(config, subject)
    return work


def refusal_rows(config: EvaluateConfig) -> list[dict[str, Any]]:
    """Bundled requests, and XSTest's where it is at hand."""
    rows = bundled("refusals")
    path = find_xstest() if config.xstest else None
    if path is not None:
        rows += read_xstest(path)
    return spread(rows, config.limit, "refuse", "language")


def _loss(config: EvaluateConfig, inputs: Inputs, subject: Subject) -> Measured:
    from hf_glm_curriculum.data.collator import SftCollator
    from hf_glm_curriculum.data.tokenization import tokenize_sft
    from hf_glm_curriculum.evaluation.model_measures import measure_loss

    model, tokenizer = subject.load()
    # Numbered: another tokenizer may drop other rows, and models are compared row by row.
    numbered = inputs.records.add_column(_ROW, list(range(len(inputs.records))))
    rows = tokenize_sft(numbered, tokenizer, config.max_length, without_labels="drop")
    return measure_loss(
        model,
        rows,
        SftCollator(tokenizer.pad_token_id),
        config.batch_size,
        places=list(rows[_ROW]),
        total=len(numbered),
    )


def _forgetting(config: EvaluateConfig, subject: Subject) -> Measured:
    from hf_glm_curriculum.data.collator import SftCollator
    from hf_glm_curriculum.evaluation.model_measures import measure_loss, text_rows

    model, tokenizer = subject.load()
    texts = _general_texts(config)
    rows = text_rows(texts, tokenizer, config.max_length)
    collate = SftCollator(tokenizer.pad_token_id)
    return measure_loss(model, rows, collate, config.batch_size, "general_loss")


def _general_texts(config: EvaluateConfig) -> list[str]:
    """The user's general text, or the bundled one.

    Raises:
        DataError: A file is missing or has no text.
    """
    if not config.general_text:
        return [row["text"] for row in bundled("general_text")]
    from hf_glm_curriculum.data.documents import load_documents

    return list(load_documents([Path(name).expanduser() for name in config.general_text])["text"])


def _rewards(
    config: EvaluateConfig,
    inputs: Inputs,
    subject: Subject,
    found: Mapping[str, Mapping[str, Measured]],
) -> Measured:
    """Rewards of the answers, which are given again where they were not measured."""
    from hf_glm_curriculum.evaluation.model_measures import measure_answers, measure_rewards

    answers = found.get("answers", {}).get(subject.name)
    if answers is None:
        answers = measure_answers(subject.answer, inputs.questions)
    reward = _reward_model(model_of(str(config.reward_model)))
    refusals = found.get("refusals", {}).get(subject.name)
    judged = [] if refusals is None else [{**r, "dimension": COMPLIANCE} for r in refusals.rows]
    return measure_rewards(reward, answers.rows, config.gate_threshold, judged)


@lru_cache(maxsize=1)
def _reward_model(path: str) -> Any:
    """The same one for every model under test."""
    from hf_glm_curriculum.rewards.model import StructuredRewardModel

    return StructuredRewardModel.from_pretrained(path)


def _tasks(config: EvaluateConfig, subject: Subject) -> Measured:
    from hf_glm_curriculum.evaluation.lm_eval_tasks import measure_tasks

    model, tokenizer = subject.load()
    return measure_tasks(
        model, tokenizer, config.tasks, config.tasks_path, config.limit, config.batch_size
    )


def _key(config: EvaluateConfig, measure: str, subject: Subject, inputs: Inputs) -> str:
    """Changes when anything does that the measure depends on."""
    settings = asdict(config)
    parts = {name: settings[name] for name in (*_RELEVANT[measure], "dtype")}
    asked = _asked(config, measure, inputs)
    told = json.dumps([measure, parts, subject.stamp(), inputs.digest, asked], sort_keys=True)
    return hashlib.sha256(told.encode("utf-8")).hexdigest()


def _asked(config: EvaluateConfig, measure: str, inputs: Inputs) -> Any:
    """What a measure reads beside settings and data: prompts, reward model, task files."""
    if measure == "refusals":
        return refusal_rows(config)
    if measure == "rewards":
        judged = refusal_rows(config) if "refusals" in config.measures else []
        return [inputs.questions, judged, folder_stamp(model_of(str(config.reward_model)))]
    if measure == "forgetting":
        return _general_texts(config)
    if measure == "tasks":
        return folder_stamp(config.tasks_path) if config.tasks_path else None
    return bundled(_BUNDLED[measure]) if measure in _BUNDLED else None


def judge_key(config: EvaluateConfig, *texts: list[str]) -> str:
    """Changes with the judge and with what it reads; says nothing of the endpoint's key."""
    judge = folder_stamp(str(config.judge)) if config.judge_url is None else config.judge
    told = json.dumps([judge, config.judge_url, texts])
    return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()


def file_name(name: str) -> str:
    """A model's name as a folder's."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).strip(".") or "model"
    return safe if safe == name else f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
