"""``outcome``: what training on noisy data gains from the callback.

The same rows with planted faults (``planted_faults.py``), the same seed and steps, SmolLM2-135M
(LoRA): plain SFT, the callback, and (``--full``) the callback with the judge that spends one
forward a sample. Held-out loss on clean rows, overlap of greedy answers with the reference (F1 of
words), and the variance of the step loss around its running mean. ``--full``: three seeds and more
rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from bench_redundancy import clean_rows
from common import parser, record
from lora_runs import fits, held_out, lora_model, tokenized, train
from planted_faults import Row, planted

from hf_glm_curriculum import SampleLifespanCallback
from hf_glm_curriculum.evaluation.generation import generate_answers
from hf_glm_curriculum.lifespan.reference_judge import InstructionJudge

EPOCHS, WINDOW, ANSWERED = 3, 8, 24
ARMS = ("plain SFT", "with the callback", "with the callback and InstructionJudge")


def step_variance(losses: Sequence[float]) -> float:
    """Variance of the step loss around its centred running mean over ``WINDOW`` steps."""
    values = np.asarray(losses)
    kernel = np.ones(WINDOW) / WINDOW
    smooth = np.convolve(values, kernel, mode="valid")
    inner = values[WINDOW // 2 : WINDOW // 2 + len(smooth)]
    return float(np.var(inner - smooth))


def word_f1(answer: str, reference: str) -> float:
    """F1 of the words of an answer against a reference."""
    one, two = (Counter(text.lower().split()) for text in (answer, reference))
    common = sum((one & two).values())
    return 2 * common / max(sum(one.values()) + sum(two.values()), 1)


def run(seed: int, n: int, per_kind: int, arms: Sequence[str]) -> dict[str, dict[str, float]]:
    """The arms of one seed."""
    model, tokenizer = lora_model(seed)
    rows = planted(n, per_kind, seed, fits=lambda row: fits(tokenizer, row))
    used = {row.prompt for row in rows}
    spare, more = clean_rows(tokenizer, 500, 500, seed + 1000)
    held = [row for row in (*spare, *more) if not any(row.prompt in prompt for prompt in used)][:48]
    found: dict[str, dict[str, float]] = {}
    found["before training"] = judge(model, tokenizer, held)
    data = tokenized(tokenizer, rows)
    for arm in arms:
        model, _ = lora_model(seed)
        callbacks: list[Any] = []
        if arm != ARMS[0]:
            asked = InstructionJudge() if arm == ARMS[2] else None
            callbacks = [SampleLifespanCallback(judge=asked)]
        losses = train(model, tokenizer, data, callbacks, EPOCHS, seed)
        found[arm] = judge(model, tokenizer, held) | {"variance": step_variance(losses)}
    return found


def judge(model: Any, tokenizer: Any, held: list[Row]) -> dict[str, float]:
    """Held-out loss and the words that greedy answers share with the reference."""
    asked = held[:ANSWERED]
    answers = generate_answers(model, tokenizer, [row.prompt for row in asked], max_new_tokens=40)
    pairs = zip(answers, asked, strict=True)
    overlap = float(np.mean([word_f1(str(answer), row.response) for answer, row in pairs]))
    return {"loss": held_out(model, tokenizer, held), "f1": overlap}


def main() -> None:
    """Run one seed (three with ``--full``) and record the table."""
    args = parser(__doc__).parse_args()
    seeds = range(args.seed, args.seed + (3 if args.full else 1))
    n, per_kind = (192, 14) if args.full else (128, 9)
    arms = ARMS if args.full else ARMS[:2]
    results = [run(seed, n, per_kind, arms) for seed in seeds]

    def mean(arm: str, name: str) -> float:
        return float(np.mean([result[arm][name] for result in results]))

    lines: list[dict[str, Any]] = []
    plain = ARMS[0]
    for arm in ("before training", *arms):
        better = arm in arms[1:]
        lines.append(
            {
                "measure": f"held-out loss, {arm}",
                "value": round(mean(arm, "loss"), 4),
                **(
                    {
                        "target": f"≤ {mean(plain, 'loss'):.4f}",
                        "met": mean(arm, "loss") <= mean(plain, "loss"),
                    }
                    if better
                    else {}
                ),
            }
        )
        lines.append({"measure": f"answers' word F1, {arm}", "value": round(mean(arm, "f1"), 3)})
    for arm in arms[1:]:
        ratio = mean(arm, "variance") / mean(plain, "variance") - 1
        lines.append(
            {"measure": f"step-loss variance, {arm} / plain", "value": ratio, "claim": "−40 %"}
        )
    record(
        "outcome",
        lines,
        args.seed,
        rows=n,
        faults=f"{per_kind} of each of 5 kinds",
        epochs=EPOCHS,
        held_out=48,
        answers=ANSWERED,
        seeds=len(results),
    )


if __name__ == "__main__":
    main()
