"""The callback on Trainer and SFTTrainer: gradients, ratios, state, reports, refusals."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.errors import ConfigError, DataError, IncompatibleError, ModelError
from hf_glm_curriculum.migration.callback import ObjectiveMigrationCallback
from hf_glm_curriculum.migration.config import MigrationConfig
from hf_glm_curriculum.migration.schedule import schedule_for
from hf_glm_curriculum.reporting import read_metrics
from hf_glm_curriculum.storage import load_tensors
from tests.conftest import build_model
from tests.lifespan.runs import Collator, Run, random_rows
from tests.migration.runs import (
    ALL,
    HOSTS,
    INSTRUCTION_ROWS,
    ONES,
    ROWS,
    WrittenMixture,
    data,
    migration,
    run,
    tags,
)
from tests.migration.tiny import combined, gradients

KINDS = pytest.mark.parametrize("host", HOSTS)


def flat(found: dict[str, torch.Tensor], model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([found[name].flatten() for name, _ in model.named_parameters()])


def oracle(step: int, steps: int, config: MigrationConfig, size: int, window: int) -> torch.Tensor:
    """What an untrained model's gradient is at a step, by two backwards."""
    model = build_model(num_hidden_layers=2).train()
    first = step * size * window
    picked = [ROWS[(first + i) % len(ROWS)] for i in range(size * window)]
    batches = [Collator()(picked[i : i + size]) for i in range(0, len(picked), size)]
    objectives = [
        torch.tensor([int(row in INSTRUCTION_ROWS) for row in picked[i : i + size]])[:, None]
        for i in range(0, len(picked), size)
    ]
    weights = schedule_for(config, steps).weights(step, 2)
    tokens = sum(int((batch["labels"][:, 1:] >= 0).sum()) for batch in batches)
    return flat(combined(model, batches, objectives, weights), model) / tokens


