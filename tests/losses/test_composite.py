"""The composite by itself and as a trainer's compute_loss_func."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM, Trainer
from transformers.modeling_outputs import CausalLMOutput

from hf_glm_curriculum import CompositeLoss
from hf_glm_curriculum.errors import ConfigError, IncompatibleError, StateError
from hf_glm_curriculum.kernels.output_head import OutputHead
from hf_glm_curriculum.losses.context import LossContext
from hf_glm_curriculum.losses.schedules import linear
from hf_glm_curriculum.losses.terms import CausalLMLoss, MaskedLMLoss, TemperatureLoss, ZLoss
from tests.conftest import build_model
from tests.lifespan.runs import Collator, Recorder, arguments, random_rows


def batch():
    torch.manual_seed(0)
    labels = torch.randint(0, 11, (2, 6))
    labels[0, :3] = -100
    return CausalLMOutput(logits=torch.randn(2, 6, 11, requires_grad=True)), labels


def token_losses(outputs, labels):
    log_p = torch.log_softmax(outputs.logits[:, :-1], -1)
    target = labels[:, 1:]
    return functional.nll_loss(log_p.transpose(1, 2), target.clamp(min=-100), reduction="none")


def test_a_weighted_sum_over_one_denominator():
    outputs, labels = batch()
    composite = CompositeLoss({"lm": CausalLMLoss(), "z": ZLoss()}, {"lm": 0.5, "z": 1e-2})
    token = token_losses(outputs, labels)
    used = labels[:, 1:] >= 0
    z = (outputs.logits[:, :-1].logsumexp(-1).square() * used).sum()
    for given, n in ((None, int(used.sum())), (40, 40), (torch.tensor(17), 17)):
        ours = composite(outputs, labels, num_items_in_batch=given)
        assert torch.allclose(ours, (0.5 * token.sum() + 1e-2 * z) / n)
    found = composite.values()
    assert found["lm"] == pytest.approx(token.sum().item() / int(used.sum()), rel=1e-5)
    assert composite.values() == {}


def test_functions_of_every_form():
    outputs, labels = batch()
    token = token_losses(outputs, labels)
    mean = token.sum() / (labels[:, 1:] >= 0).sum()

    def as_in_articles(model_outputs, targets):
        return token_losses(model_outputs, targets).sum() / (targets[:, 1:] >= 0).sum()

    def as_trainers_want_it(outputs, labels, num_items_in_batch=None):
        return as_in_articles(outputs, labels)

    def per_token(context):
        return token_losses(context.outputs, context.labels)

    for function in (as_in_articles, as_trainers_want_it, per_token):
        composite = CompositeLoss({"a": function, "b": CausalLMLoss()}, {"a": 2.0})
        assert torch.allclose(composite(outputs, labels), 3 * mean)
        # A mean stands for its label tokens: a window's denominator applies to it as well.
        n = int((labels[:, 1:] >= 0).sum())
        assert torch.allclose(composite(outputs, labels, 2 * n), 1.5 * mean)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: 0, r"must take \(context\) or \(outputs, labels\)"),
        (lambda a, b, c: 0, r"got \(a, b, c\)"),
        ("mse", "must be a callable"),
    ],
)
def test_functions_of_no_form_are_refused(function, message):
    with pytest.raises(ConfigError, match=message):
        CompositeLoss({"mine": function})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda context: 1.0, "'mine': must return a tensor, got float"),
        (
            lambda context: context.labels[0].float(),
            r"shape \(2, 6\) or a mean of shape \(\), got \(6,\)",
        ),
    ],
)
def test_wrong_answers_are_named(function, message):
    with pytest.raises(ConfigError, match=message):
        CompositeLoss({"mine": function})(*batch())


def test_names_and_weights_are_checked():
    with pytest.raises(ConfigError, match="no term 'instrution'; did you mean instruction"):
        CompositeLoss({"instruction": CausalLMLoss()}, {"instrution": 1})
    composite = CompositeLoss({"instruction": CausalLMLoss()})
    with pytest.raises(ConfigError, match="did you mean instruction"):
        composite.set_weight("instructon", 1.0)
    for bad in (-1, float("nan"), float("inf"), "much"):
        with pytest.raises(ConfigError, match="weight of 'instruction'"):
            composite.set_weight("instruction", bad)
    with pytest.raises(ConfigError, match="must be true or false"):
        composite.set_active("instruction", 1)
    with pytest.raises(ConfigError, match="is there already"):
        composite.add_term("instruction", CausalLMLoss())
    with pytest.raises(ConfigError, match="term name: must be letters"):
        composite.add_term("a.b", CausalLMLoss())
    with pytest.raises(ConfigError, match="on_nonfinite"):
        CompositeLoss(on_nonfinite="ignore")


def test_terms_come_go_and_follow_schedules():
    outputs, labels = batch()
    composite = CompositeLoss()
    with pytest.raises(IncompatibleError, match="none is active"):
        composite(outputs, labels)
    composite.add_term("mlm", CausalLMLoss(), weight=1.0)
    composite.add_term("it", TemperatureLoss(2.0), weight=0.0, active=False)
    plain = composite(outputs, labels)
    composite.set_active("it", True)
    composite.schedule("it", linear(0, 10, 0.0, 1.0))
    composite.schedule("mlm", lambda step: 1.0 - step / 10)
    composite.step = 4
    assert composite.weights == pytest.approx({"mlm": 0.6, "it": 0.4})
    alone = CompositeLoss({"it": TemperatureLoss(2.0)})(outputs, labels)
    assert torch.allclose(composite(outputs, labels), 0.6 * plain + 0.4 * alone)
    composite.remove_term("mlm")
    assert composite.weights == {"it": 0.4}
    composite.add_term("mlm")
    assert composite.weights == {"mlm": 1.0, "it": 0.4}
    with pytest.raises(ConfigError, match="begins at step 0, and the run ends after 0"):
        composite.check_run(0)
    composite.schedule("it", lambda step: -1.0)
    with pytest.raises(ConfigError, match="schedule of 'it' at step 4"):
        composite(outputs, labels)


def test_a_term_that_returns_nan_is_left_out_and_named(caplog):
    outputs, labels = batch()
    plain = CompositeLoss({"lm": CausalLMLoss()})(outputs, labels)
    composite = CompositeLoss({"lm": CausalLMLoss(), "bad": lambda c: c.logits.sum() / 0 * 0})
    assert torch.equal(composite(outputs, labels), plain)
    assert composite.weights == {"lm": 1.0, "bad": 0.0}
    assert "term 'bad' returned NaN or infinity" in caplog.text
    alone = CompositeLoss({"bad": lambda c: c.logits.sum() / 0})
    with pytest.raises(StateError, match="bad returned NaN or infinity and no other term"):
        alone(outputs, labels)
    nothing = CausalLMOutput(logits=outputs.logits * torch.nan)
    with pytest.raises(StateError, match="lm returned NaN"):
        CompositeLoss({"lm": CausalLMLoss()})(nothing, labels)
    stops = CompositeLoss(
        {"lm": CausalLMLoss(), "bad": lambda c: c.logits.sum() / 0}, on_nonfinite="stop"
    )
    with pytest.raises(StateError, match="on_nonfinite='stop'"):
        stops(outputs, labels)


def test_a_new_term_may_be_looked_at_first():
    outputs, labels = batch()
    composite = CompositeLoss({"lm": CausalLMLoss()})
    plain = composite(outputs, labels)
    composite.add_term("z", ZLoss(), 1e-3, preflight=True)
    for _ in range(9):
        assert torch.allclose(composite(outputs, labels), plain)
        assert "z" not in composite.weights
    composite(outputs, labels)
    assert composite.weights == {"lm": 1.0, "z": 1e-3}
    composite.add_term("huge", lambda c: c.logits.square().mean() * 1e6, preflight=True)
    for _ in range(10):
        composite(outputs, labels)
    assert "huge" not in composite.weights


def test_state_goes_out_and_in():
    def make():
        made = CompositeLoss({"lm": CausalLMLoss(), "z": ZLoss()}, {"z": 0.1})
        made.register("t", TemperatureLoss(2.0))
        return made

    one, other = make(), make()
    one.set_weight("z", 0.3)
    one.schedule("lm", {"kind": "step", "at": {3: 0.5}, "from": 1.0})
    one.add_term("t", weight=0.2)
    other.load_state_dict(one.state_dict())
    other.step = one.step = 3
    assert other.weights == one.weights == {"lm": 0.5, "z": 0.3, "t": 0.2}
    with pytest.raises(StateError, match="had t, which this composite does not know"):
        CompositeLoss({"lm": CausalLMLoss(), "z": ZLoss()}).load_state_dict(one.state_dict())


def trained(folder, model, rows, loss=None, **settings):
    recorder = Recorder()
    trainer = Trainer(
        model=model,
        args=arguments(folder, max_grad_norm=0.0, **settings),
        train_dataset=Dataset.from_list(rows),
        data_collator=Collator(),
        callbacks=[recorder],
        compute_loss_func=loss,
    )
    trainer.train()
    return trainer, recorder.grads


@pytest.mark.parametrize("accumulation", [1, 2])
def test_as_compute_loss_func_it_is_the_plain_trainer_bit_for_bit(tmp_path, accumulation):
    settings = {"gradient_accumulation_steps": accumulation}
    _, plain = trained(tmp_path, build_model(), random_rows(), **settings)
    loss = CompositeLoss({"lm": CausalLMLoss()})
    _, ours = trained(tmp_path, build_model(), random_rows(), loss, **settings)
    assert len(plain) == len(ours) == 3
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))


def test_a_masked_language_model_trains_bit_for_bit_too(tmp_path):
    def build():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=260,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        return BertForMaskedLM(config)

    _, plain = trained(tmp_path, build(), random_rows())
    composite = CompositeLoss({"mlm": MaskedLMLoss()})
    _, ours = trained(tmp_path, build(), random_rows(), composite)
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    halved = CompositeLoss({"mlm": MaskedLMLoss()}, {"mlm": 0.5})
    _, half = trained(tmp_path, build(), random_rows(), halved)
    assert torch.allclose(half[0], plain[0] / 2, atol=1e-7)


def test_accumulation_changes_nothing(tmp_path):
    """PITFALLS 3: batches of 8, and four of 2."""
    grads = []
    for size, accumulation in ((8, 1), (2, 4)):
        loss = CompositeLoss({"lm": CausalLMLoss(), "z": ZLoss()}, {"z": 0.1})
        _, found = trained(
            tmp_path,
            build_model(),
            random_rows(8),
            loss,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
            max_steps=1,
        )
        grads.append(found[0])
    assert (grads[0] - grads[1]).norm() <= 1e-4 * grads[0].norm()


def test_evaluation_through_compute_loss_func_leaves_the_record_alone():
    outputs, labels = batch()
    composite = CompositeLoss({"lm": CausalLMLoss(), "z": ZLoss()})
    with torch.no_grad():
        composite(outputs, labels)
    assert composite.values() == {}
    context = LossContext(labels, outputs=outputs)
    assert [v.name for v in composite.term_values(context)] == ["lm", "z"]


def test_hidden_states_and_a_head_will_do_in_place_of_logits():
    model = build_model()
    tokens = torch.randint(4, 260, (2, 7))
    out = model(tokens, output_hidden_states=True)
    composite = CompositeLoss({"lm": CausalLMLoss(), "z": ZLoss()}, {"z": 1e-2})
    whole = composite(out, tokens)
    composite.measure_shares = True
    fields = {"hidden_states": out.hidden_states[-1], "head": OutputHead.of(model)}
    assert torch.allclose(composite(None, tokens, **fields), whole)
    assert sum(composite.shares().values()) == pytest.approx(1)
