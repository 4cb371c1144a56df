"""Runs here draw no pictures unless a test asks for them: three figures a run take seconds."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("usefixtures") is None:
        name = "hf_glm_curriculum.migration.callback.write_outputs"
        monkeypatch.setattr(name, lambda *args: None)


@pytest.fixture
def pictures() -> Any:
    """Asked for with ``@pytest.mark.usefixtures("pictures")``: leaves the pictures on."""
