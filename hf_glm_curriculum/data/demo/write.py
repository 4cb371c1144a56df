"""The demo data as a folder of files."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hf_glm_curriculum.data.demo.dialogues import demo_dialogues
from hf_glm_curriculum.data.demo.documents import demo_documents
from hf_glm_curriculum.data.demo.draft import LANGUAGES
from hf_glm_curriculum.data.demo.faults import FAULT_KINDS
from hf_glm_curriculum.data.demo.instructions import demo_instructions
from hf_glm_curriculum.data.demo.preferences import demo_preferences
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.storage import PathLike, atomic_write_text, ensure_folder

COPY_PATH = "copies/instructions_old.jsonl"
_README = """\
# Demo data

Generated from facts and rules by
`hf_glm_curriculum.data.demo.write_demo_data(n={n}, seed={seed}, fault_share={share})`;
the same arguments give the same bytes.

| file | rows | fields |
| --- | --- | --- |
| `instructions.jsonl` | {instructions} | `prompt response category language difficulty \
answer_check fault meta` |
| `heldout.jsonl` | {heldout} | the same, without faults; no prompt of `instructions.jsonl` |
| `preferences.jsonl` | {preferences} | `prompt chosen rejected dimension language category \
difficulty meta`; factual, logic, compliance |
| `documents.jsonl` | {documents} | `text language title meta`; `meta` lists facts with \
questions, headings, clauses, references |
| `dialogues.jsonl` | {dialogues} | `messages language topic meta`; `meta` lists details, where \
they are mentioned, questions |
| `{copy}` | {instructions} | the bytes of `instructions.jsonl` under another path, for the file \
audit |

`answer_check` and `meta` are JSON text, so that every table reader takes the files.
`text.checks.check_answer(response, answer_check)` tells whether an answer is right; an empty
`answer_check` (null) marks an open question.

`fault` is null or one of: `wrong_answer` (a plausible wrong number or fact), `shuffled` (the answer
of another prompt), `truncated` (cut mid-way), `prompt_copied`, `other_language` (the answer in the
other language), `contradiction` (another row's question in other words with a contradicting
answer; `meta.contradicts` is that row). `meta.clean_response` keeps the right answer.
"""


def write_demo_data(
    folder: PathLike,
    n: int = 2000,
    seed: int = 0,
    fault_share: float = 0.15,
    *,
    languages: Sequence[str] = LANGUAGES,
    fault_kinds: Sequence[str] = FAULT_KINDS,
    max_words: int | None = None,
    heldout: int | None = None,
    documents: int = 6,
    document_chars: int = 8000,
) -> dict[str, Path]:
    """Write the whole demo data into a folder; every file appears whole or not at all.

    Args:
        folder: where to write; made if it does not exist.
        n: rows of `instructions.jsonl`; a quarter as many preference pairs and a twentieth as many
            dialogues are written, at least twelve of each.
        seed: the same arguments and seed give the same bytes.
        fault_share: share of instruction rows with a planted fault.
        languages: "en", "zh" or both.
        fault_kinds: kinds of faults.
        max_words: limit on the size of an instruction row.
        heldout: rows of `heldout.jsonl`, by default a tenth of n, at least 20.
        documents: rows of `documents.jsonl`.
        document_chars: length of a document.

    Returns:
        Paths by name: instructions, heldout, preferences, documents, dialogues, copy, readme.

    Raises:
        ConfigError: if an argument is out of range.
        DataError: if n distinct prompts do not fit `max_words`.
        StateError: if the folder cannot be written.
    """
    if n < 1:
        raise ConfigError(f"n: must be at least 1, got {n}")
    limits: dict[str, Any] = {"languages": languages, "max_words": max_words}
    rows = demo_instructions(n, seed, fault_share=fault_share, fault_kinds=fault_kinds, **limits)
    known = {row["prompt"] for row in rows}
    held = max(20, n // 10) if heldout is None else heldout
    smaller = max(12, n // 4), max(12, n // 20)
    tables: dict[str, list[dict[str, Any]]] = {
        "instructions": rows,
        "heldout": demo_instructions(held, seed + 1_000_003, exclude=known, **limits),
        "preferences": demo_preferences(smaller[0], seed, languages),
        "documents": demo_documents(documents, seed, document_chars, languages),
        "dialogues": demo_dialogues(smaller[1], seed, languages),
    }
    return _write(ensure_folder(folder), tables, {"n": n, "seed": seed, "share": fault_share})


def _write(
    folder: Path, tables: dict[str, list[dict[str, Any]]], arguments: dict[str, Any]
) -> dict[str, Path]:
    paths = {name: folder / f"{name}.jsonl" for name in tables}
    texts = {name: _jsonl(rows) for name, rows in tables.items()}
    for name, text in texts.items():
        atomic_write_text(paths[name], text)
    paths |= {"copy": folder / COPY_PATH, "readme": folder / "README.md"}
    atomic_write_text(paths["copy"], texts["instructions"])
    counts = {name: len(rows) for name, rows in tables.items()}
    atomic_write_text(paths["readme"], _README.format(copy=COPY_PATH, **counts, **arguments))
    return paths


def _jsonl(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(_flat(row), ensure_ascii=False) + "\n" for row in rows)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Turn nested fields of mixed types into JSON text."""
    nested = {"answer_check", "meta"}
    return {
        name: json.dumps(value, ensure_ascii=False)
        if name in nested and value is not None
        else value
        for name, value in row.items()
    }
