"""Packed and padding-free batches: a sample is a segment, and its values are its own."""

from __future__ import annotations

import json
import logging
from typing import Any

import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorWithFlattening, Trainer
from trl import SFTConfig, SFTTrainer

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.data.content_id import content_ids
from hf_glm_curriculum.errors import IncompatibleError
from tests.conftest import build_model, build_tokenizer
from tests.lifespan.runs import Recorder, arguments, one_at_a_time, random_rows
from tests.lifespan.test_exactness import NEUTRAL

TEXTS = [
    {"prompt": f"q{i}" * (1 + i % 3), "completion": f" answer {i}" + " word" * (i % 4)}
    for i in range(10)
]
HOSTS = {
    "bfd": {"packing": True, "packing_strategy": "bfd"},
    "bfd_split": {"packing": True, "packing_strategy": "bfd_split"},
    "padding_free": {"padding_free": True, "max_length": None},
    "padded_to_8": {"padding_free": True, "max_length": None, "pad_to_multiple_of": 8},
    "packed_to_8": {"packing": True, "pad_to_multiple_of": 8},
}


def sft(
    callbacks: list, folder: Any, model: Any = None, streamed: bool = False, **settings: Any
) -> Any:
    """SFTTrainer on text that TRL itself tokenises (and packs)."""
    defaults = {"per_device_train_batch_size": 16, "max_length": 48, "max_steps": 1}
    args = arguments(folder, SFTConfig, **{**defaults, **settings})
    recorder, data = Recorder(), Dataset.from_list(TEXTS)
    trainer = SFTTrainer(
        model=model or build_model(),
        args=args,
        processing_class=build_tokenizer(),
        train_dataset=data.to_iterable_dataset() if streamed else data,
        callbacks=[*callbacks, recorder],
    )
    trainer.recorder = recorder
    return trainer


def segments(trainer: Any) -> list[dict[str, list[int]]]:
    """The samples of a trainer's prepared data, one by one, with the row each lies in."""
    found = []
    for row, record in enumerate(trainer.train_dataset):
        lengths = record.get("seq_lengths") or [len(record["input_ids"])]
        start = 0
        for length in lengths:
            part = slice(start, start + length)
            found.append({n: record[n][part] for n in ("input_ids", "labels")} | {"row": row})
            start += length
    return found


def sample_id(row: dict[str, Any]) -> int:
    return int(content_ids(torch.tensor([row["input_ids"]])))


def assert_values_are_own(frame: pd.DataFrame, samples: list[dict], kind: str) -> None:
    """Losses and norms equal those of a fresh model that sees one sample at a time."""
    losses, norms = one_at_a_time(build_model(kind).train(), samples)
    frame = frame.set_index("id").loc[[sample_id(s) for s in samples]]
    assert frame["loss"].tolist() == pytest.approx(losses, abs=1e-5)
    assert frame["grad_norm"].tolist() == pytest.approx(norms, rel=1e-4)
    assert (frame["lifetime"] == 1).all()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("host", HOSTS)
def test_a_segment_has_the_values_it_has_alone(host, implementation, tmp_path):
    kind = "gpt2" if implementation == "eager" else "llama"
    model = build_model(kind)
    model.set_attn_implementation(implementation)
    callback = SampleLifespanCallback(NEUTRAL)
    trainer = sft([callback], tmp_path, model, **HOSTS[host])
    trainer.train()
    samples, frame = segments(trainer), callback.ledger.to_pandas()
    assert len(samples) == len(frame) == len(TEXTS)
    assert ("seq_lengths" in trainer.train_dataset.column_names) == (
        "pack" in host or "bfd" in host
    )
    assert_values_are_own(frame, samples, kind)
    rows = frame.set_index("id")["row"]
    assert [rows[sample_id(s)] for s in samples] == [s["row"] for s in samples]


@pytest.mark.parametrize("host", ["bfd", "padding_free"])
def test_packed_and_neutral_is_the_plain_trainer(host, tmp_path):
    settings = {
        **HOSTS[host],
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 3,
    }
    plain = sft([], tmp_path / "a", **settings)
    plain.train()
    watched = sft([SampleLifespanCallback(NEUTRAL)], tmp_path / "b", **settings)
    watched.train()
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (plain, watched)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6) and len(losses[0]) == 3
    for ours, theirs in zip(watched.recorder.grads, plain.recorder.grads, strict=True):
        assert (ours - theirs).norm() <= 1e-6 * (1 + theirs.norm())


