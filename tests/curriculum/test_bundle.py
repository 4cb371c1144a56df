"""One file for all parts, on a trainer; the order of our callbacks makes no difference."""

from __future__ import annotations

import itertools

import pytest
import torch
import yaml
from datasets import Dataset
from transformers import Trainer

from hf_glm_curriculum import CurriculumMixture, LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.curriculum.alignment_callback import AlignmentMonitorCallback
from hf_glm_curriculum.curriculum.alignment_config import AlignmentConfig
from hf_glm_curriculum.curriculum.bundle import CurriculumCallback
from hf_glm_curriculum.curriculum.bundle_config import LossesConfig
from hf_glm_curriculum.curriculum.lane_callback import LaneCallback
from hf_glm_curriculum.curriculum.lane_data import LaneDataset
from hf_glm_curriculum.errors import ConfigError, IncompatibleError
from hf_glm_curriculum.reporting import read_metrics
from tests.conftest import REPOSITORY
from tests.curriculum.lane_runs import laned, parameters, train
from tests.lifespan.runs import Collator, arguments, build_model, random_rows

ROWS = random_rows(12)
SCORES = [float(i) for i in range(len(ROWS))]
EAGER = {"threshold": 1e-9, "relative": False, "warmup_steps": 1, "min_stay": 1, "max_stay": 2}
"""Goes to the base at once, and back after two steps."""
SECTIONS = {
    "lifespan": {"weighting": "progress"},
    "lanes": {"schedule": "alternating"},
    "monitor": EAGER,
    "losses": {"lm": 1.0, "z": 0.01},
}


def write(path, **sections):
    path.write_text(yaml.safe_dump(sections or SECTIONS))
    return path


def test_one_file_is_all_it_takes(tmp_path):
    curriculum = CurriculumCallback.from_yaml(write(tmp_path / "c.yaml"))
    data = curriculum.dataset(Dataset.from_list(ROWS), scores=SCORES)
    assert isinstance(data, LaneDataset) and len(curriculum.parts) == 4
    train(tmp_path / "run", data, ROWS, [curriculum], num_train_epochs=3)
    names = {name.split("/")[0] for line in read_metrics(tmp_path / "run") for name in line}
    assert names >= {"lifespan", "lanes", "monitor", "losses"}
    for made in ("lifespan/samples.csv", "lanes/lanes.png", "monitor/events.jsonl"):
        assert (tmp_path / "run" / made).stat().st_size > 0


def test_parts_that_choose_no_rows_need_no_wrapping(tmp_path):
    path = write(tmp_path / "c.yaml", lifespan={}, losses={"lm": 1.0})
    callback = CurriculumCallback.from_yaml(path)
    data = Dataset.from_list(ROWS)
    assert callback.dataset(data) is data and not callback.chooses_rows
    Trainer(
        build_model(),
        arguments(tmp_path),
        train_dataset=data,
        data_collator=Collator(),
        callbacks=[CurriculumCallback.from_yaml(path)],
    ).train()
    assert (tmp_path / "lifespan" / "samples.csv").exists()


def test_a_bundle_is_what_its_parts_are(tmp_path):
    curriculum = CurriculumCallback.from_yaml(write(tmp_path / "c.yaml"))
    data = curriculum.dataset(Dataset.from_list(ROWS), scores=SCORES)
    bundled = train(tmp_path / "a", data, ROWS, [curriculum], num_train_epochs=2)[1]
    apart = run_apart(tmp_path / "b", range(4))
    assert torch.equal(parameters(bundled), apart)


def run_apart(folder, order) -> torch.Tensor:
    """Four callbacks of our own in some order; the weights they leave."""
    from hf_glm_curriculum.curriculum.lane_config import LaneConfig

    data = laned(ROWS, LaneConfig(schedule="alternating"), base_share=0.25)
    parts = [
        SampleLifespanCallback(LifespanConfig()),
        LaneCallback(data),
        AlignmentMonitorCallback(data, config=AlignmentConfig(**EAGER)),
        LossesConfig(z=0.01).callback(),
    ]
    return parameters(train(folder, data, ROWS, [parts[i] for i in order], num_train_epochs=2)[1])


