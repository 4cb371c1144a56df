"""`sft` with position-graph attention and a dense teacher, resumed too."""

import pytest

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.config import load_config
from hf_glm_curriculum.evaluation.run_folder import read_json_lines
from tests.conftest import REPOSITORY

QUICK = (
    *("--epochs", 1, "--held-out", 0.2, "--answers", 1, "--max-new-tokens", 3),
    *("--logging-steps", 1, "--learning-rate", 0.01, "--max-length", 128, "--cpu"),
)


@pytest.fixture
def sft(cli, tiny_folder, train_file, tmp_path):
    def call(*flags):
        given = ("--model", tiny_folder, "--data", train_file, "--output-dir", tmp_path / "run")
        return cli("sft", *given, *QUICK, *flags)

    return call


def test_the_student_attends_by_the_graph_and_learns_from_itself(sft, tmp_path):
    graph = tmp_path / "graph.yaml"
    graph.write_text("block_size: 16\ntop_k: 32\nwindow: 16\n")
    status, _, errors = sft("--position-graph", graph, "--teacher", "self")
    assert status == 0, errors
    saved = load_config(PositionGraphConfig, tmp_path / "run" / "model" / "position_graph.yaml")
    assert saved.top_k == 32 and saved.block_size == 16
    metrics = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    terms = {key for line in metrics for key in line if "teacher" in key}
    assert terms, "the teacher's term is logged"
    keys = [line["position_graph/keys"] for line in metrics if "position_graph/keys" in line]
    assert keys and set(keys) == {32.0}


def test_bad_settings(sft, tmp_path):
    status, _, errors = sft("--teacher", "self", "--teacher-weight", 0)
    assert status == 2 and "teacher_weight" in errors
    (tmp_path / "graph.yaml").write_text("topk: 32\n")
    status, _, errors = sft("--position-graph", tmp_path / "graph.yaml")
    assert status == 2 and "top_k" in errors


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "configs" / "attention").glob("*.yaml")), ids=lambda p: p.name
)
def test_shipped_configs_are_valid_and_name_their_command(path):
    from hf_glm_curriculum.commands.sft_config import SftCommandConfig

    first = path.read_text("utf-8").splitlines()[0]
    assert first.startswith("# hf-glm-curriculum ") and f"configs/attention/{path.name}" in first
    kind = SftCommandConfig if path.name == "distill.yaml" else PositionGraphConfig
    load_config(kind, path)
