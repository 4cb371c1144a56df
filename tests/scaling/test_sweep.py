"""The grid of a sweep, what identifies a run, its table; and how parameters are counted."""

import csv
import math

import pytest

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.scaling.conventions import Conventions
from hf_glm_curriculum.scaling.counting import attention_flops_per_token, count_parameters
from hf_glm_curriculum.scaling.sweep import (
    COLUMNS,
    Cell,
    grid,
    keep_result,
    result_of,
    write_results,
)


def test_the_grid_is_every_combination_cheapest_first():
    cells = grid(["glm", "llama"], ["2x32", "1x16"], [1000, 100])
    assert len(cells) == 8 and len({cell.name for cell in cells}) == 8
    assert cells[0] == Cell("glm", 1, 16, 100) and cells[-1] == Cell("llama", 2, 32, 1000)
    assert len(grid(["glm"], ["1x16", "1x16"], [100])) == 1


@pytest.mark.parametrize("shape", ["2", "x32", "2x", "0x32", "2x0", "2×32", "two"])
def test_shapes_that_are_none_are_refused(shape):
    with pytest.raises(ConfigError, match="must look like 2x48"):
        grid(["glm"], [shape], [100])


def test_nothing_to_run_is_refused():
    with pytest.raises(ConfigError, match="needs at least one value"):
        grid(["glm"], [], [100])


def test_a_result_belongs_to_its_settings(tmp_path):
    cell = Cell("glm", 1, 16, 100)
    key = cell.key({"seed": 0})
    assert key == cell.key({"seed": 0}) != cell.key({"seed": 1})
    assert key != Cell("glm", 1, 16, 200).key({"seed": 0})
    assert result_of(tmp_path, cell, key) is None
    keep_result(tmp_path, cell, key, {"loss": 2.5, "status": "finished"})
    assert result_of(tmp_path, cell, key) == {"loss": 2.5, "status": "finished"}
    assert result_of(tmp_path, cell, cell.key({"seed": 1})) is None


def test_diverged_runs_stand_in_the_table_without_a_loss(tmp_path):
    cell = Cell("glm", 1, 16, 100)
    keep_result(tmp_path, cell, "k", {"loss": math.nan, "run": cell.name, "status": "diverged"})
    result = result_of(tmp_path, cell, "k")
    assert result is not None and result["loss"] is None
    write_results(tmp_path / "runs.csv", [result])
    (row,) = csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())
    assert tuple(row) == COLUMNS and row["loss"] == "" and row["status"] == "diverged"


@pytest.mark.parametrize("kind", ["llama", "glm", "gpt2"])
def test_parameters_are_counted_by_every_convention(tiny_model, kind):
    model = tiny_model(kind)
    count = count_parameters(model)
    table = model.get_input_embeddings().weight.numel()
    assert count.total == sum(p.numel() for p in model.parameters())
    tied = kind == "gpt2"
    assert count.matmul == count.total - (0 if tied else table)
    assert count.non_embedding == count.total - table * (1 if tied else 2)
    assert count.by("matmul") == count.matmul and count.by("unspecified") == count.total


def test_attention_costs_what_its_two_products_cost():
    layers, width, length = 3, 64, 128
    # A query against (length + 1)/2 keys on average: a score and a weighted sum, 2 FLOPs a
    # component each, thrice over for forward and backward.
    exact = 3 * layers * 2 * 2 * width * (length + 1) / 2
    assert attention_flops_per_token(layers, width, length) == pytest.approx(exact, rel=0.01)


def test_conventions_are_checked_and_told():
    with pytest.raises(ConfigError, match="parameters: must be one of"):
        Conventions("all")
    with pytest.raises(ConfigError, match="flops_per_parameter_token: must be above 0"):
        Conventions(flops_per_parameter_token=0)
    kept = Conventions("matmul", tokenizer="BPE")
    assert Conventions.from_dict({**kept.as_dict(), "later": 1}) == kept
    assert "C = 6·N·D" in kept.line() and "BPE" in kept.line()
    assert kept.tokens(kept.flops(1e9, 2e10), 1e9) == pytest.approx(2e10)
