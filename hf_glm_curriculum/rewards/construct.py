"""Preference data out of a model's own answers: sample k, rank them, write pairs.

Everything sampled goes into a log of candidates, one prompt a line, written as soon as a prompt is
done. A killed run goes on after the last whole line; pairs are made from the log alone.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from hf_glm_curriculum.errors import ConfigError, DataError, StateError
from hf_glm_curriculum.models import causal_lm
from hf_glm_curriculum.progress import progress
from hf_glm_curriculum.storage import (
    append_line,
    atomic_write_text,
    ensure_folder,
    read_whole_lines,
)
from hf_glm_curriculum.text.checks import check_answer, read_check

logger = logging.getLogger(__name__)

Row = dict[str, Any]
Ranker = Callable[[str, Sequence[str], Mapping[str, Any]], Sequence[float | None]]
"""(prompt, answers, the prompt's row) → a score an answer, higher is better; None: no opinion."""

RULE_DIMENSIONS = {
    "number": "logic",
    "sequence": "logic",
    "yes_no": "logic",
    "exact": "factual",
    "contains": "factual",
    "choice": "factual",
    "format": "compliance",
    "language": "compliance",
    "refusal": "compliance",
}
"""What an answer check says something about, where a row names no dimension."""


@dataclass
class SamplingConfig:
    """How candidates are sampled and paired."""

    candidates: int = 4
    """Answers sampled a prompt."""

    temperature: float = 0.9
    """Of sampling."""

    top_p: float = 0.95
    """Nucleus of sampling."""

    max_new_tokens: int = 96
    """Longest answer, in tokens."""

    pairs_per_prompt: int = 2
    """Most pairs kept of one prompt; those furthest apart in score come first."""

    margin: float = 0.0
    """Scores of a pair must differ by more than this."""

    sampling_seed: int = 0
    """Every prompt's answers follow from this and the prompt alone."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        for name, least in {"candidates": 2, "max_new_tokens": 1, "pairs_per_prompt": 1}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: must be at least {least}, got {getattr(self, name)}")
        if not self.temperature > 0 or not 0 < self.top_p <= 1 or self.margin < 0:
            raise ConfigError(
                f"temperature, top_p, margin: must be above 0, in (0, 1] and at least 0, got "
                f"{self.temperature}, {self.top_p}, {self.margin}"
            )


def rule_ranker(prompt: str, answers: Sequence[str], row: Mapping[str, Any]) -> list[float | None]:
    """1 for an answer that passes the row's `answer_check`, 0 for one that fails.

    Raises:
        DataError: The check is malformed.
    """
    check = own_check(row)
    if check is None:
        return [None] * len(answers)
    return [float(check_answer(answer, check)) for answer in answers]


def build_preferences(
    model: Any,
    tokenizer: Any,
    prompts: Iterable[Mapping[str, Any]],
    path: str | os.PathLike[str],
    *,
    rankers: Mapping[str, Ranker] | Ranker = rule_ranker,
    config: SamplingConfig | None = None,
    include_reference: bool = False,
    show_progress: bool | None = None,
) -> list[Row]:
    """Sample answers, rank them and write (prompt, chosen, rejected, dimension) as JSONL.

    Args:
        model: a causal language model, such as the fine-tuned one.
        tokenizer: its tokenizer.
        prompts: rows with `prompt`, and what the rankers read, such as `answer_check`; `dimension`
            says what a prompt's rules are about (else `RULE_DIMENSIONS` does).
        path: the JSONL to write. The candidates lie beside it as `<name>.candidates.jsonl`.
        rankers: rules or a judge for the prompt's own dimension; or dimension → ranker, each of
            which may give a pair of every prompt.
        config: settings.
        include_reference: let a row's `response` compete too.
        show_progress: see `progress`.

    Returns:
        The pairs written.

    Raises:
        DataError: A row has no prompt, no dimension is known for it, or a ranker gives another
            number of scores than answers.
        StateError: A file cannot be written, or the log is of other settings.
    """
    config = config or SamplingConfig()
    rows = [_checked(row, number) for number, row in enumerate(prompts)]
    target = Path(path)
    ensure_folder(target.parent)
    log = target.with_name(f"{target.stem}.candidates.jsonl")
    known = _read_log(log, _settings_key(model, tokenizer, config))
    pairs: list[Row] = []
    with progress(len(rows), "Sampling answers", show_progress) as bar:
        for row in rows:
            key = _row_key(row["prompt"])
            if key not in known:
                answers = sample_answers(model, tokenizer, row["prompt"], config)
                known[key] = answers
                append_line(log, json.dumps({"key": key, "answers": answers}), durable=True)
            answers = known[key]
            if include_reference and isinstance(row.get("response"), str):
                answers = [row["response"], *answers]
            pairs += rank_pairs(row, answers, rankers, config)
            bar.advance()
    text = "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)
    atomic_write_text(target, text.encode("utf-8", "replace").decode("utf-8"))
    logger.info("%d pairs of %d prompts in %s", len(pairs), len(rows), target)
    return pairs


def candidates_of(
    path: str | os.PathLike[str], prompts: Sequence[str]
) -> list[tuple[str, list[str]]]:
    """(prompt, answers) as `build_preferences` sampled them on its way to the pairs in a file.

    Args:
        path: the JSONL of pairs.
        prompts: those that were answered.

    Raises:
        StateError: The answers are not there.
    """
    target = Path(path)
    log = target.with_name(f"{target.stem}.candidates.jsonl")
    known = {entry["key"]: entry["answers"] for entry in read_whole_lines(log)[1:]}
    try:
        return [(prompt, known[_row_key(prompt)]) for prompt in dict.fromkeys(prompts)]
    except KeyError as error:
        raise StateError(
            f"{log}: lacks answers to some of the prompts; call build_preferences first"
        ) from error


def rank_pairs(
    row: Mapping[str, Any],
    answers: Sequence[str],
    rankers: Mapping[str, Ranker] | Ranker,
    config: SamplingConfig,
) -> list[Row]:
    """Pairs of one prompt's answers, furthest apart first; the same answer is never both sides.

    Raises:
        DataError: As in `build_preferences`.
    """
    distinct = list(dict.fromkeys(answer.strip() for answer in answers))
    chosen = rankers if isinstance(rankers, Mapping) else {_dimension_of(row): rankers}
    found = []
    for dimension, ranker in chosen.items():
        scores = list(ranker(row["prompt"], distinct, row))
        if len(scores) != len(distinct):
            raise DataError(
                f"ranker of {dimension!r}: must give one score an answer, got {len(scores)} for "
                f"{len(distinct)} answers of {row['prompt'][:40]!r}"
            )
        found += _pairs(row, distinct, scores, dimension, config)
    return found


def _pairs(
    row: Mapping[str, Any],
    answers: Sequence[str],
    scores: Sequence[float | None],
    dimension: str,
    config: SamplingConfig,
) -> list[Row]:
    judged = [(score, place) for place, score in enumerate(scores) if score is not None]
    couples = [
        (high[0] - low[0], low[1], high[1])
        for one, two in itertools.combinations(judged, 2)
        for high, low in [(one, two) if one[0] >= two[0] else (two, one)]
        if high[0] - low[0] > config.margin
    ]
    couples.sort(key=lambda couple: (-couple[0], couple[1], couple[2]))
    used: set[int] = set()
    found = []
    for gap, worse, better in couples:
        if len(found) == config.pairs_per_prompt:
            break
        if worse in used and better in used:
            continue  # another pair of answers says more
        used |= {worse, better}
        found.append(
            {
                "prompt": row["prompt"],
                "chosen": answers[better],
                "rejected": answers[worse],
                "dimension": dimension,
                "source": "sampled",
                "meta": {"scores": [scores[better], scores[worse]], "gap": gap},
            }
        )
    return found


@torch.no_grad()
def sample_answers(model: Any, tokenizer: Any, prompt: str, config: SamplingConfig) -> list[str]:
    """`candidates` answers to one prompt; they follow from seed and prompt, whatever came before.

    The model's own generation settings are left out, but for what ends an answer.
    """
    from transformers import GenerationConfig

    inner = causal_lm(model)
    own = getattr(inner.generation_config, "eos_token_id", None)
    ends = {*(own if isinstance(own, (list, tuple)) else [own]), tokenizer.eos_token_id}
    settings = GenerationConfig(
        do_sample=True,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=0,
        max_new_tokens=config.max_new_tokens,
        num_return_sequences=config.candidates,
        eos_token_id=sorted(end for end in ends if end is not None) or None,
        pad_token_id=tokenizer.pad_token_id,
    )
    batch = _rendered(tokenizer, prompt).to(inner.device)
    was_training, kept = model.training, inner.generation_config
    devices = [inner.device] if inner.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(_seed(config.sampling_seed, prompt))
        model.eval()
        inner.generation_config = settings
        try:
            output = model.generate(**batch)
        finally:
            model.train(was_training)
            inner.generation_config = kept
    new = output[:, batch["input_ids"].shape[1] :]
    return [text.strip() for text in tokenizer.batch_decode(new, skip_special_tokens=True)]


def _rendered(tokenizer: Any, prompt: str) -> Any:
    """The prompt as the model was trained to read it: by chat template, or before a line break."""
    if not tokenizer.chat_template:
        return tokenizer([f"{prompt}\n"], return_tensors="pt", return_token_type_ids=False)
    turns = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return tokenizer(
        [text], add_special_tokens=False, return_tensors="pt", return_token_type_ids=False
    )


def _checked(row: Mapping[str, Any], number: int) -> Row:
    if not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
        raise DataError(f"prompt {number}: must be text, got {row.get('prompt')!r}; drop the row")
    return dict(row)


def own_check(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A row's `answer_check` as it was written, from JSON text too; None without one.

    Raises:
        DataError: It is text and no JSON object.
    """
    check = row.get("answer_check")
    if check is None or check == "null":
        return None
    if isinstance(check, str):
        return read_check(check)
    # A column of checks fills the fields of other kinds with null.
    return {
        key: value for key, value in cast(Mapping[str, Any], check).items() if value is not None
    }


def _dimension_of(row: Mapping[str, Any]) -> str:
    """What a row's ranker speaks of.

    Raises:
        DataError: Neither the row nor its check says.
    """
    if isinstance(row.get("dimension"), str):
        return row["dimension"]
    check = own_check(row) or {}
    kind = check.get("kind")
    if kind in RULE_DIMENSIONS:
        return RULE_DIMENSIONS[kind]
    raise DataError(
        f"prompt {row['prompt'][:40]!r}: nothing says which dimension its ranking is about; give "
        "the row a dimension, or pass rankers={dimension: ranker}"
    )


def _row_key(prompt: str) -> str:
    return hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:16]


