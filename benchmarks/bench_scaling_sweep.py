"""``scaling_sweep``: a real sweep on this machine, trained with Trainer, and the law it gives.

GLM and Llama in six widths on three sizes of data, text: the source of Python's standard library.
Runs that ``runs/scaling-sweep`` holds already are not trained again. The pictures go to
``docs/images``.
"""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import parser, record

from hf_glm_curriculum import ScalingLaw, fit_scaling_law
from hf_glm_curriculum.commands.main import main as command_line

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "runs" / "scaling-sweep"


def rows_of(law: ScalingLaw, runs: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Table lines: runs, time, law, checks."""
    models = {(run["architecture"], run["layers"], run["hidden_size"]) for run in runs}
    seconds = sum(float(run["seconds"]) for run in runs)
    sizes = {int(run["D"]) for run in runs}
    losses = [float(run["loss"]) for run in runs if run["loss"]]
    left, report = law.report.largest_left_out, law.report
    rows: list[dict[str, Any]] = [
        {
            "measure": "models, sizes of data, runs",
            "value": f"{len(models)}, {len(sizes)}, {len(runs)}",
            "target": "≥ 12, 3",
            "met": len(models) >= 12 and len(sizes) >= 3,
            "note": f"{seconds / 60:.0f} minutes of wall time on a shared machine, one thread",
        },
        {
            "measure": "parameters; tokens; losses",
            "value": f"{min(int(r['N']) for r in runs):,} – {max(int(r['N']) for r in runs):,}; "
            f"{min(sizes):,} – {max(sizes):,}; {max(losses):.2f} – {min(losses):.2f}",
        },
    ]
    for name, (low, high) in law.intervals.items():
        value = law.compute_exponent if name == "a" else law.parameters[name]
        rows.append(
            {
                "measure": "a of N_opt ∝ C^a" if name == "a" else name,
                "value": float(value or 0),
                "note": f"95 %: {low:.3g} … {high:.3g}",
            }
        )
    rows.append(
        {
            "measure": "relative error of the fit, mean",
            "value": f"{report.residuals['mean_abs']:.2%}",
            "note": f"largest {report.residuals['max']:.1%}",
        }
    )
    if "refused" not in left:
        rows.append(
            {
                "measure": f"largest runs from those of 1/{left['factor']:g} of the compute",
                "value": f"{left['mean_abs']:.2%}",
                "note": f"{left['fitted']} runs fitted, {left['predicted']} predicted",
            }
        )
    rows += [{"measure": "told by the fit", "value": words} for words in report.warnings]
    return rows


def forms_of(runs: list[dict[str, str]]) -> list[dict[str, Any]]:
    """The forms beside each other: fit, and prediction of the largest runs."""
    columns = [np.array([float(run[name] or "nan") for run in runs]) for name in ("N", "D", "loss")]
    rows = []
    for form in ("kaplan", "chinchilla", "two_power"):
        law = fit_scaling_law(*columns, form)
        left = law.report.largest_left_out
        rows.append(
            {
                "measure": f"{form}: error of the largest runs, left out",
                "value": f"{left['mean_abs']:.2%}" if "mean_abs" in left else "–",
                "note": f"objective {law.objective:.6f}, mean error of the fit "
                f"{law.report.residuals['mean_abs']:.2%}; {len(law.report.warnings)} warnings",
            }
        )
    return rows


def main() -> None:
    """Sweep and record."""
    flags = parser(__doc__)
    args = flags.parse_args()
    torch.set_num_threads(1)
    more = ["--seed", str(args.seed)]
    if args.full:
        more += ["--tokens", "120000", "360000", "1080000", "3240000"]
    command = ["scaling", "sweep", "--output-dir", str(FOLDER), "--cpu", "--resume", *more]
    if command_line(command):
        raise SystemExit("the sweep ended with an error")
    for name in ("fit", "isoflop", "frontier"):
        target = REPOSITORY / "docs" / "images" / f"scaling_sweep_{name}.png"
        shutil.copyfile(FOLDER / f"{name}.png", target)
    runs = list(csv.DictReader((FOLDER / "runs.csv").read_text("utf-8").splitlines()))
    law = ScalingLaw.load(FOLDER / "law.json")
    record(
        "scaling_sweep",
        [*rows_of(law, runs), *forms_of(runs)],
        args.seed,
        text="Python's standard library",
    )


if __name__ == "__main__":
    main()
