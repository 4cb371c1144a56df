"""Where a change of ratios takes effect, in every process, and again when the log is replayed."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from torch.utils.data import DataLoader

from hf_glm_curriculum.data.mixture_host import HostSteps, StepClock
from hf_glm_curriculum.errors import ConfigError, IncompatibleError, StateError
from tests.data.mixtures import mixture, names, rows, take

ALL_WEB, ALL_CHAT = {"web": 1.0}, {"chat": 1.0}


class Arguments:
    """The trainer's arguments that a mixture reads."""

    def __init__(self, batch=4, accumulation=1, workers=0, world=1, **more):
        self.train_batch_size, self.gradient_accumulation_steps = batch, accumulation
        self.dataloader_num_workers, self.dataloader_prefetch_factor = workers, None
        self.world_size, self.ignore_data_skip = world, False
        self.__dict__.update(more)


def test_a_change_holds_from_the_step_after_the_lag():
    mixed = mixture(ALL_WEB, rows_per_step=4)
    assert mixed.lag_steps == 2
    assert mixed.set_ratios(ALL_CHAT, step=3) == 20
    assert mixed.ratios == {"web": 0.0, "chat": 1.0}
    assert mixed.ratios_at(4) == {"web": 1.0, "chat": 0.0} != mixed.ratios_at(5)
    assert names(take(mixed, 24)) == [0] * 20 + [1] * 4
    assert mixed.drawn(step=6) == {
        "web": {"rows": 20, "tokens": mixed.drawn()["web"]["tokens"]},
        "chat": {"rows": 4, "tokens": mixed.drawn()["chat"]["tokens"]},
    }


def test_changes_while_rows_are_read():
    mixed = mixture(ALL_WEB, rows_per_step=4, unit="rows")
    seen, reader = [], iter(mixed)
    for step in range(20):
        mixed.set_ratios({"web": 1 - step / 20, "chat": step / 20}, step=step)
        seen += [next(reader) for _ in range(4)]
    assert [change["row"] for change in mixed.changes] == [0, *range(12, 88, 4)]
    again = mixture(ALL_WEB, rows_per_step=4, unit="rows")
    again.load_state_dict(json.loads(json.dumps(mixed.state_dict())), replay=True)
    assert take(again, 80) == seen
    assert names(seen)[:12] == [0] * 12 and 1 in names(seen)[12:24]


@pytest.mark.parametrize("streamed", [(), ("web", "chat")])
@pytest.mark.parametrize("stratify", [None, 4])
def test_a_state_goes_on_where_it_was_taken(streamed, stratify):
    settings = {"streamed": streamed, "rows_per_step": 4, "stratify": stratify}
    mixed = mixture(**settings)
    mixed.set_ratios({"web": 0.4, "chat": 0.6}, step=9)
    whole = take(mixed, 160)
    for step in (1, 10, 17):
        state = json.loads(json.dumps(mixed.state_dict(step=step)))
        later = mixture(**settings)
        later.load_state_dict(state)
        assert later.drawn() == mixed.drawn(step=step)
        assert take(later, 160 - 4 * step) == whole[4 * step :]
        assert later.drawn(step=40) == mixed.drawn(step=40)
        assert later.changes == mixed.changes
        if not streamed:
            assert later.drawn(step=step + 3) == mixed.drawn(step=step + 3)


def test_the_state_after_the_last_row_needs_no_steps():
    mixed = mixture()
    reader = iter(mixed)
    whole = [next(reader) for _ in range(30)]
    state = mixed.state_dict()
    rest = [next(reader) for _ in range(30)]
    later = mixture()
    later.load_state_dict(state)
    assert take(later, 30) == rest != whole


def test_counts_come_from_drawing_again_where_the_loader_left_none():
    here, elsewhere = mixture(rows_per_step=4), mixture(rows_per_step=4)
    for one in (here, elsewhere):
        one.set_ratios(ALL_CHAT, step=2)
    take(here, 40)
    assert elsewhere.drawn(step=10) == here.drawn(step=10)
    assert elsewhere.drawn(step=3) == here.drawn(step=3)
    elsewhere.set_ratios(ALL_WEB, step=8)
    assert elsewhere.drawn(step=11) != elsewhere.drawn(step=10) == here.drawn(step=10)


