"""``stage_switch``: what the step from pre-training to instruction tuning costs, by how it is made.

A small random GLM is trained on real text, then on real instructions (``stage_data``). Four arms
share everything up to the first window: hard switch; hard switch with the learning rate warmed up
again; plain replay (the mixture's schedule without gates); migration. Every arm trains on the same
number of rows of each kind: what is injected before the switch, text gets back after it.

Measured on held-out rows: the instruction loss's excess over its own final value in the first 10 %
of steps after the switch (mean and peak); the rise of the text loss, its highest value after the
switch over what uninterrupted pre-training has there (the hard switch's arm); the similarity (CKA)
of the lower layers' hidden states to those before. ``--ablate`` adds other schedules.

Every arm of every seed is kept under ``--work`` when it is done; a killed run goes on from there.
"""

from __future__ import annotations

import logging
import statistics
from pathlib import Path
from typing import Any

import torch
import transformers
from common import FOLDER, parser, record
from planted_faults import REPOSITORY
from stage_data import build
from stage_runs import Arm, Plan, hard, migrating, run_arm

from hf_glm_curriculum.migration.plots import new_figure, save_figure
from hf_glm_curriculum.migration.schedule import MigrationSchedule, schedule_for

CLAIM = "−73 %"
COLOURS = {
    "hard switch": "#d64550",
    "warm-up": "#f2b134",
    "plain replay": "#4c78a8",
    "migration": "#54a24b",
}


def arms(plan: Plan) -> list[Arm]:
    """The four ways to switch."""
    return [
        hard(plan),
        hard(plan, "warm-up", rewarm=plan.early_steps),
        migrating(plan, "plain replay", gates=False),
        migrating(plan),
    ]


def ablations(plan: Plan) -> list[Arm]:
    """Other schedules: what each part of the default does."""
    return [
        migrating(plan, "exponents 3 to 0.5", gamma_bottom=3.0, gamma_top=0.5),
        migrating(plan, "exponents 1 to 0.3", gamma_bottom=1.0, gamma_top=0.3),
        migrating(plan, "all layers alike", gamma_bottom=0.2, gamma_top=0.2),
        migrating(plan, "floor 0.4", pretrain_floor=0.4),
    ]


