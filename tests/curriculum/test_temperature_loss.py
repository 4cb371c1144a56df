"""The loss term against hand-made losses, its gradient, its identity, its state on resume."""

from __future__ import annotations

import shutil

import pytest
import torch
from datasets import Dataset
from torch.nn import functional
from transformers import Trainer, TrainingArguments

from hf_glm_curriculum import (
    CompositeLoss,
    CompositeLossCallback,
    LossContext,
    TemperatureField,
    TemperatureFieldCallback,
    TemperatureFieldLoss,
)
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.kernels.output_head import OutputHead
from hf_glm_curriculum.losses.terms import CausalLMLoss, TemperatureLoss
from tests.conftest import build_model
from tests.lifespan.runs import Collator, random_rows
from tests.lifespan.runs import train as train_on_host

B, T, V, H = 2, 8, 11, 5
COUNTS = torch.arange(V, 0, -1)


def tensors():
    torch.manual_seed(0)
    hidden = torch.randn(B, T, H, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, H, dtype=torch.float64)
    labels = torch.randint(0, V, (B, T))
    labels[0, :3] = -100
    return hidden, weight, labels


def context(source, hidden, weight, labels, **fields):
    if source == "logits":
        return LossContext(labels, logits=hidden @ weight.t(), **fields)
    return LossContext(labels, hidden_states=hidden, head=OutputHead(weight), **fields)


def field_for(by):
    if by == "label":
        return TemperatureField(source="frequency", token_counts=COUNTS)
    return TemperatureField()


def temperatures_by_hand(by, logits, targets):
    if by == "label":
        above = (COUNTS.cumsum(0) - COUNTS) / COUNTS.sum()
        return 0.7 + 0.6 * above[targets.clamp(min=0)].double()
    p = logits.softmax(-1)
    return 0.7 + 0.6 * (1 - torch.exp((p * p.log()).sum(-1)))


@pytest.mark.parametrize("source", ["logits", "hidden"])
@pytest.mark.parametrize("by", ["distribution", "label"])
@pytest.mark.parametrize("rescale", [False, True])
def test_value_and_gradient_with_constant_temperatures(source, by, rescale):
    hidden, weight, labels = tensors()
    term = TemperatureFieldLoss(field_for(by), by, rescale=rescale)
    ours = term(context(source, hidden, weight, labels))
    logits = hidden @ weight.t()
    targets = functional.pad(labels[:, 1:], (0, 1), value=-100)
    tau = temperatures_by_hand(by, logits, targets).detach()
    log_p = (logits / tau[..., None]).log_softmax(-1)
    wanted = -log_p.gather(-1, targets.clamp(min=0)[..., None])[..., 0] * (targets >= 0)
    wanted = wanted * tau if rescale else wanted
    assert torch.allclose(ours, wanted, atol=1e-7)
    (found,) = torch.autograd.grad(ours.sum(), hidden, retain_graph=True)
    (right,) = torch.autograd.grad(wanted.sum(), hidden, retain_graph=True)
    assert torch.allclose(found, right, atol=1e-7)
    # The closed form: (softmax(z/τ) − one-hot) / τ, without the division when rescaled.
    hot = functional.one_hot(targets.clamp(min=0), V)
    at_logits = (log_p.exp() - hot) / (1 if rescale else tau[..., None])
    at_logits = at_logits * (targets >= 0)[..., None]
    assert torch.allclose(found, at_logits @ weight, atol=1e-7)


@pytest.mark.parametrize("source", ["logits", "hidden"])
def test_gradient_by_finite_differences(source):
    """By label the temperatures do not move with the logits; by distribution they are frozen."""
    hidden, weight, labels = tensors()
    by_label = TemperatureFieldLoss(field_for("label"), "label")

    def loss(states):
        return by_label(context(source, states, weight, labels)).sum()

    assert torch.autograd.gradcheck(loss, (hidden,), atol=1e-6)
    logits = (hidden @ weight.t()).detach()
    tau = TemperatureField().temperatures(logits)
    frozen = TemperatureLoss(lambda seen: tau)
    assert torch.autograd.gradcheck(
        lambda states: frozen(context(source, states, weight, labels)).sum(), (hidden,), atol=1e-6
    )
    ours = TemperatureFieldLoss(TemperatureField())(context(source, hidden, weight, labels))
    theirs = frozen(context(source, hidden, weight, labels))
    for one, other in zip(
        torch.autograd.grad(ours.sum(), hidden),
        torch.autograd.grad(theirs.sum(), hidden),
        strict=True,
    ):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("source", ["logits", "hidden"])
