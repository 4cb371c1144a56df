"""``curriculum_effect``: held-out loss against tokens and seconds, lanes and monitor on and off.

SmolLM2-135M (LoRA) on short real rows. Every arm visits the same number of rows, so compute is
equal in tokens (a detour to the base replaces rows of the course). Arms: plain (one lane, no
monitor: the plain trainer to the bit), lanes (the defaults), paces (lanes without checkpointing
and autocast), monitor, both. Conditions: clean rows; noisy ones (faults of five kinds, spread
over the epoch); a burst (the same faults one after the other in the middle of the epoch, which is
what a monitor is for; plain and monitor only, in the data's order). Held-out rows are clean. The
monitor's stays and windows are scaled to the length of the runs; its threshold is the default.

Every cell is kept under ``--work`` when it is done; a killed run goes on from there.
"""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, parser, record
from lora_runs import fits, held_out, lora_model, tokenized, train
from planted_faults import REPOSITORY, Row, planted, self_instruct, truthful
from transformers import TrainerCallback

from hf_glm_curriculum import (
    AlignmentConfig,
    AlignmentMonitorCallback,
    LaneCallback,
    LaneConfig,
    build_lanes,
)
from hf_glm_curriculum.curriculum.entropy import InstructionEntropyEstimator
from hf_glm_curriculum.figures import new_figure, save_figure
from hf_glm_curriculum.storage import atomic_write_json

CONDITIONS = ("clean", "noisy", "burst")
ARMS = ("plain", "lanes", "paces", "monitor", "both")
COLOURS = dict(zip(ARMS, ("#333333", "#4c78a8", "#72b7b2", "#e4733a", "#54a24b"), strict=True))
BATCH = 4


class Watch(TrainerCallback):
    """Held-out loss at every third of the run, with the tokens and seconds spent until then."""

    def __init__(self, rows: list[Row], tokenizer: Any, parts: int = 3) -> None:
        """Remember what is measured."""
        self._rows, self._tokenizer, self._parts = rows, tokenizer, parts
        self.points: list[dict[str, float]] = []
        self._tokens = self._seconds = 0.0

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any
    ) -> None:
        """Count from here."""
        self._hook = model.register_forward_pre_hook(self._count, with_kwargs=True)
        self._measure(model)

    def _count(self, module: Any, positional: Any, batch: dict[str, Any]) -> None:
        if module.training:
            self._tokens += float(batch["attention_mask"].sum())

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        """Stop the clock, and measure where a third of the steps is done."""
        self._seconds += time.perf_counter() - self._began
        part = self._parts / state.max_steps
        if int(state.global_step * part) > int((state.global_step - 1) * part):
            self._measure(model)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the hook off."""
        self._hook.remove()

    def _measure(self, model: Any) -> None:
        loss = held_out(model, self._tokenizer, self._rows)
        self.points.append({"tokens": self._tokens, "seconds": self._seconds, "loss": loss})


def rows_of(condition: str, tokenizer: Any, n: int, held: int, seed: int) -> tuple[list, list]:
    """Training and held-out rows; the held-out ones are the same in every condition."""
    short = lambda row: fits(tokenizer, row)  # noqa: E731
    clean = planted(n, 0, seed, short)
    noisy = planted(n, max(1, n // 24), seed, short)
    used = {row.prompt for row in [*clean, *noisy]}
    pool = [row for row in self_instruct() if short(row)]
    pool += [Row(question, right) for question, right, _ in truthful()]
    pool = [row for row in pool if row.prompt not in used]
    found = random.Random(seed + 1).sample(pool, held)
    if condition == "clean":
        return clean, found
    if condition == "burst":
        good = [row for row in noisy if row.fault is None]
        bad = [row for row in noisy if row.fault is not None]
        return [*good[: len(good) // 2], *bad, *good[len(good) // 2 :]], found
    return noisy, found


def cell(condition: str, arm: str, seed: int, n: int, held: int, epochs: int) -> dict[str, Any]:
    """Train one arm; the points of its curve."""
    model, tokenizer = lora_model(seed)
    rows, held_rows = rows_of(condition, tokenizer, n, held, seed)
    scores = InstructionEntropyEstimator().score([row.prompt for row in rows])
    lanes = LaneConfig(seed=seed) if arm in ("lanes", "paces", "both") else LaneConfig.plain(seed)
    if arm == "paces":
        lanes = dataclasses.replace(lanes, refine_checkpointing=False, refine_autocast=False)
    lanes = dataclasses.replace(lanes, shuffle=condition != "burst")
    share = 0.25 if arm in ("monitor", "both") else None
    data = build_lanes(tokenized(tokenizer, rows), scores=scores, config=lanes, base_share=share)
    watch = Watch(held_rows, tokenizer)
    callbacks: list[TrainerCallback] = [LaneCallback(data), watch]
    monitor = None
    if share is not None:
        config = AlignmentConfig(warmup_steps=6, min_stay=3, max_stay=8, smoothing=0.7)
        monitor = AlignmentMonitorCallback(data, config=config)
        callbacks.append(monitor)
    settings = {
        "per_device_train_batch_size": BATCH,
        "train_sampling_strategy": "sequential",
        "logging_steps": 1000,
        "warmup_steps": 2,
    }
    train(model, tokenizer, data, callbacks, epochs, seed, **settings)
    switches = 0 if monitor is None else monitor.switch.switches
    return {"points": watch.points, "switches": switches}


def cells(full: bool) -> list[tuple[str, str]]:
    """Conditions and arms that are run."""
    found = [(c, arm) for c in ("clean", "noisy") for arm in ARMS if full or arm != "paces"]
    return [*found, ("burst", "plain"), ("burst", "monitor")]


def table(found: dict[tuple[str, str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One line a cell: the final loss of plain, and the others' difference from it."""
    lines = []
    for (condition, arm), results in found.items():
        base = found[condition, "plain"]
        last = [result["points"][-1] for result in results]
        first = [result["points"][-1] for result in base]
        if arm == "plain":
            before = statistics.mean(result["points"][0]["loss"] for result in results)
            loss = statistics.mean(point["loss"] for point in last)
            note = f"before training {before:.3f}"
            lines.append({"measure": f"{condition}: held-out loss, plain", "value": round(loss, 4)})
            lines[-1]["note"] = note
            continue
        pairs = list(zip(last, first, strict=True))
        change = [ours["loss"] - theirs["loss"] for ours, theirs in pairs]
        ratios = {
            name: statistics.mean(ours[name] / theirs[name] for ours, theirs in pairs)
            for name in ("tokens", "seconds")
        }
        switches = statistics.mean(result["switches"] for result in results)
        note = ", ".join(f"{value:+.3f}" for value in change)
        note += f" by seed; tokens ×{ratios['tokens']:.2f}, seconds ×{ratios['seconds']:.2f}"
        note += f"; {switches:g} switches" if arm in ("monitor", "both") else ""
        measure = f"{condition}: held-out loss, {arm} less plain, nats"
        lines.append({"measure": measure, "value": f"{statistics.mean(change):+.4f}", "note": note})
    return lines


