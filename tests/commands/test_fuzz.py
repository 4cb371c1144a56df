"""Configs and records of any shape: an error with the way out, never a traceback."""

import json
from dataclasses import fields, is_dataclass
from importlib import import_module

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_glm_curriculum.config import load_config
from hf_glm_curriculum.data.record_prompts import load_prompts
from hf_glm_curriculum.data.records import load_records
from hf_glm_curriculum.errors import HfGlmCurriculumError

CLASSES = (
    "commands.sft_config.SftCommandConfig",
    "commands.migrate_config.MigrateCommandConfig",
    "commands.reward_config.RewardCommandConfig",
    "commands.ppo_config.PpoCommandConfig",
    "commands.search_config.SearchConfig",
    "commands.evaluate_config.EvaluateConfig",
    "commands.quickstart.QuickstartConfig",
    "lifespan.config.LifespanConfig",
    "migration.config.MigrationConfig",
    "attention.config.PositionGraphConfig",
    "curriculum.lane_config.LaneConfig",
    "curriculum.alignment_config.AlignmentConfig",
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=12),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def config_class(name):
    module, _, cls = name.rpartition(".")
    return getattr(import_module(f"hf_glm_curriculum.{module}"), cls)


def told(error):
    """The message says something, and not in Python's words."""
    text = str(error)
    assert text.strip() and "object at 0x" not in text and "Traceback" not in text


@pytest.mark.parametrize("name", CLASSES)
def test_any_settings_make_a_config_or_a_named_error(name):
    cls = config_class(name)
    names = [field.name for field in fields(cls)]

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(st.sampled_from(names) | st.text(max_size=10), values, max_size=5))
    def check(tree):
        try:
            assert is_dataclass(load_config(cls, None, tree))
        except HfGlmCurriculumError as error:
            told(error)

    check()


_KEYS = (
    "prompt response completion messages instruction input output chosen rejected dimension "
    "factual logic compliance role content instances"
)
keys = st.sampled_from(_KEYS.split())
records = st.lists(st.dictionaries(keys | st.text(max_size=6), values, max_size=5), max_size=4)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=records, kind=st.sampled_from(["sft", "preference", "dimension_preference", "rating"]))
def test_any_records_load_or_are_named(tmp_path_factory, rows, kind):
    path = tmp_path_factory.mktemp("fuzz") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    for load in (lambda: load_records(path, kind), lambda: load_prompts(path)):
        try:
            assert len(load()) > 0
        except HfGlmCurriculumError as error:
            told(error)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=200), ending=st.sampled_from(["jsonl", "json", "csv", "parquet"]))
def test_any_bytes_load_or_are_named(tmp_path_factory, content, ending):
    path = tmp_path_factory.mktemp("fuzz") / f"rows.{ending}"
    path.write_bytes(content)
    try:
        assert len(load_records(path)) > 0
    except HfGlmCurriculumError as error:
        told(error)
