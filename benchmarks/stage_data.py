"""Real text and real instructions for ``stage_switch``, as rows of tokens.

Pre-training text: English contracts, the CommonMark specification, GSM8K's problems with their
solutions as prose (``$HGC_DATA`` or ``../shared/data``), and the docstrings of the installed
standard library. Instructions: self-instruct's seed and user-oriented tasks, TruthfulQA with its
best answers. A part of each kind is held out, in whole sections and whole rows.
"""

from __future__ import annotations

import ast
import json
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset
from planted_faults import data_folder, truthful
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, END, USER, ASSISTANT = range(4)
_SPECIAL = ["<pad>", "<end>", "<user>", "<assistant>"]


@dataclass
class StageData:
    """Tokenised rows: ``input_ids`` and ``labels``, at most ``width`` long.

    Rows of instructions hold several conversations, so that they have about as many tokens as rows
    of text; those held out hold one.
    """

    pretrain: Dataset
    instruction: Dataset
    heldout_pretrain: Dataset
    heldout_instruction: Dataset
    vocabulary: int

    def label_tokens(self, name: str) -> float:
        """Mean label tokens of a row that a model is trained on."""
        rows = getattr(self, name)["labels"]
        return sum(sum(label >= 0 for label in row[1:]) for row in rows) / len(rows)


def documents() -> list[str]:
    """English texts: contracts, a specification, problems, docstrings gathered by module."""
    folder = data_folder()
    paths = [*sorted((folder / "longdoc_contracts_en").glob("*.md"))]
    paths.append(folder / "longdoc_commonmark" / "spec.txt")
    texts = []
    for path in paths:
        # Cut at headings, so that held-out sections are whole and come from every document.
        texts += [f"#{part}" for part in path.read_text("utf-8").split("\n#") if len(part) > 200]
    for line in (folder / "logic_gsm8k" / "test.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        texts.append(f"{record['question']}\n{record['answer']}")
    return texts + list(_docstrings())


def _docstrings() -> Iterator[str]:
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if skipped & set(path.parts):
            continue
        try:
            tree = ast.parse(path.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
        text = "\n\n".join(doc for doc in found if doc)
        if len(text) > 200:
            yield text


def instructions() -> list[tuple[str, str]]:
    """(prompt, answer) of both sets."""
    folder = data_folder()
    pairs = [(question, answer) for question, answer, _ in truthful()]
    for name in ("seed_tasks.jsonl", "user_oriented_instructions.jsonl"):
        for line in (folder / "instruct_self_instruct" / name).read_text("utf-8").splitlines():
            record = json.loads(line)
            for one in record["instances"]:
                prompt = "\n".join(filter(None, (record["instruction"], one["input"].strip())))
                pairs.append((prompt, one["output"].strip()))
    return pairs


def build(width: int, vocabulary: int, seed: int = 0, heldout: int = 96) -> StageData:
    """Tokenise everything; the tokenizer learns from the training parts only.

    Args:
        width: tokens of a row at most.
        vocabulary: tokens of the byte-level BPE.
        seed: of the split.
        heldout: rows of each kind that are held out.
    """
    shuffled = random.Random(seed)
    texts, pairs = documents(), instructions()
    shuffled.shuffle(texts)
    shuffled.shuffle(pairs)
    cut = len(texts) // 12
    trained_on = [" ".join(pair) for pair in pairs[len(pairs) // 8 :]]
    tokenizer = _tokenizer(texts[cut:] + trained_on, vocabulary)
    chunks = [list(_chunks(tokenizer, part, width)) for part in (texts[cut:], texts[:cut])]
    unseen, seen = pairs[: len(pairs) // 8], pairs[len(pairs) // 8 :]
    rows = [
        [row for pair in part if (row := _row(tokenizer, *pair, width)) is not None]
        for part in (seen, unseen)
    ]
    return StageData(
        Dataset.from_list(chunks[0]),
        Dataset.from_list(list(_filled(rows[0], width))),
        Dataset.from_list(shuffled.sample(chunks[1], min(heldout, len(chunks[1])))),
        Dataset.from_list(rows[1][:heldout]),
        tokenizer.get_vocab_size(),
    )


def _tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _chunks(tokenizer: Tokenizer, texts: list[str], width: int) -> Iterator[dict[str, list[int]]]:
    stream: list[int] = []
    for encoded in tokenizer.encode_batch(texts):
        stream += [*encoded.ids, END]
    for start in range(0, len(stream) - width, width):
        part = stream[start : start + width]
        yield {"input_ids": part, "labels": part}


def _filled(rows: list[dict[str, list[int]]], width: int) -> Iterator[dict[str, list[int]]]:
    """Put conversations one behind the other, as long as they fit into a row."""
    filled: dict[str, list[int]] = {"input_ids": [], "labels": []}
    for row in rows:
        if len(filled["input_ids"]) + len(row["input_ids"]) > width:
            yield filled
            filled = {"input_ids": [], "labels": []}
        filled = {name: filled[name] + row[name] for name in filled}


def _row(tokenizer: Tokenizer, prompt: str, answer: str, width: int) -> dict[str, list[int]] | None:
    """``<user> prompt <assistant> answer <end>``, loss on the answer; None if it is too long."""
    asked = [USER, *tokenizer.encode(prompt).ids, ASSISTANT]
    said = [*tokenizer.encode(answer).ids, END]
    if len(asked) + len(said) > width or not said:
        return None
    return {"input_ids": asked + said, "labels": [-100] * len(asked) + said}