def test_a_change_that_comes_too_late_is_refused():
    mixed = mixture(ALL_WEB, rows_per_step=4)
    reader = iter(mixed)
    for _ in range(13):
        next(reader)
    with pytest.raises(StateError, match=r"row 12, and 13 rows are drawn .* raise lag_steps"):
        mixed.set_ratios(ALL_CHAT, step=1)
    mixed.set_ratios(ALL_CHAT, step=9)
    with pytest.raises(StateError, match=r"row 40, and an earlier change holds from row 44"):
        mixed.set_ratios(ALL_WEB, step=8)
    assert mixed.ratios == {"web": 0.0, "chat": 1.0}


def test_asking_again_is_no_change_and_the_last_word_for_a_row_counts():
    mixed = mixture(ALL_WEB, rows_per_step=4)
    assert mixed.set_ratios(ALL_WEB, step=5) == 0 and len(mixed.changes) == 1
    mixed.set_ratios(ALL_CHAT, step=0)
    mixed.set_ratios({"web": 0.5, "chat": 0.5}, step=0)
    assert [change["row"] for change in mixed.changes] == [0, 8]
    assert mixed.changes[1] == {"step": 0, "row": 8, "ratios": {"web": 0.5, "chat": 0.5}}
    mixed.reset()
    assert [change["row"] for change in mixed.changes] == [0] and mixed.drawn()["web"]["rows"] == 0


def test_without_a_trainer_a_change_holds_for_the_next_row():
    mixed = mixture(ALL_WEB)
    reader = iter(mixed)
    first = [next(reader) for _ in range(5)]
    assert mixed.set_ratios(ALL_CHAT) == 5
    assert names(first + [next(reader) for _ in range(3)]) == [0] * 5 + [1] * 3
    with pytest.raises(ConfigError, match="rows_per_step: not known"):
        mixed.set_ratios(ALL_WEB, step=3)


def test_the_log_has_room_for_so_many_changes():
    mixed = mixture(ALL_WEB, rows_per_step=4, max_changes=3)
    for step in range(2):
        mixed.set_ratios({"web": 1 - step / 8 - 0.1, "chat": step / 8 + 0.1}, step=step)
    with pytest.raises(StateError, match="max_changes"):
        mixed.set_ratios(ALL_CHAT, step=5)


def collate(batch):
    return batch


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("streamed", [(), ("web", "chat")])
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_yield_the_rows_of_one_process_and_hear_of_changes(workers, streamed, context):
    settings = {"streamed": streamed, "stratify": 4, "lag_steps": 1 + 1 + 2 * workers}
    mixed, alone = mixture(ALL_WEB, **settings), mixture(ALL_WEB, **settings)
    loader = DataLoader(
        mixed,
        batch_size=4,
        num_workers=workers,
        collate_fn=collate,
        multiprocessing_context=context,
    )
    seen, expected, reader = [], [], iter(alone)
    for step, batch in enumerate(loader):
        for one in (mixed, alone):
            one.set_ratios({"web": 1 - step / 16, "chat": step / 16}, step=step)
        seen += batch
        expected += [next(reader) for _ in range(4)]
        assert mixed.drawn(step + 1) == alone.drawn(step + 1)
        if step == 15:
            break
    assert seen == expected and 1 in names(seen)
    assert 64 <= sum(one["rows"] for one in mixed.drawn().values()) <= 64 + 8 * workers


def test_what_a_worker_drew_of_a_stream_is_known_in_the_training_process():
    import torch

    from hf_glm_curriculum.data.content_id import content_ids

    mixed = mixture(streamed=("web", "chat"))
    assert mixed.drawn()["chat"] == {"rows": 0, "tokens": 0}
    loader = DataLoader(mixed, batch_size=4, num_workers=1, collate_fn=collate)
    batch = next(iter(loader))
    ids = [content_ids(torch.tensor([row["input_ids"]])) for row in batch]
    assert mixed.source_index(torch.cat(ids)).tolist() == names(batch)


