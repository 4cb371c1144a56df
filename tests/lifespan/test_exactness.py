"""All weights 1 is the plain trainer; what is tracked is what one sample at a time gives."""

from __future__ import annotations

import itertools

import pytest
import torch

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.data.content_id import content_ids
from tests.conftest import build_model
from tests.lifespan.runs import random_rows, train

NEUTRAL = LifespanConfig(weighting="none", life_threshold=0.0, suspicion_threshold=1e9)
PRECISION = {"fp32": {}, "bf16": {"bf16": True}}
CHECKPOINTING = {"plain": {}, "checkpointed": {"gradient_checkpointing": True}}
WINDOW = {
    "ga1": {"gradient_accumulation_steps": 1},
    "ga4": {"gradient_accumulation_steps": 4, "max_steps": 2},
    # 10 rows in batches of 2 are 5 micro-batches: the second window of an epoch holds one.
    "short": {"gradient_accumulation_steps": 4, "max_steps": 4},
}
CASES = [
    pytest.param(host, side, window, precision, checkpointing, lora, id="-".join(name))
    for name in itertools.product(
        ("trainer", "sft"), WINDOW, PRECISION, CHECKPOINTING, ("full", "lora"), ("right", "left")
    )
    for host, window, precision, checkpointing, lora, side in [
        (name[0], WINDOW[name[1]], PRECISION[name[2]], CHECKPOINTING[name[3]], name[4], name[5])
    ]
    # SFTTrainer's own collator pads on the right.
    if not (host == "sft" and side == "left")
]


@pytest.mark.parametrize(("host", "side", "window", "precision", "checkpointing", "lora"), CASES)
def test_all_weights_one_is_the_plain_trainer(host, side, window, precision, checkpointing, lora):
    settings = {
        "sft": host == "sft",
        "lora": lora == "lora",
        "side": side,
        **window,
        **precision,
        **checkpointing,
    }
    plain = train([], **settings)
    watched = train([SampleLifespanCallback(NEUTRAL)], **settings)
    assert watched.losses == pytest.approx(plain.losses, rel=1e-6, abs=1e-6)
    assert len(watched.grads) == len(plain.grads) > 0
    for ours, theirs in zip(watched.grads, plain.grads, strict=True):
        assert (ours - theirs).norm() <= 1e-6 * (1 + theirs.norm())


def test_sft_nll_is_the_plain_trainer_too():
    settings = {"sft": True, "loss_type": "nll"}
    plain = train([], **settings)
    watched = train([SampleLifespanCallback(NEUTRAL)], **settings)
    assert watched.losses == pytest.approx(plain.losses, abs=1e-6)
    assert torch.allclose(watched.grads[-1], plain.grads[-1], atol=1e-6)


@pytest.mark.parametrize("host", ["trainer", "sft"])
@pytest.mark.parametrize("batch", [(8, 1), (2, 4)], ids=["8x1", "2x4"])
def test_tracked_values_are_one_sample_at_a_time(host, batch):
    rows = random_rows(8)
    size, accumulation = batch
    callback = SampleLifespanCallback(NEUTRAL)
    train(
        [callback],
        sft=host == "sft",
        rows=rows,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        max_steps=1,
    )
    from tests.lifespan.runs import one_at_a_time

    losses, norms = one_at_a_time(build_model().train(), rows)
    frame = callback.ledger.to_pandas().set_index("row")
    assert list(frame.index) == list(range(8))
    assert frame["loss"].tolist() == pytest.approx(losses, abs=1e-5)
    assert frame["grad_norm"].tolist() == pytest.approx(norms, rel=1e-4)
    expected = [content_ids(torch.tensor([row["input_ids"]])).item() for row in rows]
    assert frame["id"].tolist() == expected


@pytest.mark.parametrize("host", ["trainer", "sft"])
def test_accumulation_does_not_change_the_weighted_step(host):
    """PITFALLS 3: 8 × 1 and 2 × 4 give the same gradient, with weights other than 1."""
    rows = random_rows(8)

    def run(size: int, accumulation: int) -> torch.Tensor:
        callback = SampleLifespanCallback(LifespanConfig(weighting="none"))
        ids = [content_ids(torch.tensor([row["input_ids"]])).item() for row in rows]
        weights = {sample: 0.25 * (i + 1) for i, sample in enumerate(ids)}
        callback_weigh = {"on": False}

        def weigh(batch):
            callback_weigh["on"] = True
            return torch.tensor([weights[i] for i in batch.ids.tolist()])

        begin = callback.on_train_begin

        def on_train_begin(*args, **kwargs):
            begin(*args, **kwargs)
            callback._subscription.weigher = weigh

        callback.on_train_begin = on_train_begin
        result = train(
            [callback],
            sft=host == "sft",
            rows=rows,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
            max_steps=1,
            max_grad_norm=0.0,
        )
        assert callback_weigh["on"]
        return result.grads[0]

    whole, parts = run(8, 1), run(2, 4)
    assert (whole - parts).norm() <= 1e-4 * whole.norm()


def test_weighted_loss_is_the_documented_sum():
    """Loss = Σᵢ wᵢ Σₜ ℓᵢₜ / N, against a hand-written version."""
    from hf_glm_curriculum.signals.probe import SampleProbe

    rows = random_rows(3)
    weights = torch.tensor([0.0, 0.5, 2.0])
    model, reference = build_model().train(), build_model().train()
    from tests.lifespan.runs import Collator

    batch = Collator()(rows)
    with SampleProbe(model).attach(lambda b: weights) as signals:
        loss = model(**batch, num_items_in_batch=40).loss
        loss.backward()
        seen = signals.drain()[0]
    logits = reference(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    token = torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), batch["labels"][:, 1:], reduction="none"
    )
    expected = (token.sum(1) * weights).sum() / 40
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)
    assert torch.isnan(seen.grad_norm[0]) and torch.isfinite(seen.grad_norm[1:]).all()
