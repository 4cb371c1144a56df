"""Editing a loss while training runs: by hand, by command, badly, and across a resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from hf_glm_curriculum import (
    CompositeLoss,
    CompositeLossCallback,
    LifespanConfig,
    LossSwapCallback,
    SampleLifespanCallback,
)
from hf_glm_curriculum.commands.main import main
from hf_glm_curriculum.errors import ConfigError, StateError
from hf_glm_curriculum.losses.schedules import linear
from hf_glm_curriculum.losses.terms import CausalLMLoss, TemperatureLoss, ZLoss
from hf_glm_curriculum.reporting import read_metrics
from tests.conftest import build_model
from tests.lifespan.runs import Run, train


def make() -> CompositeLoss:
    composite = CompositeLoss({"lm": CausalLMLoss(), "instruction": TemperatureLoss(2.0)})
    composite.register("z", ZLoss())
    return composite


class Editor(TrainerCallback):
    """Writes the control file at the end of given steps, and notes the weights in each step."""

    def __init__(self, path: Path, edits: dict[int, Any], composite: CompositeLoss) -> None:
        self.path, self.edits, self.composite = path, edits, composite
        self.weights: list[dict[str, float]] = []

    def on_pre_optimizer_step(self, args, state, control, **kwargs) -> None:
        self.weights.append(dict(self.composite.weights))

    def on_step_end(self, args, state, control, **kwargs) -> None:
        edit = self.edits.get(state.global_step)
        if callable(edit):
            edit()
        elif edit is not None:
            self.path.write_text(edit)


def run(
    folder: Path, edits: dict[int, Any], composite: CompositeLoss | None = None, **settings: Any
) -> tuple[Run, Editor, CompositeLoss]:
    composite = composite or make()
    swap = LossSwapCallback(composite, settle_seconds=0.0)
    editor = Editor(folder / "control.yaml", edits, composite)
    callbacks = [CompositeLossCallback(composite), swap, editor]
    settings = {"max_steps": 6, **settings}
    return train(callbacks, output_dir=folder, **settings), editor, composite


def status(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "control.status.json").read_text())


def test_edits_act_from_the_next_step_and_are_logged(tmp_path):
    edits = {
        2: "loss:\n  instruction: 0.3\n",
        3: "loss: {instruction: {active: false}}",
        4: "loss:\n  instruction: {active: true, schedule: {kind: linear, end: 6, to: 1.0}}\n",
    }
    _, editor, composite = run(tmp_path, edits)
    assert [w["instruction"] for w in editor.weights] == pytest.approx([1, 1, 0.3, 0, 0.3, 0.65])
    logged = [m for m in read_metrics(tmp_path) if any("loss_swap" in k for k in m)]
    assert [(m["step"], {k: v for k, v in m.items() if "swap" in k}) for m in logged] == [
        (2, {"loss_swap/instruction/weight": 0.3}),
        (3, {"loss_swap/instruction/active": 0.0}),
        (4, {"loss_swap/instruction/active": 1.0, "loss_swap/instruction/schedule": 1.0}),
    ]
    assert [e["step"] for e in composite.edits] == [2, 3, 4]
    assert status(tmp_path)["terms"]["instruction"]["schedule"]["end"] == 6


BROKEN = {
    "half": ("loss:\n  instruction: {weight: 0.3, act", "is not valid YAML"),
    "term": ("loss: {instrution: 0.3}", "no term 'instrution'; did you mean instruction?"),
    "field": ("loss: {instruction: {wieght: 0.3}}", "did you mean weight?"),
    "section": ("losses: {instruction: 0.3}", "did you mean loss?"),
    "value": ("loss: {instruction: much}", "must be float"),
    "negative": ("loss: {instruction: -1}", "0 or more, got -1"),
    "list": ("loss: [instruction]", "must be a mapping of term names"),
    "nothing": ("loss: {instruction: 0, lm: {active: false}}", "would be left; keep one"),
    "unjoined": ("loss: {z: 0.1}", "has not joined; write `z: {joined: true"),
    "outside": (
        "loss: {lm: {schedule: {kind: linear, start: 90, end: 99, to: 0}}}",
        "begins at step 90, and the run ends after 6",
    ),
    "half good": ("loss: {lm: 0.5, instruction: {active: maybe}}", "must be bool"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_edit_changes_nothing_and_is_said_once(kind, tmp_path, caplog):
    text, message = BROKEN[kind]
    found, editor, composite = run(tmp_path, {2: text})
    assert editor.weights == [{"lm": 1.0, "instruction": 1.0}] * 6
    refusals = [r.getMessage() for r in caplog.records if "refused" in r.getMessage()]
    assert len(refusals) == 1 and message in refusals[0]
    assert found.trainer.state.global_step == 6
    assert [m["step"] for m in read_metrics(tmp_path) if "loss_swap/refused" in m] == [2]
    assert message in status(tmp_path)["refused"] and len(composite.edits) == 1


def test_a_corrected_file_is_applied_after_a_broken_one(tmp_path):
    edits = {1: "loss: {instrution: 0.3}", 3: "loss: {instruction: 0.3}"}
    _, editor, _ = run(tmp_path, edits)
    assert [w["instruction"] for w in editor.weights] == [1, 1, 1, 0.3, 0.3, 0.3]
    assert status(tmp_path)["refused"] == ""


def test_a_file_that_is_still_being_written_waits(tmp_path):
    composite = make()
    swap = LossSwapCallback(composite, settle_seconds=1e6)
    editor = Editor(tmp_path / "control.yaml", {1: "loss: {lm: 0.5}"}, composite)
    train([CompositeLossCallback(composite), swap, editor], output_dir=tmp_path, max_steps=4)
    assert composite.weights["lm"] == 1.0 and composite.edits == []


def test_registered_terms_pass_a_preflight_and_join(tmp_path):
    edits = {
        1: "loss: {z: {joined: true, weight: 1.0e-3}}",
        14: "loss: {z: {joined: false}}",
    }
    found, editor, composite = run(tmp_path, edits, max_steps=16)
    joined = [step for step, w in enumerate(editor.weights, 1) if "z" in w]
    assert joined == [12, 13, 14]  # ten micro-batches in steps 2 to 11
    plain, _, _ = run(tmp_path / "plain", {}, max_steps=16)
    assert plain.losses[:11] == pytest.approx(found.losses[:11], abs=1e-7)
    assert plain.losses[11] != pytest.approx(found.losses[11], abs=1e-7)
    assert [m["step"] for m in read_metrics(tmp_path) if m.get("losses/z/joined")] == [11]
    assert composite.edits[1] == {"step": 11, "term": "z", "joined": True, "reason": ""}


class Separate(torch.nn.Module):
    """A term with an embedding of its own, which trains nothing of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(260, 4)

    def forward(self, context):
        return self.table(context.input_ids).square().mean()


