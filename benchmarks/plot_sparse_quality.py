"""Draws ``sparse_quality`` from its result file: loss, planted answers and mass by budget."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).resolve().parent
PICTURE = FOLDER.parent / "docs" / "images" / "attention_quality.png"
SHOWN = {
    "ours, exact content": ("#0b3d91", "-"),
    "ours, hybrid": ("#1f77b4", "-"),
    "ours, content": ("#6baed6", "-"),
    "ours, position": ("#9e9ac8", "-"),
    "content top-k pages": ("#e6550d", "--"),
    "second order": ("#fd8d3c", "--"),
    "sink + window": ("#636363", ":"),
    "random": ("#bdbdbd", ":"),
}


def curves() -> tuple[dict, dict, dict]:
    """Loss over dense, probability / dense's, mass / the oracle's: arm → budget → value."""
    result = json.loads((FOLDER / "results" / "sparse_quality.json").read_text("utf-8"))
    loss, answers, mass = (defaultdict(dict) for _ in range(3))
    for row in result["rows"]:
        budget, _, rest = row["measure"].partition(" %, ")
        arm, _, kind = rest.partition(":")
        if kind.startswith(" loss"):
            gap, share = row["value"].split(", ")
            loss[arm][int(budget)], answers[arm][int(budget)] = float(gap), float(share)
        elif kind.startswith(" attention"):
            mass[arm][int(budget)] = float(row["note"].split(" ")[0])
    return loss, answers, mass


def main() -> None:
    """Write the picture."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    titles = (
        "loss over dense, nats",
        "probability of planted answers / dense's",
        "attention mass kept / oracle's",
    )
    for axis, title, found in zip(axes, titles, curves(), strict=True):
        for arm, (color, line) in SHOWN.items():
            if arm in found:
                points = sorted(found[arm].items())
                axis.plot(*zip(*points, strict=True), line, color=color, marker="o", label=arm)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("keys seen, % of the text")
        axis.set_xticks([6, 12, 25])
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=7, loc="upper right")
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
