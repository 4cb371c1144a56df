"""What a run leaves behind: samples, observation pool, data map and weight curves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_glm_curriculum.lifespan.flow_plot import states_png
from hf_glm_curriculum.lifespan.flows import COLUMNS, StateFlow
from hf_glm_curriculum.lifespan.life import SampleLife
from hf_glm_curriculum.lifespan.plots import data_map_html, data_map_png, weights_png
from hf_glm_curriculum.lifespan.texts import DatasetTexts
from hf_glm_curriculum.reporting import METRICS_FILE, read_metrics
from hf_glm_curriculum.signals.ledger import SampleLedger, SampleState
from hf_glm_curriculum.storage import atomic_write_text, replacing

if TYPE_CHECKING:
    import pandas as pd

MAP_DOTS = 50_000
"""Samples that ``data_map.png`` shows at most."""
HTML_DOTS = 5000
"""Samples that ``data_map.html`` shows at most."""
_ROWS_PER_BLOCK = 100_000

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

    Memory stays bounded however many samples there are: tables are written a block of rows at a
    time, and the data map shows an even spread (PNG) or the most suspicious (HTML) of them.

    Args:
        folder: ``<output_dir>/<callback name>``.
        life: the engine at the end of the run.
        texts: where prompts and answers are read.
        prefix: of the callback's metrics in ``metrics.jsonl``, such as ``lifespan/``.

    Raises:
        StateError: if a file cannot be written.
    """
    ledger = life.ledger
    rows = ledger.seen_rows()
    _write_samples(folder / "samples.csv", ledger, rows)
    pooled = rows[ledger.column("state")[rows] != SampleState.TRAINING]
    _write_pool(folder / "observation_pool.jsonl", ledger, _by_suspicion(ledger, pooled), texts)
    if len(rows) == 0:
        return
    total = len(rows)
    data_map_png(ledger.to_pandas(evenly(rows, MAP_DOTS)), folder / "data_map.png", total)
    suspicious = ledger.to_pandas(_by_suspicion(ledger, rows)[:HTML_DOTS])
    data_map_html(texts.attach(suspicious), folder / "data_map.html", total)
    _write_flow(folder / "state_flow.csv", life.flow)
    states_png(life.flow.moments, folder / "states.png")
    if (folder.parent / METRICS_FILE).exists():
        weights_png(read_metrics(folder.parent), prefix, folder / "weights.png")


def _write_samples(path: Path, ledger: SampleLedger, rows: Tensor) -> None:
    """Write ``samples.csv``."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        blocks = rows.split(_ROWS_PER_BLOCK) if len(rows) else (rows,)
        for number, block in enumerate(blocks):
            ledger.to_pandas(block).to_csv(file, index=False, header=number == 0)


def _write_pool(path: Path, ledger: SampleLedger, rows: Tensor, texts: DatasetTexts) -> None:
    """Write ``observation_pool.jsonl``, in the order of ``rows``."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for block in rows.split(_ROWS_PER_BLOCK):
            for row in pool_rows(ledger.to_pandas(block), texts):
                file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def _write_flow(path: Path, flow: StateFlow) -> None:
    """Write how many samples moved from which state to which, moment by moment."""
    lines = [",".join(map(str, row)) for row in (COLUMNS, *flow.rows())]
    atomic_write_text(path, "".join(f"{line}\n" for line in lines))


def _by_suspicion(ledger: SampleLedger, rows: Tensor) -> Tensor:
    """Rows by suspicion, highest first, unknown last, equal ones by row."""
    suspicion = ledger.column("suspicion")[rows]
    order = suspicion.nan_to_num(nan=-torch.inf).sort(descending=True, stable=True).indices
    return rows[order]


def evenly(rows: Tensor, most: int) -> Tensor:
    """At most ``most`` of some rows, evenly spaced."""
    return rows[:: max(1, -(-len(rows) // most))]


def pool_rows(pooled: pd.DataFrame, texts: DatasetTexts) -> Iterator[dict[str, Any]]:
    """Samples as rows of the observation pool's JSONL.

    Args:
        pooled: ``SampleLedger.to_pandas()`` of samples that left TRAINING.
        texts: where prompts and answers are read.

    Yields:
        ``{row, id, text: {prompt, response} | None, signals, verdict, suspicion, weight}``;
        what is unknown is None. Text that was decoded from tokens has ``decoded: true`` with it.
    """
    origin = {"decoded": True} if texts.decodes() else {}
    for record in pooled.to_dict("records"):
        pair = texts.pair(int(record["row"]), int(record["id"]))
        text = None if pair is None else {"prompt": pair[0], "response": pair[1], **origin}
        yield {
            "row": int(record["row"]),
            "id": int(record["id"]),
            "text": text,
            "signals": {name: _plain(record[name]) for name in POOL_SIGNALS},
            "verdict": record["state"],
            "suspicion": _plain(record["suspicion"]),
            "weight": _plain(record["weight"]),
        }


def _plain(value: Any) -> float | int | None:
    """A number JSON can hold; None for NaN and infinities."""
    if isinstance(value, int):
        return value
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**31 else round(number, 6)