def test_temperature_one_everywhere_is_plain_cross_entropy_bit_for_bit(source):
    hidden, weight, labels = tensors()
    term = TemperatureFieldLoss(TemperatureField(1.0, 1.0))
    ours = term(context(source, hidden, weight, labels))
    plain = CausalLMLoss()(context(source, hidden, weight, labels))
    assert torch.equal(ours, plain)


def test_constant_fields_and_numbers_agree_rescaled_or_not():
    hidden, weight, labels = tensors()
    for rescale in (False, True):
        seen = context("logits", hidden, weight, labels)
        constant = TemperatureFieldLoss(TemperatureField(1.2, 1.2), rescale=rescale)(seen)
        assert torch.equal(constant, TemperatureLoss(1.2, rescale=rescale)(seen))
        spread = TemperatureLoss(lambda s: torch.full((B, T), 1.2).double(), rescale=rescale)(seen)
        assert torch.allclose(constant, spread)


@pytest.mark.parametrize(
    ("rescale", "share", "learned"),
    [(False, 0.5, 0.373), (False, 0.1, 0.112), (True, 0.5, 0.500), (True, 0.1, 0.161)],
)
def test_temperatures_by_label_are_biased(rescale, share, learned):
    """One context, two labels: where the loss of the best logits lies, as the card says."""
    counts = torch.tensor([1, 0, 0])
    term = TemperatureFieldLoss(
        TemperatureField(source="frequency", token_counts=counts), "label", rescale=rescale
    )
    rare = round(10 * share)
    labels = torch.tensor([[0]] * (10 - rare) + [[1]] * rare)
    labels = torch.cat([torch.zeros_like(labels), labels], 1)
    gaps = torch.linspace(-4, 1, 101, dtype=torch.float64)
    losses = []
    for gap in gaps:
        logits = torch.tensor([0.0, gap, -torch.inf], dtype=torch.float64).expand(10, 2, 3)
        losses.append(term(LossContext(labels, logits=logits)).sum())
    best = gaps[int(torch.stack(losses).argmin())]
    assert torch.sigmoid(best).item() == pytest.approx(learned, abs=0.015)


def test_wrong_uses_are_refused():
    with pytest.raises(ConfigError, match="by: must be one of"):
        TemperatureFieldLoss(TemperatureField(), "token")
    with pytest.raises(ConfigError, match="no rarity of tokens"):
        TemperatureFieldLoss(TemperatureField(), "label")
    hidden, weight, labels = tensors()
    with pytest.raises(ConfigError, match="labels' shape"):
        TemperatureLoss(lambda s: torch.ones(3))(context("logits", hidden, weight, labels))


def test_an_online_field_is_one_field_a_step_and_counts_label_positions():
    field = TemperatureField(online=True, half_life=1e9)
    term = TemperatureFieldLoss(field)
    hidden, weight, labels = tensors()
    n = int((labels[:, 1:] >= 0).sum())
    losses = []
    for step in (0, 0, 1):
        seen = context("hidden", hidden, weight, labels, step=step, host="chunked")
        losses.append(term(seen))
        losses[-1].sum().backward()  # makes chunks anew: they must not count twice
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[1], losses[2])
    assert field.ranks.counts.sum().item() == 2 * n
    field.commit()
    assert field.ranks.counts.sum().item() == pytest.approx(3 * n)


