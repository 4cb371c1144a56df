"""Every sample's values at every step, as CSV."""

from __future__ import annotations

import os
from pathlib import Path

from hf_glm_curriculum.csv_dump import CsvDump
from hf_glm_curriculum.signals.microbatch import SampleSignals

_SIGNALS = ("loss", "onset_loss", "grad_norm", "n_tokens", "weight")


class SampleDump:
    """``<folder>/<name>_samples.csv``, one line a sample and step."""

    def __init__(self, folder: str | os.PathLike[str], name: str, step: int) -> None:
        """Open it; lines of steps after ``step`` go, so that a resumed run leaves none twice.

        Raises:
            StateError: if the file cannot be written.
        """
        self._file = CsvDump(Path(folder) / f"{name}_samples.csv", ["step", "id", *_SIGNALS])
        self._file.rewind(step)

    def write(self, signals: SampleSignals, step: int) -> None:
        """Append the observations of an optimizer step."""
        columns = [getattr(signals, name).cpu().tolist() for name in ("ids", *_SIGNALS)]
        rows = zip([step] * len(columns[0]), *columns, strict=True)
        self._file.write(list(rows))
