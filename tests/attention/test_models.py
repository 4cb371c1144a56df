"""Whole models with the position graph on: exact where nothing is left out, causal, in pieces."""

from __future__ import annotations

import copy
import itertools
import json

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StaticCache,
)

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.registration import (
    FIELD,
    disable_position_graph,
    enable_position_graph,
    position_graph_of,
)
from hf_glm_curriculum.errors import ConfigError, DataError, IncompatibleError, ModelError
from tests.attention.cases import MODELS, tiny, token_ids

LENGTH = 130
EVERYTHING = PositionGraphConfig(block_size=16, top_k=4096, window=16)
SELECTIONS = {
    "position": {"selection": "position"},
    "content": {"selection": "content"},
    "hybrid": {"selection": "hybrid", "per": "layer", "share_layers": 2},
    "dynamic": {
        "selection": "content",
        "dynamic_budget": True,
        "budgets": (48, 64, 96),
        "budget_entropy": (0.5, 0.8),
    },
    "compact": {"selection": "content", "positions": "compact"},
    "one query a tile": {"selection": "content", "query_block": 1, "probe": 1},
}


def sparse(name: str, **changes: object) -> PositionGraphConfig:
    settings = {"block_size": 16, "top_k": 64, "window": 16, "query_block": 8, "probe": 8}
    return PositionGraphConfig(**(settings | SELECTIONS[name] | changes))  # type: ignore[arg-type]


@torch.no_grad()
def logits(model: torch.nn.Module, ids: Tensor, **more: object) -> Tensor:
    return model(ids, **more).logits


