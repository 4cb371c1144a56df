"""Tables of runs: usual column names, FLOPs for tokens, and errors that name the line."""

import numpy as np
import pytest

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.scaling.conventions import Conventions
from hf_glm_curriculum.scaling.run_table import read_runs


def table(tmp_path, text, name="runs.csv"):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return path


def test_columns_are_found_by_their_usual_names(tmp_path):
    text = "\ufeffParams,Train Tokens,Eval-Loss\n1e6,2e7,3.5\n\n2_000_000,4e7,3.1\n"
    runs = read_runs(table(tmp_path, text))
    assert runs.N.tolist() == [1e6, 2e6] and runs.D.tolist() == [2e7, 4e7]
    assert runs.L.tolist() == [3.5, 3.1] and runs.U is None
    assert runs.lines == [2, 4]


def test_flops_give_the_tokens(tmp_path):
    path = table(tmp_path, "Model Size,Training FLOP,loss\n1e6,1.2e14,3.5\n")
    assert read_runs(path).D.tolist() == [2e7]
    assert read_runs(path, conventions=Conventions(flops_per_parameter_token=3)).D[0] == 4e7
    assert "D = C/(6·N) of 'Training FLOP'" in read_runs(path).used


def test_columns_may_be_named(tmp_path):
    path = table(tmp_path, "a,b,c,loss,u\n1e6,2e7,3.5,9,1e7\n")
    runs = read_runs(path, {"N": "a", "D": "b", "L": "c", "U": "u"})
    assert (runs.N[0], runs.D[0], runs.L[0], runs.U[0]) == (1e6, 2e7, 3.5, 1e7)


def test_json_lines_are_read_too(tmp_path):
    text = '{"N": 1e6, "D": 2e7, "loss": 3.5}\n{"N": 2e6, "D": 2e7, "loss": null}\n'
    runs = read_runs(table(tmp_path, text, "runs.jsonl"))
    assert runs.L[0] == 3.5 and np.isnan(runs.L[1])


def test_an_empty_loss_is_a_run_without_one(tmp_path):
    runs = read_runs(table(tmp_path, "N,D,loss\n1e6,2e7,\n1e6,2e7,nan\n"))
    assert np.isnan(runs.L).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no rows"),
        ("N,D,loss\n", "holds no rows"),
        ("N,D,loss\n1,2\n", "line 2: has 2 cells for 3 columns"),
        ("N,D,loss\n1,2,3\n1,x7,3\n", "line 3: column 'D' must hold a number, got 'x7'"),
        ("size,D,loss\n1,2,3\n", "no column of parameters .* --n-column"),
        ("N,loss\n1,2\n", "no column of tokens .* --c-column"),
        ("N,D,L2\n1,2,3\n", "no column of losses .* --loss-column"),
    ],
)
def test_bad_tables_are_refused_with_the_place(tmp_path, text, words):
    with pytest.raises(DataError, match=words):
        read_runs(table(tmp_path, text))


def test_files_that_are_no_tables_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*none.csv: No such file"):
        read_runs(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"N,D,loss\n\xff\xfe\x00")
    with pytest.raises(DataError, match="is not UTF-8"):
        read_runs(tmp_path / "b.csv")
    with pytest.raises(DataError, match="line 1: not JSON"):
        read_runs(table(tmp_path, "N,D\n", "runs.jsonl"))
    with pytest.raises(DataError, match="line 1: must be an object"):
        read_runs(table(tmp_path, "[1]\n", "runs.jsonl"))
    with pytest.raises(DataError, match="has no column 'x'; it has N, D, loss"):
        read_runs(table(tmp_path, "N,D,loss\n1,2,3\n"), {"N": "x"})
