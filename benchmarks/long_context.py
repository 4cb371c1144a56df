"""Long real documents with planted facts and clauses, and what a model makes of them."""

from __future__ import annotations

import copy
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("Lisbon", "Oslo", "Vienna", "Cairo", "Lima", "Prague", "Dublin", "Athens")
CONTRACTS = (
    "github-terms-of-service.md",
    "github-corporate-terms-of-service.md",
    "common_paper_CSA.md",
    "github-marketplace-developer-agreement.md",
    "github-general-privacy-statement.md",
    "dmca-takedown-policy.md",
)


@dataclass(frozen=True)
class Question:
    """A question about something planted: its text up to the answer, the answer, the depth."""

    kind: str
    text: str
    answer: str
    depth: float


@dataclass(frozen=True)
class Haystack:
    """A document as token ids with questions about it."""

    name: str
    ids: torch.Tensor
    questions: list[Question]


def data_folder() -> Path:
    """Where the real documents lie; exits with the way out where they are absent."""
    folder = Path(os.environ.get("HGC_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "longdoc_contracts_en").is_dir():
        raise SystemExit(f"no long documents in {folder}; set HGC_DATA to a folder that has them")
    return folder


def haystack(name: str, length: int, tokenizer: Any, seed: int, planted: int = 8) -> Haystack:
    """A contract of exactly ``length`` tokens with facts and clauses planted between paragraphs.

    Half of what is planted are facts in running text, half are clauses under headings of their own,
    which the question names by their number ("Section 77"). They alternate from the start to the
    end of the document.
    """
    chance = random.Random(f"{name}{seed}")
    text = (data_folder() / "longdoc_contracts_en" / name).read_text("utf-8")
    others = [other for other in CONTRACTS if other != name]
    chance.shuffle(others)
    for other in others:
        text += "\n\n" + (data_folder() / "longdoc_contracts_en" / other).read_text("utf-8")
    places = chance.sample(PLACES, planted)
    numbers = chance.sample(range(60, 99), planted)
    pieces, questions = [], []
    for place in range(planted):
        code = str(chance.randrange(10_000, 99_999))
        if place % 2:
            pieces.append(
                f"\n\n## Section {numbers[place]}\n\nThe penalty for late delivery is {code} "
                "dollars.\n\n"
            )
            asked = (
                f"\n\nQuestion: What is the penalty in Section {numbers[place]}?\nAnswer: Under "
                f"Section {numbers[place]}, the penalty for late delivery is"
            )
            kind = "clause"
        else:
            pieces.append(f"\n\nThe access code of the warehouse in {places[place]} is {code}.\n\n")
            asked = (
                f"\n\nQuestion: What is the access code of the warehouse in {places[place]}?\n"
                f"Answer: The access code of the warehouse in {places[place]} is"
            )
            kind = "fact"
        questions.append(Question(kind, asked, f" {code}", (place + 0.5) / planted))
    return Haystack(name, _planted(text, pieces, length, tokenizer), questions)


def _planted(text: str, pieces: list[str], length: int, tokenizer: Any) -> torch.Tensor:
    """Put the pieces at even depths, each at the nearest paragraph break, in ``length`` tokens."""
    inserted = [tokenizer(piece).input_ids for piece in pieces]
    room = length - sum(map(len, inserted))
    ids = tokenizer(text, verbose=False).input_ids[:room]
    if len(ids) < room:
        raise SystemExit(f"the documents hold {len(ids)} tokens and {room} are needed")
    breaks = [i for i, piece in enumerate(tokenizer.convert_ids_to_tokens(ids)) if "Ċ" in piece]
    out, start = [], 0
    for number, piece in enumerate(inserted):
        wanted = int((number + 0.5) / len(pieces) * room)
        place = min(breaks, key=lambda at: abs(at - wanted)) + 1
        out += ids[start:place] + piece
        start = max(start, place)
    out += ids[start:]
    return torch.tensor([out])


@torch.no_grad()
def read(model: Any, ids: torch.Tensor, piece: int = 4096) -> tuple[Any, torch.Tensor]:
    """Read a text in pieces: the cache, and the loss of every token but the first, [n - 1]."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    losses, last = [], None
    for start in range(0, ids.shape[1], piece):
        part = ids[:, start : start + piece]
        hidden = model.model(part, cache=cache).last_hidden_state[0]
        if last is not None:
            hidden = torch.cat([last, hidden])
        target = ids[0, start + 1 - (last is not None) : start + part.shape[1] + 1]
        for at in range(0, len(target), 1024):
            logits = model.lm_head(hidden[at : at + 1024][: len(target) - at]).float()
            losses.append(
                torch.nn.functional.cross_entropy(logits, target[at : at + 1024], reduction="none")
            )
        last = hidden[-1:]
    return cache, torch.cat(losses)


@torch.no_grad()
def answer(model: Any, tokenizer: Any, cache: Any, question: Question) -> tuple[bool, float]:
    """Whether every token of the answer is the likeliest, and their mean log-probability."""
    asked = tokenizer(question.text).input_ids
    wanted = tokenizer(question.answer).input_ids
    ids = torch.tensor([asked + wanted])
    logits = model(ids, cache=copy.deepcopy(cache)).logits[0, len(asked) - 1 : -1].float()
    target = torch.tensor(wanted)
    right = bool((logits.argmax(-1) == target).all())
    logs = logits.log_softmax(-1).gather(1, target[:, None])
    return right, float(logs.mean())
