"""Token ids → text, offsets both ways, for every style of vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_glm_curriculum.attention.token_text import TokenText

TEXT = "第# 合同 Contract\n第十条 fees: 5 €\n"


def sentencepiece_tokenizer():
    """A vocabulary with ▁ for blanks and <0x..> for bytes it has no piece for."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁Con", "tract"]
    pieces += list("ractfes:5#")
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")


def test_a_byte_level_text_comes_back_whole(tiny_tokenizer):
    ids = np.array(tiny_tokenizer(TEXT)["input_ids"])
    assert TokenText(tiny_tokenizer).append(ids) == TEXT


def test_byte_fallback_and_blanks_come_back():
    tokenizer = sentencepiece_tokenizer()
    ids = np.array(tokenizer(TEXT)["input_ids"])
    assert TokenText(tokenizer).append(ids) == TEXT


def test_wordpieces_are_joined_and_parted():
    vocabulary = {"[UNK]": 0, "con": 1, "##tract": 2, "law": 3}
    backend = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    assert TokenText(tokenizer).append(np.array([1, 2, 3])) == " contract law"


def test_special_and_added_tokens_are_their_own_text(tiny_tokenizer):
    tiny_tokenizer.add_tokens([AddedToken("<|sep|>", special=True)])
    ids = np.array(tiny_tokenizer("a<|sep|>b<user>")["input_ids"])
    assert TokenText(tiny_tokenizer).append(ids) == "a<|sep|>b<user>"


@pytest.mark.parametrize("tokens", [[-100], [10**6], [2**40]])
def test_ids_without_a_token_have_no_text(tiny_tokenizer, tokens):
    text = TokenText(tiny_tokenizer)
    assert text.append(np.array([*tokens, *tiny_tokenizer("ok")["input_ids"]])) == "ok"


def test_one_token_at_a_time_equals_all_at_once(tiny_tokenizer):
    ids = np.array(tiny_tokenizer(TEXT)["input_ids"])
    whole, single = TokenText(tiny_tokenizer), TokenText(tiny_tokenizer)
    text = whole.append(ids)
    assert "".join(single.append(ids[i : i + 1]) for i in range(len(ids))) == text
    for character in range(len(text)):
        assert single.token_of(character) == whole.token_of(character)
        assert single.tokens_for(character + 1) == whole.tokens_for(character + 1)


def test_a_character_is_known_with_the_token_that_completes_it(tiny_tokenizer):
    ids = np.array(tiny_tokenizer(TEXT)["input_ids"])  # one token a byte
    text = TokenText(tiny_tokenizer)
    text.append(ids)
    for index in range(len(TEXT)):
        begin, end = len(TEXT[:index].encode()), len(TEXT[: index + 1].encode())
        assert text.token_of(index) == begin
        assert text.tokens_for(index + 1) == end


def test_broken_bytes_do_not_stop_the_text(tiny_tokenizer):
    ids = tiny_tokenizer("第x")["input_ids"]
    text = TokenText(tiny_tokenizer)
    assert text.append(np.array([ids[0], ids[-1]])) == "\ufffdx"


def test_a_copy_goes_its_own_way(tiny_tokenizer):
    ids = np.array(tiny_tokenizer("第")["input_ids"])
    text = TokenText(tiny_tokenizer)
    text.append(ids[:2])  # in the middle of a character
    other = text.copy()
    assert text.append(ids[2:]) == "第"
    assert other.append(ids[2:]) == "第"
