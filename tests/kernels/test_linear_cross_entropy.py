"""Chunked LM-head scores against the plain logits path."""

from __future__ import annotations

import pytest
import torch

from hf_glm_curriculum.kernels.linear_cross_entropy import linear_cross_entropy


def plain(hidden, weight, labels, bias=None, scale=1.0, softcap=None):
    """The naive version: all logits at once."""
    logits = hidden @ weight.T if bias is None else hidden @ weight.T + bias
    logits = logits * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    log_p = torch.log_softmax(logits, -1)
    used = labels >= 0
    target = labels.clamp(min=0)
    picked = log_p.gather(-1, target[..., None])[..., 0] * used
    entropy = -(log_p.exp() * log_p).sum(-1) * used
    return picked, entropy, (log_p.argmax(-1) == target) & used


def make(shape=(3, 21), width=8, vocabulary=37, seed=0):
    torch.manual_seed(seed)
    hidden = torch.randn(*shape, width)
    weight = torch.randn(vocabulary, width)
    labels = torch.randint(-1, vocabulary, shape)
    labels[labels < 0] = -100
    return hidden, weight, torch.randn(vocabulary), labels


@pytest.mark.parametrize("chunk", [1, 7, 63, 1000])
@pytest.mark.parametrize(("scale", "softcap"), [(1.0, None), (0.25, None), (1.0, 5.0), (0.5, 3.0)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients_equal_the_plain_path(chunk, scale, softcap, with_bias):
    hidden, weight, bias, labels = make()
    gradients = []
    upstream = torch.randn(labels.shape)
    for function in ("ours", "plain"):
        leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
        head = leaves[2] if with_bias else None
        if function == "ours":
            scores = linear_cross_entropy(
                leaves[0],
                leaves[1],
                labels,
                bias=head,
                chunk_tokens=chunk,
                logit_scale=scale,
                softcap=softcap,
            )
            values = scores[:3]
            summed = scores.summed_loss
        else:
            values = plain(leaves[0], leaves[1], labels, head, scale, softcap)
            assert torch.allclose(summed, -values[0].sum(), atol=1e-4)
        (values[0] * upstream).sum().backward()
        gradients.append((values, [leaf.grad for leaf in leaves[: 3 if with_bias else 2]]))
    (ours, our_grads), (theirs, their_grads) = gradients
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a.float(), b.float(), atol=1e-5)
    for a, b in zip(our_grads, their_grads, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_nothing_labelled_is_a_zero_with_a_graph():
    hidden, weight, _, labels = make()
    hidden.requires_grad_()
    scores = linear_cross_entropy(hidden, weight, torch.full_like(labels, -100))
    assert scores.log_probs.sum() == 0 and scores.entropy.sum() == 0
    scores.log_probs.sum().backward()
    assert hidden.grad is not None and hidden.grad.abs().sum() == 0


def test_bad_input_is_named():
    hidden, weight, _, labels = make()
    with pytest.raises(ValueError, match="labels: shape must be"):
        linear_cross_entropy(hidden, weight, labels[:, 1:])
    with pytest.raises(ValueError, match="chunk_tokens: must be at least 1, got 0"):
        linear_cross_entropy(hidden, weight, labels, chunk_tokens=0)


def test_double_precision_gradients():
    hidden, weight, _, labels = make((2, 5), 4, 6)
    labels[0, :2] = torch.tensor([-100, 3])

    def scored(h, w):
        # The kernel computes in float32; gradcheck's tolerance allows for it.
        return linear_cross_entropy(h, w, labels, chunk_tokens=3).log_probs.double()

    leaves = (hidden.double().requires_grad_(), weight.double().requires_grad_())
    assert torch.autograd.gradcheck(scored, leaves, eps=1e-2, atol=2e-2, rtol=1e-2, nondet_tol=1e-4)
