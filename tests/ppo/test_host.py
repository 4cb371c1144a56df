"""What importing hf_glm_curriculum.ppo says where TRL has no PPOTrainer."""

from __future__ import annotations

import importlib
import sys

import pytest

from hf_glm_curriculum.errors import MissingDependencyError


def host():
    """The module that checks, whichever TRL is here."""
    import importlib.util
    from pathlib import Path

    import hf_glm_curriculum

    path = Path(hf_glm_curriculum.__file__).parent / "ppo" / "host.py"
    spec = importlib.util.spec_from_file_location("ppo_host", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (None, "TRL, which is not installed"),
        ("1.13.0", "TRL 1.13.0 has no PPOTrainer"),
        ("1.16.0", "TRL 1.16.0 has no PPOTrainer"),
    ],
)
def test_the_extra_is_named(monkeypatch, version, words):
    module = host()
    monkeypatch.setattr(module, "version_of", lambda name: version)
    with pytest.raises(MissingDependencyError, match=words) as caught:
        module.require_ppo()
    assert 'pip install "hf-glm-curriculum[ppo]"' in str(caught.value)


@pytest.mark.new_trl
def test_importing_the_part_is_the_error(monkeypatch):
    monkeypatch.delitem(sys.modules, "hf_glm_curriculum.ppo", raising=False)
    with pytest.raises(MissingDependencyError, match="has no PPOTrainer"):
        importlib.import_module("hf_glm_curriculum.ppo")


@pytest.mark.ppo
def test_names_are_importable_and_nothing_else():
    ppo = importlib.import_module("hf_glm_curriculum.ppo")
    assert {"StructuredPPOConfig", "StructuredPPOTrainer"} == set(dir(ppo))
    with pytest.raises(AttributeError, match="no attribute 'PPOTrainer'"):
        _ = ppo.PPOTrainer