def test_copies_follow_the_same_changes_and_pickles_stand_alone():
    mixed = mixture(ALL_WEB, rows_per_step=4)
    twin, stranger = copy.deepcopy(mixed), pickle.loads(pickle.dumps(mixed))
    mixed.set_ratios(ALL_CHAT, step=0)
    assert names(take(twin, 10)) == [0] * 8 + [1] * 2
    assert names(take(stranger, 10)) == [0] * 10


def test_states_of_other_mixtures_are_refused():
    state = mixture(rows_per_step=4).state_dict(step=0)
    for settings, match in (
        ({"seed": 1}, "seed is 0, this mixture's is 1"),
        ({"unit": "rows"}, "unit"),
        ({"stratify": 4}, "stratify"),
        ({"streamed": ("web",)}, "sources"),
    ):
        with pytest.raises(StateError, match=match):
            mixture(**{"rows_per_step": 4, **settings}).load_state_dict(state)
    with pytest.raises(StateError, match="no known version"):
        mixture().load_state_dict({"version": 0})
    with pytest.raises(StateError, match="held 4 rows, those of this run hold 8"):
        mixture(rows_per_step=8).load_state_dict(state, replay=True)
    wider = mixture(rows_per_step=8)
    wider.load_state_dict(mixture(rows_per_step=4).state_dict(step=5), replay=False)
    assert wider.set_ratios(ALL_CHAT, step=6) == 20 + 3 * 8


def test_the_position_in_a_stream_may_not_be_known():
    mixed = mixture(streamed=("web",), rows_per_step=4, window=64)
    take(mixed, 400)
    state = mixed.state_dict(step=2)
    with pytest.raises(StateError, match="not known any more"):
        mixed.drawn(step=2)
    later = mixture(streamed=("web",), rows_per_step=4)
    with pytest.raises(StateError, match="does not hold the position"):
        later.load_state_dict(state, replay=False)
    later.load_state_dict(state, replay=True)
    assert take(later, 50) == take(mixed, 50)


@pytest.mark.parametrize(
    ("settings", "rows_per_step", "lag"),
    [
        ({}, 4, 2),
        ({"accumulation": 4}, 16, 2),
        ({"workers": 2}, 4, 6),
        ({"workers": 2, "accumulation": 4}, 16, 3),
        ({"workers": 1, "dataloader_prefetch_factor": 5}, 4, 7),
        ({"world": 3}, 12, 2),
    ],
)
def test_steps_and_lag_follow_from_the_trainers_arguments(settings, rows_per_step, lag):
    host = HostSteps.from_arguments(Arguments(**settings))
    assert (host.rows_per_step, host.lag_steps) == (rows_per_step, lag)


def test_arguments_that_contradict_a_mixture_are_refused():
    mixed = mixture(rows_per_step=8)
    with pytest.raises(IncompatibleError, match=r"rows_per_step: is 8, .* holds 4 rows"):
        mixed.connect(Arguments())
    mixture(stratify=2).connect(Arguments())
    with pytest.raises(IncompatibleError, match="stratify: is 3"):
        mixture(stratify=3).connect(Arguments())
    with pytest.raises(IncompatibleError, match="auto_find_batch_size"):
        mixture().connect(Arguments(auto_find_batch_size=True))
    mixture().connect(Arguments(world=2))
    with pytest.raises(IncompatibleError, match="dispatch_batches"):
        mixture(streamed=("web",)).connect(Arguments(world=2))
    with pytest.raises(ConfigError, match="window: must hold the 8192 rows"):
        mixture(window=100).connect(Arguments(batch=2048))


def test_a_lag_of_ones_own_may_only_be_longer():
    clock = StepClock(None, None, 9)
    assert clock.lag_steps == 9
    clock.connect(Arguments(workers=8), streams=False, window=10_000)
    assert clock.lag_steps == 18
    assert len(rows(3, 0)) == 3
