"""Texts coloured by temperature: pieces, escaping, colours, files."""

from __future__ import annotations

import math
from html.parser import HTMLParser

import pytest
import torch
from PIL import Image

from hf_glm_curriculum import TemperatureField
from hf_glm_curriculum.curriculum.temperature_picture import text_figure, text_html
from hf_glm_curriculum.errors import ConfigError, IncompatibleError
from tests.conftest import build_model, build_tokenizer


def frequency_field():
    return TemperatureField(source="frequency", token_counts=torch.arange(260, 0, -1))


def test_pieces_are_the_text_and_its_temperatures():
    tokenizer, field = build_tokenizer(), frequency_field()
    pieces = field.of_text("ab c", tokenizer)
    assert [text for text, _ in pieces] == ["a", "b", " ", "c"]
    wanted = field.of_tokens(torch.tensor(tokenizer("ab c")["input_ids"]))
    assert [t for _, t in pieces] == pytest.approx(wanted.tolist())


def test_tokens_of_one_character_share_a_piece():
    pieces = frequency_field().of_text("a中b", build_tokenizer())
    assert [text for text, _ in pieces] == ["a", "中", "b"]


def test_a_model_gives_each_token_what_it_would_be_drawn_at():
    model, tokenizer, field = build_model().eval(), build_tokenizer(), TemperatureField()
    pieces = field.of_text("hello", tokenizer, model)
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer("hello")["input_ids"]])).logits[0]
    assert math.isnan(pieces[0][1])
    assert [t for _, t in pieces[1:]] == pytest.approx(field.temperatures(logits)[:-1].tolist())
    with pytest.raises(IncompatibleError, match="no temperatures of tokens"):
        field.of_text("hello", tokenizer)


class Spans(HTMLParser):
    def __init__(self):
        super().__init__()
        self.text, self.tags = "", set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.text += data


def test_html_is_escaped_and_whole():
    hostile = '<script>alert("&")</script>\n'
    page = text_html([(hostile, 0.7), ("'x'", 1.3), ("?", math.nan)], 0.7, 1.3)
    read = Spans()
    read.feed(page)
    assert hostile.strip() in read.text
    assert read.tags == {"div", "p", "span", "br"}
    assert "temperature 0.700" in page and "temperature 1.300" in page and "no temperature" in page
    assert "http" not in page


@pytest.mark.pictures
def test_files(tmp_path):
    tokenizer, field = build_tokenizer(), frequency_field()
    png = field.show("Some words, a $formula$\n\nand more " * 9, tokenizer, tmp_path / "t.png")
    with Image.open(png) as image:
        assert image.width > 800
        colours = {c for _, c in image.convert("RGB").getcolors(1 << 20)}
    assert len(colours) > 50
    page = field.show("a < b", tokenizer, tmp_path / "t.html").read_text("utf-8")
    assert "&lt;" in page
    with pytest.raises(ConfigError, match=r"\.png or \.html"):
        field.show("a", tokenizer, tmp_path / "t.svg")


def test_figures_of_odd_texts():
    for pieces in ([], [("x" * 300, 1.0)], [("\n\n", 0.8)], [("a", 1.0), ("b" * 90, 0.9)]):
        text_figure(pieces, 0.7, 1.3)
    text_figure([("a", 1.0)], 1.0, 1.0)
