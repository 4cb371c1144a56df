"""Per-token functions of logits in chunks, against all logits at once."""

from __future__ import annotations

import pytest
import torch

from hf_glm_curriculum.kernels.output_head import LogitTransform, OutputHead
from hf_glm_curriculum.kernels.token_map import map_logits


def make():
    torch.manual_seed(0)
    hidden = torch.randn(23, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(17, 6, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(17, dtype=torch.float64, requires_grad=True)
    return hidden, OutputHead(weight, bias, LogitTransform(0.5, 4.0))


def distance(logits, other):
    """A function of two rows of logits."""
    return (torch.log_softmax(logits, -1) * torch.softmax(other, -1)).sum(-1)


@pytest.mark.parametrize("chunk", [1, 7, 23, 1000])
def test_values_and_gradients_equal_all_logits_at_once(chunk):
    hidden, head = make()
    upstream = torch.randn(23, dtype=torch.float64)
    teacher = OutputHead(torch.randn(17, 3, dtype=torch.float64))
    theirs = torch.randn(23, 3, dtype=torch.float64)
    ours = map_logits(distance, hidden, [theirs], heads=(head, teacher), chunk_tokens=chunk)
    whole = distance(head.logits(hidden), teacher.logits(theirs))
    assert torch.allclose(ours, whole)
    leaves = [hidden, head.weight, head.bias]
    found = torch.autograd.grad((ours * upstream).sum(), leaves)
    wanted = torch.autograd.grad((whole * upstream).sum(), leaves)
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a, b)


def test_logits_are_taken_as_they_are():
    logits = torch.randn(9, 5, dtype=torch.bfloat16)
    found = map_logits(lambda z: z.logsumexp(-1), logits, chunk_tokens=4)
    assert found.dtype == torch.float32
    assert torch.allclose(found, logits.float().logsumexp(-1))


def test_a_function_that_keeps_the_vocabulary_is_named():
    with pytest.raises(ValueError, match=r"one value a token, shape \(9,\), got \(9, 5\)"):
        map_logits(lambda z: z, torch.randn(9, 5))
