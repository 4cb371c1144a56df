"""From prompts and responses to tokens and labels that carry loss on the responses only."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from hf_glm_curriculum.data.collator import IGNORED
from hf_glm_curriculum.errors import DataError

logger = logging.getLogger(__name__)

Turns = list[dict[str, str]]
ROWS_PER_BATCH = 512
MERGED_TOKENS = 2  # a boundary token or two may merge with the answer's first; more is no prefix


@dataclass
class _Findings:
    """What has to be said once about the whole data set."""

    no_prefix: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    unlabelled: list[int] = field(default_factory=list)


def tokenize_sft(
    dataset: datasets.Dataset,
    tokenizer: Any,
    max_length: int | None = None,
    chat_template: bool = True,
    *,
    without_labels: str = "error",
) -> datasets.Dataset:
    """Tokenise SFT records; loss falls on the assistant's text and its end-of-turn token.

    Every assistant turn of ``messages`` is labelled; where that column is absent or null,
    ``prompt`` and ``response`` are one exchange. The start of an answer is where the tokens of
    the conversation before it (with the generation prompt) end in the tokens of the whole.

    Args:
        dataset: columns as `load_records` returns them.
        tokenizer: a Hugging Face tokenizer with an EOS token.
        max_length: tokens kept from the start of a sample; None keeps all. A sample cut in its
            answer does not end with EOS.
        chat_template: use the tokenizer's chat template where it has one; otherwise prompt and
            response are joined by a line break and closed by EOS.
        without_labels: what to do with samples that keep no labelled token, "error" or "drop".

    Returns:
        The data set in its order, with ``input_ids`` and ``labels`` (int32 lists; -100 on all
        but the answers) beside its other columns.

    Raises:
        DataError: if the data set is empty, lacks the columns, or a sample keeps no label.
    """
    _check(dataset, tokenizer, max_length, without_labels)
    render = (
        _Template(tokenizer) if chat_template and tokenizer.chat_template else _Plain(tokenizer)
    )
    findings = _Findings()
    tokens: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for row, (ids, targets) in enumerate(_rows(dataset, render, findings)):
        if max_length is not None and len(ids) > max_length:
            findings.cut.append(row)
            ids, targets = ids[:max_length], targets[:max_length]
        if not (targets[1:] != IGNORED).any():  # the first token is never predicted
            findings.unlabelled.append(row)
        tokens.append(ids)
        labels.append(targets)
    _report(findings, len(tokens), max_length, without_labels)
    columns = pa.table({"input_ids": _lists(tokens), "labels": _lists(labels)})
    kept = [name for name in dataset.column_names if name not in columns.column_names]
    result = datasets.Dataset(columns)
    if kept:
        extra = dataset.select_columns(kept).with_format(None)
        result = datasets.concatenate_datasets([extra, result], axis=1)
    if findings.unlabelled:
        dropped = set(findings.unlabelled)
        result = result.select([row for row in range(len(tokens)) if row not in dropped])
    return result


class _Template:
    """Renders conversations with the tokenizer's chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.special = _special_ids(tokenizer)

    def texts(self, turns: Turns, row: int) -> list[str]:
        """Return for each answer the text before and up to it, then the whole text."""
        answers = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
        found = []
        try:
            for answer in answers:
                found.append(self._apply(turns[:answer], generation=True))
                found.append(self._apply(turns[: answer + 1]))
        except Exception as error:  # a template is a program: it raises what it likes
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(
                f"row {row}: the chat template refuses the conversation ({reason}); change its "
                "roles or order, or pass chat_template=False"
            ) from error
        return found

    def _apply(self, turns: Turns, generation: bool = False) -> str:
        return self.tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=generation
        )

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Tokenise; the template has written the special tokens."""
        return self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)[
            "input_ids"
        ]


class _Plain:
    """Joins turns by line breaks and closes every answer with EOS."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.special = _special_ids(tokenizer)

    def texts(self, turns: Turns, row: int) -> list[str]:
        """Return for each answer the text before and up to it."""
        found, text = [], ""
        for turn in turns:
            if turn["role"] == "assistant":
                found += [text, text + turn["content"]]
                text += f"{turn['content']}{self.tokenizer.eos_token}"
            else:
                text += f"{turn['content']}\n"
        return found

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Tokenise with BOS where the tokenizer adds it, without EOS at the end."""
        ids = self.tokenizer(texts, return_attention_mask=False)["input_ids"]
        eos = self.tokenizer.eos_token_id
        return [one[:-1] if one and one[-1] == eos else one for one in ids]


def _rows(
    dataset: datasets.Dataset, render: _Template | _Plain, findings: _Findings
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (tokens, labels) of each row."""
    wanted = [name for name in ("prompt", "response", "messages") if name in dataset.column_names]
    rows = dataset.select_columns(wanted).with_format(None)
    for first in range(0, len(rows), ROWS_PER_BATCH):
        batch: dict[str, list[Any]] = rows[first : first + ROWS_PER_BATCH]
        fields = [
            dict(zip(wanted, values, strict=True))
            for values in zip(*(batch[name] for name in wanted), strict=True)
        ]
        texts = [render.texts(_turns(one, row), row) for row, one in enumerate(fields, start=first)]
        encoded = iter(render.encode([text for one in texts for text in one]))
        for row, one in enumerate(texts, start=first):
            pieces = [np.asarray(next(encoded), dtype=np.int32) for _ in one]
            yield _label(pieces, row, render, findings)


