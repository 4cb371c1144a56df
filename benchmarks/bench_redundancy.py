"""``redundancy``: is what the judge calls MASTERED really used up?

SmolLM2-135M (LoRA) is watched for a few epochs on clean real rows; then the gradient contribution
of each epoch is told (Σ weight · gradient norm of its visits), and fresh models are trained for the
same number of epochs on all rows, without the MASTERED ones, and without as many rows chosen at
random or by lowest loss. Held-out loss decides. ``--full``: three seeds.
"""

from __future__ import annotations

import csv
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import parser, record
from lora_runs import fits, held_out, lora_model, tokenized, train
from planted_faults import Row, self_instruct, truthful

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback

WATCHED_EPOCHS, EPOCHS = 4, 2


def clean_rows(tokenizer: Any, n: int, held: int, seed: int) -> tuple[list[Row], list[Row]]:
    """Training and held-out rows, half tasks, half questions."""
    rng = random.Random(seed)
    tasks = [row for row in self_instruct() if fits(tokenizer, row)]
    questions = [Row(question, right) for question, right, _ in truthful()]
    for pool in (tasks, questions):
        rng.shuffle(pool)
    half, held_half = n // 2, held // 2
    rows = tasks[:half] + questions[:half]
    rng.shuffle(rows)
    return rows, tasks[half : half + held_half] + questions[half : half + held_half]


def watch(data: Any, seed: int) -> tuple[Any, list[float]]:
    """Train once with the default callback; the ledger, and each epoch's gradient contribution."""
    model, tokenizer = lora_model(seed)
    with tempfile.TemporaryDirectory() as folder:
        callback = SampleLifespanCallback(LifespanConfig(), debug_dir=folder)
        train(model, tokenizer, data, [callback], WATCHED_EPOCHS, seed)
        with next(Path(folder).glob("*.csv")).open(newline="") as file:
            visits = list(csv.DictReader(file))
    steps = max(int(visit["step"]) for visit in visits)
    contribution = np.zeros(WATCHED_EPOCHS)
    for visit in visits:
        epoch = (int(visit["step"]) - 1) * WATCHED_EPOCHS // steps
        norm = float(visit["grad_norm"] or "nan")
        contribution[epoch] += 0.0 if np.isnan(norm) else float(visit["weight"]) * norm
    return callback.ledger.to_pandas(), list(contribution / contribution.sum())


def run(seed: int, n: int, held: int) -> dict[str, Any]:
    """Every arm of one seed."""
    model, tokenizer = lora_model(seed)
    rows, held_rows = clean_rows(tokenizer, n, held, seed)
    data = tokenized(tokenizer, rows)
    before = held_out(model, tokenizer, held_rows)
    del model
    frame, contribution = watch(data, seed)
    mastered = sorted(frame[frame["state"] == "MASTERED"]["row"])
    count = len(mastered)
    dropped = {
        "all rows": [],
        "without MASTERED": mastered,
        "without random rows": random.Random(seed).sample(range(n), count),
        "without lowest-loss rows": frame.sort_values("loss_mean")["row"].tolist()[:count],
    }
    losses = {}
    for name, rows_out in dropped.items():
        if name != "all rows" and not count:
            continue
        kept = [row for row in range(n) if row not in set(rows_out)]
        arm, _ = lora_model(seed)
        train(arm, tokenizer, data.select(kept), [], EPOCHS, seed)
        losses[name] = held_out(arm, tokenizer, held_rows)
    return {"share": count / n, "contribution": contribution, "before": before, "losses": losses}


def main() -> None:
    """Run one seed (three with ``--full``) and record the table."""
    flags = parser(__doc__)
    flags.add_argument("--rows", type=int, default=96)
    flags.add_argument("--held-out", type=int, default=48)
    args = flags.parse_args()
    seeds = range(args.seed, args.seed + (3 if args.full else 1))
    results = [run(seed, args.rows, args.held_out) for seed in seeds]
    lines: list[dict[str, Any]] = [
        {
            "measure": "share of rows judged MASTERED",
            "value": float(np.mean([r["share"] for r in results])),
            "claim": "20 % redundant",
        }
    ]
    for epoch in range(WATCHED_EPOCHS):
        share = float(np.mean([r["contribution"][epoch] for r in results]))
        lines.append({"measure": f"gradient contribution of epoch {epoch + 1}", "value": share})
    lines.append({"measure": "held-out loss before training", "value": mean(results, "before")})
    names = [name for name in results[0]["losses"] if all(name in r["losses"] for r in results)]
    found = {name: float(np.mean([r["losses"][name] for r in results])) for name in names}
    for name in names:
        line: dict[str, Any] = {"measure": f"held-out loss, {name}", "value": round(found[name], 4)}
        if name == "without MASTERED":
            others = [found[other] for other in names if other != name]
            line |= {"target": f"≤ {min(others):.4f}", "met": found[name] <= min(others)}
        lines.append(line)
    record(
        "redundancy",
        lines,
        args.seed,
        rows=args.rows,
        held_out=args.held_out,
        epochs=f"{WATCHED_EPOCHS} watched, {EPOCHS} an arm",
        seeds=len(results),
    )


def mean(results: list[dict[str, Any]], name: str) -> float:
    """Mean of a field over the seeds."""
    return float(np.mean([result[name] for result in results]))


if __name__ == "__main__":
    main()
