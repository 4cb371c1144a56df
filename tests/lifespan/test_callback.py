"""The callback on real trainers: hooks, resume, refusals, outputs."""

from __future__ import annotations

import json
import resource
import signal

import pandas as pd
import pytest
import torch
from transformers import Trainer, TrainerCallback

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.errors import ConfigError, IncompatibleError, ModelError, StateError
from hf_glm_curriculum.reporting import read_metrics
from hf_glm_curriculum.signals.ledger import SampleLedger, SampleState
from tests.conftest import REPOSITORY, build_model
from tests.lifespan.runs import PAD, Collator, arguments, random_rows, train
from tests.processes import run_python


class Boom(TrainerCallback):
    """Raises in the middle of the second step."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs) -> None:
        if state.global_step == 1:
            raise RuntimeError("boom")


def traces(model: torch.nn.Module) -> tuple:
    """Everything hooks or patches could leave on a model."""
    hooks = [
        (name, dict(kind))
        for name, module in model.named_modules()
        for kind in (module._forward_pre_hooks, module._forward_hooks, module._backward_hooks)
        if kind
    ]
    return hooks, sorted(set(vars(model)) - {"_no_split_modules"})


@pytest.mark.parametrize("host", ["trainer", "sft"])
def test_model_is_what_it_was_after_training(host):
    sft = host == "sft"
    plain = train([], sft=sft).model
    watched = train([SampleLifespanCallback()], sft=sft).model
    assert traces(watched) == traces(plain)
    assert watched.loss_function.__name__ == "ForCausalLMLoss"
    if sft:
        import trl.trainer.sft_trainer as module

        name = "_chunked_cross_entropy_loss"
        if hasattr(module, name):
            assert getattr(module, name).__module__ == module.__name__


@pytest.mark.parametrize("host", ["trainer", "sft"])
def test_after_an_exception_what_is_left_is_inert(host):
    model = build_model()
    callback = SampleLifespanCallback()
    with pytest.raises(RuntimeError, match="boom"):
        train([callback], sft=host == "sft", model=model, fail=Boom)
    assert callback._stepping  # the trainer told the callback nothing
    before = callback.ledger.to_pandas()
    batch = Collator()(random_rows(4, seed=9))
    model.train()
    loss = model(**batch, return_dict=True).loss
    reference = build_model()
    reference.load_state_dict(model.state_dict())
    assert loss.item() == pytest.approx(reference.train()(**batch).loss.item(), abs=1e-6)
    loss.backward()
    assert callback._subscription.drain()[2:] == []  # only what the run itself had seen
    pd.testing.assert_frame_equal(callback.ledger.to_pandas(), before)
    callback.detach()
    assert traces(model)[0] == []


def test_the_next_run_removes_what_an_exception_left():
    model = build_model()
    callback = SampleLifespanCallback()
    with pytest.raises(RuntimeError, match="boom"):
        train([callback], model=model, fail=Boom)
    train([callback], model=model)
    assert traces(model)[0] == []
    assert callback.ledger.column("lifetime").sum() == 6


def test_evaluation_never_touches_the_ledger(tmp_path):
    def run(**settings):
        callback = SampleLifespanCallback()
        args = arguments(tmp_path, **settings)
        from datasets import Dataset

        Trainer(
            model=build_model(),
            args=args,
            data_collator=Collator(),
            train_dataset=Dataset.from_list(random_rows()),
            eval_dataset=Dataset.from_list(random_rows(6, seed=5)),
            callbacks=[callback],
        ).train()
        return callback.ledger.to_pandas()

    plain = run()
    evaluated = run(eval_strategy="steps", eval_steps=1, eval_on_start=True)
    pd.testing.assert_frame_equal(plain, evaluated)


def test_two_instances_share_one_pass_and_keep_apart(tmp_path):
    first = SampleLifespanCallback(name="one")
    second = SampleLifespanCallback(LifespanConfig(observe_only=True), name="two")
    alone = SampleLifespanCallback()
    both = train([first, second], output_dir=tmp_path, max_steps=8)
    single = train([alone], max_steps=8)
    assert both.losses == pytest.approx(single.losses, abs=1e-6)
    pd.testing.assert_series_equal(
        first.ledger.to_pandas()["loss"], second.ledger.to_pandas()["loss"]
    )
    assert (second.ledger.to_pandas()["weight"] == 1).all()
    assert (tmp_path / "one" / "samples.csv").exists()
    assert (tmp_path / "two" / "samples.csv").exists()


def test_observe_only_changes_nothing_and_reports():
    settings = {"max_steps": 12}
    plain = train([], **settings)
    callback = SampleLifespanCallback(LifespanConfig(observe_only=True))
    watched = train([callback], **settings)
    assert watched.losses == pytest.approx(plain.losses, abs=1e-6)
    frame = callback.ledger.to_pandas()
    assert frame["weight_raw"].std() > 0


def test_weights_act_in_one_epoch_and_in_three():
    for epochs in (1, 3):
        settings = {"rows": random_rows(40), "num_train_epochs": epochs, "max_steps": -1}
        plain = train([], **settings)
        callback = SampleLifespanCallback()
        watched = train([callback], **settings)
        assert watched.losses != pytest.approx(plain.losses, abs=1e-5)
    frame = callback.ledger.to_pandas()
    assert (frame["lifetime"] == 3).all()
    training = frame[frame["state"] == "TRAINING"]
    mean = (training["weight"] * training["n_tokens"]).sum() / training["n_tokens"].sum()
    assert mean == pytest.approx(1, abs=1e-5)


def test_duplicates_are_one_sample(caplog):
    rows = random_rows(6)
    callback = SampleLifespanCallback()
    train(
        [callback],
        rows=[*rows, rows[0]],
        num_train_epochs=1,
        max_steps=-1,
        per_device_train_batch_size=7,
    )
    frame = callback.ledger.to_pandas()
    assert len(frame) == 6 and (frame["lifetime"] == 1).all()
    assert "repeat another sample" in caplog.text


@pytest.mark.parametrize("known", [True, False], ids=["indexed", "streamed"])
@pytest.mark.parametrize("host", ["trainer", "sft"])
def test_resume_equals_an_uninterrupted_run(tmp_path, host, known):
    config = LifespanConfig(index_dataset=known, sync_every=2, warmup_visits=2)
    settings = {
        "sft": host == "sft",
        "max_steps": 20,
        "save_strategy": "steps",
        "save_steps": 7,
    }
    whole = SampleLifespanCallback(config)
    straight = train([whole], output_dir=tmp_path / "a", **settings)
    first = SampleLifespanCallback(config)

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            if state.global_step == 11:
                raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train([first], output_dir=tmp_path / "b", fail=Stop, **settings)
    second = SampleLifespanCallback(config)
    resumed = train([second], output_dir=tmp_path / "b", resume=True, **settings)
    assert resumed.losses[-9:] == straight.losses[-9:]
    pd.testing.assert_frame_equal(second.ledger.to_pandas(), whole.ledger.to_pandas())
    for ours, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    lines = [m["step"] for m in read_metrics(tmp_path / "b") if "lifespan/weight_mean" in m]
    assert lines == list(range(1, 21))


_KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from transformers import TrainerCallback
from tests.lifespan.runs import train
from hf_glm_curriculum import SampleLifespanCallback
class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 9:
            os.kill(os.getpid(), signal.SIGKILL)
train([SampleLifespanCallback()], output_dir={folder!r}, fail=Kill, max_steps=16,
      save_strategy="steps", save_steps=4)
"""


