"""`scaling sweep`: trains, fits, goes on after a kill, grows; and refuses what it cannot do."""

import csv
import json

import pytest

from hf_glm_curriculum.commands import scaling_sweep_train
from hf_glm_curriculum.scaling.sweep import DIVERGED

WORDS = "the of and a to in is was he for it with as his on be at by had not are but from or"


def write_documents(folder):
    """Text with a little structure: words in an order that depends on the one before."""
    folder.mkdir()
    words = WORDS.split()
    for number in range(20):
        text, place = [], number
        for step in range(600):
            place = (place * 7 + step % 5 + number) % len(words)
            text.append(words[place])
        (folder / f"{number}.txt").write_text(" ".join(text))
    return folder


def settings(tmp_path, folder="sweep", **changes):
    documents = tmp_path / "documents"
    if not documents.exists():
        write_documents(documents)
    values = {
        "documents": documents,
        "output_dir": tmp_path / folder,
        "architectures": "llama",
        "shapes": "1x16 1x32 1x48",
        "tokens": "512 1024 2048",
        "length": 16,
        "batch_size": 4,
        "held_out_rows": 8,
        "vocab_size": 300,
        "form": "chinchilla",
        "bootstraps": 0,
        "saves": 1,
        **changes,
    }
    found = ["scaling", "sweep", "--cpu"]
    for name, value in values.items():
        found += ["--" + name.replace("_", "-"), *str(value).split()]
    return found


def results(folder):
    with (folder / "runs.csv").open() as file:
        return {row["run"]: row for row in csv.DictReader(file)}


@pytest.fixture
def smooth(monkeypatch):
    """Losses by a law in place of training, so that nine tiny runs identify one."""
    train = scaling_sweep_train.train_cell
    calls = []

    def by_law(config, cell, corpus, folder, advance):
        calls.append(cell.name)
        result = train(config, cell, corpus, folder, advance)
        result["measured"] = result["loss"]
        result["loss"] = 1.5 + 30 / result["N"] ** 0.4 + 40 / result["D"] ** 0.5
        return result

    monkeypatch.setattr(scaling_sweep_train, "train_cell", by_law)
    return calls


def test_a_sweep_trains_its_grid_once_and_fits_it(tmp_path, cli, smooth):
    status, shown, errors = cli(*settings(tmp_path))
    assert status == 0, errors
    assert "[9/9]" in shown and "All runs: L = E + A/N^alpha" in shown
    folder = tmp_path / "sweep"
    rows = results(folder)
    assert len(rows) == 9 and len(smooth) == 9
    for row in rows.values():
        assert int(row["N"]) == int(row["parameters_matmul"]) < int(row["parameters_total"])
        assert float(row["flops"]) == 6 * int(row["N"]) * int(row["D"])
    law = json.loads((folder / "law.json").read_text())
    assert law["conventions"]["parameters"] == "matmul"
    assert law["parameters"]["alpha"] == pytest.approx(0.4, rel=0.05)
    assert (folder / "isoflop.png").is_file() and not list(folder.glob("sweep/*/checkpoint-*"))
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    # Going on trains nothing again; further sizes are added to what there is.
    status, shown, _ = cli(*settings(tmp_path, tokens="512 1024 2048 3072"), "--resume")
    assert status == 0 and "9 of 12 runs are finished already" in shown
    assert len(smooth) == 12 and len(results(folder)) == 12


def test_another_seed_trains_again_and_overwriting_clears(tmp_path, cli, smooth):
    cli(*settings(tmp_path, shapes="1x16 1x32 1x48", tokens="512 1024 2048"))
    cli(*settings(tmp_path, seed=1), "--resume")
    assert len(smooth) == 18
    status, shown, _ = cli(*settings(tmp_path, seed=1), "--overwrite")
    assert status == 0 and "finished already" not in shown and len(smooth) == 27


def test_a_run_stopped_on_its_way_ends_where_it_would_have(tmp_path, cli, monkeypatch):
    arguments = {"shapes": "1x16", "tokens": "2048", "saves": 3}
    cli(*settings(tmp_path, "straight", **arguments))
    steps = scaling_sweep_train._Steps.on_step_end

    def interrupted(self, args, state, control, **kwargs):
        steps(self, args, state, control, **kwargs)
        if state.global_step == 20:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(scaling_sweep_train._Steps, "on_step_end", interrupted)
        assert cli(*settings(tmp_path, "stopped", **arguments))[0] == 130
    (checkpoint,) = (tmp_path / "stopped").glob("sweep/*/checkpoint-*")
    assert checkpoint.name == "checkpoint-16"
    cli(*settings(tmp_path, "stopped", **arguments), "--resume")
    straight, stopped = results(tmp_path / "straight"), results(tmp_path / "stopped")
    assert [row["loss"] for row in straight.values()] == [row["loss"] for row in stopped.values()]


def test_a_checkpoint_that_a_kill_tore_is_not_gone_on_from(tmp_path):
    for step, text in ((4, "{}"), (8, '{"log_his')):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    (tmp_path / "checkpoint-12").mkdir()
    assert scaling_sweep_train.whole_checkpoint(tmp_path) == tmp_path / "checkpoint-4"


def test_a_diverged_run_is_kept_without_a_loss(tmp_path, cli):
    _, shown, errors = cli(*settings(tmp_path, learning_rate=1e4, shapes="1x16", tokens="2048"))
    (row,) = results(tmp_path / "sweep").values()
    assert row["status"] == DIVERGED and row["loss"] == "" and "diverged" in shown
    assert "error:" in errors  # one run is no law


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shapes": "2by32"}, "must look like 2x48"),
        ({"shapes": "1x20"}, "hidden size 20 is no multiple of head_size 16"),
        ({"tokens": "10"}, "less than one step of 64"),
        ({"documents": "/nowhere.txt"}, "/nowhere.txt: no such file"),
        ({"held_out_rows": 100000}, "lower held_out_rows"),
        ({"learning_rate": 0}, "learning_rate: must be above 0"),
        ({"architectures": "gpt2"}, "architectures"),
    ],
)
def test_sweeps_that_cannot_be_run_end_in_one_line(tmp_path, refused, change, words):
    assert words in refused(*settings(tmp_path, **change))
    assert not (tmp_path / "sweep").exists()


def test_one_size_trains_and_says_why_there_is_no_law(tmp_path, refused):
    message = refused(*settings(tmp_path, shapes="1x16"))
    assert "under-identified" in message
    assert len(results(tmp_path / "sweep")) == 3
