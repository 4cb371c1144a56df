"""Notebooks: stripped of outputs, installable in Colab, small where CI asks; one run to its end."""

import json
import os
import re

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stripped_and_install_themselves_in_colab(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    text = "\n".join("".join(cell["source"]) for cell in code)
    assert re.search(r"%pip install -q \"?hf-glm-curriculum", text) and "HGC_SMALL" in text


@pytest.mark.slow
def test_the_notebook_on_scaling_laws_runs(monkeypatch):
    monkeypatch.setitem(os.environ, "HGC_SMALL", "1")
    notebook = nbformat.read(REPOSITORY / "notebooks" / "07_scaling_laws.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = "".join(output.get("text", "") for output in outputs)
    assert "1 % less loss takes" in shown and "diverged" in shown and "pretrain:" in shown
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
