"""check_loss: right functions pass, and each usual mistake is told."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from hf_glm_curriculum import CompositeLoss, check_loss
from hf_glm_curriculum.errors import HfGlmCurriculumError
from hf_glm_curriculum.losses.distillation import DistillationLoss
from hf_glm_curriculum.losses.terms import (
    CausalLMLoss,
    InstructionLoss,
    MaskedLMLoss,
    TemperatureLoss,
    ZLoss,
)


def outcome(found, name):
    return next(line for line in found.lines if line.name == name)


@pytest.mark.parametrize(
    "term", [CausalLMLoss(), InstructionLoss(), MaskedLMLoss(), TemperatureLoss(0.5), ZLoss()]
)
def test_the_librarys_terms_pass_against_closed_forms(term):
    found = check_loss(term)
    assert found and found.passed and found.failures == []
    assert outcome(found, "2x2").detail.count("by hand") == 2
    assert str(found).startswith("loss check passed\n") and "→" in str(found)
    found.require()


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_distillation_passes(direction):
    def fields(labels, vocabulary):
        generator = torch.Generator().manual_seed(3)
        shape = (*labels.shape, vocabulary)
        return {"columns": {"teacher_logits": torch.randn(shape, generator=generator).double()}}

    assert check_loss(DistillationLoss(direction=direction), make_fields=fields)


def test_composites_and_trainer_functions_pass():
    assert check_loss(CompositeLoss({"lm": CausalLMLoss(), "z": ZLoss()}, {"z": 1e-2}))

    def trainers(outputs, labels, num_items_in_batch=None):
        logits = outputs.logits[:, :-1].float()
        return functional.cross_entropy(logits.transpose(1, 2), labels[:, 1:])

    found = check_loss(trainers, expected=0.164171)
    assert found and "looser" in outcome(found, "gradcheck").detail
    assert not check_loss(trainers, expected=0.2)
    assert not check_loss(trainers, expected_gradient=[[0, 0], [0, 0]])


def detached(context):
    return context.logits.detach().logsumexp(-1).mean()


def rises(outputs, labels):
    return -functional.cross_entropy(outputs.logits[:, :-1].transpose(1, 2), labels[:, 1:])


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits):
        ctx.save_for_backward(logits)
        return logits.square().mean()

    @staticmethod
    def backward(ctx, *gradients):
        return ctx.saved_tensors[0] * gradients[0]


@pytest.mark.parametrize(
    ("function", "name", "words"),
    [
        (detached, "2x2", "has no gradient"),
        (lambda context: 1.0, "2x2", "must return a tensor, got float"),
        (lambda context: context.missing, "2x2", "AttributeError"),
        (lambda outputs, labels: outputs.logits.sum() / 0, "2x2", "one finite number"),
        (lambda outputs, labels: WrongBackward.apply(outputs.logits), "gradcheck", "mismatch"),
    ],
)
def test_mistakes_fail_by_name(function, name, words):
    found = check_loss(function)
    assert not found
    line = outcome(found, name)
    assert line.outcome == "FAILED" and words in line.detail
    assert "loss check FAILED" in str(found)
    with pytest.raises(HfGlmCurriculumError, match="loss check failed: "):
        found.require()


def test_what_does_not_fall_fails():
    constant = check_loss(lambda context: 0.0 * context.logits.sum())
    assert outcome(constant, "falls").outcome == "FAILED"


def test_notes_tell_of_padding_missing_softmax_and_overflow():
    def forgets_softmax(outputs, labels):
        picked = outputs.logits[:, :-1].gather(-1, labels[:, 1:, None].clamp(min=0))
        return -picked.mean()

    found = check_loss(forgets_softmax)
    assert outcome(found, "ignored").outcome == "note"
    assert outcome(found, "shifted").outcome == "note"

    def overflows(outputs, labels):
        probability = torch.softmax(outputs.logits[:, :-1], -1)
        target = labels[:, 1:]
        log_p = probability.log().gather(-1, target[..., None].clamp(min=0))[..., 0]
        return -log_p[target >= 0].mean()

    found = check_loss(overflows)
    assert found and outcome(found, "large").outcome == "note"
    assert outcome(found, "ignored").outcome == "passed"