REFUSED = {
    "huge": (lambda c: c.token_loss * 1e6, "times the running total"),
    "nan": (lambda c: c.token_loss.sum() * float("nan"), "NaN or infinity on 3 of its batches"),
    "raises": (lambda c: c.token_loss[:, :, 7], "it raised IndexError"),
    "reads": (lambda c: c.column("labels2"), "reads the batch column 'labels2'"),
    "constant": (lambda c: torch.tensor(3.0), "does not reach the trained model's token embedding"),
    "separate": (Separate(), "does not reach the trained model's token embedding"),
}


@pytest.mark.parametrize(
    ("kind", "tied"),
    [(kind, False) for kind in REFUSED] + [("constant", True), ("separate", True)],
)
def test_terms_that_would_do_harm_are_refused(kind, tied, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("hf_glm_curriculum.losses.composite.PREFLIGHT_BATCHES", 3)
    term, message = REFUSED[kind]
    composite = make()
    composite.register("new", term)
    edits = {1: "loss: {new: {joined: true, weight: 1.0}}"}
    models = [build_model(tie_word_embeddings=tied) for _ in range(2)]
    found, editor, _ = run(tmp_path, edits, composite, model=models[0])
    assert all(set(w) == {"lm", "instruction"} for w in editor.weights)
    assert any("term 'new' was refused" in r.getMessage() for r in caplog.records)
    assert message in composite.edits[1]["reason"]
    if kind == "nan":  # nothing of it reached the model
        plain, _, _ = run(tmp_path / "plain", {}, model=models[1])
        assert found.losses == plain.losses


def test_force_takes_a_huge_term_as_it_is(tmp_path):
    composite = make()
    composite.register("new", lambda c: c.token_loss * 1e6)
    edits = {1: "loss: {new: {joined: true, weight: 1.0, force: true}}"}
    _, editor, _ = run(tmp_path, edits, composite, max_steps=12)
    assert "new" in editor.weights[-1]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_nan_in_mid_run_refuses_the_step_and_the_term(accumulation, tmp_path, caplog):
    composite = make()
    bad = {"now": False}
    composite.add_term(
        "sick", lambda c: c.token_loss.mean() * (float("nan") if bad["now"] else 0.0)
    )
    seen = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs) -> None:
            bad["now"] = state.global_step == 2
            seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]).clone())

    train(
        [CompositeLossCallback(composite), Watch()],
        output_dir=tmp_path,
        max_steps=5,
        gradient_accumulation_steps=accumulation,
    )
    assert torch.equal(seen[2], seen[3]) and not torch.equal(seen[3], seen[4])
    assert all(torch.isfinite(s).all() for s in seen)
    assert composite.weights["sick"] == 0
    assert "term 'sick' returned NaN or infinity at step 2" in caplog.text
    assert [m["step"] for m in read_metrics(tmp_path) if "losses/sick/nonfinite" in m] == [2]


