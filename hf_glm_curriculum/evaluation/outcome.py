"""What a followed run found: its most suspicious samples, and the faults known beforehand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hf_glm_curriculum.evaluation.detection import by_row, detection_report
from hf_glm_curriculum.lifespan.output import POOL_SIGNALS
from hf_glm_curriculum.lifespan.texts import DatasetTexts
from hf_glm_curriculum.storage import atomic_write_json, atomic_write_text

_SHOWN = 200


def known_faults(dataset: Any) -> dict[int, str]:
    """Row → fault kind, from a data set's `fault` column (null for clean rows); {} without one."""
    if "fault" not in (getattr(dataset, "column_names", None) or ()):
        return {}
    return {row: str(fault) for row, fault in enumerate(dataset["fault"]) if fault}


def write_outcome(
    folder: Path, samples: Any, dataset: Any, tokenizer: Any, threshold: float | None = None
) -> dict[str, Any] | None:
    """Write `suspicious.jsonl` and, where faults are known, `detection.json`.

    Args:
        folder: The run's evaluation folder.
        samples: `SampleLedger.to_pandas()` at the end of the run.
        dataset: The training data, whose rows the ledger counts.
        tokenizer: Reads texts back where the data have tokens only.
        threshold: The suspicion beyond which samples were taken out, for the picture.

    Returns:
        The detection figures, or None where no fault is known.

    Raises:
        StateError: A file cannot be written.
    """
    faults = known_faults(dataset)
    rows = suspicious_rows(samples, dataset, tokenizer, faults)
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    atomic_write_text(folder / "suspicious.jsonl", "".join(f"{line}\n" for line in lines))
    if not faults:
        return None
    kinds = by_row(faults, samples["row"].tolist())
    report = detection_report(kinds, samples["suspicion"], samples["state"].tolist())
    report |= {"faults": {str(row): kind for row, kind in faults.items()}, "threshold": threshold}
    atomic_write_json(folder / "detection.json", report)
    return report


def suspicious_rows(
    samples: Any, dataset: Any, tokenizer: Any, faults: dict[int, str], limit: int = _SHOWN
) -> list[dict[str, Any]]:
    """The most suspicious samples in the observation pool's form, with `fault` where one is known.

    Args:
        samples: `SampleLedger.to_pandas()`.
        dataset: The training data.
        tokenizer: See `write_outcome`.
        faults: Row → fault kind.
        limit: Rows returned at most.
    """
    texts = DatasetTexts(dataset, tokenizer)
    ordered = samples.sort_values("suspicion", ascending=False, na_position="last").head(limit)
    rows = []
    for record in ordered.to_dict("records"):
        row = int(record["row"])
        pair = texts.pair(row, int(record["id"]))
        rows.append(
            {
                "row": row,
                "id": int(record["id"]),
                "text": None if pair is None else {"prompt": pair[0], "response": pair[1]},
                "signals": {name: _plain(record.get(name)) for name in POOL_SIGNALS},
                "verdict": record["state"],
                "suspicion": _plain(record["suspicion"]),
                "weight": _plain(record["weight"]),
                "fault": faults.get(row),
                "clean_response": _clean_response(dataset, row) if row in faults else None,
            }
        )
    return rows


def _clean_response(dataset: Any, row: int) -> str | None:
    """What stood in a faulty row before the fault was planted, where the data say so."""
    meta = dataset[row].get("meta")
    if isinstance(meta, str):
        try:
            meta = json.loads(meta)
        except ValueError:
            return None
    return meta.get("clean_response") if isinstance(meta, dict) else None


def _plain(value: Any) -> float | None:
    """A number JSON can hold; None for what is unknown."""
    if value is None or not math.isfinite(float(value)):
        return None
    return round(float(value), 6)