def test_the_pool_cuts_each_text_out_of_its_packed_row(tmp_path):
    config = LifespanConfig(warmup_visits=2, life_threshold=1e9)
    seen = []

    def judge(cases):
        seen.append(cases)
        return ["RELABEL"] * len(cases)

    callback = SampleLifespanCallback(config, judge=judge)
    trainer = sft([callback], tmp_path, packing=True, num_train_epochs=3, max_steps=-1)
    trainer.train()
    lines = (tmp_path / "lifespan" / "observation_pool.jsonl").read_text().splitlines()
    pool = [json.loads(line) for line in lines]
    found = {(row["text"]["prompt"], row["text"]["response"]) for row in pool}
    # The tokenizer's answer to a prompt that ends where the completion begins is stripped text.
    assert found == {(t["prompt"].strip(), t["completion"].strip()) for t in TEXTS}
    assert len({row["row"] for row in pool}) < len(pool) == len(TEXTS)
    assert set(seen[0]["response"]) == {t["completion"].strip() for t in TEXTS}


def test_a_packed_run_resumes(tmp_path):
    settings = {
        "packing": True,
        "per_device_train_batch_size": 1,
        "max_steps": 12,
        "save_strategy": "steps",
        "save_steps": 5,
    }
    whole, second = SampleLifespanCallback(), SampleLifespanCallback()
    straight = sft([whole], tmp_path / "a", **settings)
    straight.train()
    resumed = sft([second], tmp_path / "b", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-5"))
    pd.testing.assert_frame_equal(second.ledger.to_pandas(), whole.ledger.to_pandas())
    for ours, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_packed_streams_learn_their_samples_as_they_come(tmp_path):
    known, learnt = SampleLifespanCallback(NEUTRAL), SampleLifespanCallback(NEUTRAL)
    sft([known], tmp_path / "a", packing=True).train()
    sft([learnt], tmp_path / "b", packing=True, streamed=True).train()
    columns = ["id", "loss", "grad_norm", "lifetime"]
    one, two = (
        c.ledger.to_pandas()[columns].sort_values("id", ignore_index=True) for c in (known, learnt)
    )
    pd.testing.assert_frame_equal(one, two, rtol=1e-4)
    assert len(one) == len(TEXTS)


def test_wrapped_packing_tracks_chunks_and_says_so(tmp_path, caplog):
    callback = SampleLifespanCallback(NEUTRAL)
    with caplog.at_level(logging.WARNING):
        trainer = sft([callback], tmp_path, packing=True, packing_strategy="wrapped")
        trainer.train()
    assert "a sample is a chunk of 48 tokens" in caplog.text
    assert_values_are_own(callback.ledger.to_pandas(), segments(trainer), "llama")


class _Flattened:
    """The plain trainer with transformers' own padding-free collator."""

    def __init__(self, folder: Any, *callbacks: Any, lengths: bool = False, **settings: Any):
        self.rows = random_rows(8)
        collator = DataCollatorWithFlattening(return_flash_attn_kwargs=lengths)
        self.trainer = Trainer(
            model=build_model(),
            args=arguments(folder, per_device_train_batch_size=8, max_steps=1, **settings),
            data_collator=collator,
            train_dataset=Dataset.from_list(self.rows),
            callbacks=list(callbacks),
        )


@pytest.mark.parametrize("lengths", [False, True], ids=["positions", "lengths"])
def test_the_flattening_collator_gives_values_of_their_own(lengths, tmp_path):
    callback = SampleLifespanCallback(NEUTRAL)
    host = _Flattened(tmp_path, callback, lengths=lengths)
    host.trainer.train()
    frame = callback.ledger.to_pandas()
    assert list(frame["row"]) == list(range(8))
    assert_values_are_own(frame, host.rows, "llama")


def test_a_cache_that_mixes_packed_samples_is_refused_by_name(tmp_path):
    """PITFALLS 13: with use_cache=True, transformers attends across the samples of a row."""
    host = _Flattened(tmp_path, SampleLifespanCallback(), use_cache=True)
    with pytest.raises(IncompatibleError, match=r"packing: sdpa .*set use_cache=False"):
        host.trainer.train()
    allowed = _Flattened(tmp_path, SampleLifespanCallback(), use_cache=False)
    allowed.trainer.train()
