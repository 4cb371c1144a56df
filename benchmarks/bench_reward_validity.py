"""``reward_validity``: do the heads measure what they are named after, and do they know when?

Heads are trained on pairs of real data (``reward_pairs.py``) over a frozen backbone and evaluated
on prompts that nothing was trained, stopped, anchored or calibrated on: pairwise accuracy of each
dimension against one scalar head trained on all pairs pooled, and against the heads of the other
dimensions; calibration before and after; gates, risk and coverage at 0.85; the joint entropy of
binned scores. Backbones: the MiniLM sentence encoder ([CLS]) on English and Chinese pairs, and
SmolLM2-135M on fewer, English ones. Features are kept in the user's cache, so that a second run
takes a minute. ``--full``: all pairs for both, three seeds.
"""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from common import parser, record
from reward_pairs import DIMENSIONS, Row, data_folder, real_pairs

from hf_glm_curriculum.embedded import cache_folder
from hf_glm_curriculum.rewards import measures
from hf_glm_curriculum.rewards.head_training import train_heads
from hf_glm_curriculum.rewards.heads import RewardHeads
from hf_glm_curriculum.rewards.model import StructuredRewardModel
from hf_glm_curriculum.rewards.reward_data import Examples, RewardData, reward_data
from hf_glm_curriculum.rewards.train import features_of, train_reward_model
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig

ALL = {"TruthfulQA": 790, "GSM8K": 312, "XSTest": 450, "HalluQA": 450, "SafetyBench": 700}
SIZES = {
    "embedded_encoder": {
        "TruthfulQA": 790,
        "GSM8K": 150,
        "XSTest": 450,
        "HalluQA": 200,
        "SafetyBench": 200,
    },
    "embedded": {"TruthfulQA": 500, "GSM8K": 150, "XSTest": 450},
}
NAMES = {"embedded_encoder": "MiniLM", "embedded": "SmolLM2-135M"}
VALIDATION, TEST, FEWEST = 0.2, 0.3, 5


