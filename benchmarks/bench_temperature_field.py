"""``temperature_field``: samples of SmolLM2-135M at a temperature by position, or at a fixed one.

Answers to real instructions: distinct-2, recall of the reference answers' rare tokens, and the
perplexity of the samples under the same model at temperature 1. Fields: by entropy, by expected
rarity, and the opposite of the first; all from 0.7 to 1.3 and calibrated on other instructions'
answers to a mean of 1. Each is compared with a fixed temperature equal to the mean that it turned
out to have, prompt by prompt, and with the curve of fixed temperatures at equal perplexity. With
``--top-p 0.9`` the tail is cut behind the temperature, as is usual.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import parser, record
from planted_faults import Row, self_instruct
from transformers import LogitsProcessor, LogitsProcessorList, set_seed

from hf_glm_curriculum.curriculum.temperature import TemperatureField
from hf_glm_curriculum.curriculum.temperature_processor import TemperatureFieldLogitsProcessor
from hf_glm_curriculum.curriculum.temperature_ranks import rarity
from hf_glm_curriculum.data.tokenization import tokenize_sft
from hf_glm_curriculum.evaluation.generation import greedy_config, prepared, prompt_text
from hf_glm_curriculum.models import backbone, load_model
from hf_glm_curriculum.text.repetition import distinct_n

FIXED = (0.7, 0.85, 1.0, 1.15, 1.3)
MOST_PROMPT_WORDS = 30
RARE = 0.5
"""A token is rare if more than half of the corpus consists of more frequent ones."""


@dataclass
class Arm:
    """What one way of drawing gave, prompt by prompt."""

    mean: float
    distinct: list[float]
    recall: list[float]
    loss: list[float]
    length: float

    @property
    def perplexity(self) -> float:
        """Of the samples under the model at temperature 1, geometric mean over prompts."""
        return float(np.exp(statistics.mean(self.loss)))


class Study:
    """The model, the prompts and what their answers are measured by."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Load everything; prompts and calibration rows are different instructions."""
        self.args = args
        self.model: Any
        self.model, self.tokenizer = load_model()
        rows = self_instruct(most_words=160, least_answer_words=15)
        random.Random(args.seed).shuffle(rows)
        short = [r for r in rows if len(r.prompt.split()) <= MOST_PROMPT_WORDS]
        self.rows = short[: args.prompts]
        others = [row for row in rows if row not in self.rows]
        self.read: Any = None
        self.calibration = self._tokens(others[: args.calibration])
        self.corpus = self._tokens(others)
        self.vocabulary = self.model.config.vocab_size
        answers = [[t for t in row["labels"] if t >= 0] for row in self.corpus]
        self.counts = TemperatureField.fit(answers, self.vocabulary)
        assert self.counts.token_counts is not None
        self.rare = rarity(self.counts.token_counts) >= RARE

    def _tokens(self, rows: list[Row]) -> list[Any]:
        from datasets import Dataset

        texts = Dataset.from_list([{"prompt": r.prompt, "response": r.response} for r in rows])
        return list(tokenize_sft(texts, self.tokenizer, max_length=256))

    def field(self, source: str, low: float = 0.7, high: float = 1.3) -> TemperatureField:
        """A field of mean 1 on the calibration rows."""
        counts = self.counts.token_counts if source == "frequency" else None
        made = TemperatureField(low, high, source=source, mean=1.0, token_counts=counts)
        return made.calibrate(self.model, self.calibration)

    def _prompts(self) -> tuple[Any, Any]:
        """The prompts as they are drawn from, and all but their last token read once for all."""
        from transformers import DynamicCache

        texts = [prompt_text(self.tokenizer, r.prompt) for r in self.rows]
        with prepared(self.model, self.tokenizer, self.model.generation_config):
            batch = self.tokenizer(
                texts, padding=True, return_tensors="pt", add_special_tokens=False
            )
        batch = {k: batch[k] for k in ("input_ids", "attention_mask")}
        mask = batch["attention_mask"]
        cache = DynamicCache(config=self.model.config)
        backbone(self.model)(
            input_ids=batch["input_ids"][:, :-1],
            attention_mask=mask[:, :-1],
            position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, :-1],
            cache=cache,
        )
        cache.batch_repeat_interleave(self.args.samples)
        return {k: v.repeat_interleave(self.args.samples, 0) for k, v in batch.items()}, cache

    @torch.inference_mode()
    def draw(self, field: TemperatureField, name: str) -> Arm:
        """Samples of every prompt, all in one batch, from the same random state in each arm."""
        start = time.perf_counter()
        if not self.read:
            self.read = self._prompts()
        given, cache = self.read
        config = greedy_config(self.model, self.tokenizer, self.args.tokens)
        config.do_sample, config.top_k, config.top_p = True, 0, self.args.top_p
        ends: Any = config.eos_token_id
        warm = TemperatureFieldLogitsProcessor(field, record=self.args.tokens, end_ids=ends)
        plain = PlainLosses()
        set_seed(self.args.seed)
        with prepared(self.model, self.tokenizer, config):
            out = self.model.generate(
                **given,
                cache=copy.deepcopy(cache),
                logits_processor=LogitsProcessorList([plain, warm]),
            )
        used = warm.recorded(out)
        new = out[:, given["input_ids"].shape[1] :]
        arm = self._measured(new, plain.losses(out), ~used.isnan(), float(used.nanmean()))
        sys.stderr.write(
            f"{name}: {time.perf_counter() - start:.0f} s, mean {arm.mean:.3f}, perplexity "
            f"{arm.perplexity:.2f}, distinct-2 {statistics.mean(arm.distinct):.3f}, recall "
            f"{np.nanmean(arm.recall):.3f}, {arm.length:.0f} tokens\n"
        )
        return arm

    def _measured(self, new: Any, losses: Any, drawn: Any, mean: float) -> Arm:
        n = self.args.samples
        arm = Arm(mean, [], [], [], float(drawn.sum(1).float().mean()))
        for place, row in enumerate(self.rows):
            part = slice(place * n, (place + 1) * n)
            kept = [t[m].tolist() for t, m in zip(new[part], drawn[part], strict=True)]
            texts = self.tokenizer.batch_decode(kept, skip_special_tokens=True)
            arm.distinct.append(distinct_n(texts, 2))
            arm.loss.append(float(losses[part][drawn[part]].mean()))
            arm.recall.append(self._recall(row, {t for one in kept for t in one}))
        return arm

    def _recall(self, row: Row, said: set[int]) -> float:
        """Share of the reference's rare tokens, those of the prompt left out, that were drawn."""
        asked = set(self.tokenizer(row.prompt)["input_ids"])
        wanted = {t for t in self.tokenizer(row.response)["input_ids"] if self.rare[t]} - asked
        return len(wanted & said) / len(wanted) if wanted else float("nan")


