"""The package imports fast and lazily, optional libraries are named, bars stay silent."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hf_glm_curriculum
from hf_glm_curriculum.errors import MissingDependencyError
from hf_glm_curriculum.optional import available, require, version_of
from hf_glm_curriculum.progress import progress


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, time; t = time.perf_counter(); import hf_glm_curriculum; import json; "
        "heavy = [m for m in ('torch', 'transformers', 'datasets', 'numpy') if m in sys.modules]; "
        "print(json.dumps([heavy, time.perf_counter() - t]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    heavy, seconds = json.loads(done.stdout)
    assert heavy == []
    assert seconds < 0.3


@pytest.mark.parametrize("name", sorted(hf_glm_curriculum.__all__))
def test_every_public_name_loads(name):
    value = getattr(hf_glm_curriculum, name)
    assert value.__module__.startswith("hf_glm_curriculum.")
    assert value.__doc__
    assert name in dir(hf_glm_curriculum)


def test_the_public_table_and_the_typed_imports_agree():
    assert set(hf_glm_curriculum._PUBLIC) == set(hf_glm_curriculum.__all__)
    source = Path(hf_glm_curriculum.__file__).read_text()
    imports = re.findall(r"from hf_glm_curriculum\.(\S+) import (?:\(\s*)?(\w+) as", source)
    typed = {name: module for module, name in imports}
    assert typed == hf_glm_curriculum._PUBLIC


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'SampleLedgr'"):
        hf_glm_curriculum.SampleLedgr  # noqa: B018


def test_the_version_is_the_installed_one():
    assert hf_glm_curriculum.__version__ == version_of("hf-glm-curriculum")


def test_a_missing_library_names_its_extra():
    assert not available("no_such_library")
    assert not available("no_such_library.part")
    assert version_of("no-such-library") is None
    with pytest.raises(MissingDependencyError) as caught:
        require("no_such_library", "review")
    assert str(caught.value) == (
        'no_such_library is not installed; install it with: pip install "hf-glm-curriculum[review]"'
    )
    assert isinstance(caught.value, ImportError)


def test_a_library_without_the_part_names_its_version():
    assert available("json.decoder")
    with pytest.raises(MissingDependencyError, match=r"numpy\.ppo cannot be imported from numpy 2"):
        require("numpy.ppo", "ppo")
    assert require("json.decoder", "x").JSONDecoder


def test_bars_are_silent_unless_forced(capsys, monkeypatch):
    monkeypatch.delenv("HGC_PROGRESS", raising=False)
    with progress(2, "Working") as bar:
        bar.advance()
        bar.describe("Still working")
    assert capsys.readouterr() == ("", "")
    with progress(2, "Working", force=True) as bar:
        bar.advance(2)
        bar.describe("Nearly done")
    assert "Nearly done" in capsys.readouterr().err
    monkeypatch.setenv("HGC_PROGRESS", "1")
    with progress(None, "Endless", force=False):
        pass
    assert capsys.readouterr().err == ""