def test_a_composite_adds_the_term():
    field = field_for("label")
    composite = CompositeLoss(
        {"lm": CausalLMLoss(), "field": TemperatureFieldLoss(field, "label")}, {"field": 0.5}
    )
    torch.manual_seed(0)
    logits, labels = torch.randn(B, T, V), torch.randint(0, V, (B, T))
    flat, targets = logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1)
    warmed = flat / field.of_tokens(targets)[:, None]
    wanted = functional.cross_entropy(flat, targets) + 0.5 * functional.cross_entropy(
        warmed, targets
    )
    assert composite(logits, labels).item() == pytest.approx(wanted.item(), rel=1e-6)


@pytest.mark.parametrize("by", ["distribution", "label"])
@pytest.mark.parametrize("host", [{}, {"sft": True}, {"sft": True, "loss_type": "nll"}])
def test_on_every_host_the_gradient_is_that_written_by_hand(host, by):
    rows = random_rows(8)
    field = TemperatureField(0.5, 2.0)
    if by == "label":
        counts = torch.arange(260, 0, -1)
        field = TemperatureField(0.5, 2.0, source="frequency", token_counts=counts)
    found = train_on_host(
        [CompositeLossCallback(CompositeLoss({"field": TemperatureFieldLoss(field, by)}))],
        rows=rows,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        max_steps=1,
        max_grad_norm=0.0,
        **host,
    )
    model, batch = build_model().train(), Collator()(rows)
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    targets = batch["labels"][:, 1:]
    tau = field.of_tokens(targets.clamp(min=0)) if by == "label" else field.temperatures(logits)
    warmed = (logits / tau[..., None]).transpose(1, 2)
    functional.cross_entropy(warmed, targets).backward()
    wanted = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert (found.grads[0] - wanted).norm() <= 1e-5 * wanted.norm()


def train(folder, field, steps=4, resume=None, **settings):
    torch.manual_seed(1)
    data = torch.randint(4, 260, (32, 12)).tolist()
    rows = Dataset.from_dict({"input_ids": data, "labels": data})
    given = {"output_dir": str(folder), "max_steps": steps, "per_device_train_batch_size": 4}
    given |= {"logging_steps": 1, "report_to": "none", "use_cpu": True, "save_steps": 2}
    given |= {"learning_rate": 1e-2, "disable_tqdm": True}
    model = build_model(seed=3)
    composite = CompositeLoss({"field": TemperatureFieldLoss(field)})
    callbacks = [CompositeLossCallback(composite), TemperatureFieldCallback(field)]
    trainer = Trainer(
        model, TrainingArguments(**(given | settings)), train_dataset=rows, callbacks=callbacks
    )
    trainer.train(resume_from_checkpoint=resume)
    return model.state_dict(), trainer.state.log_history


def test_a_resumed_run_goes_on_with_the_fields_statistics(tmp_path):
    straight, resumed = (TemperatureField(online=True, half_life=500) for _ in range(2))
    wanted, history = train(tmp_path / "a", straight)
    shutil.copytree(tmp_path / "a" / "checkpoint-2", tmp_path / "b" / "checkpoint-2")
    found, _ = train(tmp_path / "b", resumed, resume=str(tmp_path / "b" / "checkpoint-2"))
    assert torch.equal(resumed.ranks.counts, straight.ranks.counts)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    logged = [entry for entry in history if "temperature/mean" in entry]
    assert logged and 0.7 < logged[-1]["temperature/mean"] < 1.3


def test_a_neutral_field_trains_as_the_plain_trainer(tmp_path):
    ours, _ = train(tmp_path / "a", TemperatureField(1.0, 1.0), save_strategy="no")
    torch.manual_seed(1)
    data = torch.randint(4, 260, (32, 12)).tolist()
    rows = Dataset.from_dict({"input_ids": data, "labels": data})
    model = build_model(seed=3)
    args = TrainingArguments(
        str(tmp_path / "p"),
        max_steps=4,
        per_device_train_batch_size=4,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        learning_rate=1e-2,
        disable_tqdm=True,
    )
    Trainer(model, args, train_dataset=rows).train()
    for name, value in model.state_dict().items():
        assert torch.allclose(ours[name], value, atol=1e-6)
