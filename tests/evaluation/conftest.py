"""A run's folder written by hand, so that reports are tested without training."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hf_glm_curriculum.data.demo import demo_instructions
from hf_glm_curriculum.evaluation.detection import detection_report

STEPS = range(4, 49, 4)


def write_run(folder: Path, n: int = 120, seed: int = 0) -> Path:
    """Write every artefact of a finished run with planted faults."""
    rng = np.random.default_rng(seed)
    rows = demo_instructions(n, seed, languages=("en", "zh"), fault_share=0.2, max_words=40)
    faults = [row["fault"] for row in rows]
    samples = _samples(faults, rng)
    _json(folder / "run.json", _about(n))
    _lines(folder / "metrics.jsonl", _metrics(n, rng))
    (folder / "lifespan").mkdir(parents=True)
    samples.to_csv(folder / "lifespan" / "samples.csv", index=False)
    _flow(folder / "lifespan" / "state_flow.csv", samples["state"].value_counts().to_dict(), n)
    ordered = samples.sort_values("suspicion", ascending=False, na_position="last")
    entries = [_entry(record, rows) for record in ordered.to_dict("records")]
    pool = [entry for entry in entries if entry["verdict"] != "TRAINING"]
    _lines(folder / "lifespan" / "observation_pool.jsonl", pool)
    _lines(
        folder / "evaluation" / "suspicious.jsonl",
        [
            {
                **entry,
                "fault": rows[entry["row"]]["fault"],
                "clean_response": rows[entry["row"]]["meta"].get("clean_response"),
            }
            for entry in entries[:80]
        ],
    )
    report = detection_report(faults, samples["suspicion"], samples["state"], draws=200)
    report |= {"faults": {str(i): f for i, f in enumerate(faults) if f}, "threshold": 2.5}
    _json(folder / "evaluation" / "detection.json", report)
    _evaluation(folder / "evaluation", seed)
    return folder


def _samples(faults, rng) -> pd.DataFrame:
    n = len(faults)
    faulty = np.array([fault is not None for fault in faults])
    suspicion = rng.normal(0, 1, n) + faulty * rng.normal(2.8, 1.5, n)
    suspicion[5] = np.nan
    states = np.where(
        suspicion > 2.5, "RELABEL", rng.choice(["TRAINING", "MASTERED", "RESAMPLE"], n)
    )
    confidence = np.clip(0.6 - 0.1 * np.nan_to_num(suspicion) + rng.normal(0, 0.1, n), 0.02, 0.98)
    return pd.DataFrame(
        {
            "id": rng.integers(-(2**62), 2**62, n),
            "row": np.arange(n),
            "visits": 3,
            "loss": -np.log(confidence),
            "loss_mean": -np.log(confidence) + 0.2,
            "onset_loss": rng.normal(0, 1, n),
            "loss_slope": rng.normal(-0.3, 0.1, n),
            "grad_norm": rng.gamma(2, 1, n),
            "drift": rng.gamma(2, 0.01, n),
            "weight": np.where(states == "RELABEL", 0.0, rng.uniform(0.2, 1.8, n)),
            "weight_raw": rng.uniform(0.2, 1.8, n),
            "state": states,
            "suspicion": suspicion,
            "confidence": confidence,
            "variability": rng.gamma(3, 0.03, n),
        }
    )


def _flow(path: Path, states: dict[str, int], n: int) -> None:
    """All samples come into training, go to the pool and out of it into their last states."""
    left = {state: count for state, count in states.items() if state != "TRAINING"}
    kept = states.get("TRAINING", 0)
    rows = [
        ("epoch 1", 24, 1.0, "UNSEEN", "TRAINING", n),
        ("epoch 2", 48, 2.0, "TRAINING", "TRAINING", kept),
        ("epoch 2", 48, 2.0, "TRAINING", "OBSERVED", n - kept),
        ("judged", 48, 2.0, "TRAINING", "TRAINING", kept),
        *(("judged", 48, 2.0, "OBSERVED", state, count) for state, count in left.items()),
    ]
    names = ["moment", "step", "epoch", "source", "target", "samples"]
    pd.DataFrame(rows, columns=names).to_csv(path, index=False)


def _entry(record, rows) -> dict:
    row = rows[record["row"]]
    known = {k: v for k, v in record.items() if isinstance(v, float) and not np.isnan(v)}
    return {
        "row": record["row"],
        "id": record["id"],
        "text": {"prompt": row["prompt"], "response": row["response"]},
        "signals": {k: v for k, v in known.items() if k not in ("suspicion", "weight")},
        "verdict": record["state"],
        "suspicion": known.get("suspicion"),
        "weight": known.get("weight"),
    }


def _about(n: int) -> dict:
    return {
        "command": "quickstart",
        "title": "Quickstart: LoRA on demo data with planted faults",
        "argv": ["quickstart", "--seed", "0"],
        "status": "finished",
        "started": "2026-03-01T12:00:00+00:00",
        "seconds": 301.4,
        "trainer": "transformers.Trainer",
        "seed": 0,
        "model": {"name": "embedded", "parameters": 134_515_008, "trainable_parameters": 921_600},
        "data": {"train": "demo", "rows": n, "fingerprint": "abc"},
        "versions": {"torch": "2.13.0", "transformers": "5.24.0", "hf_glm_curriculum": "0.1.0"},
        "config": {"learning_rate": 5e-4, "lifespan": {"weighting": "progress"}},
    }


def _metrics(n: int, rng) -> list[dict]:
    lines = []
    for step in STEPS:
        loss = 2.5 * np.exp(-step / 15) + 0.6 + rng.normal(0, 0.05)
        lines.append({"loss": loss, "grad_norm": 2 + rng.random(), "step": step})
        moved = int(n * 0.5 * step / 48)
        ours = {
            "weight_mean": 1.0,
            "weight_p10": 1 - 0.7 * step / 48,
            "weight_p50": 1.0,
            "weight_p90": 1 + 0.6 * step / 48,
            "state_training": n - moved,
            "state_observed": 0,
            "state_mastered": moved // 2,
            "state_resample": moved // 4,
            "state_relabel": moved - moved // 2 - moved // 4,
        }
        lines.append({**{f"lifespan/{k}": v for k, v in ours.items()}, "step": step})
    return lines


def _evaluation(folder: Path, seed: int) -> None:
    rows = demo_instructions(24, seed + 1, languages=("en", "zh"), max_words=40)
    generations = []
    for i, row in enumerate(rows):
        long = f"Sure! Let me think about it. {row['prompt']} The answer is not so clear, because"
        generations.append(
            {
                "prompt": row["prompt"],
                "reference": row["response"],
                "before": long,
                "after": row["response"] if i % 3 else "42",
                "correct_before": i % 5 == 0,
                "correct_after": bool(i % 3) if row["answer_check"] else None,
                "category": row["category"],
                "language": row["language"],
            }
        )
    _lines(folder / "generations.jsonl", generations)
    figures = {"n": 24, "checkable": 24, "mean_words": 18.2, "distinct_2": 0.7, "repetition": 0.1}
    before = {**figures, "correct": 5, "accuracy": 5 / 24, "refusals": 0.0}
    after = {**figures, "correct": 16, "accuracy": 16 / 24, "refusals": 0.0, "mean_words": 5.0}
    _json(folder / "answers.json", {"before": before, "after": after})
    losses = {"before": {"loss": 2.9, "samples": 24}, "after": {"loss": 1.1, "samples": 24}}
    _json(folder / "heldout.json", losses)


def _json(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, default=float), "utf-8")


def _lines(path: Path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False, default=_plain) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _plain(value):
    return value.item() if hasattr(value, "item") else str(value)


@pytest.fixture(scope="session")
def _finished_run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture
def run_folder(tmp_path, _finished_run) -> Path:
    """A finished run with every artefact, to be spoilt at will."""
    return Path(shutil.copytree(_finished_run, tmp_path / "run"))
