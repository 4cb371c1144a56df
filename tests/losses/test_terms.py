"""Each term against a naive version, from logits and from hidden states."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from hf_glm_curriculum.errors import ConfigError, IncompatibleError, ModelError
from hf_glm_curriculum.kernels.output_head import LogitTransform, OutputHead
from hf_glm_curriculum.losses.context import LossContext
from hf_glm_curriculum.losses.distillation import DistillationLoss, kl_divergence
from hf_glm_curriculum.losses.terms import (
    CausalLMLoss,
    InstructionLoss,
    MaskedLMLoss,
    TemperatureLoss,
    ZLoss,
    template_spans,
)
from tests.conftest import build_model

B, T, V, H = 3, 9, 13, 5


def tensors():
    torch.manual_seed(0)
    hidden = torch.randn(B, T, H, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, H, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, V, (B, T))
    labels[0, :4] = labels[1, 6:] = -100
    return hidden, OutputHead(weight, None, LogitTransform(0.7, 3.0)), labels


def context(source: str, **fields):
    """The same pass seen as logits, or as hidden states and a head."""
    hidden, head, labels = tensors()
    if source == "logits":
        return LossContext(labels, logits=head.logits(hidden), **fields), hidden
    return LossContext(labels, hidden_states=hidden, head=head, **fields), hidden


def naive(hidden, head, labels, temperature=1.0):
    """[B, T] next-token cross-entropy, a token at a time."""
    logits = head.logits(hidden) / temperature
    found = torch.zeros(B, T, dtype=torch.float64)
    for b in range(B):
        for t in range(T - 1):
            if labels[b, t + 1] >= 0:
                found[b, t] = -torch.log_softmax(logits[b, t], 0)[labels[b, t + 1]]
    return found


@pytest.mark.parametrize("source", ["logits", "hidden"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_causal_and_temperature(source, temperature):
    term = CausalLMLoss() if temperature == 1.0 else TemperatureLoss(temperature)
    seen, hidden = context(source)
    ours = term(seen)
    again, head, labels = tensors()
    theirs = naive(again, head, labels, temperature)
    assert torch.allclose(ours, theirs)
    (a,) = torch.autograd.grad(ours.sum(), hidden)
    (b,) = torch.autograd.grad(theirs.sum(), again)
    assert torch.allclose(a, b)


@pytest.mark.parametrize("source", ["logits", "hidden"])
def test_z_loss(source):
    seen, _ = context(source)
    hidden, head, labels = tensors()
    wanted = head.logits(hidden).logsumexp(-1).square()
    wanted = wanted * functional.pad(labels[:, 1:] >= 0, (0, 1))
    assert torch.allclose(ZLoss()(seen), wanted)


@pytest.mark.parametrize("source", ["logits", "hidden"])
def test_masked_tokens_count_at_their_own_position(source):
    behind = torch.full((B, T), -100)
    behind[0, 5], behind[2, 0] = 7, 3
    seen, _ = context(source, columns={"masked": behind})
    hidden, head, _ = tensors()
    log_p = torch.log_softmax(head.logits(hidden), -1)
    found = MaskedLMLoss("masked")(seen)
    assert torch.allclose(found[0, 5], -log_p[0, 5, 7])
    assert torch.allclose(found[2, 0], -log_p[2, 0, 3])
    assert (found != 0).sum() == 2


@pytest.mark.parametrize("source", ["logits", "hidden"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_distillation_from_logits_in_the_batch(source, direction):
    theirs = torch.randn(B, T, V, dtype=torch.float64)
    term = DistillationLoss(direction=direction, temperature=2.0)
    assert term.columns == ("teacher_logits",)
    seen, hidden = context(source, columns={"teacher_logits": theirs})
    found = term(seen)
    again, head, labels = tensors()
    ours, other = (torch.log_softmax(z / 2.0, -1) for z in (head.logits(again), theirs))
    p, q = (other, ours) if direction == "forward" else (ours, other)
    wanted = functional.kl_div(q, p, reduction="none", log_target=True).sum(-1) * 4
    wanted = wanted * functional.pad(labels[:, 1:] >= 0, (0, 1))
    assert torch.allclose(found, wanted)
    (a,) = torch.autograd.grad(found.sum(), hidden)
    (b,) = torch.autograd.grad(wanted.sum(), again)
    assert torch.allclose(a, b)


def test_divergence_from_certainty_is_finite():
    certain = torch.tensor([[0.0, -torch.inf]])
    assert torch.isfinite(kl_divergence(torch.tensor([[0.3, 0.1]]), certain)).all()
    assert kl_divergence(certain, certain).item() == 0


def test_distillation_from_a_model():
    student, teacher = build_model(seed=1), build_model(seed=2).train()
    term = DistillationLoss(teacher)
    assert not teacher.training
    tokens = torch.randint(4, 260, (2, 7))
    out = student(tokens, output_hidden_states=True)
    with torch.no_grad():
        theirs = teacher(tokens).logits
    given = {"input_ids": tokens, "labels": tokens}
    by_logits = term(LossContext(logits=out.logits, **given))
    by_hidden = term(
        LossContext(hidden_states=out.hidden_states[-1], head=OutputHead.of(student), **given)
    )
    wanted = kl_divergence(out.logits[:, :-1].reshape(-1, 260), theirs[:, :-1].reshape(-1, 260))
    for found in (by_logits, by_hidden):
        assert torch.allclose(found[:, :-1].reshape(-1), wanted, atol=1e-5)
    by_hidden.sum().backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert student.lm_head.weight.grad.abs().sum() > 0


def test_a_teacher_of_another_vocabulary_is_refused():
    tokens = torch.randint(4, 200, (2, 7))
    seen = LossContext(tokens, logits=torch.randn(2, 7, 200), input_ids=tokens)
    with pytest.raises(ModelError, match="got 260 tokens against 200"):
        DistillationLoss(build_model())(seen)
    seen = LossContext(
        tokens, logits=torch.randn(2, 7, 200), columns={"teacher_logits": torch.randn(2, 6, 200)}
    )
    with pytest.raises(IncompatibleError, match="teacher_logits must have shape"):
        DistillationLoss()(seen)


def test_templates_find_responses():
    #        prompt  R     answer     P  prompt R   answer
    row = [5, 6, 7, 1, 2, 20, 21, 22, 3, 5, 6, 1, 2, 23, 1]
    spans = template_spans(torch.tensor([row]), [1, 2], [3])[0]
    assert [t for t, inside in zip(row, spans.tolist(), strict=True) if inside] == [
        20,
        21,
        22,
        23,
        1,
    ]
    whole = template_spans(torch.tensor([row]), [1, 2], [])[0]
    assert whole.tolist() == [False] * 5 + [True] * 10
    assert not template_spans(torch.tensor([[5, 6]]), [1, 2, 3], []).any()


def test_responses_by_template_column_and_objective():
    tokens = torch.tensor([[5, 1, 2, 8, 9, 10, 7]])
    logits = torch.randn(1, 7, V)
    plain = CausalLMLoss()(LossContext(tokens, logits=logits))

    def asked(term, **fields):
        return term(LossContext(tokens, logits=logits, input_ids=tokens, **fields))[0].nonzero()[
            :, 0
        ]

    assert asked(InstructionLoss([1, 2])).tolist() == [2, 3, 4, 5]
    assert asked(InstructionLoss([1, 2], prompt_template=[10])).tolist() == [2, 3]
    mask = torch.tensor([[0, 0, 0, 0, 1, 1, 0]])
    found = asked(InstructionLoss(mask_column="completion_mask"), columns={"completion_mask": mask})
    assert found.tolist() == [3, 4]
    tags = torch.tensor([[0, 0, 1, 1, 0, 0, -1]])
    for term in (CausalLMLoss(only=1), InstructionLoss(only=1)):
        assert asked(term, objective=tags).tolist() == [2, 3]
    assert (plain > 0).sum() == 6


def test_labels_that_tell_nothing_are_refused_once():
    tokens = torch.randint(0, V, (2, 6))
    seen = LossContext(tokens, logits=torch.randn(2, 6, V), attention_mask=torch.ones(2, 6))
    with pytest.raises(IncompatibleError, match="nothing tells responses from prompts"):
        InstructionLoss()(seen)
    masked = tokens.clone()
    masked[:, :2] = -100
    term, seen = InstructionLoss(), LossContext(masked, logits=torch.randn(2, 6, V))
    assert torch.equal(term(seen), CausalLMLoss()(seen))


def test_bad_settings_are_named():
    with pytest.raises(ConfigError, match="temperature: must be positive, got 0"):
        TemperatureLoss(0)
    with pytest.raises(ConfigError, match="direction: must be one of"):
        DistillationLoss(direction="sideways")
    with pytest.raises(ConfigError, match="got both"):
        InstructionLoss([1], mask_column="m")
    with pytest.raises(ConfigError, match="at least one token id"):
        InstructionLoss([])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("logits", "reads logits, which this host does not give.*map_tokens.*loss_type='nll'"),
        ("objective", "put an integer column 'objective'"),
        ("attention_mask", "padding-free"),
        ("hidden_states", "CompositeLossCallback"),
    ],
)
def test_missing_fields_are_named(name, message):
    seen = LossContext(torch.zeros(1, 3, dtype=torch.long), host="chunked")
    seen.term = "mine"
    assert not seen.has(name)
    with pytest.raises(IncompatibleError, match=f"term 'mine': reads {name}.*|{message}"):
        getattr(seen, name)
    with pytest.raises(IncompatibleError, match=message):
        getattr(seen, name)
    with pytest.raises(IncompatibleError, match=r"batch column 'extra'.*remove_unused_columns"):
        seen.column("extra")
    with pytest.raises(IncompatibleError, match=r"reads outputs.attentions"):
        _ = seen.outputs.attentions