def draw(found: dict[tuple[str, str], list[dict[str, Any]]], path: Path) -> None:
    """Held-out loss against tokens (above) and seconds (below), means over seeds."""
    figure = new_figure(10.0, 6.0)
    panels = figure.subplots(2, len(CONDITIONS), sharey="col")
    for (condition, arm), results in found.items():
        column = CONDITIONS.index(condition)
        for row, axis in enumerate(("tokens", "seconds")):
            curves = [[(p[axis], p["loss"]) for p in result["points"]] for result in results]
            x, y = np.mean(np.array(curves), axis=0).T
            panels[row][column].plot(x, y, ".-", color=COLOURS[arm], lw=1, label=arm)
            panels[row][column].set_xlabel(axis)
            panels[row][column].grid(alpha=0.25)
        panels[0][column].set_title(condition, fontsize=10)
    for row in panels:
        row[0].set_ylabel("held-out loss, nats")
    panels[0][0].legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def main() -> None:
    """Run three seeds (five and one arm more with ``--full``), and record the table."""
    flags = parser(__doc__)
    flags.add_argument("--rows", type=int, default=56)
    flags.add_argument("--held-out", type=int, default=24)
    flags.add_argument("--epochs", type=int, default=2)
    flags.add_argument("--seeds", type=int, default=3)
    flags.add_argument("--work", type=Path, default=REPOSITORY / "runs" / "curriculum_effect")
    flags.add_argument("--dry", action="store_true", help="print the table and record nothing")
    args = flags.parse_args()
    seeds = range(args.seed, args.seed + (max(5, args.seeds) if args.full else args.seeds))
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seed in seeds:
        for condition, arm in cells(args.full):
            sizes = f"{args.rows}_{args.held_out}_{args.epochs}"
            path = args.work / f"{condition}_{arm}_{seed}_{sizes}.json"
            if not path.exists():
                began = time.perf_counter()
                result = cell(condition, arm, seed, args.rows, args.held_out, args.epochs)
                atomic_write_json(path, result)
                loss = result["points"][-1]["loss"]
                spent = time.perf_counter() - began
                print(f"seed {seed}: {condition}, {arm}: {loss:.3f} ({spent:.0f} s)", flush=True)
            result = json.loads(path.read_text("utf-8"))
            found.setdefault((condition, arm), []).append(result)
    if args.dry:
        print(json.dumps(table(found), indent=1))
        draw(found, args.work / "curriculum_effect.png")
        return
    draw(found, RESULTS / "curriculum_effect.png")
    record(
        "curriculum_effect",
        table(found),
        args.seed,
        rows=args.rows,
        held_out=args.held_out,
        epochs=args.epochs,
        batch=BATCH,
        seeds=len(seeds),
    )


if __name__ == "__main__":
    main()
