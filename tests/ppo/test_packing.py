"""Trimmed rows give what whole ones give; padding is told by masks alone."""

from typing import Any

import pytest
import torch

from hf_glm_curriculum.models import backbone
from hf_glm_curriculum.ppo.modules import (
    PolicyAndValue,
    critic_for,
    hidden_states,
    score_tokens,
)
from hf_glm_curriculum.ppo.packing import by_length, pack_rows
from hf_glm_curriculum.ppo.rollout import response_ends

QUERY = torch.tensor([[0, 0, 5, 6], [7, 8, 0, 9]])
QUERY_MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]], dtype=torch.bool)
RESPONSE = torch.tensor([[10, 11, 1, 0, 0], [12, 0, 13, 0, 14]])
LENGTHS = torch.tensor([3, 5])


def test_rows_are_joined_and_trimmed():
    rows = pack_rows(QUERY, QUERY_MASK, RESPONSE, LENGTHS)
    assert rows.input_ids.tolist() == [
        [5, 6, 10, 11, 1, 0, 0, 0, 0],
        [7, 8, 0, 9, 12, 0, 13, 0, 14],
    ]
    assert rows.attention_mask.sum(dim=1).tolist() == [5, 9]
    assert rows.labels()[0].tolist() == [-100, 10, 11, 1, -100, -100, -100, -100, -100]
    assert rows.labels()[1, 3:].tolist() == [12, 0, 13, 0, 14, -100]
    assert rows.state_places().tolist() == [[1, 2, 3, 4, 4], [3, 4, 5, 6, 7]]
    assert rows.last_places().tolist() == [4, 8]


@pytest.mark.parametrize("kind", ["llama", "glm", "gpt2"])
def test_logprobs_are_those_of_the_whole_logits(tiny_model, kind):
    model = tiny_model(kind).eval()
    rows = pack_rows(QUERY, QUERY_MASK, RESPONSE, LENGTHS)
    with torch.no_grad():
        hidden = hidden_states(backbone(model), rows)
        found, entropy = score_tokens(model, hidden, rows, 0.7, entropy=True)
        for i in range(2):
            ids = torch.cat([QUERY[i][QUERY_MASK[i]], RESPONSE[i, : LENGTHS[i]]])
            start, n = int(QUERY_MASK[i].sum()), int(LENGTHS[i])
            logits = model(ids[None]).logits[0, start - 1 : start - 1 + n] / 0.7
            logs = torch.log_softmax(logits, dim=-1)
            expected = logs.gather(1, ids[start:, None])[:, 0]
            assert torch.allclose(found[i, :n], expected, atol=1e-5)
            assert not found[i, n:].any()
            assert entropy is not None
            spread = -(logs.exp() * logs).sum(-1)
            assert torch.allclose(entropy[i, :n], spread, atol=1e-5)


def test_company_and_micro_batch_change_nothing(tiny_llama):
    model = PolicyAndValue(tiny_llama, critic_for(tiny_llama, 2, "copy")).eval()
    critic: Any = model.value_model
    torch.nn.init.normal_(critic.score.weight)

    def read(index):
        rows = pack_rows(QUERY[index], QUERY_MASK[index], RESPONSE[index], LENGTHS[index])
        with torch.no_grad():
            return model(
                rows.input_ids, rows.attention_mask, rows.starts, rows.lengths, rows.columns, 1.0
            )

    together = read(torch.tensor([0, 1]))
    alone = read(torch.tensor([0]))
    assert torch.allclose(together.logprobs[:1], alone.logprobs, atol=1e-6)
    assert torch.allclose(together.values[:1], alone.values, atol=1e-6)


def test_adapter_on_the_head_goes_through_the_head(tiny_model):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["lm_head", "q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(tiny_model("llama"), config).eval()
    rows = pack_rows(QUERY, QUERY_MASK, RESPONSE, LENGTHS)
    hidden = hidden_states(backbone(model), rows)
    found, entropy = score_tokens(model, hidden, rows, 1.0, entropy=True)
    output = model(input_ids=rows.input_ids, attention_mask=rows.attention_mask)
    logs = torch.log_softmax(output.logits, dim=-1)
    expected = logs[0, 1:4].gather(1, rows.labels()[0, 1:4, None])[:, 0]
    assert torch.allclose(found[0, :3], expected, atol=1e-5)
    assert entropy is not None
    found.sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "lm_head.lora" in n)


def test_an_answer_ends_at_its_first_stop_token():
    lengths, ended = response_ends(RESPONSE, [1])
    assert lengths.tolist() == [3, 5]
    assert ended.tolist() == [True, False]
    # The pad token as stop token: the first one belongs to the answer.
    assert response_ends(RESPONSE, [0])[0].tolist() == [4, 2]
    assert response_ends(RESPONSE, [])[0].tolist() == [5, 5]
    assert response_ends(RESPONSE, [1, 11, 13])[0].tolist() == [2, 3]


def test_parts_hold_rows_of_like_length():
    parts = list(by_length(torch.tensor([3, 9, 4, 8, 5]), [0, 1, 2, 3, 4], 2))
    assert parts == [[1, 3], [4, 2], [0]]


def test_parts_end_before_rows_that_would_be_padding():
    lengths = torch.tensor([100, 95, 81, 79, 40, 39])
    parts = list(by_length(lengths, range(6), 4, least_fill=0.8))
    assert parts == [[0, 1, 2], [3], [4, 5]]
    assert list(by_length(lengths, range(6), 2, least_fill=0.8)) == [[0, 1], [2, 3], [4, 5]]
