"""Models load, unwrap and show their parts, or say in one line why not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hf_glm_curriculum.errors import ModelError
from hf_glm_curriculum.models import (
    backbone,
    causal_lm,
    decoder_layers,
    load_model,
    load_tokenizer,
    model_fingerprint,
    unwrap,
)

KINDS = ["llama", "qwen3", "glm", "glm4", "glm4_moe", "gpt2"]


class Holder(nn.Module):
    """Holds a model as DistributedDataParallel and DeepSpeed's engine do."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def with_lora(model):
    peft = pytest.importorskip("peft")
    transposed = model.config.model_type == "gpt2"
    config = peft.LoraConfig(target_modules="all-linear", r=2, fan_in_fan_out=transposed)
    return peft.get_peft_model(model, config)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_every_family(tiny_model, kind):
    model = tiny_model(kind)
    assert causal_lm(model) is model
    layers = decoder_layers(model)
    assert len(layers) == 2
    seen = []
    hook = layers[1].register_forward_hook(lambda module, args, output: seen.append(output))
    ids = torch.arange(4, 12)[None]
    hidden = backbone(model)(input_ids=ids).last_hidden_state
    hook.remove()
    assert len(seen) == 1
    torch.testing.assert_close(
        model.get_output_embeddings()(hidden), model(input_ids=ids).logits, rtol=0, atol=0
    )


@pytest.mark.parametrize("kind", ["llama", "glm", "gpt2"])
def test_parts_through_lora_and_wrappers(tiny_model, kind):
    model = tiny_model(kind)
    layers, base = decoder_layers(model), backbone(model)
    wrapped = Holder(torch.compile(with_lora(model)))
    assert causal_lm(wrapped) is model
    assert backbone(wrapped) is base
    assert decoder_layers(wrapped) is layers


def test_a_classifier_has_a_backbone_and_no_language_head(tiny_llama):
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_config(tiny_llama.config)
    assert len(decoder_layers(model)) == 2
    assert backbone(model) is model.model
    with pytest.raises(ModelError, match="causal language model with an output head"):
        causal_lm(model)


def test_what_is_no_transformer_is_named(tiny_llama):
    plain = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ModelError, match="Sequential has no decoder layers"):
        decoder_layers(plain)
    with pytest.raises(ModelError, match="head on a base model, got Sequential"):
        backbone(plain)
    with pytest.raises(ModelError, match=r"must be a torch\.nn\.Module, got str"):
        unwrap("llama")


def test_fingerprint_follows_weights_not_wrappers(tiny_model):
    first = model_fingerprint(tiny_model(seed=0))
    assert first == model_fingerprint(Holder(tiny_model(seed=0)))
    assert first != model_fingerprint(tiny_model(seed=1))
    assert first != model_fingerprint(tiny_model(kind="glm", seed=0))


def test_a_saved_model_loads_with_a_padding_token(tmp_path, tiny_llama, tiny_tokenizer):
    tiny_tokenizer.pad_token = None
    tiny_llama.save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    model, tokenizer = load_model(tmp_path)
    assert model_fingerprint(model) == model_fingerprint(tiny_llama)
    assert tokenizer.pad_token == "<eos>"
    assert load_model(tmp_path, dtype="bfloat16")[0].dtype == torch.bfloat16


def test_an_adapter_folder_loads_with_its_base(tmp_path, tiny_llama, tiny_tokenizer):
    tiny_llama.save_pretrained(tmp_path / "base")
    base, _ = _load_with_tokenizer(tmp_path / "base", tiny_tokenizer)
    adapted = with_lora(base)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    adapted.save_pretrained(tmp_path / "adapter")
    loaded, _ = _load_with_tokenizer(tmp_path / "adapter", tiny_tokenizer)
    ids = torch.arange(4, 12)[None]
    torch.testing.assert_close(loaded(input_ids=ids).logits, adapted(input_ids=ids).logits)
    assert len(decoder_layers(loaded)) == 2


def _load_with_tokenizer(folder, tokenizer):
    tokenizer.save_pretrained(folder)
    return load_model(folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./no/such/folder", "no such folder"),
        ("/no/such/folder", "no such folder"),
        ("some-owner/some-model", "check the name and the network"),
    ],
)
def test_a_model_that_is_not_there(name, said):
    with pytest.raises(ModelError) as caught:
        load_model(name)
    assert said in str(caught.value)
    assert "embedded" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model(tmp_path, tiny_tokenizer):
    with pytest.raises(ModelError, match="cannot load the tokenizer"):
        load_tokenizer(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="cannot load the model"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="it is a file"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_damaged_weights(tmp_path, tiny_llama, tiny_tokenizer):
    tiny_llama.save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00broken")
    with pytest.raises(ModelError, match="cannot load the model"):
        load_model(tmp_path)


def test_a_tokenizer_without_any_token_to_pad_with(tmp_path, tiny_tokenizer):
    tiny_tokenizer.pad_token = tiny_tokenizer.eos_token = None
    tiny_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="must have a padding or an end-of-sequence token"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [("embeded", "did you mean 'embedded'"), ("runs/mine", "no such folder")],
)
def test_slips_are_found_before_the_hub_is_asked(tmp_path, monkeypatch, name, words):
    from hf_glm_curriculum.models import resolve_model

    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    with pytest.raises(ModelError, match=words):
        resolve_model(name)
    assert resolve_model("gpt2") == "gpt2" and resolve_model("owner/name") == "owner/name"
