"""A mixture as a data set: order, passes, streams, text, ids, and what it refuses."""

from __future__ import annotations

from collections import Counter

import datasets
import pytest
import torch
from datasets import Dataset

from hf_glm_curriculum import CurriculumMixture
from hf_glm_curriculum.data.content_id import content_ids
from hf_glm_curriculum.data.mixture_sources import column_tokens, row_tokens
from hf_glm_curriculum.errors import ConfigError, DataError, HfGlmCurriculumError
from tests.data.mixtures import labelled, mixture, names, rows, stream, take

BOTH = ("web", "chat")


@pytest.mark.parametrize("streamed", [(), ("chat",), BOTH])
def test_it_is_a_data_set_and_draws_at_its_ratios(streamed):
    mixed = mixture(streamed=streamed)
    assert isinstance(mixed, datasets.IterableDataset)
    assert isinstance(mixed, torch.utils.data.IterableDataset)
    assert mixed.column_names == ["input_ids", "labels"]
    with pytest.raises(TypeError):
        len(mixed)
    taken = take(mixed, 400)
    tokens = Counter()
    for source, row in zip(names(taken), taken, strict=True):
        tokens[source] += labelled(row)
    assert abs(tokens[1] / sum(tokens.values()) - 0.25) < 0.005
    drawn = mixed.drawn()
    assert drawn["chat"] == {"rows": names(taken).count(1), "tokens": tokens[1]}
    assert drawn["web"] == {"rows": names(taken).count(0), "tokens": tokens[0]}


def test_streams_and_numbered_rows_are_drawn_in_the_same_places():
    plain = names(take(mixture(shuffle=False), 200))
    assert names(take(mixture(shuffle=False, streamed=BOTH), 200)) == plain


def test_ratios_of_rows():
    mixed = mixture({"web": 0.9, "chat": 0.1}, unit="rows")
    assert names(take(mixed, 100)).count(1) == 10


def test_every_pass_has_every_row_once_in_another_order():
    passes = [names_of_rows(take(mixture({"web": 1.0}), 120)[i : i + 40]) for i in (0, 40, 80)]
    assert all(sorted(one) == list(range(40)) for one in passes)
    assert passes[0] != passes[1] != passes[2] != sorted(passes[0])
    kept = names_of_rows(take(mixture({"web": 1.0}, shuffle=False), 80))
    assert kept == [*range(40), *range(40)]


def names_of_rows(taken):
    return [row["input_ids"][1] for row in taken]


def test_rows_are_a_function_of_the_seed():
    assert take(mixture(), 90) == take(mixture(), 90)
    assert take(mixture(seed=1), 90) != take(mixture(), 90)
    again = mixture()
    assert take(again, 50) == take(again, 50)


def test_a_stream_starts_over_and_shuffles_by_pass_if_it_does_itself():
    made = rows(6, 1)
    plain = CurriculumMixture({"s": stream(made)}, {"s": 1.0})
    assert names_of_rows(take(plain, 13)) == [*range(6), *range(6), 0]
    shuffled = CurriculumMixture({"s": stream(made).shuffle(seed=3, buffer_size=6)}, {"s": 1.0})
    taken = names_of_rows(take(shuffled, 12))
    assert sorted(taken[:6]) == sorted(taken[6:]) == list(range(6)) and taken[:6] != taken[6:]
    assert names_of_rows(take(shuffled, 12)) == taken


def test_reading_a_mixture_does_not_move_the_stream_of_the_user():
    mine = stream(rows(6, 1))
    take(CurriculumMixture({"s": mine}, {"s": 1.0}), 20)
    assert mine.epoch == 0
    assert names_of_rows(take(mine, 6)) == list(range(6))


