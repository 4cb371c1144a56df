"""``beyond_length``: SmolLM2-135M, trained on 8,192 tokens, reading past that length.

A contract followed by others, with planted facts and clauses, at 1×, 2× and 4× the trained length:
the loss over the last 2,048 tokens, beside that of dense attention which reads the last 8,192
tokens of the same text alone, and the mean probability (geometric) of the right answer to questions
about what was planted. Arms: dense attention as it is, dynamic NTK and YaRN (both as
transformers has them, scaled to the length read), position-graph attention with original
positions, and with compact ones. The default reads 4× with the compact arm alone, since a dense
pass over 32,768 tokens takes most of an hour on two cores; ``--full`` reads it with all.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from common import parser, record
from long_context import CONTRACTS, answer, haystack, read
from transformers import AutoConfig, AutoModelForCausalLM

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.registration import enable_position_graph
from hf_glm_curriculum.models import load_tokenizer, resolve_model

TRAINED = 8192
SPARSE: dict[str, Any] = {
    "block_size": 16,
    "query_block": 16,
    "probe": 4,
    "window": 64,
    "top_k": 2048,
    "selection": "content",
}
LAST = 2048
ARMS = ("dense", "dynamic NTK", "YaRN", "original positions", "compact positions")


def model_for(arm: str, times: int) -> Any:
    """The model as an arm reads a text of ``times`` its trained length."""
    path = resolve_model("embedded")
    config = AutoConfig.from_pretrained(path)
    rope = copy.deepcopy(config.rope_parameters)
    if times > 1 and arm in ("dynamic NTK", "YaRN"):
        rope |= {"rope_type": "dynamic" if "NTK" in arm else "yarn", "factor": float(times)}
        rope["original_max_position_embeddings"] = TRAINED
        config.rope_parameters = rope
    model = AutoModelForCausalLM.from_pretrained(path, config=config, dtype=torch.float32).eval()
    if "positions" in arm:
        settings = PositionGraphConfig(**SPARSE, positions=arm.split()[0])  # type: ignore[arg-type]
        enable_position_graph(model, settings)
    return model


def measure(arm: str, times: int, seed: int) -> dict[str, float]:
    """Loss over the last tokens, read in full and in the trained length; what is known of facts."""
    tokenizer = load_tokenizer("embedded")
    length = TRAINED * times - 64  # room for a question
    stack = haystack(CONTRACTS[0], length, tokenizer, seed)
    model = model_for(arm, times)
    # dynamic NTK takes its frequencies from the length of one pass: all at once, as a user would
    piece = length if arm == "dynamic NTK" else 4096
    inside = read(model_for("dense", 1), stack.ids[:, -TRAINED + 64 :])[1][-LAST:]
    cache, loss = read(model, stack.ids, piece)
    answers = [answer(model, tokenizer, cache, question) for question in stack.questions]
    return {
        "loss": float(loss[-LAST:].mean()),
        "inside": float(inside.mean()),
        "probability": float(torch.tensor(statistics.mean(log for _, log in answers)).exp()),
        "right": sum(right for right, _ in answers),
        "asked": len(answers),
    }


def main() -> None:
    """Measure arm by arm; what is measured is kept on disk until all is."""
    flags = parser(__doc__)
    flags.add_argument("--kept", type=Path, default=Path("beyond_length.partial.json"))
    args = flags.parse_args()
    cases = [("dense", 1), ("compact positions", 1), *((arm, 2) for arm in ARMS)]
    cases += [(arm, 4) for arm in (ARMS if args.full else ARMS[-1:])]
    kept = json.loads(args.kept.read_text()) if args.kept.exists() else {}
    for arm, times in cases:
        case = f"{arm} {times} {args.seed}"
        if case not in kept:
            kept[case] = measure(arm, times, args.seed)
            args.kept.write_text(json.dumps(kept))
        sys.stderr.write(f"{case}: {kept[case]}\n")
    found = {case: kept[f"{case[0]} {case[1]} {args.seed}"] for case in cases}
    rows = []
    for (arm, times), value in found.items():
        row = {
            "measure": f"{times}×, {arm}: loss / dense's on the last {TRAINED:,} tokens alone",
            "value": value["loss"] / value["inside"],
            "note": f"loss {value['loss']:.3f} and {value['inside']:.3f}; planted: probability "
            f"{value['probability']:.3f}, {value['right']} of {value['asked']} right",
        }
        if (arm, times) == ("compact positions", 4):
            row |= {"target": "≤ 1.10", "met": value["loss"] <= 1.1 * value["inside"]}
        if (arm, times) == ("compact positions", 2):
            best = max(v["probability"] for (_, t), v in found.items() if t == 2)
            row |= {"target": "best retrieval", "met": value["probability"] >= best}
        rows.append(row)
    record("beyond_length", rows, args.seed, model="SmolLM2-135M", trained=TRAINED, keys=2048)
    args.kept.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
