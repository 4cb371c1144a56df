"""The probe without a trainer, on every model family and on packed rows."""

from __future__ import annotations

import pytest
import torch

from hf_glm_curriculum import SampleProbe
from hf_glm_curriculum.data.content_id import content_ids
from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.signals.probe import probe_for
from tests.conftest import build_model
from tests.lifespan.runs import Collator, add_lora, one_at_a_time, random_rows


@pytest.mark.parametrize("kind", ["llama", "qwen3", "glm", "glm4", "glm4_moe", "gpt2"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_values_equal_one_sample_at_a_time(kind, side):
    rows = random_rows(5)
    model = build_model(kind).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    losses, norms = one_at_a_time(model, rows)
    batch = Collator(side)(rows)
    # Left-padded rows see the positions they would have alone.
    batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with SampleProbe(model).attach() as signals:
        model(**batch).loss.backward()
        seen = signals.drain()[0]
    assert seen.loss.tolist() == pytest.approx(losses, abs=1e-5)
    assert seen.grad_norm.tolist() == pytest.approx(norms, rel=2e-4)


def pack(rows):
    """Concatenate rows into one, as padding-free collators do."""
    tokens = [t for row in rows for t in row["input_ids"]]
    labels = [t for row in rows for t in (-100, *row["labels"][1:])]
    positions = [p for row in rows for p in range(len(row["input_ids"]))]
    return {
        "input_ids": torch.tensor([tokens]),
        "labels": torch.tensor([labels]),
        "position_ids": torch.tensor([positions]),
        "use_cache": False,
    }


@pytest.mark.parametrize("kind", ["llama", "qwen3", "glm"])
def test_packed_rows_are_seen_segment_by_segment(kind):
    rows = random_rows(4)
    model = build_model(kind).train()
    losses, norms = one_at_a_time(model, rows)
    with SampleProbe(model).attach() as signals:
        model(**pack(rows)).loss.backward()
        seen = signals.drain()[0]
    expected = [content_ids(torch.tensor([row["input_ids"]])).item() for row in rows]
    assert seen.ids.tolist() == expected
    assert seen.loss.tolist() == pytest.approx(losses, abs=1e-5)
    assert seen.grad_norm.tolist() == pytest.approx(norms, rel=2e-4)


def test_embeddings_do_not_depend_on_padding():
    rows = random_rows(4)
    model = build_model().train()
    probe = SampleProbe(model)
    found = []
    for group in (rows, rows[:1]):
        subscription = probe.subscribe(wants_embedding=True)
        model(**Collator()(group)).loss.backward()
        found.append(subscription.drain()[0].embedding)
        subscription.close()
    assert found[0].shape == (4, 64)
    assert torch.allclose(found[0].norm(dim=1), torch.ones(4), atol=1e-5)
    assert torch.allclose(found[0][:1], found[1], atol=1e-4)


def test_lora_and_weights_multiply():
    rows = random_rows(3)
    model = add_lora(build_model()).train()
    probe = probe_for(model)
    first = probe.subscribe(lambda b: torch.tensor([1.0, 2.0, 3.0]))
    assert probe_for(model) is probe
    second = probe_for(model).subscribe(lambda b: torch.tensor([1.0, 0.5, 0.5]))
    model(**Collator()(rows)).loss.backward()
    assert first.drain()[0].weight.tolist() == second.drain()[0].weight.tolist() == [1.0, 1.0, 1.5]
    first.close()
    assert model._forward_pre_hooks
    second.close()
    assert not model._forward_pre_hooks and probe_for(model) is not probe


def test_only_training_passes_with_gradients_count():
    model = build_model()
    batch = Collator()(random_rows(3))
    with SampleProbe(model).attach() as signals:
        model.eval()
        model(**batch)
        model.train()
        with torch.no_grad():
            model(**batch)
        assert signals.drain() == []
        model(**batch).loss.backward()
        assert len(signals.drain()) == 1
        with pytest.raises(IncompatibleError, match="label"):
            model(input_ids=batch["input_ids"])


def test_loss_scale_and_accumulation_are_undone():
    rows = random_rows(4)
    plain, scaled = build_model().train(), build_model().train()
    norms = []
    for model, factor in ((plain, 1.0), (scaled, 65536.0 / 3)):
        with SampleProbe(model).attach() as signals:
            (model(**Collator()(rows), num_items_in_batch=77).loss * factor).backward()
            norms.append(signals.drain()[0].grad_norm)
    assert torch.allclose(norms[0], norms[1], rtol=1e-4)


def test_overflowing_gradients_are_no_observation():
    model = build_model().train()
    with SampleProbe(model).attach() as signals:
        (model(**Collator()(random_rows(2))).loss * float("inf")).backward()
        seen = signals.drain()[0]
    assert torch.isnan(seen.grad_norm).all() and torch.isfinite(seen.loss).all()


def test_another_loss_is_refused_by_name():
    model = build_model().train()
    model.loss_function = lambda **kwargs: None
    with pytest.raises(IncompatibleError, match="ForCausalLMLoss"):
        SampleProbe(model).attach()
