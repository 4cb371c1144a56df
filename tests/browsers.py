"""Headless Chromium for tests of pages; skips with a reason where there is none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hf_glm_curriculum.optional import available

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def headless_chromium() -> Iterator[Any]:
    """A running browser; `$HGC_BROWSER` names another one."""
    if not available("playwright"):
        pytest.skip("playwright is not installed; it comes with the extra [dev]")
    path = os.environ.get("HGC_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is here; set HGC_BROWSER to one")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()