def test_resume_after_kill_9(tmp_path):
    code = _KILLED.format(root=str(REPOSITORY), folder=str(tmp_path / "b"))
    log = tmp_path / "killed.log"
    assert run_python(log, code) == -signal.SIGKILL, log.read_text()
    settings = {"max_steps": 16, "save_strategy": "steps", "save_steps": 4}
    whole = SampleLifespanCallback()
    straight = train([whole], output_dir=tmp_path / "a", **settings)
    second = SampleLifespanCallback()
    resumed = train([second], output_dir=tmp_path / "b", resume=True, **settings)
    pd.testing.assert_frame_equal(second.ledger.to_pandas(), whole.ledger.to_pandas())
    assert resumed.losses == straight.losses
    steps = [m["step"] for m in read_metrics(tmp_path / "b") if "loss" in m]
    assert steps == list(range(1, 17))


def test_checkpoint_of_another_folder_is_found(tmp_path):
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    whole = SampleLifespanCallback()
    train([whole], output_dir=tmp_path / "a", **settings)
    second = SampleLifespanCallback()
    where = str(tmp_path / "a" / "checkpoint-3")
    train([second], output_dir=tmp_path / "b", resume=where, **settings)
    pd.testing.assert_frame_equal(second.ledger.to_pandas(), whole.ledger.to_pandas())


