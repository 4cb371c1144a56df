"""What the packing check says is what perturbing a neighbour shows."""

from __future__ import annotations

import itertools

import pytest
import torch

from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.signals.packing import check_samples_are_apart
from tests.conftest import build_model

_FIRST, _TOKENS = 5, 12
_POSITIONS = torch.tensor([[*range(_FIRST), *range(_TOKENS - _FIRST)]])
_KINDS = ("llama", "qwen3", "glm", "glm4", "glm4_moe", "gpt2")


def _mixes(model: torch.nn.Module, inputs: dict) -> bool:
    """Whether the second sample's logits change with the first sample's tokens."""
    other = inputs["input_ids"].clone()
    other[:, :_FIRST] = torch.randint(4, 260, (1, _FIRST))
    logits = (model(**{**inputs, "input_ids": ids}).logits for ids in (inputs["input_ids"], other))
    one, two = (found[:, _FIRST:] for found in logits)
    return not torch.allclose(one, two, atol=1e-5)


@pytest.mark.parametrize("kind", _KINDS)
def test_the_check_agrees_with_a_perturbed_neighbour(kind):
    """Every combination of implementation, cache, mask, positions and checkpointing."""
    answers = set()
    for implementation, cache, masked, positions, checkpointed in itertools.product(
        ("eager", "sdpa"), (None, True, False), (False, True), (True, False), (False, True)
    ):
        model = build_model(kind).train()
        model.set_attn_implementation(implementation)
        if checkpointed:
            model.activation_checkpointing_enable({"use_reentrant": False})
        inputs = {"input_ids": torch.randint(4, 260, (1, _TOKENS))}
        inputs |= {"use_cache": cache} if cache is not None else {}
        inputs |= {"attention_mask": torch.ones(1, _TOKENS, dtype=torch.long)} if masked else {}
        inputs |= {"position_ids": _POSITIONS} if positions else {}
        refused = False
        try:
            check_samples_are_apart(model, inputs)
        except IncompatibleError as error:
            refused = True
            assert str(error).startswith(f"packing: {implementation} attention")
        assert refused == _mixes(model, inputs), (implementation, cache, masked, positions)
        answers.add(refused)
    assert answers == {True, False}


def test_flash_attention_is_judged_by_its_arguments():
    """No flash attention runs here: the rules are transformers' own conditions."""
    model = build_model()
    model.config._attn_implementation = "flash_attention_2"
    ids = torch.randint(4, 260, (1, _TOKENS))
    ends = torch.tensor([0, _FIRST, _TOKENS], dtype=torch.int32)
    lengths = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 7, "max_length_k": 7}
    mask = torch.ones(1, _TOKENS)
    fine = ({"position_ids": _POSITIONS}, lengths, {"position_ids": _POSITIONS, "use_cache": True})
    for extra in (*fine, {**lengths, "attention_mask": mask}):
        check_samples_are_apart(model, {"input_ids": ids, **extra})
    padded = mask.clone()
    padded[0, -1] = 0
    two_rows = {"input_ids": ids.expand(2, -1), "position_ids": _POSITIONS.expand(2, -1)}
    for extra, message in (
        ({}, "no position_ids"),
        ({**lengths, "attention_mask": padded}, "attention_mask with padding"),
        (two_rows, "flatten the batch"),
    ):
        with pytest.raises(IncompatibleError, match=message):
            check_samples_are_apart(model, {"input_ids": ids, **extra})


def test_other_implementations_are_trusted():
    model = build_model()
    model.config._attn_implementation = "my_own"
    check_samples_are_apart(model, {"input_ids": torch.ones(1, 4)})