def _seed(seed: int, prompt: str) -> int:
    digest = hashlib.sha256(f"{seed}\0{prompt}".encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:7], "big")


def _settings_key(model: Any, tokenizer: Any, config: SamplingConfig) -> str:
    """What the answers depend on beside the prompts."""
    from hf_glm_curriculum.models import model_fingerprint

    sampling = {k: v for k, v in vars(config).items() if k not in ("pairs_per_prompt", "margin")}
    text = f"{model_fingerprint(model)} {len(tokenizer)} {json.dumps(sampling, sort_keys=True)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_log(log: Path, key: str) -> dict[str, list[str]]:
    """Answers sampled earlier; the log is begun, or cut after its last whole line.

    Raises:
        StateError: The log is of another model or other settings.
    """
    if not log.exists():
        atomic_write_text(log, json.dumps({"settings": key}) + "\n")
        return {}
    entries = []
    for line in log.read_text("utf-8").split("\n"):
        try:
            entries.append(json.loads(line))
        except ValueError:
            break  # torn by a kill: what follows was never written
    if not entries or entries[0].get("settings") != key:
        raise StateError(
            f"{log} holds answers of another model or other settings; delete it or choose another "
            "path"
        )
    atomic_write_text(log, "".join(json.dumps(entry) + "\n" for entry in entries))
    return {entry["key"]: entry["answers"] for entry in entries[1:]}
