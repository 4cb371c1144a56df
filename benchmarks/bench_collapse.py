"""``collapse``: does a policy stop answering when its reward pays for saying nothing?

A GLM of 2.4 million parameters is pre-trained on sums answered in sentences of several lengths, at
first right ones, then 40 % right ones; 12 % of its text refuses and 3 % says nothing. The reward
has three dimensions, as rules: factual, whether the sum is right (a refusal is not); logic, 0.9
unless a wrong sum is claimed; compliance, falling from 1 with every word said, as a careful judge
finds fewer faults in fewer words (a refusal is blameless). A wrong or long answer thus loses to
none at all.

Naively, the dimensions are summed: equal weights, no gate, no shaping, one KL coefficient for all.
The other arm has what the trainer takes by itself for a structured reward (weights 2 : 1 : 0.5,
gate, shaping with its penalties for refusals, empty and cut answers, KL control, negative
reinforcement). Both start from the same model and seed. Every head is sure of itself: confidence
plays no part here. The answer rate is the share of held-out prompts answered with a number, length
is in words, both of answers sampled after training.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import FOLDER, parser, record
from planted_faults import REPOSITORY
from small_ppo import Scorer, Task, Watch, is_right, last_number, ppo, pretrain

from hf_glm_curriculum.migration.plots import new_figure, save_figure
from hf_glm_curriculum.text.refusals import is_refusal
from hf_glm_curriculum.text.words import word_count

CLAIM = "12 → 47 words"
REFUSAL = "I cannot answer that."
ARMS = ("naive sum", "defaults")
COLOURS = ("#d64550", "#54a24b")
EVERY = 5
LONGEST = 20
"""Words after which compliance is 0."""


def pretraining_answer(a: int, b: int, right: bool, generator: random.Random) -> str:
    """A sentence, a number, a refusal, or nothing."""
    drawn = generator.random()
    number = a + b + (0 if right else generator.choice((1, 10)))
    if drawn < 0.03:
        return ""
    if drawn < 0.15:
        return REFUSAL
    if drawn < 0.30:
        return f"{number}."
    return (
        f"{a} plus {b} makes {number}." if drawn < 0.6 else f"The sum of {a} and {b} is {number}."
    )


TASK = Task(pretraining_answer, knows=0.7, response_length=24, name="collapse")


def judge(prompt: str, answer: str) -> list[tuple[float, float]]:
    """Factual, logic, compliance, each with its confidence."""
    right = is_right(prompt, answer)
    claims = last_number(answer) is not None
    words = 0 if is_refusal(answer) else word_count(answer)
    compliance = max(0.0, 1.0 - words / LONGEST)
    return [
        (0.9 if right else 0.1, 0.95),
        (0.9 if right or not claims else 0.1, 0.95),
        (compliance, 0.95),
    ]


def measured(prompts: Sequence[str], answers: Sequence[str]) -> dict[str, float]:
    """What became of the answers."""
    count = len(answers)
    return {
        "length": statistics.mean(map(word_count, answers)),
        "answered": sum(last_number(a) is not None for a in answers) / count,
        "refused": sum(map(is_refusal, answers)) / count,
        "empty": sum(not a.strip() for a in answers) / count,
        "accuracy": sum(map(is_right, prompts, answers)) / count,
    }


def run(arm: str, updates: int, work: Path, seed: int) -> list[dict[str, float]]:
    """An arm's curve, unless an earlier call has it."""
    kept = work / f"collapse_{arm.replace(' ', '_')}_{updates}_seed{seed}.json"
    if kept.exists():
        return json.loads(kept.read_text("utf-8"))
    model = pretrain(TASK, work, seed)
    watch = Watch(TASK, measured, every=EVERY)
    defaults = arm == "defaults"
    ppo(
        TASK,
        model,
        Scorer(judge),
        watch,
        updates,
        seed,
        {},
        structured_defaults=defaults,
        learning_rate=2e-4,
    )
    kept.write_text(json.dumps(watch.curve), "utf-8")
    return watch.curve


def table(found: dict[str, list[list[dict[str, float]]]]) -> list[dict[str, Any]]:
    """Lines of the result."""
    rows = []
    for key, name in (("length", "mean length, words"), ("answered", "answer rate")):
        for arm in ARMS:
            start = statistics.mean(curve[0][key] for curve in found[arm])
            end = statistics.mean(curve[-1][key] for curve in found[arm])
            kept = end / start
            held = arm == "defaults"
            rows.append(
                {
                    "measure": f"{name}, {arm}: after / before",
                    "value": kept,
                    "target": "≥ 0.9 (held)" if held else "< 0.9 (falls)",
                    "met": kept >= 0.9 if held else kept < 0.9,
                    "note": f"{start:.2f} before, {end:.2f} after",
                    "claim": CLAIM if held and key == "length" else None,
                }
            )
    for arm in ARMS:
        last = {
            key: statistics.mean(curve[-1][key] for curve in found[arm])
            for key in ("refused", "empty", "accuracy")
        }
        before = statistics.mean(curve[0]["accuracy"] for curve in found[arm])
        rows.append(
            {
                "measure": f"{arm}: refused / empty / right after",
                "value": " / ".join(f"{value:.2f}" for value in last.values()),
                "note": f"right before {before:.2f}",
            }
        )
    return rows


def draw(found: dict[str, list[list[dict[str, float]]]], path: Path) -> None:
    """Length and answer rate of every seed."""
    figure = new_figure(9.0, 3.6)
    for axes, key in zip(figure.subplots(1, 2), ("length", "answered"), strict=True):
        for arm, colour in zip(ARMS, COLOURS, strict=True):
            for place, curve in enumerate(found[arm]):
                xs, ys = [p["update"] for p in curve], [p[key] for p in curve]
                axes.plot(xs, ys, color=colour, label=None if place else arm)
        axes.set_xlabel("update")
        axes.set_title("mean length, words" if key == "length" else "answer rate", fontsize=10)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
    figure.axes[0].legend(frameon=False)
    save_figure(figure, path)


def main() -> None:
    """Run what is missing, record and draw."""
    flags = parser(__doc__)
    flags.add_argument("--work", type=Path, default=REPOSITORY / "runs" / "collapse")
    flags.add_argument("--updates", type=int, default=40)
    args = flags.parse_args()
    torch.set_num_threads(1)
    seeds = range(args.seed, args.seed + (5 if args.full else 2))
    found: dict[str, list[list[dict[str, float]]]] = {arm: [] for arm in ARMS}
    for seed in seeds:
        for arm in ARMS:
            curve = run(arm, args.updates, args.work, seed)
            found[arm].append(curve)
            shown = ", ".join(f"{key} {value:.2f}" for key, value in curve[-1].items())
            print(f"seed {seed}, {arm}: {shown}", flush=True)
    record(
        "collapse",
        table(found),
        args.seed,
        seeds=len(seeds),
        model="GLM, 5 blocks of 192, 2.4M parameters",
        updates=args.updates,
        rows=64,
    )
    draw(found, FOLDER / "results" / "collapse.png")


if __name__ == "__main__":
    main()