def _turns(fields: dict[str, Any], row: int) -> Turns:
    """Return the conversation of one row."""
    if fields.get("messages"):
        turns = [{"role": turn["role"], "content": turn["content"]} for turn in fields["messages"]]
        if turns[-1]["role"] != "assistant":
            raise DataError(
                f"row {row}, column 'messages': the last turn must be the assistant's, got "
                f"{turns[-1]['role']!r}; drop the turns after the last answer"
            )
        return turns
    for name in ("prompt", "response"):
        if not isinstance(fields.get(name), str):
            raise DataError(
                f"row {row}, column {name!r}: must be text, got {type(fields.get(name)).__name__};"
                " drop or repair the row"
            )
    return [
        {"role": "user", "content": fields["prompt"]},
        {"role": "assistant", "content": fields["response"]},
    ]


def _label(
    pieces: list[np.ndarray], row: int, render: _Template | _Plain, findings: _Findings
) -> tuple[np.ndarray, np.ndarray]:
    """Label the answers of one conversation.

    Args:
        pieces: for each answer the tokens before it and the tokens up to its end; the last of
            them are the whole.
        row: the row, for reports.
        render: tells end-of-turn tokens and blanks.
        findings: gets the row if an answer's prompt is no prefix.
    """
    whole = _close(pieces[-1], render)
    labels = np.full(len(whole), IGNORED, dtype=np.int32)
    for answer in range(0, len(pieces), 2):
        before, upto = pieces[answer], pieces[answer + 1]
        last = answer == len(pieces) - 2
        start = _common(before, whole)
        missing = len(before) - start
        if missing:
            findings.no_prefix.append(row)
            if missing > MERGED_TOKENS and not last:
                continue  # the template renders earlier turns differently: no telling where
        end = len(whole) if last else len(_close(upto[: _common(upto, whole)], render))
        end = min(end, len(whole))
        labels[start:end] = whole[start:end]
    return whole, labels


def _close(ids: np.ndarray, render: _Template | _Plain) -> np.ndarray:
    """End the tokens with an end-of-turn token: cut blanks after one, or else append EOS."""
    end = len(ids)
    while end and int(ids[end - 1]) not in render.special:
        if render.tokenizer.decode([int(ids[end - 1])]).strip():
            end = 0
            break
        end -= 1
    if end:
        return ids[:end]
    return np.append(ids, np.int32(render.tokenizer.eos_token_id))


def _common(first: np.ndarray, second: np.ndarray) -> int:
    """Return the length of the longest common prefix."""
    size = min(len(first), len(second))
    differ = np.flatnonzero(first[:size] != second[:size])
    return int(differ[0]) if len(differ) else size


def _special_ids(tokenizer: Any) -> set[int]:
    """Return the ids of control tokens, EOS among them."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marked = {index for index, token in added.items() if getattr(token, "special", False)}
    return {int(index) for index in (*tokenizer.all_special_ids, *marked)}


def _check(
    dataset: datasets.Dataset, tokenizer: Any, max_length: int | None, without_labels: str
) -> None:
    """Refuse what cannot be tokenised, before any work."""
    names = dataset.column_names
    if "messages" not in names and not {"prompt", "response"} <= set(names):
        raise DataError(
            f"columns: need prompt and response, or messages, got {names}; load the data with "
            "load_records"
        )
    if len(dataset) == 0:
        raise DataError("dataset: has 0 rows, needs at least one; check the file and filters")
    if tokenizer.eos_token_id is None:
        raise DataError(
            "tokenizer: has no EOS token, which ends an answer; set tokenizer.eos_token"
        )
    if max_length is not None and max_length < 2:
        raise DataError(f"max_length: must be at least 2 tokens, got {max_length}")
    if without_labels not in ("error", "drop"):
        raise DataError(f"without_labels: must be 'error' or 'drop', got {without_labels!r}")


def _report(findings: _Findings, rows: int, max_length: int | None, without_labels: str) -> None:
    """Log what was found, and refuse samples without a label unless they may be dropped."""
    if findings.no_prefix:
        affected = sorted(set(findings.no_prefix))
        logger.warning(
            "%d samples (first: row %d): the tokens of the prompt are no prefix of those of the "
            "whole; the longest common prefix is taken as the prompt",
            len(affected),
            affected[0],
        )
    if findings.cut:
        logger.warning("%d of %d samples cut to max_length=%s", len(findings.cut), rows, max_length)
    lost = findings.unlabelled
    if lost and (without_labels == "error" or len(lost) == rows):
        raise DataError(
            f"labels: {len(lost)} of {rows} samples (first: row {lost[0]}) keep no answer token "
            f"at max_length={max_length}, so they carry no loss; raise max_length or "
            + ("shorten the prompts" if len(lost) == rows else "pass without_labels='drop'")
        )
    if lost:
        logger.warning("%d of %d samples keep no answer token and are dropped", len(lost), rows)


def _lists(rows: Sequence[np.ndarray]) -> pa.Array:
    """Return an Arrow list column of int32."""
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows], dtype=np.int64)))
    values = pa.array(np.concatenate(rows))
    if offsets[-1] < 2**31:
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)
    return pa.LargeListArray.from_arrays(pa.array(offsets), values)
