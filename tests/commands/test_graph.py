"""`graph build`, `show` and `explain` on texts and dialogues."""

import json

import pytest

from hf_glm_curriculum.attention.graph import PositionGraph
from tests.conftest import build_tokenizer

TEXT = "# Contract\n\n1. Fees\n" + "Fees are due. " * 20 + "\n2. Rest\nas Section 1 says, " * 3


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "contract.md"
    path.write_text(TEXT, "utf-8")
    return path


@pytest.fixture
def saved(cli, document, tiny_folder, tmp_path):
    out = tmp_path / "made" / "graph.npz"
    flags = ("--model", tiny_folder, "--block-size", 16, "--window", 32, "--top-k", 128)
    status, shown, errors = cli("graph", "build", document, "--out", out, *flags)
    assert status == 0, errors
    assert f"{len(TEXT)} positions" in shown and "reference" in shown
    return out


def test_a_graph_is_built_with_its_settings(saved):
    graph = PositionGraph.load(saved, build_tokenizer())
    assert graph.config.block_size == 16 and graph.config.window == 32
    assert "clause" in graph.edge_kinds


def test_a_graph_is_shown(cli, saved, tiny_folder, tmp_path):
    folder = tmp_path / "pictures"
    status, shown, _ = cli("graph", "show", saved, "--out", folder, "--model", tiny_folder)
    assert status == 0 and "graph.html" in shown
    assert {p.name for p in folder.iterdir()} == {"graph.png", "similarity.png", "graph.html"}


def test_a_query_is_explained(cli, saved, tiny_folder):
    position = TEXT.rindex("as Section 1") + 40
    ask = ("graph", "explain", saved, "--position", min(position, len(TEXT) - 1))
    status, shown, _ = cli(*ask, "--model", tiny_folder)
    assert status == 0
    assert "blocks kept" in shown and "always" in shown
    status, shown, _ = cli(*ask, "--model", tiny_folder, "--json")
    found = json.loads(shown)
    assert found["budget"] == 8 and len(found["kept"]) == 8
    assert any("reference" in reason for entry in found["kept"] for reason in entry["reasons"])


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "usr", "content": "你好"}, {"role": "sys", "content": "在"}]},
        {"prompt": "Hello?", "response": "Yes."},
        {"text": "some text"},
    ],
)
def test_records_of_every_form_are_read(cli, record, tiny_folder, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "first"}) + "\n" + json.dumps(record) + "\n", "utf-8")
    out = tmp_path / "graph.npz"
    status, _, errors = cli(
        "graph", "build", path, "--row", 1, "--out", out, "--model", tiny_folder
    )
    assert status == 0, errors
    graph = PositionGraph.load(out, build_tokenizer())
    assert ("turn_next" in graph.edge_kinds) == ("text" not in record)


def test_edges_and_a_config_file_are_taken(cli, document, tiny_folder, tmp_path):
    settings = tmp_path / "graph.yaml"
    settings.write_text("block_size: 32\nstructure: []\nwindow: 64\n", "utf-8")
    out = tmp_path / "graph.npz"
    status, _, errors = cli(
        "graph", "build", document, "--out", out, "--model", tiny_folder, "--config", settings,
        "--window", 32, "--edge", 200, 10, "--edge", 5, 150,
    )  # fmt: skip
    assert status == 0, errors
    graph = PositionGraph.load(out, build_tokenizer())
    assert (graph.config.block_size, graph.config.window) == (32, 32)
    user = [e for e, k in zip(graph.edges.tolist(), graph.edge_kinds, strict=True) if k == "user"]
    assert sorted(user) == [[150, 5], [200, 10]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--structure", "markdwn"), "did you mean 'markdown'"),
        (("--block-size", 48), "block_size: must be 16"),
        (("--edge", 1, 99999), "below the graph's length"),
        (("--encoder", "sum"), "encoder"),
    ],
)
def test_bad_settings_are_one_line(cli, document, tiny_folder, tmp_path, arguments, words):
    out = tmp_path / "graph.npz"
    status, _, errors = cli(
        "graph", "build", document, "--out", out, "--model", tiny_folder, *arguments
    )
    assert status == 2 and words in errors and len(errors.strip().splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "row", "words"),
    [
        (None, 0, "no such file"),
        ('{"text": "a"}\n', 1, "--row: must be at least 0 and below 1"),
        ("[1]\n", 0, "must have messages, prompt and response, or text"),
        ("{broken\n", 0, "is not JSON"),
        ('{"messages": ["hello"]}\n', 0, "each message must have a role and content"),
    ],
)
def test_bad_records_are_one_line(cli, content, row, words, tiny_folder, tmp_path):
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_text(content, "utf-8")
    status, _, errors = cli(
        "graph", "build", path, "--row", row, "--out", tmp_path / "g.npz", "--model", tiny_folder
    )
    assert status == 2 and words.lower() in errors.lower()
    assert len(errors.strip().splitlines()) == 1


def test_a_position_outside_and_another_tokenizer_are_one_line(cli, saved, tiny_folder, tmp_path):
    status, _, errors = cli("graph", "explain", saved, "--position", 10**6, "--model", tiny_folder)
    assert status == 2 and "below the graph's length" in errors
    other = build_tokenizer()
    other.add_tokens(["more"])
    other.save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "config.json").write_text('{"model_type": "llama"}')
    status, _, errors = cli(
        "graph", "explain", saved, "--position", 3, "--model", tmp_path / "other"
    )
    assert status == 2 and "another tokenizer" in errors


def test_places_have_defaults(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "contract.md").write_text("# One\n\nText of one.\n\n# Two\n\nText of two.\n" * 20)
    status, shown, errors = cli("graph", "build", "contract.md")
    assert status == 0, errors
    assert "graph show runs/graph/contract.npz" in shown
    assert cli("graph", "show", "runs/graph/contract.npz")[0] == 0
    assert (tmp_path / "runs" / "graph" / "contract" / "graph.html").is_file()


def test_a_text_is_no_graph(refused, tmp_path):
    (tmp_path / "contract.md").write_text("# One\n")
    line = refused("graph", "explain", tmp_path / "contract.md", "--position", 1)
    assert "graph build TEXT" in line and "pickle" not in line
