"""What a run leaves behind: samples, observation pool, data map and weight curves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.lifespan.life import SampleLife
from hf_glm_curriculum.lifespan.plots import data_map_html, data_map_png, weights_png
from hf_glm_curriculum.lifespan.texts import DatasetTexts
from hf_glm_curriculum.reporting import METRICS_FILE, read_metrics
from hf_glm_curriculum.signals.ledger import SampleState
from hf_glm_curriculum.storage import atomic_write_text

if TYPE_CHECKING:
    import pandas as pd

POOL_SIGNALS = (
    "loss",
    "loss_mean",
    "onset_loss",
    "loss_slope",
    "opening_loss",
    "first_loss",
    "closing_loss",
    "grad_norm",
    "drift",
    "confidence",
    "variability",
    "visits",
    "lifetime",
)
"""Columns of ``SampleLedger.to_pandas()`` that a row of the pool shows."""


def write_outputs(folder: Path, life: SampleLife, texts: DatasetTexts, prefix: str) -> None:
    """Write every result of a run into ``folder``, each file atomically.

    Args:
        folder: ``<output_dir>/<callback name>``.
        life: the engine at the end of the run.
        texts: where prompts and answers are read.
        prefix: of the callback's metrics in ``metrics.jsonl``, such as ``lifespan/``.

    Raises:
        StateError: if a file cannot be written.
    """
    samples = life.ledger.to_pandas()
    atomic_write_text(folder / "samples.csv", samples.to_csv(index=False))
    pool = observation_pool(samples, texts)
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in pool)
    atomic_write_text(folder / "observation_pool.jsonl", "".join(f"{line}\n" for line in lines))
    if len(samples) == 0:
        return
    data_map_png(samples, folder / "data_map.png")
    data_map_html(texts.attach(samples), folder / "data_map.html")
    if (folder.parent / METRICS_FILE).exists():
        weights_png(read_metrics(folder.parent), prefix, folder / "weights.png")


def observation_pool(samples: pd.DataFrame, texts: DatasetTexts) -> list[dict[str, Any]]:
    """The samples that left TRAINING, most suspicious first, as rows of the pool's JSONL.

    Args:
        samples: ``SampleLedger.to_pandas()``.
        texts: where prompts and answers are read.

    Returns:
        Rows ``{row, id, text: {prompt, response} | None, signals, verdict, suspicion, weight}``;
        what is unknown is None. Text that was decoded from tokens has ``decoded: true`` with it.
    """
    pooled = samples.loc[samples["state"] != SampleState.TRAINING.name]
    pooled = pooled.sort_values("suspicion", ascending=False, na_position="last")
    rows = []
    origin = {"decoded": True} if texts.decodes() else {}
    for record in pooled.to_dict("records"):
        pair = texts.pair(int(record["row"]), int(record["id"]))
        text = None if pair is None else {"prompt": pair[0], "response": pair[1], **origin}
        rows.append(
            {
                "row": int(record["row"]),
                "id": int(record["id"]),
                "text": text,
                "signals": {name: _plain(record[name]) for name in POOL_SIGNALS},
                "verdict": record["state"],
                "suspicion": _plain(record["suspicion"]),
                "weight": _plain(record["weight"]),
            }
        )
    return rows


def _plain(value: Any) -> float | int | None:
    """A number JSON can hold; None for NaN and infinities."""
    if isinstance(value, int):
        return value
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**31 else round(number, 6)