class PlainLosses(LogitsProcessor):
    """Nats of the drawn tokens at temperature 1, from the scores that drew them."""

    def __init__(self) -> None:
        """Start a generation."""
        self._found: list[Any] = []
        self._last: Any = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Note what the last step drew; scores go on as they are."""
        self._note(input_ids[:, -1])
        self._last = scores.log_softmax(-1)
        return scores

    def losses(self, sequences: Any) -> Any:
        """[B, S]."""
        self._note(sequences[:, -1])
        self._last = None
        return torch.stack(self._found, 1)

    def _note(self, tokens: Any) -> None:
        if self._last is not None:
            self._found.append(-self._last.gather(1, tokens[:, None])[:, 0])


def difference(ours: list[float], theirs: list[float], seed: int) -> tuple[float, float, float]:
    """Mean difference over prompts and its 95 % interval, by resampling prompts."""
    gaps = np.asarray(ours) - np.asarray(theirs)
    gaps = gaps[~np.isnan(gaps)]
    draws = np.random.default_rng(seed).choice(gaps, (4000, len(gaps))).mean(1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(gaps.mean()), float(low), float(high)


def on_curve(fixed: dict[float, Arm], arm: Arm, name: str) -> float:
    """What fixed temperatures give at the arm's perplexity, linear between those measured."""
    arms = sorted(fixed.values(), key=lambda one: one.perplexity)
    losses = [np.log(one.perplexity) for one in arms]
    values = [float(np.nanmean(getattr(one, name))) for one in arms]
    return float(np.interp(np.log(arm.perplexity), losses, values))


def line(measure: str, arm: Arm) -> dict[str, Any]:
    """A table line of one arm."""
    return {
        "measure": f"{measure}: perplexity of the samples at temperature 1",
        "value": arm.perplexity,
        "note": f"mean temperature {arm.mean:.3f}; distinct-2 {statistics.mean(arm.distinct):.3f}, "
        f"rare-token recall {np.nanmean(arm.recall):.3f}, {arm.length:.0f} tokens a sample",
    }


def compared(name: str, arm: Arm, fixed: dict[float, Arm], same: Arm, seed: int) -> list[Any]:
    """Lines of one field against a fixed temperature of its mean, and against the curve."""
    rows = []
    for key, label in (("loss", "loss"), ("distinct", "distinct-2"), ("recall", "rare recall")):
        gap, low, high = difference(getattr(arm, key), getattr(same, key), seed)
        note = f"95 % over prompts: {low:+.4f} to {high:+.4f}"
        if key != "loss":
            ahead = float(np.nanmean(getattr(arm, key))) - on_curve(fixed, arm, key)
            note += f"; {ahead:+.4f} against the curve of fixed ones at equal perplexity"
        rows.append(
            {
                "measure": f"{name} less fixed {same.mean:.3f}, its own mean: {label}",
                "value": gap,
                "note": note,
            }
        )
    return rows


def main() -> None:
    """Draw in every arm, then compare."""
    flags = parser(__doc__)
    flags.add_argument("--prompts", type=int, default=24)
    flags.add_argument("--samples", type=int, default=3, help="of each prompt")
    flags.add_argument("--tokens", type=int, default=64, help="of a sample at most")
    flags.add_argument("--calibration", type=int, default=48, help="rows")
    flags.add_argument("--top-p", type=float, default=1.0, help="cut behind the temperature")
    args = flags.parse_args()
    if args.full:
        args.prompts, args.samples, args.tokens = 64, 5, 96
    study = Study(args)
    fixed = {t: study.draw(TemperatureField(t, t), f"fixed {t}") for t in FIXED}
    fields = {
        "entropy": study.field("entropy"),
        "frequency": study.field("frequency"),
        "opposite entropy": study.field("entropy", 1.3, 0.7),
    }
    rows = [line(f"fixed {t}", arm) for t, arm in fixed.items()]
    comparisons = []
    for name, field in fields.items():
        arm = study.draw(field, name)
        same = study.draw(TemperatureField(arm.mean, arm.mean), f"fixed {arm.mean:.3f}")
        rows.append(line(f"field by {name}", arm))
        comparisons += compared(f"field by {name}", arm, fixed, same, args.seed)
    record(
        "temperature_field" if args.top_p == 1.0 else "temperature_field_top_p",
        rows + comparisons,
        args.seed,
        model="SmolLM2-135M",
        prompts=args.prompts,
        samples=args.samples,
        tokens=args.tokens,
        calibration_rows=args.calibration,
        top_p=args.top_p,
    )


if __name__ == "__main__":
    main()
