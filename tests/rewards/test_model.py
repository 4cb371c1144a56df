"""The reward model: scores that depend on the text alone, and what loading refuses."""

from __future__ import annotations

import copy
import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
)

from hf_glm_curriculum import StructuredRewardConfig, StructuredRewardModel
from hf_glm_curriculum.errors import ConfigError, DataError, ModelError
from hf_glm_curriculum.rewards.output import StructuredRewardOutput
from hf_glm_curriculum.rewards.rendering import tokenizers_agree

PROMPTS = ["What is 2 + 2?", "Say hi", "Who are you?", "Describe rain in a few words, please"]
RESPONSES = ["4", "hi", "A model that answers questions, at some length.", "wet"]


@pytest.fixture
def make(tiny_model, tiny_tokenizer):
    def build(kind="llama", **settings):
        torch.manual_seed(1)
        settings.setdefault("head_hidden_size", 16)
        model = StructuredRewardModel.from_backbone(tiny_model(kind), tiny_tokenizer, **settings)
        for head in model.score.heads.values():  # far enough apart for differences to show
            torch.nn.init.normal_(head[-1].weight, std=1.0)
        return model

    return build


def tiny_bert(tokenizer) -> BertModel:
    torch.manual_seed(0)
    return BertModel(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            max_position_embeddings=64,
        )
    )


@pytest.fixture
def bert_tokenizer(tiny_tokenizer) -> PreTrainedTokenizerFast:
    tiny_tokenizer.chat_template = None
    tiny_tokenizer.add_special_tokens({"cls_token": "<user>", "sep_token": "<assistant>"})
    tiny_tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    tiny_tokenizer.model_max_length = 64
    return tiny_tokenizer