def scalar_accuracies(
    features: torch.Tensor, data: RewardData, config: RewardTrainingConfig
) -> dict[str, float | None]:
    """Accuracy on each dimension's test pairs of one head trained on all pairs pooled."""
    train, validation = (_pooled(data.splits[name]) for name in ("train", "validation"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        heads = RewardHeads(features.shape[1], ("preference",))
    heads.standardize.fit(features[data.splits["train"].items()])
    train_heads(heads, features, train, validation, config)
    with torch.no_grad():
        logits = heads(features)[:, 0]
    return {name: _accuracy(logits, data, name) for name in DIMENSIONS}


def _pooled(examples: Examples) -> Examples:
    pooled = copy.copy(examples)
    pooled.pair_dimension = torch.zeros_like(examples.pair_dimension)
    pooled.ratings = torch.zeros(0, 1)
    return pooled


def _accuracy(logits: torch.Tensor, data: RewardData, name: str) -> float | None:
    test = data.splits["test"]
    pairs = test.pairs[test.pair_dimension == data.dimensions.index(name)]
    return measures.pairwise_accuracy(logits[pairs[:, 0]], logits[pairs[:, 1]])


def by_category(logits: torch.Tensor, data: RewardData, rows: list[Row]) -> dict[str, list[float]]:
    """Accuracy of each category with enough test pairs: dimension → accuracies."""
    kinds = {row["prompt"]: f"{row['source']} {row['category']}" for row in rows}
    test, groups = data.splits["test"], defaultdict(list)
    for (chosen, rejected), column in zip(
        test.pairs.tolist(), test.pair_dimension.tolist(), strict=True
    ):
        right = float(logits[chosen, column] > logits[rejected, column])
        groups[data.dimensions[column], kinds[data.prompts[chosen]]].append(right)
    found: dict[str, list[float]] = defaultdict(list)
    for (dimension, _), values in groups.items():
        if len(values) >= FEWEST:
            found[dimension].append(float(np.mean(values)))
    return found


def measure(backbone: str, sizes: dict[str, int], seed: int) -> dict[str, Any]:
    """Every figure of one backbone and seed."""
    folder = data_folder()
    assert folder is not None
    rows = real_pairs(folder, sizes, 0, chinese="HalluQA" in sizes)
    data = reward_data(rows, dimensions=DIMENSIONS).split(VALIDATION, TEST, seed)
    torch.manual_seed(seed)
    model = StructuredRewardModel.from_backbone(backbone)
    config, cache = RewardTrainingConfig(seed=seed), cache_folder() / "features"
    result = train_reward_model(model, data, config, cache_dir=cache)
    features = features_of(model, data, config, cache)
    assert result.output is not None
    logits = result.output.logits
    assert logits is not None
    test, levels = data.splits["test"], data.splits["test"].levels()
    confidence = result.output.confidence[levels.item, levels.dimension]  # pyright: ignore
    correct = levels.correct(result.output.scores)  # pyright: ignore
    return {
        "pairs": {d: int((test.pair_dimension == c).sum()) for c, d in enumerate(DIMENSIONS)},
        "figures": result.figures["test"],
        "by_source": result.by_source,
        "shift": result.shift,
        "scalar": scalar_accuracies(features, data, config),
        "cross": {
            d: [_accuracy(logits[:, c], data, d) for c in range(len(DIMENSIONS))]
            for d in DIMENSIONS
        },
        "categories": by_category(logits, data, rows),
        "entropy": result.joint_entropy,
        "share": model.added_parameters()["share"],
        "pooled": {
            "ece": measures.calibration_error(confidence, correct),
            "auroc": measures.auroc(confidence, correct),
            "open": float((confidence >= config.gate_threshold).float().mean()),
            "risk": measures.risk_coverage(confidence, correct),
            "flagged": measures.flagged_errors(confidence, correct, config.gate_threshold),
            "wrong": float((~correct).float().mean()),
        },
    }


def table(name: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Table lines of one backbone, means over the seeds."""
    lines: list[dict[str, Any]] = []

    def add(measure: str, values: list[Any], target: str = "", met: Any = None, note: str = ""):
        known = [value for value in values if value is not None]
        value = float(np.mean(known)) if known else None
        line = {"measure": f"{name}: {measure}", "value": value, "target": target, "note": note}
        lines.append(line | ({"met": met(value)} if met and value is not None else {}))

    for column, dimension in enumerate(DIMENSIONS):
        figures = [run["figures"][dimension] for run in runs]
        scalar = float(np.mean([run["scalar"][dimension] for run in runs]))
        others = [
            value
            for run in runs
            for place, value in enumerate(run["cross"][dimension])
            if place != column
        ]
        spread = [value for run in runs for value in run["categories"].get(dimension, [])]
        note = f"{runs[0]['pairs'][dimension]} pairs; other heads here {np.mean(others):.2f}"
        if spread:
            note += f"; by category {min(spread):.2f} … {max(spread):.2f}"
        add(
            f"pairs right, {dimension}",
            [one["pairwise_accuracy"] for one in figures],
            f"> {scalar:.3f} (one scalar head)",
            lambda value, scalar=scalar: bool(value > scalar),
            note,
        )
        add(f"level right, {dimension}", [one["level_accuracy"] for one in figures])
        add(
            f"ECE, {dimension}",
            [one["ece"] for one in figures],
            "≤ 0.05",
            lambda value: value <= 0.05,
            f"before calibration {np.mean([one['ece_before'] for one in figures]):.3f}; AUROC "
            f"{np.mean([one['auroc'] for one in figures]):.2f}, open "
            f"{np.mean([one['open_share'] for one in figures]):.0%}",
        )
    pooled = [run["pooled"] for run in runs]
    add("ECE, all", [one["ece"] for one in pooled], "≤ 0.05", lambda value: value <= 0.05)
    add("AUROC of confidence, all", [one["auroc"] for one in pooled], "≥ 0.65", lambda v: v >= 0.65)
    add(
        "gates open at 0.85, all",
        [one["open"] for one in pooled],
        "0.05 … 0.95",
        lambda value: 0.05 <= value <= 0.95,
    )
    for share in (0.25, 0.5):
        add(
            f"wrong among the {share:.0%} most confident",
            [min(one["risk"], key=lambda point: abs(point[0] - share))[1] for one in pooled],
            note=f"wrong among all {np.mean([one['wrong'] for one in pooled]):.2f}",
        )
    add("errors flagged at 0.85", [one["flagged"] for one in pooled])
    for source, dimensions in runs[0]["shift"].items():
        if source != "warnings":
            for dimension, one in dimensions.items():
                known = runs[0]["by_source"].get(source, {}).get(dimension, {})
                note = f"{known.get('pairwise_accuracy') or 0:.2f} when trained on it"
                add(f"pairs right, {source} left out", [one["pairwise_accuracy"]], note=note)
    add("joint entropy of scores, share of maximum", [run["entropy"] for run in runs])
    lines[-1]["claim"] = "0.68"
    add("added parameters, share of backbone", [run["share"] for run in runs])
    lines[-1]["claim"] = "0.007"
    return lines


def main() -> None:
    """Measure both backbones and record the table."""
    flags = parser(__doc__)
    flags.add_argument("--backbones", nargs="*", choices=tuple(SIZES), default=list(SIZES))
    args = flags.parse_args()
    if data_folder() is None:
        sys.exit("no real data: set HGC_DATA to the folder of shared data")
    seeds = range(args.seed, args.seed + (3 if args.full else 1))
    lines = []
    for backbone in args.backbones:
        sizes = {k: ALL[k] for k in SIZES[backbone]} if args.full else SIZES[backbone]
        lines += table(NAMES[backbone], [measure(backbone, sizes, seed) for seed in seeds])
    shown = {NAMES[b]: " ".join(f"{k}:{v}" for k, v in SIZES[b].items()) for b in args.backbones}
    record("reward_validity", lines, args.seed, seeds=len(seeds), **shown)


if __name__ == "__main__":
    main()
