"""Memory of the process under measurement, read off the system while it works."""

from __future__ import annotations

import threading
import time
from pathlib import Path

FIELDS = {"anonymous": "RssAnon", "resident": "VmRSS"}
"""Anonymous memory is what the system cannot take back; resident adds the pages of mapped files."""


class MemoryWatch:
    """Highest anonymous and resident memory of this process, MiB, read every 10 ms (Linux)."""

    def __init__(self) -> None:
        """Start watching; what there is now is the base of every figure."""
        self._base = self._highest = self._now()
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def base(self) -> dict[str, float]:
        """What the process held when the watch began."""
        return dict(self._base)

    def highest(self) -> dict[str, float]:
        """The highest above the base since the last call."""
        time.sleep(0.05)
        found = {name: value - self._base[name] for name, value in self._highest.items()}
        self._highest = self._now()
        return found

    def _watch(self) -> None:
        while True:
            time.sleep(0.01)
            now = self._now()
            self._highest = {name: max(value, now[name]) for name, value in self._highest.items()}

    @staticmethod
    def _now() -> dict[str, float]:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return {name: int(fields[field].split()[0]) / 1024 for name, field in FIELDS.items()}
