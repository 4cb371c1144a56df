"""The text of a sweep: the user's documents, or the source of Python's standard library."""

from __future__ import annotations

import hashlib
import itertools
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_glm_curriculum.commands.scaling_sweep_config import ScalingSweepConfig
from hf_glm_curriculum.errors import DataError

STANDARD_LIBRARY = "Python's standard library"
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_FOR_TOKENIZER, _PIECE, _HELD_OUT = 1000, 2000, 10


@dataclass
class Corpus:
    """Rows of tokens.

    Attributes:
        train: [R, T] int32, in the order they are trained on.
        held_out: [H, T] int32 of other documents.
        tokenizer: Fitted to the text.
        name: Of the text.
        fingerprint: Sixteen hex digits of tokens and order.
    """

    train: NDArray[np.int32]
    held_out: NDArray[np.int32]
    tokenizer: Any
    name: str
    fingerprint: str

    @property
    def tokens(self) -> int:
        """Tokens to train on."""
        return int(self.train.size)


def read_corpus(config: ScalingSweepConfig) -> Corpus:
    """Read, cut into pieces, shuffle, fit a tokenizer, and cut into rows.

    A tenth of the documents is for the held-out rows only. Pieces of 2,000 characters are
    shuffled, so that a small run sees as many documents as a large one, and runs of fewer tokens
    read the beginning of what runs of more tokens read.

    Raises:
        DataError: There is too little text.
    """
    from hf_glm_curriculum.commands.scratch_model import new_tokenizer

    texts, name = _texts(config)
    generator = random.Random(config.seed)
    generator.shuffle(texts)
    held, kept = (
        _pieces(texts[::_HELD_OUT]),
        _pieces([t for i, t in enumerate(texts) if i % _HELD_OUT]),
    )
    generator.shuffle(held)
    generator.shuffle(kept)
    tokenizer = new_tokenizer(kept[:_FOR_TOKENIZER], config.vocab_size)
    held_out = _rows(held, tokenizer, config, config.held_out_rows)
    train = _rows(kept, tokenizer, config, -(-max(config.tokens) // config.length))
    if len(held_out) < config.held_out_rows or len(train) < config.batch_size:
        raise DataError(
            f"documents: {name} gives {len(held_out)} held-out rows and {len(train)} to train on; "
            "give more documents, or lower held_out_rows"
        )
    digest = hashlib.sha256(held_out.tobytes() + train.tobytes()).hexdigest()[:16]
    return Corpus(train, held_out, tokenizer, name, digest)


def _pieces(texts: list[str]) -> list[str]:
    """Texts in parts of at most so many characters."""
    return [text[i : i + _PIECE] for text in texts for i in range(0, len(text), _PIECE)]


def _rows(
    texts: list[str], tokenizer: Any, config: ScalingSweepConfig, most: int
) -> NDArray[np.int32]:
    """[R, T] full rows, as many as are wanted and there are."""
    from hf_glm_curriculum.data.chunks import chunks

    rows = itertools.islice(chunks(texts, tokenizer, config.length), most)
    full = [row for row in rows if len(row) == config.length]
    return np.array(full, np.int32).reshape(len(full), config.length)


def _texts(config: ScalingSweepConfig) -> tuple[list[str], str]:
    """Documents, and what they are called."""
    if config.documents:
        from hf_glm_curriculum.data.documents import load_documents

        return list(load_documents(config.documents)["text"]), ", ".join(config.documents)
    texts = list(_standard_library())
    if not texts:
        raise DataError("documents: Python's standard library has no source here; pass --documents")
    return texts, STANDARD_LIBRARY


def _standard_library() -> Iterator[str]:
    """Source files of the standard library, tests left out, in the order of their paths."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if _LEFT_OUT.isdisjoint(path.relative_to(root).parts):
            text = path.read_text("utf-8", errors="replace")
            if text.strip():
                yield text
