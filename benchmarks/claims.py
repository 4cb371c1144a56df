"""The articles' claims beside what was measured here, read off the result files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """What an article says, and which lines of which benchmark stand beside it.

    Attributes:
        text: the claim.
        benchmark: name of the result; "" where nothing here can measure it.
        measures: beginnings of the lines' ``measure``.
        remark: why it is not measured, or what is different.
    """

    text: str
    benchmark: str = ""
    measures: tuple[str, ...] = ()
    remark: str = ""


CLAIMS = (
    Claim(
        "a sample's gradient contribution falls by 62 % by epoch 3; 11 % is left by epoch 5",
        "redundancy",
        ("gradient contribution of epoch 3", "gradient contribution of epoch 4"),
        "shares of the run's total; four epochs",
    ),
    Claim(
        "the loss jumps by 200 % in epoch 3 where one text has two ids",
        remark="cannot happen: a sample is known by its tokens (tests/data/test_content_id.py)",
    ),
    Claim(
        "20 % of samples are redundant",
        "redundancy",
        ("share of rows judged MASTERED", "held-out loss, without MASTERED"),
        "and dropping them is not better than dropping random rows",
    ),
    Claim(
        "weights by sample life: F1 +1.8, step-loss variance −40 %",
        "outcome",
        (
            "answers' word F1, plain SFT",
            "answers' word F1, with the callback",
            "step-loss variance, with the callback",
        ),
        "variance as relative change",
    ),
    Claim(
        "changing the objective: 2 h → 0.3 s",
        "loss_swap",
        ("from the command", "loading the model"),
    ),
    Claim(
        "peak of the loss at the stage switch −73 %",
        "stage_switch",
        ("instruction-loss excess, peak: migration", "instruction-loss excess, peak: plain replay"),
        "plain replay of the same rows does as much",
    ),
    Claim(
        "structured rewards hold 68 % of the largest entropy",
        "reward_validity",
        ("SmolLM2-135M: joint entropy", "MiniLM: joint entropy"),
    ),
    Claim(
        "confidence gates: −41 % PPO steps",
        "gating",
        ("updates to an accuracy", "gate: updates", "no gate: updates"),
    ),
    Claim(
        "errors found 61 → 89 %",
        "reward_validity",
        ("SmolLM2-135M: errors flagged", "SmolLM2-135M: gates open"),
        "at the price of closing most rows",
    ),
    Claim(
        "0.7 % more parameters",
        "reward_validity",
        ("SmolLM2-135M: added parameters", "MiniLM: added parameters"),
        "share of the backbone",
    ),
    Claim(
        "mean answer 12 → 47 words after re-weighting, facts right in 82 %",
        "collapse",
        (
            "mean length, words, naive sum",
            "mean length, words, defaults",
            "defaults: refused / empty / right",
        ),
        "a small GLM on sums; the last is refused / empty / right",
    ),
    Claim(
        "memory −63 % (128K tokens), 82 → 51 GB (512K)",
        "prefill",
        ("32,768 tokens",),
        "CPU, against SDPA that is itself linear in memory; no GPU was to be had",
    ),
    Claim("first token within 120 ms", remark="not measured: no GPU was to be had"),
    Claim(
        "MinHash and auto-encoder agree: cosine 0.92",
        "graph_encoders",
        ("auto-encoder: cosine", "auto-encoder fitted on a law: cosine"),
    ),
    Claim(
        "MinHash 200× faster",
        "minhash_table",
        ("legacy: times datasketch", "affine32: times datasketch"),
        "against datasketch position by position",
    ),
    Claim(
        "blocked sparse attention 1.8× faster (512K)",
        "sparse_attention",
        ("131,072 tokens, position, blocks of 256", "131,072 tokens, hybrid"),
        "against dense SDPA, CPU, 128K",
    ),
    Claim(
        "clauses across pages +27 %, diagnoses +33 %",
        "sparse_quality",
        ("25 %, ours, hybrid", "25 %, content top-k pages: loss", "25 %, sink + window: loss"),
        "planted facts and clauses, same budget: loss over dense, probability kept",
    ),
    Claim(
        "turns as neighbourhoods: F1 54 → 79 %",
        "turn_graph",
        ("CrossWOZ, 512 keys, all", "CrossWOZ, 256 keys, all", "ABCD, 256 keys, all"),
        "places found, with turns (window)",
    ),
    Claim(
        "neighbouring turns look alike to 0.15 only under the window",
        "turn_graph",
        ("CrossWOZ, similarity", "ABCD, similarity"),
    ),
)


def claims_table(results: Mapping[str, dict[str, Any]]) -> list[str]:
    """Lines of the table, from results by name."""
    lines = ["| claim | measured here | command |", "| --- | --- | --- |"]
    for claim in CLAIMS:
        result = results.get(claim.benchmark)
        found = "" if result is None else "; ".join(_found(claim, result["rows"]))
        if claim.benchmark and not found:
            found = "not measured yet"
        shown = found + (f" ({claim.remark})" if found and claim.remark else claim.remark)
        command = f"`{result['command']}`" if result is not None else ""
        lines.append(f"| {claim.text} | {shown} | {command} |")
    return lines


def _found(claim: Claim, rows: list[dict[str, Any]]) -> list[str]:
    """The claim's lines as text."""
    found = []
    for start in claim.measures:
        for row in rows:
            if str(row["measure"]).startswith(start):
                value = row["value"]
                shown = f"{value:.3g}" if isinstance(value, float) else str(value)
                found.append(f"{row['measure']}: **{shown}**".replace("|", "\\|"))
    return found
