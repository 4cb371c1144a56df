"""Packed and padding-free batches: weights per position, where attention keeps samples apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorWithFlattening

from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.signals.packing import check_samples_are_apart
from tests.lifespan.test_packing import HOSTS, segments, sft
from tests.migration.runs import ALL, migration, run
from tests.migration.tiny import family, packed_batch

FLAT = {"per_device_train_batch_size": 4, "max_steps": 2, "learning_rate": 0.0}


@pytest.mark.parametrize("lengths", [False, True], ids=["positions", "lengths"])
def test_flattened_batches_have_the_gradients_of_rows(lengths):
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=lengths)
    packed = run([migration()], collator=collator, use_cache=False, **FLAT)
    rows = run([migration()], **FLAT)
    assert len(packed.grads) == 2
    for ours, theirs in zip(packed.grads, rows.grads, strict=True):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.parametrize("host", ["bfd", "padding_free"])
def test_what_trl_packs_has_the_gradients_of_rows(host, tmp_path):
    """Against one sample a row, in the same single step over all of them."""
    samples = segments(sft([], tmp_path / "dry", **HOSTS[host]))
    columns = [{name: s[name] for name in ("input_ids", "labels")} for s in samples]
    sources = {
        "pretrain": Dataset.from_list(columns[::2]),
        "instruction": Dataset.from_list(columns[1::2]),
    }
    trainer = sft([migration(tags=sources)], tmp_path / "packed", **HOSTS[host], max_grad_norm=0.0)
    trainer.train()
    settings = {"per_device_train_batch_size": 16, "max_steps": 1}
    rows = run([migration(tags=sources)], rows=columns, **settings)
    (ours,), (theirs,) = trainer.recorder.grads, rows.grads
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()
    plain = run([], rows=columns, **settings).grads[0]
    assert (plain - theirs).norm() > 0.1 * plain.norm()


class Straddling(DataCollatorWithFlattening):
    """Asks the last token of a sample for the first of the next."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        batch = super().__call__(*args, **kwargs)
        return {**batch, "labels": batch["input_ids"].clone()}


def test_labels_across_samples_are_refused_by_name():
    with pytest.raises(IncompatibleError, match=r"mask the first label of every sample \(-100\)"):
        run([migration()], collator=Straddling(), use_cache=False, **FLAT)


def test_attention_across_samples_is_refused_by_name():
    with pytest.raises(IncompatibleError, match=r"packing: sdpa .*set use_cache=False"):
        run([migration()], collator=DataCollatorWithFlattening(), use_cache=True, **FLAT)


def test_layers_with_a_state_are_refused_by_name():
    """GLM-5-Next's linear attention does mix packed samples, and is not let through."""
    model, batch = family("glm5_next", False).eval(), packed_batch()
    other = {**batch, "input_ids": batch["input_ids"].clone()}
    other["input_ids"][:, :6] = torch.randint(4, 260, (1, 6))
    with torch.no_grad():
        one, two = (model(**b, use_cache=False).logits[:, 6:] for b in (batch, other))
    assert not torch.allclose(one, two, atol=1e-3)
    with pytest.raises(IncompatibleError, match="linear_attention layers carry their state"):
        check_samples_are_apart(model, batch)
    assert ALL.gates