@pytest.mark.parametrize("policy", ["deactivate", "stop"])
def test_nan_of_the_last_term_ends_training(policy, tmp_path):
    composite = CompositeLoss({"sick": lambda c: c.token_loss / 0}, on_nonfinite=policy)
    message = "on_nonfinite='stop'" if policy == "stop" else "no other term is active"
    with pytest.raises(StateError, match=message):
        train([CompositeLossCallback(composite)], output_dir=tmp_path)


def test_resumed_is_uninterrupted(tmp_path):
    edits = {
        1: "loss: {instruction: {schedule: {kind: linear, start: 1, end: 6, to: 0.0}}}",
        2: "loss: {lm: 0.5, instruction: {schedule: {kind: linear, start: 1, end: 6, to: 0.0}}}",
    }
    settings = {"save_strategy": "steps", "save_steps": 4}
    straight, one, before = run(tmp_path, edits, **settings)
    assert (tmp_path / "checkpoint-4" / "hf_glm_curriculum" / "losses.json").exists()
    resumed, other, after = run(tmp_path, {}, resume=str(tmp_path / "checkpoint-4"), **settings)
    assert other.weights == one.weights[4:]
    assert after.edits == before.edits
    assert [e["changes"].keys() for e in after.edits] == [{"instruction"}, {"lm"}]
    for a, b in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    (tmp_path / "control.yaml").write_text("loss: {lm: 0.25}")
    _, third, _ = run(tmp_path, {}, resume=str(tmp_path / "checkpoint-4"), **settings)
    assert [w["lm"] for w in third.weights] == [0.25, 0.25]


def test_a_resumed_run_must_know_its_terms(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4}
    run(tmp_path, {}, **settings)
    lost = CompositeLoss({"lm": CausalLMLoss()})
    with pytest.raises(StateError, match="had instruction, which this composite does not know"):
        run(tmp_path, {}, lost, resume=str(tmp_path / "checkpoint-4"), **settings)


def test_a_deactivated_term_stays_out_after_a_resume(tmp_path):
    def sick() -> CompositeLoss:
        composite = make()
        composite.add_term("sick", lambda c: c.token_loss.mean() / (c.step != 1))
        return composite

    settings = {"save_strategy": "steps", "save_steps": 4}
    _, _, composite = run(tmp_path, {}, sick(), **settings)
    assert composite.weights["sick"] == 0
    _, editor, _ = run(tmp_path, {}, sick(), resume=str(tmp_path / "checkpoint-4"), **settings)
    assert [w["sick"] for w in editor.weights] == [0, 0]


def test_swaps_work_through_compute_loss_func(tmp_path):
    from datasets import Dataset
    from transformers import Trainer

    from tests.lifespan.runs import Collator, arguments, random_rows

    composite = make()
    swap = LossSwapCallback(composite, tmp_path / "mine.yaml", settle_seconds=0.0)
    editor = Editor(tmp_path / "mine.yaml", {1: "loss: {lm: 0.5}"}, composite)
    Trainer(
        model=build_model(),
        args=arguments(tmp_path),
        train_dataset=Dataset.from_list(random_rows()),
        data_collator=Collator(),
        callbacks=[swap, editor],
        compute_loss_func=composite,
    ).train()
    assert [w["lm"] for w in editor.weights] == [1, 0.5, 0.5]
    told = [m for m in read_metrics(tmp_path) if "losses/lm" in m]
    assert [m["losses/lm/weight"] for m in told] == [1, 0.5, 0.5]
    for entry in told:
        assert entry["losses/lm/share"] + entry["losses/instruction/share"] == pytest.approx(1)


