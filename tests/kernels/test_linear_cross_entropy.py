"""Chunked LM-head scores against the plain logits path."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.kernels.linear_cross_entropy import (
    linear_cross_entropy,
    summed_cross_entropy,
)
from hf_glm_curriculum.kernels.output_head import OutputHead
from tests.conftest import build_model


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
            assert scores.entropy.requires_grad and not scores.is_top1.requires_grad
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


@pytest.mark.parametrize(
    "options", [{}, {"logit_scale": 0.4}, {"softcap": 2.0}, {"temperature": 1.7, "softcap": 3.0}]
)
def test_gradients_in_double_precision(options):
    """Log-probability, entropy and log-sum-exp, each and together."""
    hidden, weight, bias, labels = make((2, 5), 4, 6)
    labels[0, :2] = torch.tensor([-100, 3])
    upstream = torch.randn(3, *labels.shape, dtype=torch.float64)

    def scored(h, w, b):
        found = linear_cross_entropy(h, w, labels, bias=b, chunk_tokens=3, **options)
        parts = torch.stack([found.log_probs, found.entropy, found.logsumexp])
        assert parts.dtype == torch.float64
        return parts, (parts * upstream).sum()

    leaves = tuple(t.double().requires_grad_() for t in (hidden, weight, bias))
    assert torch.autograd.gradcheck(scored, leaves)


def test_entropy_and_logsumexp_equal_the_plain_path():
    hidden, weight, _, labels = make()
    found = linear_cross_entropy(hidden, weight, labels, chunk_tokens=5, temperature=2.0)
    logits = hidden @ weight.T / 2.0
    used = labels >= 0
    assert torch.allclose(found.logsumexp, logits.logsumexp(-1) * used, atol=1e-5)
    entropy = torch.distributions.Categorical(logits=logits).entropy() * used
    assert torch.allclose(found.entropy, entropy, atol=1e-5)


def test_without_the_distribution_the_rest_is_the_same():
    hidden, weight, _, labels = make()
    whole = linear_cross_entropy(hidden, weight, labels)
    part = linear_cross_entropy(hidden, weight, labels, distribution=False)
    assert torch.equal(part.log_probs, whole.log_probs)
    assert torch.equal(part.logsumexp, whole.logsumexp)
    assert part.entropy.abs().sum() == part.is_top1.sum() == 0


def test_weighted_sum_leaves_tokens_of_weight_zero_alone():
    hidden, weight, _, labels = make()
    token_weights = torch.rand(labels.shape).round(decimals=1) * (torch.rand(labels.shape) > 0.4)
    leaves = [t.clone().requires_grad_() for t in (hidden, weight)]
    loss = summed_cross_entropy(*leaves, labels, token_weights, denominator=7.0)
    log_p, _, _ = plain(hidden, weight, labels)
    assert torch.allclose(loss, -(log_p * token_weights).sum() / 7.0, atol=1e-5)
    loss.backward()
    assert leaves[0].grad[token_weights == 0].abs().sum() == 0
    with pytest.raises(ValueError, match="token_weights: shape must be"):
        summed_cross_entropy(hidden, weight, labels, token_weights[:, 1:])


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("vocabulary", [500, 4000])
def test_no_tensor_grows_with_vocabulary_times_length(vocabulary):
    hidden, weight, _, labels = make((4, 256), 8, vocabulary)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    with Largest() as largest:
        linear_cross_entropy(*leaves, labels, chunk_tokens=16).log_probs.sum().backward()
    assert largest.elements <= max(16 * vocabulary, hidden.numel(), weight.numel())
    assert largest.elements < labels.numel() * vocabulary / 20


def test_chunks_shrink_as_the_vocabulary_grows(monkeypatch):
    module = importlib.import_module("hf_glm_curriculum.kernels.linear_cross_entropy")
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64 * 100)
    hidden, weight, _, labels = make((4, 64), 8, 400)
    with Largest() as largest:
        linear_cross_entropy(hidden, weight, labels)
    assert largest.elements <= 16 * 400


HEADS = {
    "gemma2": {"final_logit_softcapping": 0.5, "head_dim": 8, "num_key_value_heads": 2},
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 3.0},
    "llama": {},
}


@pytest.mark.parametrize("kind", HEADS)
def test_heads_of_model_families_give_the_models_own_logits(kind):
    config = AutoConfig.for_model(
        kind,
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
        **HEADS[kind],
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_()
        tokens = torch.randint(0, 64, (2, 9))
        logits = model(tokens).logits
        hidden = model.base_model(tokens).last_hidden_state
        head = OutputHead.of(model)
    assert torch.allclose(head.logits(hidden), logits, atol=1e-5)
    scores = linear_cross_entropy(
        hidden,
        head.weight,
        tokens,
        logit_scale=head.transform.scale,
        softcap=head.transform.cap,
    )
    wanted = torch.log_softmax(logits, -1).gather(-1, tokens[..., None])[..., 0]
    assert torch.allclose(scores.log_probs, wanted, atol=1e-5)
    if kind != "llama":
        plainly = linear_cross_entropy(hidden, head.weight, tokens)
        assert not torch.allclose(plainly.log_probs, wanted, atol=1e-2)


def test_a_head_behind_an_adapter_is_refused():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(build_model(), LoraConfig(r=2, target_modules=["lm_head"]))
    with pytest.raises(IncompatibleError, match="lm_head: an adapter wraps it"):
        OutputHead.of(model)