def test_the_order_of_our_callbacks_makes_no_difference(tmp_path):
    """Each stands first, last and beside every other once."""
    first = run_apart(tmp_path / "first", range(4))
    for order in ((3, 1, 0, 2), (1, 2, 3, 0), (2, 0, 1, 3)):
        assert torch.equal(run_apart(tmp_path / "again", order), first), order


@pytest.mark.slow
def test_no_order_of_our_callbacks_makes_a_difference(tmp_path):
    orders = list(itertools.permutations(range(4)))
    first = run_apart(tmp_path / "first", orders[0])
    for order in orders[1:]:
        assert torch.equal(run_apart(tmp_path / "again", order), first), order


def test_a_mixture_is_switched_in_place(tmp_path):
    sources = {"hard": Dataset.from_list(ROWS), "base": Dataset.from_list(random_rows(8, seed=2))}
    mixture = CurriculumMixture(sources, {"hard": 1.0}, unit="rows")
    path = write(tmp_path / "c.yaml", monitor=EAGER)
    curriculum = CurriculumCallback.from_yaml(path, mixture=mixture)
    assert not curriculum.chooses_rows and curriculum.dataset(mixture) is mixture
    args = arguments(tmp_path, max_steps=8)
    Trainer(
        build_model(),
        args,
        train_dataset=mixture,
        data_collator=Collator(),
        callbacks=[curriculum],
    ).train()
    assert mixture.drawn(8)["base"]["rows"] > 0
    with pytest.raises(ConfigError, match="lanes: a mixture's rows have no fixed places"):
        CurriculumCallback.from_yaml(write(tmp_path / "d.yaml"), mixture=mixture)


def test_only_a_monitor_and_a_base_leave_one_lane_at_the_trainers_pace(tmp_path):
    path = write(tmp_path / "c.yaml", monitor=EAGER)
    curriculum = CurriculumCallback.from_yaml(path)
    base = random_rows(4, seed=8)
    data = curriculum.dataset(Dataset.from_list(ROWS), Dataset.from_list(base))
    seen, _ = train(tmp_path / "run", data, ROWS + base, [curriculum])
    assert set(map(len, seen.flat)) == {2} and seen.used == seen.after
    assert not any(seen.checkpointed) and set(seen.dtypes) == {torch.float32}
    assert {min(step) >= 12 for step in seen.flat} == {True, False}


def test_what_is_wrong_is_said_before_training(tmp_path):
    with pytest.raises(ConfigError, match=r"lanes.quantil is not a setting; did you mean"):
        CurriculumCallback.from_yaml(write(tmp_path / "a.yaml", lanes={"quantil": 0.5}))
    with pytest.raises(ConfigError, match="lane is not a setting; did you mean lanes"):
        CurriculumCallback.from_yaml(write(tmp_path / "b.yaml", lane={}))
    with pytest.raises(ConfigError, match="has no section; give one of lifespan, lanes, monitor"):
        CurriculumCallback.from_yaml(write(tmp_path / "c.yaml", base_share=0.5))
    for section in ("lanes", "monitor"):
        callback = CurriculumCallback.from_yaml(write(tmp_path / "d.yaml", **{section: {}}))
        with pytest.raises(IncompatibleError, match=f"{section}: chooses rows, so the data set"):
            train(tmp_path, Dataset.from_list(ROWS), ROWS, [callback])
    for bad in ({"lm": -1.0}, {"lm": 0.0}, {"temperature": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            LossesConfig(**bad)


def test_the_shipped_file_is_read():
    path = REPOSITORY / "configs" / "sft" / "curriculum.yaml"
    callback = CurriculumCallback.from_yaml(path, ["lanes.schedule=easy_first"])
    assert callback.config.lanes.schedule == "easy_first" and callback.chooses_rows
    assert callback.config.monitor.release == 1.2 and callback.losses is not None