def test_label_tokens_are_counted_as_a_trainer_counts_them():
    made = [*rows(20, 0), {"input_ids": [5], "labels": [5]}]
    made.append({"input_ids": [5, 6, 7], "labels": [-100] * 3})
    data = Dataset.from_list(made)
    assert column_tokens(data).tolist() == [row_tokens(row) for row in made]
    assert column_tokens(data.select([3, 1, 21]))[:3].tolist() == [
        row_tokens(made[i]) for i in (3, 1, 21)
    ]
    bare = data.remove_columns("labels")
    assert column_tokens(bare).tolist() == [len(row["input_ids"]) - 1 for row in made]
    assert [row_tokens(row) for row in bare] == column_tokens(bare).tolist()


def test_the_source_of_a_sample_is_known_by_its_content():
    mixed = mixture(streamed=("chat",))
    batch = take(mixed, 30)
    width = max(len(row["input_ids"]) for row in batch)
    padded = torch.zeros(30, width, dtype=torch.long)
    mask = torch.zeros_like(padded)
    for place, row in enumerate(batch):
        length = len(row["input_ids"])
        padded[place, width - length :] = torch.tensor(row["input_ids"])
        mask[place, width - length :] = 1
    ids = content_ids(padded, mask)
    assert mixed.source_names == ["web", "chat"]
    assert mixed.source_index(ids).tolist() == names(batch)
    assert mixed.source_index(torch.tensor([1, 2, 3])).tolist() == [-1] * 3


def test_packed_rows_of_a_stream_are_known_by_sample():
    packed = [{"input_ids": [5, 6, 7, 8, 9], "labels": [5, 6, 7, 8, 9], "seq_lengths": [2, 3]}]
    mixed = CurriculumMixture({"s": stream(packed)}, {"s": 1.0})
    take(mixed, 1)
    ids = content_ids(torch.tensor([[5, 6, 0], [7, 8, 9]]), torch.tensor([[1, 1, 0], [1, 1, 1]]))
    assert mixed.source_index(ids).tolist() == [0, 0]


def test_content_of_two_sources_is_the_first_ones_and_said(caplog):
    made = rows(5, 0)
    mixed = CurriculumMixture(
        {"a": Dataset.from_list(made), "b": Dataset.from_list([*made[:2], *rows(3, 1)])},
        {"a": 0.5, "b": 0.5},
    )
    ids = content_ids(torch.tensor([made[0]["input_ids"]]))
    assert mixed.source_index(ids).tolist() == [0]
    assert "2 samples are in more than one source" in caplog.text


def test_text_is_prepared_with_a_tokenizer(tiny_tokenizer):
    documents = Dataset.from_dict({"text": ["a line of text " * 9, "", "another one " * 7]})
    chats = Dataset.from_dict({"prompt": ["what?", "who?"], "response": ["that", "she"]})
    ratios = {"documents": 0.5, "chats": 0.5}
    settings = {"tokenizer": tiny_tokenizer, "max_length": 32}
    mixed = CurriculumMixture({"documents": documents, "chats": chats}, ratios, **settings)
    lazy = CurriculumMixture(
        {"documents": documents.to_iterable_dataset(), "chats": chats.to_iterable_dataset()},
        ratios,
        shuffle=False,
        **settings,
    )
    taken = take(mixed, 60)
    assert {tuple(row) for row in taken} == {("input_ids", "labels")}
    answers = {
        tiny_tokenizer.decode([t for t in row["labels"] if t != -100], skip_special_tokens=True)
        for row in taken
        if -100 in row["labels"]
    }
    assert answers == {"that", "she"}
    chunked = {tuple(row["input_ids"]) for row in taken if -100 not in row["labels"]}
    text = "a line of text " * 9 + "<eos>" + "another one " * 7 + "<eos>"
    whole = tiny_tokenizer(text)["input_ids"]
    assert chunked == {tuple(whole[i : i + 32]) for i in range(0, len(whole), 32)}
    as_rows = lambda taken: {(*row["input_ids"], *row["labels"]) for row in taken}  # noqa: E731
    assert as_rows(take(lazy, 60)) == as_rows(taken)