def test_state_that_does_not_fit_is_named(tmp_path, caplog):
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    train([SampleLifespanCallback()], output_dir=tmp_path, **settings)
    where = str(tmp_path / "checkpoint-2")
    with pytest.raises(StateError, match="history: the checkpoint keeps 5 visits"):
        other = SampleLifespanCallback(LifespanConfig(history=4))
        train([other], output_dir=tmp_path / "c", resume=where, **settings)
    file = tmp_path / "checkpoint-2" / "hf_glm_curriculum" / "lifespan.safetensors"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(StateError, match="not a safetensors file"):
        train([SampleLifespanCallback()], output_dir=tmp_path / "d", resume=where, **settings)
    file.unlink()
    train([SampleLifespanCallback()], output_dir=tmp_path / "e", resume=where, **settings)
    assert "holds no state of 'lifespan'" in caplog.text


class SmallDisk(TrainerCallback):
    """From the first save on, no file of this process may be larger than 3,000 bytes."""

    def on_save(self, args, state, control, **kwargs) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, most))


def test_full_disk_while_saving_leaves_nothing_half_written(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(StateError, match=r"cannot write .*File too large.*free some space"):
            train(
                [SmallDisk(), SampleLifespanCallback()],
                output_dir=tmp_path,
                max_steps=2,
                save_strategy="steps",
                save_steps=1,
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "checkpoint-1" / "hf_glm_curriculum").iterdir()) == []


@pytest.mark.pictures
def test_outputs_are_written_and_readable(tmp_path):
    config = LifespanConfig(suspicion_threshold=0.2, warmup_visits=2)
    callback = SampleLifespanCallback(config, debug_dir=tmp_path / "debug")
    run = train(
        [callback],
        sft=True,
        output_dir=tmp_path,
        num_train_epochs=4,
        max_steps=-1,
        report_to="tensorboard",
        rows=random_rows(20),
    )
    folder = tmp_path / "lifespan"
    samples = pd.read_csv(folder / "samples.csv")
    assert list(samples["row"]) == list(range(20))
    expected = "id row visits loss loss_mean onset_loss loss_slope grad_norm drift weight"
    assert set(f"{expected} weight_raw state suspicion".split()) <= set(samples.columns)
    pool = [
        json.loads(line) for line in (folder / "observation_pool.jsonl").read_text().splitlines()
    ]
    assert {row["row"] for row in pool} == set(samples[samples["state"] != "TRAINING"]["row"])
    assert pool and all(row["text"]["response"] for row in pool)
    assert pool == sorted(pool, key=lambda row: -row["suspicion"])
    for name in ("data_map.png", "weights.png"):
        assert (folder / name).read_bytes()[:4] == b"\x89PNG"
    dump = pd.read_csv(tmp_path / "debug" / "lifespan_samples.csv")
    assert len(dump) == 80 and sorted(dump["step"].unique()) == list(range(1, 41))
    logged = [e for e in run.trainer.state.log_history if "lifespan/weight_mean" in e]
    assert len(logged) == 40
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = set()
    for events in (tmp_path / "runs").rglob("events*") if (tmp_path / "runs").exists() else []:
        accumulator = EventAccumulator(str(events.parent))
        accumulator.Reload()
        found |= set(accumulator.Tags()["scalars"])
    for events in tmp_path.rglob("events.out*"):
        accumulator = EventAccumulator(str(events.parent))
        accumulator.Reload()
        found |= set(accumulator.Tags()["scalars"])
    assert "train/lifespan/weight_mean" in found