def same(found: Tensor, wanted: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", MODELS)
def test_everything_selected_is_the_plain_model(kind):
    model, ids = tiny(kind), token_ids(2, LENGTH)
    plain = logits(model, ids)
    enable_position_graph(model, EVERYTHING)
    same(logits(model, ids), plain)
    disable_position_graph(model)
    assert torch.equal(logits(model, ids), plain)
    assert not model.base_model._forward_hooks and not model.base_model._forward_pre_hooks


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_leave_keys_out_and_show_no_future(name):
    model, ids = tiny("glm4"), token_ids(2, LENGTH)
    plain = logits(model, ids)
    enable_position_graph(model, sparse(name))
    before = logits(model, ids)
    assert (before - plain).abs().max() > 0.1
    report = position_graph_of(model).report()
    assert 0.3 < report["kept_share"] < 0.95 and report["keys"] <= 96
    for flipped in (LENGTH - 1, LENGTH - 9, LENGTH - 17):
        other = ids.clone()
        other[:, flipped:] = (other[:, flipped:] - 3 + 7) % 90 + 3
        after = logits(model, other)
        assert torch.equal(after[:, :flipped], before[:, :flipped])
        assert (after[:, flipped:] - before[:, flipped:]).abs().max() > 1e-3


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_prefill_and_decoding_equal_one_forward(name, cache):
    model, ids = tiny("llama"), token_ids(2, LENGTH)
    enable_position_graph(model, sparse(name))
    whole = logits(model, ids)
    if cache == "dynamic":
        kept = DynamicCache(config=model.config)
    else:
        kept = StaticCache(config=model.config, max_cache_len=200)
    cuts = [0, 70, 71, 72, 90, 103, *range(104, LENGTH + 1)]
    parts = [
        logits(model, ids[:, start:stop], cache=kept) for start, stop in itertools.pairwise(cuts)
    ]
    same(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("kind", ["llama", "glm", "gpt2"])
@pytest.mark.parametrize("name", ["position", "content"])
def test_padding_and_packing_change_nothing(kind, name):
    model, ids = tiny(kind), token_ids(2, LENGTH)
    enable_position_graph(model, sparse(name))
    alone = logits(model, ids)
    pad = torch.zeros(2, 13, dtype=torch.int64)
    real, none = torch.ones_like(ids), torch.zeros_like(pad)
    left = torch.cat([none, real], 1)
    places = (left.cumsum(1) - 1).clamp(min=0)
    padded = logits(model, torch.cat([pad, ids], 1), attention_mask=left, position_ids=places)
    same(padded[:, 13:], alone)
    right = logits(model, torch.cat([ids, pad], 1), attention_mask=torch.cat([real, none], 1))
    same(right[:, :LENGTH], alone)
    places = torch.cat([torch.arange(LENGTH)] * 2)[None]
    for use_cache in (True, False):
        packed = logits(model, ids.reshape(1, -1), position_ids=places, use_cache=use_cache)
        same(packed.reshape(2, LENGTH, -1), alone)


def test_right_padded_rows_keep_their_future_hidden():
    """A padding mask of ones must not be taken for an absent one, nor the other way round."""
    model, ids = tiny("llama"), token_ids(1, 60)
    enable_position_graph(model, sparse("content"))
    for mask in (None, torch.ones_like(ids)):
        before = logits(model, ids, attention_mask=mask)
        other = ids.clone()
        other[0, -1] += 1
        after = logits(model, other, attention_mask=mask)
        assert torch.equal(after[:, :-1], before[:, :-1])


@pytest.mark.parametrize("name", ["position", "hybrid", "compact"])
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_equals_the_model_fed_its_own_text(name, beams):
    """Batched, padded on the left, with beams: what is generated is what one forward says."""
    model = tiny("llama")
    enable_position_graph(model, sparse(name))
    ids = token_ids(2, 90)
    mask = torch.ones_like(ids)
    ids[0, :11], mask[0, :11] = 0, 0
    made = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=20,
        min_new_tokens=20,
        do_sample=False,
        num_beams=beams,
        return_dict_in_generate=True,
        output_scores=True,
    )
    text = made.sequences
    whole = torch.cat([mask, torch.ones(2, 20, dtype=torch.int64)], 1)
    places = (whole.cumsum(1) - 1).clamp(min=0)
    again = logits(model, text, attention_mask=whole, position_ids=places)
    logs = again[:, 89:-1].log_softmax(-1)
    if beams == 1:
        logs[..., 2] = -torch.inf
        assert torch.equal(logs.argmax(-1), text[:, 90:])
    else:
        chosen = logs.gather(-1, text[:, 90:, None])[..., 0]
        same(chosen.sum(1) / 20, made.sequences_scores, 1e-4)


def test_several_answers_and_assisted_decoding():
    model = tiny("llama")
    enable_position_graph(model, sparse("content"))
    ids = token_ids(1, 90)
    plain = model.generate(ids, max_new_tokens=25, min_new_tokens=25, do_sample=False)
    assisted = model.generate(
        ids, max_new_tokens=25, min_new_tokens=25, do_sample=False, prompt_lookup_num_tokens=4
    )
    assert torch.equal(plain, assisted)
    torch.manual_seed(0)
    several = model.generate(ids, max_new_tokens=5, do_sample=True, num_return_sequences=3)
    assert several.shape[0] == 3


def test_a_copied_cache_goes_on_by_itself():
    model, ids = tiny("llama"), token_ids(1, LENGTH)
    enable_position_graph(model, sparse("content"))
    whole = logits(model, ids)
    cache = DynamicCache(config=model.config)
    logits(model, ids[:, :100], cache=cache)
    first = logits(model, ids[:, 100:], cache=copy.deepcopy(cache))
    second = logits(model, ids[:, 100:], cache=copy.deepcopy(cache))
    same(first, whole[:, 100:])
    assert torch.equal(first, second)


def test_a_copied_model_attends_by_itself():
    """Trainers copy models (a reference, a teacher): the copy keeps the graph, apart."""
    model, ids = tiny("llama"), token_ids(1, LENGTH)
    enable_position_graph(model, sparse("content"))
    wanted = logits(model, ids)
    other = copy.deepcopy(model)
    disable_position_graph(model)
    assert torch.equal(logits(other, ids), wanted)
    disable_position_graph(other)
    assert torch.equal(logits(other, ids), logits(model, ids))


def test_decoding_costs_no_more_the_longer_the_text():
    """Row numbers of all keys are not made anew for each token and layer."""
    from hf_glm_curriculum.attention.backends.rows import HeadRows

    model = tiny("llama")
    enable_position_graph(model, sparse("content"))
    seen: list[int] = []
    plain = HeadRows.base

    def counted(self, slots):
        seen.append(slots.numel())
        return plain(self, slots)

    cache = DynamicCache(config=model.config)
    logits(model, token_ids(1, 1000), cache=cache)
    HeadRows.base = counted
    try:
        logits(model, token_ids(1, 1), cache=cache)
    finally:
        HeadRows.base = plain
    assert seen and max(seen) <= 64 * 2  # the budget's keys, for each key-value head


def test_a_cache_filled_without_the_graph_is_read():
    model, ids = tiny("llama"), token_ids(1, LENGTH)
    cache = DynamicCache(config=model.config)
    logits(model, ids[:, :100], cache=cache)
    plain = logits(model, ids)
    enable_position_graph(model, EVERYTHING)
    same(logits(model, ids[:, 100:], cache=cache), plain[:, 100:])


@pytest.mark.parametrize("kind", ["llama", "glm4"])
def test_training_gradients_equal_dense_when_everything_is_selected(kind):
    ids = token_ids(2, 70)

    def gradients(model):
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    model = tiny(kind).train()
    plain = gradients(model)
    enable_position_graph(model, EVERYTHING)
    for ours, theirs in zip(gradients(model), plain, strict=True):
        same(ours, theirs, 2e-4)


def test_gradient_checkpointing_repeats_the_selection_it_had():
    """Two forwards before one backward: each layer is recomputed with its own pass's plan."""
    first, second = token_ids(1, 120, 1), token_ids(1, 90, 2)
    found = []
    for checkpointing in (False, True):
        model = tiny("llama").train()
        enable_position_graph(model, sparse("content"))
        if checkpointing:
            model.activation_checkpointing_enable()
        one = model(first, labels=first, use_cache=False).loss
        two = model(second, labels=second, use_cache=False).loss
        (one - 0.5 * two).backward()
        found.append([p.grad.clone() for p in model.parameters()])
    for ours, theirs in zip(*found, strict=True):
        same(ours, theirs, 1e-5)


def test_bfloat16_and_peft_models():
    from peft import LoraConfig, get_peft_model

    model = tiny("llama").to(torch.bfloat16)
    ids = token_ids(1, 90)
    plain = logits(model, ids)
    enable_position_graph(model, EVERYTHING)
    assert (logits(model, ids) - plain).abs().max() < 0.25
    disable_position_graph(model)
    wrapped = get_peft_model(tiny("llama"), LoraConfig(target_modules="all-linear"))
    enable_position_graph(wrapped, sparse("hybrid"))
    loss = wrapped(ids, labels=ids).loss
    loss.backward()
    grads = [p.grad for p in wrapped.parameters() if p.requires_grad]
    assert all(g is not None and g.isfinite().all() for g in grads)


def test_settings_travel_with_the_model(tmp_path):
    model, ids = tiny("llama"), token_ids(1, 100)
    enable_position_graph(model, sparse("content", rules={}))
    wanted = logits(model, ids)
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved[FIELD]["top_k"] == 64 and "position_graph" not in str(saved.get("_attn"))
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config._attn_implementation != FIELD  # dense until it is enabled
    handle = enable_position_graph(again)
    assert handle.config == sparse("content")
    same(logits(again, ids), wanted)


def test_a_dense_reload_is_said_aloud(tmp_path, tiny_tokenizer, caplog):
    from hf_glm_curriculum.models import load_model

    model = tiny("llama")
    enable_position_graph(model, sparse("content"))
    model.save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    caplog.set_level("WARNING")
    load_model(tmp_path)
    assert any("enable_position_graph" in record.message for record in caplog.records)


def test_graphs_of_ones_own():
    model, ids = tiny("llama"), token_ids(1, LENGTH)
    config = sparse("position", query_block=16)
    handle = enable_position_graph(model, config)
    without = logits(model, ids)
    graph = PositionGraph.from_token_ids(ids[0], config, edges=[(LENGTH - 2, 40)])
    with handle.graphs([graph]):
        with_edge = logits(model, ids)
    block = handle.last_plan.problem(0, *[torch.zeros(1, 6, LENGTH, 8)] * 2, 1.0, 0.0)
    assert 40 // 16 in block.selection.blocks[0, -1].tolist()
    assert (with_edge - without)[:, -6:].abs().max() > 1e-4
    with pytest.raises(DataError, match="another text"), handle.graphs([graph]):
        logits(model, ids[:, :100])
    with pytest.raises(DataError, match="another text"), handle.graphs([graph]):
        logits(model, torch.cat([ids, ids], 1))
    with pytest.raises(DataError, match="other tokens"), handle.graphs([graph]):
        logits(model, token_ids(1, LENGTH, seed=9))
    coarse = PositionGraph.from_token_ids(ids[0], PositionGraphConfig(block_size=64))
    with pytest.raises(DataError, match="blocks of 64"), handle.graphs([coarse]):
        logits(model, ids)
    with pytest.raises(DataError, match="one graph a sequence"), handle.graphs([graph, graph]):
        logits(model, ids)


@pytest.mark.parametrize("kind", ["glm_moe_dsa", "glm5_next"])
def test_models_with_attention_of_their_own_are_refused_by_name(kind):
    from transformers import AutoConfig

    model = tiny("llama")
    model.config = AutoConfig.for_model(kind)
    with pytest.raises(IncompatibleError, match=kind):
        enable_position_graph(model)


def test_sliding_windows_are_refused():
    config = Qwen3Config(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
    )
    with pytest.raises(IncompatibleError, match="sliding"):
        enable_position_graph(Qwen3ForCausalLM(config))


def test_compact_positions_are_refused_where_they_cannot_work():
    with pytest.raises(IncompatibleError, match="rotary"):
        enable_position_graph(tiny("gpt2"), sparse("compact"))
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    )
    with pytest.raises(IncompatibleError, match="dynamic"):
        enable_position_graph(LlamaForCausalLM(config), sparse("compact"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 32}, "top_k: must hold at least one block of 64"),
        ({"block_size": 48}, "block_size: must be 16"),
        ({"query_block": 48}, "query_block: must divide"),
        ({"selection": "nearest"}, "selection: must be one of"),
        ({"budgets": (2048, 1024)}, "budgets: must grow"),
        ({"budget_entropy": (0.5,)}, "budget_entropy: must hold 2"),
        ({"rules": {"(": 3072}}, "regular expression"),
        ({"rules": {"refund": 3}}, "at least one block"),
        ({"outliers": 63}, "outliers"),
        ({"window": -1}, "window"),
        ({"probe": 0}, "probe"),
        ({"structural_share": 2.0}, "structural_share"),
    ],
)
def test_settings_that_break_a_rule(changes, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        PositionGraphConfig(**changes)


def test_calls_that_cannot_be_followed():
    model, ids = tiny("llama"), token_ids(1, 40)
    with pytest.raises(ConfigError, match="tokenizer"):
        enable_position_graph(model, PositionGraphConfig(rules={"refund": 3072}))
    with pytest.raises(ConfigError, match="top_k"):
        enable_position_graph(model, {"topk": 64})
    with pytest.raises(ModelError):
        enable_position_graph(model.model)
    enable_position_graph(model, EVERYTHING)
    with pytest.raises(IncompatibleError, match="padding mask"):
        model(ids, attention_mask=torch.ones(1, 1, 40, 40))
    with pytest.raises(DataError, match="attention_mask"):
        model(ids, attention_mask=torch.ones(1, 30))
    with pytest.raises(DataError, match="holds 30 tokens"):
        model(ids, cache=StaticCache(config=model.config, max_cache_len=30))
    with pytest.raises(IncompatibleError, match="float64"):
        model.double()(ids)


def test_keyword_rules_raise_the_budget_from_their_match_on(tiny_tokenizer):
    model = tiny("llama", vocab_size=len(tiny_tokenizer) + 3)
    config = sparse("content", rules={"refund|退款": 128})
    handle = enable_position_graph(model, config, tiny_tokenizer)
    filler = tiny_tokenizer("a b c d e f g h " * 12).input_ids[:90]
    word = tiny_tokenizer("I want a refund now").input_ids
    ids = torch.tensor([(filler + word + filler)[:180]])
    logits(model, ids)
    plan = handle.last_plan
    selection = next(iter(plan._selections.values()))
    layout = next(iter(plan._layouts.values()))[0]
    before = layout.tile_position < 90
    after = layout.tile_position > 90 + len(word)
    full = selection.counts + 1
    assert full[before].max() * 16 <= 64
    assert full[after].max() * 16 == 128