def test_a_prepared_mixture_keeps_changing():
    mixed = mixture({"web": 1.0, "chat": 0.0}, rows_per_step=4)
    mapped = mixed.map(lambda row: {**row, "length": len(row["input_ids"])})
    assert names(take(mapped, 8)) == [0] * 8
    mixed.reset()
    mixed.set_ratios({"chat": 1.0}, step=0)
    assert names(take(mapped, 12)) == [0] * 8 + [1] * 4
    assert take(mapped, 1)[0]["length"] > 0


def test_a_transformers_format_of_a_source_is_kept():
    data = Dataset.from_list(rows(4, 0)).with_format("torch")
    row = take(CurriculumMixture({"a": data}, {"a": 1.0}), 1)[0]
    assert isinstance(row["input_ids"], torch.Tensor)


def refused(kind, match, *args, **settings):
    with pytest.raises(kind, match=match) as caught:
        CurriculumMixture(*args, **settings)
    assert isinstance(caught.value, HfGlmCurriculumError) and "\n" not in str(caught.value)


def test_ratios_are_checked():
    with pytest.raises(ConfigError, match=r"must sum to 1, got 0\.9"):
        mixture({"web": 0.6, "chat": 0.3})
    with pytest.raises(ConfigError, match=r"between 0 and 1, got -0\.5"):
        mixture({"chat": -0.5, "web": 1.5})
    with pytest.raises(ConfigError, match="between 0 and 1, got nan"):
        mixture({"web": float("nan"), "chat": 0.5})
    with pytest.raises(ConfigError, match="'chats' is no source; the nearest is 'chat'"):
        mixture({"web": 0.5, "chats": 0.5})
    mixed = mixture({"web": 1 / 3, "chat": 1 - 1 / 3 + 1e-9})
    with pytest.raises(ConfigError, match="must sum to 1"):
        mixed.set_ratios({"web": 0.5})
    assert mixed.ratios == {"web": 1 / 3, "chat": 1 - 1 / 3 + 1e-9}


def test_sources_are_checked():
    good = Dataset.from_list(rows(3, 0))
    half = {"a": 0.5, "b": 0.5}
    refused(ConfigError, "at least one", {}, {})
    refused(DataError, "'b': has 0 rows", {"a": good, "b": good.select([])}, half)
    refused(
        DataError, "'b': the stream has no row", {"a": good, "b": stream(rows(3, 0)).take(0)}, half
    )
    refused(
        DataError,
        r"'a' and 'b': different columns \(only 'b' has \['extra'\]\); .*select_columns",
        {"a": good, "b": good.add_column("extra", [1, 2, 3])},
        half,
    )
    words = Dataset.from_dict({"words": ["x"]})
    refused(DataError, "'b': has neither input_ids", {"a": good, "b": words}, half)
    text = Dataset.from_dict({"text": ["x"]})
    refused(DataError, "'b': holds text .* tokenizer=", {"a": good, "b": text}, half)
    refused(DataError, "'b': must be a datasets.Dataset", {"a": good, "b": [1]}, half)
    silent = good.map(lambda row: {"labels": [-100] * len(row["labels"])})
    refused(DataError, "'b': none of its 3 rows has a label", {"a": good, "b": silent}, half)
    changed = good.with_transform(lambda batch: batch)
    refused(DataError, "'b': has a transform", {"a": good, "b": changed}, half)


def test_settings_are_checked():
    for settings, match in (
        ({"seed": -1}, "seed"),
        ({"unit": "bytes"}, "unit"),
        ({"stratify": 0}, "stratify"),
        ({"lag_steps": 0}, "lag_steps"),
        ({"stratify": 1}, "stratify: 1 rows cannot hold one of each of 2"),
    ):
        with pytest.raises(ConfigError, match=match):
            mixture(**settings)


def test_a_stream_without_any_label_ends_in_an_error(monkeypatch):
    monkeypatch.setattr("hf_glm_curriculum.data.mixture_sources.MOST_ROWS_WITHOUT_LABELS", 20)
    silent = [{"input_ids": [5, 6], "labels": [-100, -100]}]
    with pytest.raises(DataError, match="21 rows on end without a label"):
        take(CurriculumMixture({"s": stream(silent)}, {"s": 1.0}), 30)