@pytest.mark.parametrize(
    ("window", "extra"),
    [(1, {}), (2, {}), (1, {"gradient_checkpointing": True})],
    ids=["", "accumulated", "checkpointed"],
)
@KINDS
def test_gradients_are_two_backwards_combined(host, window, extra):
    """At learning rate 0, at every step of the schedule."""
    settings = {**HOSTS[host], **extra, "gradient_accumulation_steps": window}
    found = run([migration()], learning_rate=0.0, max_steps=2, **settings)
    assert len(found.grads) == 2
    for step, ours in enumerate(found.grads):
        theirs = oracle(step, 2, ALL, 2, window)
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.parametrize("config", [ONES, MigrationConfig(window=1.0, observe_only=True)])
@KINDS
def test_weights_of_one_are_plain_training(host, config):
    plain = run([], **HOSTS[host])
    watched = run([migration(config)], **HOSTS[host])
    assert watched.losses == pytest.approx(plain.losses, abs=1e-6)
    pairs = list(zip(watched.model.parameters(), plain.model.parameters(), strict=True))
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("precision", [{"bf16": True}, {"gradient_checkpointing": True}])
def test_weights_of_one_are_plain_training_bit_for_bit(precision):
    plain, watched = run([], **precision), run([migration(ONES)], **precision)
    for ours, theirs in zip(watched.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@KINDS
def test_nothing_is_left_after_training(host):
    callback = migration()
    found = run([callback], **HOSTS[host])
    for module in found.model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
    assert "_loss_function" not in vars(found.model)
    model = weakref.ref(found.model)
    del found
    gc.collect()
    assert model() is None and callback.schedule is not None


class Dies(TrainerCallback):
    """Ends the second step with an exception after its backward."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs) -> None:
        if state.global_step == 1:
            raise RuntimeError("out of memory")


@pytest.mark.parametrize("detached", [False, True], ids=["inert", "detached"])
@KINDS
def test_after_an_exception_the_model_is_as_if_never_touched(host, detached):
    callback, model = migration(), build_model()
    with pytest.raises(RuntimeError, match="out of memory"):
        run([callback], model=model, fail=Dies, **HOSTS[host])
    assert any(layer._forward_hooks for layer in model.model.layers)
    if detached:
        callback.detach()
        assert not any(module._forward_hooks for module in model.modules())
    twin = build_model()
    twin.load_state_dict(model.state_dict())
    for m in (model, twin):
        m.zero_grad()
        m.train()(**Collator()(ROWS[:4])).loss.backward()
    ours, theirs = gradients(model), gradients(twin)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not any(module._forward_hooks for module in model.modules())


def test_another_run_of_the_same_callback_starts_anew(tmp_path):
    callback = migration()
    one = run([callback], output_dir=tmp_path)
    two = run([callback], output_dir=tmp_path)
    assert one.losses == two.losses
    assert all(map(torch.equal, one.model.parameters(), two.model.parameters()))


# -- ratios ----------------------------------------------------------------------------------


def test_every_step_is_asked_for_what_the_schedule_says_of_it():
    """Although a change takes two steps to come into effect."""
    mixture = WrittenMixture()
    config = MigrationConfig(window=1.0, pretrain_steps=8, sft_ratio=0.9, post_ramp=2)
    run([migration(config, mixture=mixture)], max_steps=12)
    schedule = schedule_for(config, 12)
    asked = {step: ratios["instruction"] for step, ratios in mixture.asked.items()}
    assert asked == {step: schedule.injected_ratio(step) for step in range(12 + 3)}
    assert asked[0] == 0.005 and asked[10] == asked[14] == 0.9
    ratios = mixture.asked.values()
    assert all(r["pretrain"] == pytest.approx(1 - r["instruction"]) for r in ratios)


def test_other_sources_keep_their_proportions():
    mixture = WrittenMixture(pretrain=0.6, instruction=0.0, code=0.2, maths=0.2)
    run([migration(mixture=mixture)], max_steps=4)
    for ratios in mixture.asked.values():
        left = 1 - ratios["instruction"]
        assert ratios["pretrain"] == pytest.approx(0.6 * left)
        assert ratios["code"] == ratios["maths"] == pytest.approx(0.2 * left)


def test_observing_asks_for_nothing():
    mixture = WrittenMixture()
    run([migration(MigrationConfig(window=1.0, observe_only=True), mixture=mixture)])
    assert mixture.asked == {}


def test_a_mixture_without_pretraining_is_refused():
    with pytest.raises(ConfigError, match="some source beside 'instruction' must have a share"):
        migration(mixture=WrittenMixture(pretrain=0.0, instruction=1.0))


# -- tags ------------------------------------------------------------------------------------


def with_source(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "source": int(row in INSTRUCTION_ROWS)} for row in rows]


class SourceCollator(Collator):
    """A collator that keeps the source of each row."""

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = super().__call__([{k: v for k, v in r.items() if k != "source"} for r in rows])
        return {**batch, "source": torch.tensor([row["source"] for row in rows])}


@pytest.mark.parametrize("host", ["trainer", "sft"])
def test_a_source_column_does_what_tags_do(host):
    settings = {
        "rows": with_source(ROWS),
        "collator": SourceCollator(),
        "remove_unused_columns": False,
    }
    column = run([ObjectiveMigrationCallback(ALL)], **HOSTS[host], **settings)
    tagged = run([migration()], **HOSTS[host], collator=Collator())
    assert column.losses == tagged.losses
    assert all(map(torch.equal, column.model.parameters(), tagged.model.parameters()))


def test_batches_that_say_nothing_are_refused_by_name():
    with pytest.raises(DataError, match="source: the batch has no such tensor"):
        run([ObjectiveMigrationCallback(ALL)])


def test_unknown_rows_train_at_weight_one_and_are_said_once(caplog):
    """As plain training has it, in the same batch as rows that are known."""
    unknown = random_rows(4, seed=9)
    settings = {"rows": unknown, "max_steps": 2}
    plain = run([], **settings)
    with caplog.at_level(logging.WARNING):
        watched = run([migration()], **settings)
    assert all(map(torch.equal, watched.model.parameters(), plain.model.parameters()))
    assert caplog.text.count("belong to no known source") == 1
    assert "2 samples belong" in caplog.text


def test_data_sets_that_share_a_sample_are_refused():
    both = {"pretrain": data(ROWS), "instruction": data(INSTRUCTION_ROWS)}
    with pytest.raises(DataError, match="'pretrain' and 'instruction' share 5 samples"):
        migration(tags=both)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pretrain_source": "web"}, "pretrain_source: .* got 'web'"),
        ({"instruction_source": "sft"}, "instruction_source: must be one of the sources"),
        ({"instruction_source": "pretrain"}, "must differ from pretrain_source"),
        ({"mixture": WrittenMixture(), "tags": tags()}, "leave tags out"),
    ],
)
def test_sources_that_do_not_exist(settings, message):
    with pytest.raises(ConfigError, match=message):
        migration(**settings)


# -- refusals before the first step ----------------------------------------------------------


def test_a_schedule_outside_the_run_is_refused_before_the_first_step():
    found: list[Run] = []
    with pytest.raises(ConfigError, match="must not exceed the 3 steps of the run, got 10"):
        found.append(run([migration(MigrationConfig(pretrain_steps=10))]))
    assert not found


def test_a_model_without_layers_is_refused_before_the_first_step():
    model = build_model()
    model.model.blocks_elsewhere = model.model.layers
    model.model.layers = torch.nn.Identity()
    with pytest.raises(ModelError, match="no decoder layers"):
        run([migration()], model=model)


def test_hosts_without_token_losses_are_refused_by_name():
    with pytest.raises(IncompatibleError, match=r"set it to 0 to weight objectives apart"):
        run([migration()], label_smoothing_factor=0.1)


# -- reports ---------------------------------------------------------------------------------


@pytest.mark.pictures
def test_metrics_and_pictures(tmp_path):
    config = MigrationConfig(window=0.5, pretrain_steps=6, post_ramp=2)
    mixture = WrittenMixture()

    class Draws(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            mixture.tokens["pretrain"] += 75
            mixture.tokens["instruction"] += 25

    run([migration(config, mixture=mixture), Draws()], output_dir=tmp_path, max_steps=8)
    lines = [m for m in read_metrics(tmp_path) if "migration/progress" in m]
    assert [m["step"] for m in lines] == list(range(1, 9))
    last, first = lines[-1], lines[0]
    assert first["migration/progress"] == 0.0 and last["migration/progress"] == 1.0
    assert first["migration/weight_pretrain_top"] == 1.0
    assert last["migration/weight_pretrain_bottom"] == pytest.approx(0.2)
    assert last["migration/ratio_drawn"] == 0.25 and last["migration/ratio_asked"] > 0.3
    assert last["migration/steps_with_both"] == 1.0
    share = last["migration/ratio_trained"]
    assert last["migration/effective_ratio_top"] == pytest.approx(
        share / (share + 0.2 * (1 - share))
    )
    for name in ("layers", "ratios", "losses"):
        assert (tmp_path / "migration" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    written = json.loads((tmp_path / "migration" / "schedule.json").read_text())
    assert written["window"] == [3, 6] and written["label_tokens"]["instruction"] > 0


def test_losses_per_objective_are_the_plain_means(tmp_path):
    """Whatever the weights: at learning rate 0, over one pass of all rows."""
    run([migration()], output_dir=tmp_path, learning_rate=0.0, max_steps=5, logging_steps=5)
    line = next(m for m in read_metrics(tmp_path) if "migration/loss_pretrain" in m)
    model = build_model().train()
    for name, parity in (("pretrain", 0), ("instruction", 1)):
        batch = Collator()(ROWS[parity::2])
        assert line[f"migration/loss_{name}"] == pytest.approx(model(**batch).loss.item(), abs=1e-5)


def test_the_dump_names_every_sample(tmp_path):
    run([migration(debug_dir=tmp_path)], max_steps=2, learning_rate=0.0)
    lines = (tmp_path / "migration_samples.csv").read_text().splitlines()
    assert lines[0] == "step,id,objective,loss,n_tokens,weight" and len(lines) == 5
    assert [line.split(",")[2] for line in lines[1:]] == ["0", "1", "0", "1"]
    assert float(lines[2].split(",")[5]) == pytest.approx(1e-4)


# -- state -----------------------------------------------------------------------------------


@KINDS
def test_a_resumed_run_equals_an_uninterrupted_one(host, tmp_path):
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, **HOSTS[host]}
    whole, second = WrittenMixture(), WrittenMixture()
    straight = run([migration(mixture=whole)], output_dir=tmp_path / "a", **settings)
    resumed = run(
        [migration(mixture=second)],
        output_dir=tmp_path / "b",
        resume=str(tmp_path / "a" / "checkpoint-4"),
        **settings,
    )
    for ours, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert second.asked == whole.asked and len(second.asked) == 6 + 3
    one, two = (read_metrics(tmp_path / name)[-2:] for name in "ab")
    keys = [key for key in one[0] if key.startswith("migration/")]
    assert len(keys) > 5
    for key, (mine, other) in itertools.product(keys, zip(two, one, strict=True)):
        assert mine.get(key) == other.get(key), key


def test_the_state_lies_beside_the_checkpoint(tmp_path):
    run([migration(name="shift")], output_dir=tmp_path, save_strategy="steps", save_steps=2)
    path = tmp_path / "checkpoint-2" / "hf_glm_curriculum" / "shift.safetensors"
    tensors, metadata = load_tensors(path)
    assert tensors["total"].shape == (4, 4) and metadata["step"] == "2"
    assert json.loads(metadata["config"])["window"] == 1.0


def test_a_checkpoint_without_state_is_said(tmp_path, caplog):
    settings = {"output_dir": tmp_path, "save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    run([], **settings)
    with caplog.at_level(logging.WARNING):
        run([migration()], resume=str(tmp_path / "checkpoint-2"), **settings)
    assert "holds no state of 'migration'" in caplog.text


# -- with others -----------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["trainer", "sft"])
def test_the_order_of_callbacks_does_not_matter(host):
    found = []
    for order in (0, 1):
        lifespan = SampleLifespanCallback(LifespanConfig(weighting="article", warmup_visits=2))
        both = [lifespan, migration()]
        settings = {"max_steps": 6, **HOSTS[host]}
        done = run(both[::-1] if order else both, **settings)
        found.append((done, lifespan.ledger.to_pandas()))
    (one, ledger), (two, other) = found
    assert all(map(torch.equal, one.model.parameters(), two.model.parameters()))
    assert ledger.equals(other)


def test_gradient_norms_do_not_see_the_gates():
    frames = []
    for callbacks in ([], [migration()]):
        lifespan = SampleLifespanCallback(LifespanConfig(weighting="none"))
        run([lifespan, *callbacks], learning_rate=0.0, max_steps=5)
        frames.append(lifespan.ledger.to_pandas().set_index("row")["grad_norm"])
    assert frames[0].tolist() == pytest.approx(frames[1].tolist(), rel=1e-4)


@pytest.mark.pictures
def test_two_instances_write_apart(tmp_path):
    run([migration(name="one"), migration(ONES, name="two")], output_dir=tmp_path)
    assert (Path(tmp_path) / "one" / "layers.png").exists()
    assert (Path(tmp_path) / "two" / "layers.png").exists()
