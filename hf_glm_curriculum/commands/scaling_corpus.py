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
_FOR_TOKENIZER = 400


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
    """Read, shuffle, fit a tokenizer and cut into rows; as many as the largest run needs.

    Held-out rows come first in the shuffled order of documents, so that they are the same whatever
    the runs' sizes.

    Raises:
        DataError: There is too little text.
    """
    from hf_glm_curriculum.commands.scratch_model import new_tokenizer
    from hf_glm_curriculum.data.chunks import chunks

    texts, name = _texts(config)
    random.Random(config.seed).shuffle(texts)
    tokenizer = new_tokenizer(texts[:_FOR_TOKENIZER], config.vocab_size)
    needed = config.held_out_rows + -(-max(config.tokens) // config.length)
    rows = itertools.islice(chunks(texts, tokenizer, config.length), needed)
    full = [row for row in rows if len(row) == config.length]
    if len(full) < config.held_out_rows + config.batch_size:
        raise DataError(
            f"documents: {name} gives {len(full)} rows of {config.length} tokens, and "
            f"{config.held_out_rows} are held out; give more text or hold out fewer"
        )
    table = np.stack(full).astype(np.int32)
    digest = hashlib.sha256(table.tobytes()).hexdigest()[:16]
    held, train = table[: config.held_out_rows], table[config.held_out_rows :]
    return Corpus(train, held, tokenizer, name, digest)


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