def test_a_callable_judge_decides_and_its_verdicts_act(tmp_path):
    seen = []

    def judge(cases):
        seen.append(cases)
        verdicts = ["RELABEL", "MASTERED", "RESAMPLE"]
        return [verdicts[i % 3] for i in range(len(cases))]

    config = LifespanConfig(suspicion_threshold=-1e9, suspicion_visits=1)
    callback = SampleLifespanCallback(config, judge=judge)
    train(
        [callback],
        sft=True,
        num_train_epochs=2,
        max_steps=-1,
        output_dir=tmp_path,
        rows=random_rows(20),
    )
    assert len(seen[0]) >= 4 and seen[0]["response"].notna().all()
    frame = callback.ledger.to_pandas()
    weights = frame.groupby("state")["weight"].unique()
    assert weights["RELABEL"].tolist() == [0.0]
    assert weights["MASTERED"].tolist() == pytest.approx([0.1])
    relabelled = frame[frame["state"] == "RELABEL"]
    assert len(relabelled) >= 4


@pytest.mark.parametrize("answer", [["RELABEL"], ["NONSENSE"] * 10])
def test_a_broken_judge_is_named(answer):
    config = LifespanConfig(suspicion_threshold=-1e9, suspicion_visits=1)
    with pytest.raises(ConfigError, match="judge: "):
        callback = SampleLifespanCallback(config, judge=lambda cases: answer)
        train([callback], num_train_epochs=1, max_steps=-1, rows=random_rows(24))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        ({"use_liger_kernel": True}, "Liger"),
    ],
)
def test_hosts_that_hide_token_losses_are_refused_by_name(settings, message, tmp_path):
    from transformers import TrainingArguments

    args = arguments(tmp_path)
    for name, value in settings.items():
        object.__setattr__(args, name, value)
    assert isinstance(args, TrainingArguments)
    from transformers import TrainerControl, TrainerState

    with pytest.raises(IncompatibleError, match=message):
        SampleLifespanCallback().on_train_begin(
            args, TrainerState(), TrainerControl(), model=build_model()
        )


def test_a_custom_loss_function_is_refused_by_name(tmp_path):
    from datasets import Dataset

    def loss(outputs, labels, num_items_in_batch=None):
        return outputs.logits.float().mean()

    trainer = Trainer(
        model=build_model(),
        args=arguments(tmp_path),
        data_collator=Collator(),
        train_dataset=Dataset.from_list(random_rows()),
        compute_loss_func=loss,
        callbacks=[SampleLifespanCallback()],
    )
    with pytest.raises(IncompatibleError, match="compute_loss_func"):
        trainer.train()


def test_models_without_a_decoder_are_refused_by_name():
    from hf_glm_curriculum import SampleProbe

    with pytest.raises(ModelError, match="causal"):
        SampleProbe(torch.nn.Linear(2, 2))
    from transformers import T5Config, T5ForConditionalGeneration

    t5 = T5ForConditionalGeneration(
        T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    )
    with pytest.raises(IncompatibleError, match="encoder-decoder"):
        SampleProbe(t5)


def test_rows_without_labels_have_no_observation(caplog):
    rows = random_rows(4)
    rows[1]["labels"] = [-100] * len(rows[1]["labels"])
    callback = SampleLifespanCallback()
    train([callback], rows=rows, num_train_epochs=1, max_steps=-1)
    assert sorted(callback.ledger.to_pandas()["row"]) == [0, 2, 3]
    masked = [{**row, "labels": [-100] * len(row["labels"])} for row in rows]
    train([SampleLifespanCallback()], rows=masked, max_steps=1)
    assert "no sample was observed" in caplog.text


def test_padding_token_inside_text_is_text():
    """An id that equals pad is a real token where the mask says so."""
    rows = random_rows(4)
    rows[2]["input_ids"][3] = PAD
    callback = SampleLifespanCallback()
    train([callback], rows=rows, num_train_epochs=1, max_steps=-1)
    assert sorted(callback.ledger.to_pandas()["row"]) == [0, 1, 2, 3]


def test_ledger_round_trip(tmp_path):
    callback = SampleLifespanCallback()
    train([callback], num_train_epochs=2, max_steps=-1)
    callback.ledger.save(tmp_path / "ledger.safetensors")
    loaded = SampleLedger.load(tmp_path / "ledger.safetensors")
    pd.testing.assert_frame_equal(loaded.to_pandas(), callback.ledger.to_pandas())
    assert set(loaded.column("state").tolist()) <= {state.value for state in SampleState}