def measures(found: dict[str, Any], plan: Plan, text_at_switch: float) -> dict[str, float]:
    """The figures of one arm, nats."""
    switch, early = plan.pretrain_steps, plan.pretrain_steps + plan.early_steps
    places = [i for i, step in enumerate(found["steps"]) if switch <= step <= early]
    final = found["instructions"][-1]
    excess = [found["instructions"][i] - final for i in places]
    lower = slice(0, 1 + plan.blocks // 3)
    return {
        "at_switch": found["instructions"][places[0]],
        "final": final,
        "excess": statistics.mean(excess),
        "peak": max(excess),
        "loss": statistics.mean(found["instructions"][i] for i in places),
        "text_rise": max(found["text"][places[0] :]) - text_at_switch,
        "text_final": found["text"][-1],
        "cka_early": statistics.mean(found["similarity"]["early"][lower]),
        "cka_final": statistics.mean(found["similarity"]["final"][lower]),
        "rows_text": found["rows"]["text"]["rows"],
        "rows_instructions": found["rows"]["instructions"]["rows"],
    }


def collected(
    chosen: list[Arm], plan: Plan, seeds: list[int], work: Path
) -> dict[str, list[dict[str, Any]]]:
    """Every arm's results, a list with one entry a seed."""
    data = build(plan.width, plan.vocabulary)
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in seeds:
        for arm in chosen:
            result = run_arm(arm, plan, data, work, seed)
            found.setdefault(arm.name, []).append(result)
            print(f"seed {seed}: {arm.name}: final {result['instructions'][-1]:.3f}", flush=True)
    return found


def summary(found: dict[str, list[dict[str, Any]]], plan: Plan) -> dict[str, dict[str, float]]:
    """Each arm's figures, means over seeds."""
    switch = found["hard switch"][0]["steps"].index(plan.pretrain_steps)
    at_switch = [result["text"][switch] for result in found["hard switch"]]
    means = {}
    for arm, results in found.items():
        each = [measures(r, plan, base) for r, base in zip(results, at_switch, strict=True)]
        means[arm] = {key: statistics.mean(one[key] for one in each) for key in each[0]}
    return means


def table(means: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Lines of the result."""
    base, ours, replay = (means[arm] for arm in ("hard switch", "migration", "plain replay"))
    rows = []
    for key, name in (("excess", "mean"), ("peak", "peak")):
        for arm in ("warm-up", "plain replay", "migration"):
            change = means[arm][key] / base[key] - 1
            line = {"measure": f"instruction-loss excess, {name}: {arm} against hard switch"}
            line |= {"value": f"{change:+.0%}", "note": f"{means[arm][key]:.3f} nats"}
            if arm == "migration":
                line |= {"target": "≤ −73 %", "met": change <= -0.73, "claim": CLAIM}
            rows.append(line)
    better = ours["excess"] < replay["excess"]
    rows.append(
        {
            "measure": "excess, mean: migration over plain replay",
            "value": ours["excess"] / replay["excess"],
            "target": "< 1",
            "met": better,
        }
    )
    rows.append(
        {
            "measure": "instruction loss itself in those steps: migration less plain replay, nats",
            "value": ours["loss"] - replay["loss"],
            "note": f"and at the end {ours['final'] - replay['final']:+.3f}",
        }
    )
    share = ours["text_rise"] / base["text_rise"]
    rows.append(
        {
            "measure": "text-loss rise: migration over hard switch",
            "value": share,
            "target": "≤ 0.5",
            "met": share <= 0.5,
            "note": f"{ours['text_rise']:.3f} and {base['text_rise']:.3f} nats",
        }
    )
    rows += [line for arm in COLOURS for line in _details(arm, means[arm])]
    return rows + [_ablated(arm, means) for arm in means if arm not in COLOURS]


def _ablated(arm: str, means: dict[str, dict[str, float]]) -> dict[str, Any]:
    one, base = means[arm], means["hard switch"]
    return {
        "measure": f"migration, {arm}: excess / text-loss rise against hard switch",
        "value": f"{one['excess'] / base['excess'] - 1:+.0%} / "
        f"{one['text_rise'] / base['text_rise'] - 1:+.0%}",
        "note": f"final {one['final']:.3f}",
    }


def _details(arm: str, one: dict[str, float]) -> list[dict[str, Any]]:
    losses = f"at the switch {one['at_switch']:.3f}, final {one['final']:.3f}"
    return [
        {
            "measure": f"{arm}: held-out instruction loss",
            "value": f"excess {one['excess']:.3f}, peak {one['peak']:.3f}",
            "note": losses,
        },
        {
            "measure": f"{arm}: held-out text loss",
            "value": f"rise {one['text_rise']:.3f}, final {one['text_final']:.3f}",
            "note": f"{one['rows_text']:.0f} rows of text, {one['rows_instructions']:.0f} of "
            "instructions",
        },
        {
            "measure": f"{arm}: CKA of the lower third, right after / at the end",
            "value": f"{one['cka_early']:.3f} / {one['cka_final']:.3f}",
            "claim": "lower layers do not collapse" if arm == "migration" else None,
        },
    ]


def draw(found: dict[str, list[dict[str, Any]]], plan: Plan, path: Path) -> None:
    """Curves of the first seed around the switch, and each layer's similarity."""
    figure = new_figure(9.0, 6.4)
    (left, right), (ratio, layers) = figure.subplots(2, 2)
    for arm, colour in COLOURS.items():
        one = found[arm][0]
        for axes, name in ((left, "instructions"), (right, "text")):
            axes.plot(one["steps"], one[name], color=colour, label=arm, lw=1.3)
        layers.plot(one["similarity"]["early"], color=colour, marker="o", ms=3, label=arm)
    schedule: MigrationSchedule = schedule_for(arms(plan)[-1].config, plan.max_steps)
    steps = range(found["migration"][0]["steps"][0], plan.max_steps)
    ratio.plot(steps, [schedule.injected_ratio(s) for s in steps], color=COLOURS["migration"])
    ratio.plot(steps, [float(s >= schedule.end) for s in steps], color=COLOURS["hard switch"])
    for axes, title in (
        (left, "held-out instruction loss"),
        (right, "held-out text loss"),
        (ratio, "instructions' share of rows"),
    ):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("optimizer step")
        axes.axvline(plan.pretrain_steps, color="#888888", lw=0.8, ls=":")
        axes.grid(alpha=0.25)
    layers.set_title("CKA with the model before, 10 % after the switch", fontsize=10)
    layers.set_xlabel("layer (0: embeddings)")
    layers.grid(alpha=0.25)
    left.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def main() -> None:
    """Run what is missing, record and draw."""
    flags = parser(__doc__)
    flags.add_argument("--work", type=Path, default=REPOSITORY / "runs" / "stage_switch")
    flags.add_argument("--ablate", action="store_true", help="other schedules of migration too")
    args = flags.parse_args()
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("hf_glm_curriculum").setLevel(logging.ERROR)
    args.work.mkdir(parents=True, exist_ok=True)
    plan = Plan()
    seeds = [args.seed + i for i in range(3 if args.full else 1)]
    chosen = arms(plan) + (ablations(plan) if args.ablate else [])
    found = collected(chosen, plan, seeds, args.work)
    draw(found, plan, FOLDER.parent / "docs" / "images" / "stage_switch.png")
    record(
        "stage_switch",
        table(summary(found, plan)),
        args.seed,
        seeds=len(seeds),
        model=f"GLM, {plan.blocks} blocks of {plan.hidden}",
        steps=f"{plan.pretrain_steps} + {plan.sft_steps}",
        rows=f"{plan.rows} × {plan.width}",
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