def test_edits_that_exact_norms_cannot_follow_are_refused(tmp_path):
    composite = CompositeLoss({"lm": CausalLMLoss()})
    life = SampleLifespanCallback(LifespanConfig(grad_norm="exact"))
    callbacks = [
        life,
        CompositeLossCallback(composite),
        LossSwapCallback(composite, settle_seconds=0.0),
        Editor(tmp_path / "control.yaml", {1: "loss: {lm: 0.5}"}, composite),
    ]
    train(callbacks, output_dir=tmp_path)
    assert composite.weights == {"lm": 1.0}
    assert "grad_norm='exact'" in status(tmp_path)["refused"]


def test_bad_settings():
    with pytest.raises(ConfigError, match="poll_every: must be at least 1, got 0"):
        LossSwapCallback(make(), poll_every=0)


def test_a_schedule_of_code_survives_a_resume(tmp_path):
    def scheduled() -> CompositeLoss:
        composite = make()
        composite.schedule("instruction", lambda step: 1.0 / (1 + step))
        composite.schedule("lm", linear(0, 6, 1.0, 0.4))
        return composite

    settings = {"save_strategy": "steps", "save_steps": 4}
    _, one, _ = run(tmp_path, {}, scheduled(), **settings)
    _, other, _ = run(tmp_path, {}, scheduled(), resume=str(tmp_path / "checkpoint-4"), **settings)
    assert other.weights == one.weights[4:]


class Command(TrainerCallback):
    """Runs the command in the middle of training."""

    def __init__(self, step: int, *argv: str) -> None:
        self.step, self.argv, self.code = step, argv, None

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step == self.step:
            self.code = main(list(self.argv))


def test_the_command_changes_a_run_and_shows_it(tmp_path, capsys):
    composite = make()
    folder = str(tmp_path)
    calls = [
        Command(2, "control", folder, "set", "loss.instruction=0.3", "loss.lm.active=true"),
        Command(3, "control", folder, "set", "loss.instrution=0.5"),
        Command(4, "control", folder, "set", "loss.z.joined=true", "loss.z.weight=1e-4"),
    ]
    swap = LossSwapCallback(composite, settle_seconds=0.0)
    editor = Editor(tmp_path / "none", {}, composite)
    callbacks = [CompositeLossCallback(composite), swap, editor, *calls]
    train(callbacks, output_dir=tmp_path, max_steps=16)
    assert [c.code for c in calls] == [0, 2, 0]
    assert [w["instruction"] for w in editor.weights] == [1, 1] + [0.3] * 14
    assert composite.weights["z"] == 1e-4
    error = capsys.readouterr().err
    assert "error: loss: no term 'instrution'; did you mean instruction?" in error
    assert main(["control", folder, "show"]) == 0
    shown = capsys.readouterr().out
    assert "Loss terms at step 16 of 16" in shown and "0.3" in shown
    assert "step 2: instruction.weight = 0.3" in shown and "z joined" in shown


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nowhere", "show"], "no such folder"),
        (["{run}", "show"], "no run with LossSwapCallback has begun there"),
        (["{run}", "show", "loss.a=1"], "show takes no assignments"),
        (["{run}", "set"], "needs at least one"),
        (["{run}", "set", "loss.a"], "must look like loss.NAME=WEIGHT"),
        (["{run}", "set", "lose.a=1"], "did you mean loss?"),
        (["{run}", "set", "loss.a={"], "not a YAML value"),
        (["{run}", "set", "loss.a.wait=1"], "no field 'wait'"),
    ],
)
def test_the_command_names_what_is_wrong(argv, message, tmp_path, capsys):
    assert main(["control", *(a.replace("{run}", str(tmp_path)) for a in argv)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "control.yaml").exists()


def test_the_command_before_any_run_writes_what_the_run_will_read(tmp_path, capsys):
    assert main(["control", str(tmp_path), "set", "loss.lm=0.5"]) == 0
    assert "names are checked when one reads the file" in capsys.readouterr().out
    assert main(["control", str(tmp_path), "set", "loss.lm.active=true"]) == 0
    _, editor, _ = run(tmp_path, {})
    assert editor.weights[0]["lm"] == 0.5


def test_edits_of_several_people_at_once_are_all_kept(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    from hf_glm_curriculum.losses.control_files import set_terms

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda n: set_terms(tmp_path, [f"loss.term{n}={n / 100}"]), range(36)))
    _, section, _ = set_terms(tmp_path, ["loss.last=1"])
    assert section == {**{f"term{n}": n / 100 for n in range(36)}, "last": 1}


def test_an_edit_of_a_finished_run_is_said_to_reach_nobody(tmp_path, capsys):
    (tmp_path / "run.json").write_text('{"status": "finished"}')
    assert main(["control", str(tmp_path), "set", "loss.a=1"]) == 0
    assert "the run has finished" in capsys.readouterr().out
