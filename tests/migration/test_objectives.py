"""Whose a sample is: by content, by a column of any shape, and what becomes of the rest."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.migration.injection import shares
from hf_glm_curriculum.migration.objectives import (
    UNKNOWN,
    DatasetTags,
    Objectives,
    SourceColumn,
    sample_sources,
)
from hf_glm_curriculum.migration.schedule import INSTRUCTION, OTHER, PRETRAIN
from hf_glm_curriculum.migration.tally import ObjectiveTally
from hf_glm_curriculum.signals.microbatch import Microbatch
from tests.conftest import build_model
from tests.lifespan.runs import Collator, random_rows
from tests.migration.tiny import packed_batch

SOURCES = {name: random_rows(4, seed=i) for i, name in enumerate(("web", "chat", "code"))}


def batch_of(rows: list[dict]) -> Microbatch:
    collated = Collator("left")(rows)
    return Microbatch.from_inputs(
        collated["input_ids"], collated["labels"], collated["attention_mask"]
    )


def test_rows_are_told_by_their_tokens():
    tags = DatasetTags({name: Dataset.from_list(rows) for name, rows in SOURCES.items()})
    objectives = Objectives(tags, "web", "chat")
    stranger = random_rows(1, seed=77)[0]
    rows = [SOURCES["chat"][2], SOURCES["web"][0], SOURCES["code"][1], stranger]
    assert objectives.of(batch_of(rows), None).tolist() == [INSTRUCTION, PRETRAIN, OTHER, UNKNOWN]


def test_a_column_wins_over_content():
    tags = DatasetTags({name: Dataset.from_list(rows) for name, rows in SOURCES.items()})
    objectives = Objectives(tags, "code", "web")
    column = torch.tensor([0, 1, 2, -1, 9])
    rows = [*SOURCES["chat"], SOURCES["web"][0]]
    wanted = [INSTRUCTION, OTHER, PRETRAIN, UNKNOWN, UNKNOWN]
    assert objectives.of(batch_of(rows), column).tolist() == wanted


def test_columns_of_packed_rows():
    packed = packed_batch((6, 4, 7))
    batch = Microbatch.from_inputs(
        packed["input_ids"], packed["labels"], None, packed["position_ids"]
    )
    per_sample = torch.tensor([1, 0, 1])
    per_position = per_sample[batch.segments.index]
    for column in (per_sample, per_position):
        assert sample_sources(batch, column).tolist() == [1, 0, 1]
    assert sample_sources(batch, torch.tensor([1])).tolist() == [1, 1, 1]
    with pytest.raises(DataError, match=r"source: must be one number a row \[1\], sample \[3\]"):
        sample_sources(batch, torch.tensor([1, 0]))


def test_the_column_never_reaches_the_model():
    model = build_model()
    column = SourceColumn(model)
    batch = Collator()(SOURCES["web"])
    loss = model(**batch, source=torch.tensor([0, 1, 0, 1])).loss
    assert column.values.tolist() == [0, 1, 0, 1] and torch.isfinite(loss)
    model(**batch)
    assert column.values is None
    column.close()
    assert not model._forward_pre_hooks


def test_shares_keep_the_others_proportions():
    found = shares({"web": 0.75, "code": 0.25, "chat": 0.0}, "chat", 0.2)
    assert found == pytest.approx({"web": 0.6, "code": 0.2, "chat": 0.2})
    assert shares({"web": 0.5, "chat": 0.5}, "chat", 1.0) == {"web": 0.0, "chat": 1.0}
    with pytest.raises(ConfigError, match="some source beside 'chat' must have a share"):
        shares({"web": 0.0, "chat": 1.0}, "chat", 0.5)


def test_the_tally_of_two_steps():
    tally = ObjectiveTally("note", torch.device("cpu"))
    steps = [[(PRETRAIN, 2.0, 4), (INSTRUCTION, 3.0, 2)], [(PRETRAIN, 1.0, 4), (UNKNOWN, 5.0, 1)]]
    for rows in steps:
        code, loss, tokens = (torch.tensor(column) for column in zip(*rows, strict=True))
        batch = batch_of(random_rows(len(rows)))
        batch.weight = torch.ones(len(rows))
        batch.loss, batch.n_tokens, batch.notes = loss, tokens, {"note": code}
        signals = batch.signals()
        assert signals is not None
        tally.add([signals], None)
    found = tally.flush(2)
    assert found == pytest.approx(
        {
            "loss_pretrain": 1.5,
            "loss_instruction": 3.0,
            "loss_other": 5.0,
            "ratio_trained": 0.2,
            "steps_with_both": 0.5,
            "unknown": 1.0,
        }
    )
    assert tally.flush(0) == {"unknown": 0.0}
    assert tally.totals() == {"pretrain": 8.0, "instruction": 2.0, "other": 0.0, "unknown": 1.0}