@pytest.mark.parametrize("kind", ["llama", "glm", "glm4_moe", "gpt2", "qwen3"])
def test_batch_mates_do_not_change_a_score(make, kind):
    model = make(kind)
    together = model.score_texts(PROMPTS, RESPONSES, batch_size=4)
    alone = [model.score_texts([p], [r]) for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    for name in ("scores", "confidence", "logits"):
        parts = torch.cat([getattr(one, name) for one in alone])
        torch.testing.assert_close(getattr(together, name), parts, atol=1e-6, rtol=0)
    assert together.scores.std(0).min() > 1e-3, "scores must differ for this to mean anything"


@pytest.mark.parametrize("kind", ["llama", "glm4", "gpt2"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_padding_side_and_pad_ids_do_not_change_a_score(make, kind, pooling):
    model = make(kind, pooling=pooling)
    pad = 0  # also a real token of the second row
    left = torch.tensor([[pad, pad, 9, 8, 7], [5, pad, 6, 7, pad]])
    left_mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    right = torch.tensor([[9, 8, 7, pad, pad], [5, pad, 6, 7, pad]])
    right_mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    one, two = model(left, left_mask), model(right, right_mask)
    torch.testing.assert_close(one.logits, two.logits, atol=1e-6, rtol=0)
    alone = model(torch.tensor([[9, 8, 7]]))
    torch.testing.assert_close(one.logits[:1], alone.logits, atol=1e-6, rtol=0)


def test_a_decoder_is_pooled_at_the_last_real_token(make):
    model = make()
    ids = torch.tensor([[9, 8, 7, 6]])
    hidden = model.backbone(ids).last_hidden_state
    torch.testing.assert_close(model.features(ids), hidden[:, -1])
    padded = torch.tensor([[9, 8, 7, 6, 3, 3]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
    torch.testing.assert_close(model.features(padded, mask), hidden[:, -1])


def test_an_encoder_reads_pairs_and_is_pooled_at_cls(bert_tokenizer):
    model = StructuredRewardModel.from_backbone(tiny_bert(bert_tokenizer), bert_tokenizer)
    assert model.config.pooling == "cls"
    renderer = model.renderer()
    rows = renderer.encode(["ab"], ["cde"])
    ids = bert_tokenizer("ab", add_special_tokens=False)["input_ids"]
    assert rows[0][:4] == [bert_tokenizer.cls_token_id, *ids, bert_tokenizer.sep_token_id]
    batch = renderer.pad(rows)
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    hidden = model.backbone(**batch.tensors()).last_hidden_state
    torch.testing.assert_close(model.features(**batch.tensors()), hidden[:, 0])
    together = model.score_texts(["ab", "x"], ["cde", "a longer answer"], batch_size=2)
    alone = model.score_texts(["ab"], ["cde"])
    torch.testing.assert_close(together.scores[:1], alone.scores, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_saving_and_loading_gives_the_same_scores(make, tmp_path, kind):
    model = make(kind, dimensions=("helpful", "事实"))
    model.score.standardize.fit(torch.randn(50, 32) * 3 + 1)
    model.confidence_heads.temperature.fill_(1.7)
    before = model.score_texts(PROMPTS, RESPONSES)
    model.save_pretrained(tmp_path)
    for loader in (StructuredRewardModel, AutoModel, AutoModelForSequenceClassification):
        again = loader.from_pretrained(tmp_path)
        assert isinstance(again, StructuredRewardModel)
        assert again.config.dimensions == ("helpful", "事实")
        after = again.score_texts(PROMPTS, RESPONSES)
        for name in ("scores", "confidence", "logits"):
            torch.testing.assert_close(getattr(after, name), getattr(before, name), atol=0, rtol=0)
    assert again.backbone_is_frozen


def test_bfloat16_keeps_the_heads_in_float32(make, tmp_path):
    make().save_pretrained(tmp_path)
    model = StructuredRewardModel.from_pretrained(
        tmp_path, dtype=torch.bfloat16, device_map={"": "cpu"}
    )
    assert {p.dtype for p in model.backbone.parameters()} == {torch.bfloat16}
    heads = [*model.score.parameters(), *model.confidence_heads.parameters()]
    assert {p.dtype for p in heads} == {torch.float32}
    assert model.score_texts(PROMPTS, RESPONSES).scores.dtype == torch.float32


def edit_weights(folder, change):
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def test_a_missing_head_is_an_error(make, tmp_path):
    make().save_pretrained(tmp_path)
    edit_weights(tmp_path, lambda w: {k: v for k, v in w.items() if "score.heads.logic" not in k})
    with pytest.raises(ModelError, match="no head for logic"):
        StructuredRewardModel.from_pretrained(tmp_path)


def test_a_renamed_head_is_an_error_that_names_both(make, tmp_path):
    make().save_pretrained(tmp_path)
    edit_weights(tmp_path, lambda w: {k.replace("heads.logic", "heads.logik"): w[k] for k in w})
    with pytest.raises(ModelError, match=r"no head for logic; the file has heads named logik"):
        AutoModel.from_pretrained(tmp_path)


def test_a_head_more_than_the_config_names_is_an_error(make, tmp_path):
    make().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["dimensions"] = ["factual", "logic"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError):
        StructuredRewardModel.from_pretrained(tmp_path)


def test_a_folder_without_a_model_is_one_line(tmp_path):
    with pytest.raises(ModelError, match="cannot load the reward model"):
        StructuredRewardModel.from_pretrained(tmp_path / "nothing")


def test_every_output_reacts_to_every_head(make):
    """PITFALLS 8: a host that reads one column only would hide what a head says."""
    model = make()
    before = model.score_texts(PROMPTS, RESPONSES)
    for column in range(3):
        other = copy.deepcopy(model)
        other.score.shift(torch.eye(3)[column] * 100)
        after = other.score_texts(PROMPTS, RESPONSES)
        moved = (after.logits - before.logits).abs().amin(0) > 50
        assert moved.tolist() == [place == column for place in range(3)]
        assert (after.scores[:, column] == 1).all()


def test_score_maps_any_hidden_states(make):
    assert make().score(torch.randn(2, 5, 32)).shape == (2, 5, 3)


def test_nan_from_a_head_is_named(make):
    model = make()
    model.score.heads["logic"][-1].bias.data.fill_(float("nan"))
    with pytest.raises(ModelError, match="'logic' gave a number that is not finite for row 0"):
        model.score_texts(PROMPTS, RESPONSES)
    out = model(torch.tensor([[5, 6]]))
    assert out.scores[0, 1].isnan(), "forward passes NaN on where it cannot look"
    assert isinstance(out, StructuredRewardOutput)


def test_an_empty_response_is_scored_as_rendered_and_said(make, caplog):
    model = make()
    with caplog.at_level(logging.WARNING):
        out = model.score_texts(["Say hi", "Say hi"], ["", "  hi"])
    assert "1 of 2 responses are empty (first: row 0)" in caplog.text
    ids = model.tokenizer("<user>Say hi<assistant><eos>", return_tensors="pt")["input_ids"]
    torch.testing.assert_close(out.logits[0], model(ids).logits[0], atol=1e-6, rtol=0)


def test_long_texts_lose_the_prompts_start_and_long_responses_are_refused(make):
    model = make(max_tokens=16)
    long = "x" * 40 + "tail"
    rows = model.renderer().encode([long], ["ok"])
    assert len(rows[0]) == 16
    assert model.tokenizer.decode(rows[0]) == "xxxxxxxx"[:8] + "tail<assistant>ok<eos>"
    with pytest.raises(DataError, match=r"row 1: the response has 20 tokens, .* reads 16"):
        model.score_texts(["a", "a"], ["b", "b" * 20])
    cut = model.score_texts(["a"], ["b" * 20], too_long="cut")
    assert torch.isfinite(cut.scores).all()


@pytest.mark.parametrize(
    ("prompts", "responses", "match"),
    [
        (["a"], ["b", "c"], "of one length, got 1 and 2"),
        ("a", ["b"], "must be a list of texts"),
        (["a"], [None], "responses, row 0: must be text, got NoneType"),
    ],
)
def test_texts_that_do_not_match_are_refused(make, prompts, responses, match):
    with pytest.raises(DataError, match=match):
        make().score_texts(prompts, responses)


def test_no_tokenizer_is_a_named_error(tiny_llama):
    model = StructuredRewardModel.from_backbone(tiny_llama)
    with pytest.raises(ModelError, match=r"set model\.tokenizer"):
        model.score_texts(["a"], ["b"])


def test_no_rows_give_no_scores(make):
    assert make().score_texts([], []).scores.shape == (0, 3)


def test_frozen_unless_told_otherwise(make):
    model = make().train()
    trained = {n.split(".")[0] for n, p in model.named_parameters() if p.requires_grad}
    assert trained == {"score", "confidence_heads"}
    assert not model.backbone.training and model.score.training
    model(torch.tensor([[5, 6]])).logits.sum().backward()
    assert all(p.grad is None for p in model.backbone.parameters())


def test_last_layers_can_be_opened(make):
    model = make(kind="llama")
    model.open_backbone("last_k", last_k=1)
    names = {n for n, p in model.backbone.named_parameters() if p.requires_grad}
    assert names and all(n.startswith(("layers.1.", "norm.")) for n in names)
    with pytest.raises(ConfigError, match="1 … 2"):
        model.open_backbone("last_k", last_k=3)
    with pytest.raises(ConfigError, match="did you mean full"):
        model.open_backbone("ful")


def test_last_layers_of_an_encoder(bert_tokenizer):
    model = StructuredRewardModel.from_backbone(tiny_bert(bert_tokenizer), bert_tokenizer)
    model.open_backbone("last_k", last_k=1)
    names = {n for n, p in model.backbone.named_parameters() if p.requires_grad}
    assert names and all(n.startswith("encoder.layer.1.") for n in names)


def test_lora_starts_neutral_round_trips_and_merges(make, tmp_path):
    pytest.importorskip("peft")
    model = make()
    before = model.score_texts(PROMPTS, RESPONSES)
    model.open_backbone("lora", lora={"r": 2, "lora_alpha": 4})
    torch.testing.assert_close(model.score_texts(PROMPTS, RESPONSES).logits, before.logits)
    opened = [n for n, p in model.backbone.named_parameters() if p.requires_grad]
    assert opened and all("lora_" in name for name in opened)
    for name, parameter in model.backbone.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    tuned = model.score_texts(PROMPTS, RESPONSES)
    assert (tuned.logits - before.logits).abs().max() > 1e-3
    model.save_pretrained(tmp_path / "adapters")
    again = StructuredRewardModel.from_pretrained(tmp_path / "adapters")
    torch.testing.assert_close(again.score_texts(PROMPTS, RESPONSES).logits, tuned.logits)
    model.merge_lora()
    assert not any("lora" in name for name, _ in model.named_parameters())
    merged = model.score_texts(PROMPTS, RESPONSES)
    torch.testing.assert_close(merged.logits, tuned.logits, atol=1e-5, rtol=0)
    model.save_pretrained(tmp_path / "merged")
    plain = StructuredRewardModel.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(plain.score_texts(PROMPTS, RESPONSES).logits, merged.logits)


def test_gradient_checkpointing_changes_no_gradient(make):
    model = make()
    model.open_backbone("full")
    ids = torch.tensor([[5, 6, 7], [9, 8, 7]])

    def gradients():
        model.zero_grad()
        model.train()(ids).logits.sum().backward()
        return [p.grad.clone() for p in model.backbone.parameters() if p.grad is not None]

    model.score.heads["logic"][2].p = 0.0
    torch.manual_seed(0)
    plain = gradients()
    model.activation_checkpointing_enable()
    torch.manual_seed(0)
    for one, two in zip(plain, gradients(), strict=True):
        torch.testing.assert_close(one, two)
    assert len(plain) > 10


def test_added_parameters_are_counted(make):
    found = make().added_parameters()
    heads = 3 * (32 * 16 + 16 + 16 + 1) + 3 * (32 * 64 + 64 + 64 + 1) + 3
    assert found["added"] == heads
    assert found["share"] == pytest.approx(heads / found["backbone"])


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"dimensions": ()}, "at least one name"),
        ({"dimensions": ("a", "a")}, "stands twice"),
        ({"dimensions": ("a.b",)}, "without dots"),
        ({"dimensions": ("forward",)}, "choose another name"),
        ({"pooling": "first"}, "pooling: must be one of"),
        ({"head_dropout": 1.0}, "head_dropout"),
        ({"gate_threshold": 2.0}, "gate_threshold"),
        ({"max_tokens": 1}, "max_tokens"),
    ],
)
def test_settings_out_of_range_are_refused(settings, match):
    with pytest.raises(ConfigError, match=match):
        StructuredRewardConfig(**settings)


def test_a_model_that_encodes_and_decodes_is_refused():
    from transformers import T5Config, T5Model

    config = T5Config(vocab_size=32, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ModelError, match="encodes and decodes"):
        StructuredRewardModel.from_backbone(T5Model(config))
    with pytest.raises(ModelError, match="must be a transformers model"):
        StructuredRewardModel.from_backbone(torch.nn.Linear(2, 2))


def test_a_backbone_that_lacks_weights_is_refused(tiny_llama, tiny_tokenizer, tmp_path):
    tiny_llama.save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    StructuredRewardModel.from_backbone(tmp_path)
    edit_weights(tmp_path, lambda w: {k: v for k, v in w.items() if "layers.1.mlp" not in k})
    with pytest.raises(ModelError, match=r"lacks 3 weights \(first: layers\.1\.mlp"):
        StructuredRewardModel.from_backbone(tmp_path)


def test_tokenizers_that_differ_are_told_apart(tiny_tokenizer, bert_tokenizer):
    other = copy.deepcopy(tiny_tokenizer)
    assert tokenizers_agree(tiny_tokenizer, other)
    other.add_tokens(["<new>"])
    assert not tokenizers_agree(tiny_tokenizer, other)


def test_the_card_says_what_was_measured(make, tmp_path):
    model = make()
    model.save_pretrained(tmp_path)
    assert "Nothing was measured" in (tmp_path / "README.md").read_text()
    figures = {"pairs": 40, "pairwise_accuracy": 0.8125, "ece": 0.031}
    model.config.calibration = {"validation": {"logic": figures}}
    model.config.gate_threshold = 0.9
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "| logic | 40 | 0.812 | 0.031 |" in card
    assert "RewardGate(threshold=0.9)" in card


def test_pushing_uploads_weights_tokenizer_and_our_card(make, monkeypatch):
    import huggingface_hub

    seen = {}

    class Repo:
        repo_id = "me/rewards"

    class Commit:
        commit_url = "address"

    def create(self, repo_id, **kwargs):
        seen["private"] = kwargs["private"]
        return Repo()

    def upload(self, *, repo_id, folder_path, **kwargs):
        import os

        seen["files"] = set(os.listdir(folder_path))
        return Commit()

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    assert make().push_to_hub("rewards", private=True) == "address"
    assert seen["private"] is True
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= seen["files"]


def test_pushing_without_a_connection_is_one_line(make):
    with pytest.raises(ModelError, match="cannot upload to 'me/rewards'"):
        make().push_to_hub("me/rewards")


@pytest.mark.slow
def test_the_sentence_encoder_as_backbone():
    from hf_glm_curriculum.errors import MissingDependencyError

    try:
        model = StructuredRewardModel.from_backbone("embedded_encoder")
    except MissingDependencyError as error:
        pytest.skip(str(error))
    out = model.score_texts(PROMPTS, RESPONSES, batch_size=4)
    alone = model.score_texts(PROMPTS[:1], RESPONSES[:1])
    assert model.config.pooling == "cls"
    torch.testing.assert_close(out.scores[:1], alone.scores, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_the_embedded_model_as_backbone(embedded_model):
    model, tokenizer = embedded_model
    rewards = StructuredRewardModel.from_backbone(model, tokenizer)
    together = rewards.score_texts(PROMPTS, RESPONSES, batch_size=4)
    alone = [rewards.score_texts([p], [r]) for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    parts = torch.cat([one.scores for one in alone])
    torch.testing.assert_close(together.scores, parts, atol=1e-6, rtol=0)
    assert rewards.added_parameters()["share"] < 0.01
