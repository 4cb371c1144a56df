"""``noise_detection``: which planted faults ``suspicion`` finds, beside what others use.

One LoRA run of SmolLM2-135M on real instruction rows with faults of five kinds
(``planted_faults.py``), watched with ``observe_only``; AUROC of each score against the clean
rows, by kind, and precision among the k most suspicious with k the number of faults.

Scores of the same run: ``suspicion`` (ours) and its three readings; mean loss; onset loss alone;
AUM (mean margin of the label's logit over the next, Pleiss et al. 2020); data-map confidence
(Swayamdipta et al. 2020); cleanlab's sentence score of token self-confidence
(``softmin_sentence_score``); TDRanker (Hanafi et al. 2025) as we read its abstract: samples are
ranked from easy to hard at every epoch and the ranks averaged. The judge spends one forward
without the prompt a sample before training (instruction-following difficulty, Li et al. 2023).
``--full`` repeats it for more seeds, one file a seed, and goes on where it stopped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import FOLDER, parser, record
from lora_runs import MAX_LENGTH, fits, lora_model, tokenized, train
from planted_faults import KINDS, Row, planted
from transformers import TrainerCallback

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback, content_ids
from hf_glm_curriculum.evaluation.detection import auroc
from hf_glm_curriculum.lifespan.weighting import article_weight, deviations, upper_scale
from hf_glm_curriculum.storage import atomic_write_json

RESUME = FOLDER / "results" / "noise_detection_seeds"
STRONG = ("shuffled", "other_language", "truncated")
BASELINES = ("mean_loss", "onset_loss", "aum", "data_map", "cleanlab", "tdranker")


class TokenRecorder(TrainerCallback):
    """Keeps every visit's token losses and label margins by sample, for the other methods."""

    def __init__(self) -> None:
        self.losses: dict[int, list[np.ndarray]] = {}
        self.margins: dict[int, list[float]] = {}
        self._batch: dict[str, torch.Tensor] = {}
        self._hooks: list[Any] = []

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any
    ) -> None:
        """Listen to the model's inputs and to its LM head."""
        self._hooks = [
            model.register_forward_pre_hook(self._remember, with_kwargs=True),
            model.get_output_embeddings().register_forward_hook(self._record),
        ]

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Stop listening."""
        for hook in self._hooks:
            hook.remove()

    def _remember(self, module: Any, inputs: Any, named: dict[str, torch.Tensor]) -> None:
        self._batch = named

    def _record(self, module: Any, inputs: Any, output: torch.Tensor) -> None:
        if not torch.is_grad_enabled():
            return
        logits, labels = output.detach()[:, :-1].float(), self._batch["labels"][:, 1:]
        used, known = labels >= 0, labels.clamp(min=0).unsqueeze(-1)
        own = logits.gather(-1, known).squeeze(-1)
        margin = own - logits.scatter(-1, known, -torch.inf).amax(-1)
        loss = logits.logsumexp(-1) - own
        ids = content_ids(self._batch["input_ids"], self._batch["attention_mask"])
        for row, key in enumerate(ids.tolist()):
            self.losses.setdefault(key, []).append(loss[row][used[row]].numpy())
            self.margins.setdefault(key, []).append(float(margin[row][used[row]].mean()))


def run(seed: int, epochs: int) -> dict[str, list[Any]]:
    """Train once and return every score by row, higher = more suspicious."""
    model, tokenizer = lora_model(seed)
    rows = planted(seed=seed, fits=lambda row: fits(tokenizer, row))
    data = tokenized(tokenizer, rows)
    difficulty = judge_scores(model, tokenizer, rows)
    callback, recorder = SampleLifespanCallback(LifespanConfig(observe_only=True)), TokenRecorder()
    train(model, tokenizer, data, [callback, recorder], epochs, seed)
    keys = [int(content_ids(torch.tensor([tokens]))) for tokens in data["input_ids"]]
    frame = callback.ledger.to_pandas().set_index("id").loc[keys]
    scores = ours(frame, callback, keys) | others(recorder, keys, frame)
    scores["judge"] = judged(frame, difficulty)
    scores["difficulty"] = difficulty
    return {
        "fault": [row.fault for row in rows],
        **{k: list(map(float, v)) for k, v in scores.items()},
    }


def ours(frame: Any, callback: SampleLifespanCallback, keys: list[int]) -> dict[str, Any]:
    """Our suspicion, its readings, and the weights as scores (a low weight is suspicious)."""
    history = callback.ledger.history(callback.ledger.lookup(torch.tensor(keys)))
    article = article_weight(history.loss, history.grad_norm, 0.1, 2.0)
    return {
        "suspicion": frame["suspicion"],
        "opening": frame["opening_loss"],
        "first": frame["first_loss"],
        "closing": frame["closing_loss"],
        "grad_norm": frame["grad_norm"],
        "drift": frame["drift"].fillna(frame["drift"].median()).fillna(0.0),
        "progress_weight": -frame["weight_raw"],
        "article_weight": -article.numpy(),
    }


def others(recorder: TokenRecorder, keys: list[int], frame: Any) -> dict[str, Any]:
    """Scores of other methods on the same run."""
    from cleanlab.token_classification.rank import _softmin_sentence_score as softmin

    losses = [recorder.losses[key] for key in keys]
    by_epoch = np.array([[visit.mean() for visit in visits] for visits in losses])
    ranks = by_epoch.argsort(0).argsort(0).mean(1)
    quality = [
        float(softmin([np.exp(-visit) for visit in visits], temperature=0.05).mean())
        for visits in losses
    ]
    return {
        "mean_loss": frame["loss_mean"],
        "onset_loss": frame["onset_loss"],
        "aum": [-float(np.mean(recorder.margins[key])) for key in keys],
        "data_map": -frame["confidence"],
        "cleanlab": -np.array(quality),
        "tdranker": ranks,
    }


def judge_scores(model: Any, tokenizer: Any, rows: list[Row]) -> np.ndarray:
    """Loss of each answer given its prompt over its loss without it, before training."""
    from hf_glm_curriculum.lifespan.answer_loss import conditional_gain

    given, alone = conditional_gain(model, tokenizer, [(r.prompt, r.response) for r in rows])
    return np.asarray(given) / np.asarray(alone)


def judged(frame: Any, difficulty: np.ndarray) -> np.ndarray:
    """Suspicion with the judge's forward: its reading joins those of how an answer starts."""

    def z(values: Any) -> np.ndarray:
        known = torch.tensor(np.asarray(values, float))
        scale = upper_scale(known, torch.ones_like(known, dtype=torch.bool))
        return deviations(known, scale).numpy()

    start = (z(difficulty) + z(frame["opening_loss"]) + z(frame["first_loss"])) / 3
    end = (z(frame["closing_loss"]) + z(frame["loss_mean"])) / 2
    return np.maximum(start, end)


def table(results: list[dict[str, list]]) -> list[dict[str, Any]]:
    """One line a kind: ours, the judge, the best other method; then the ablation."""
    lines = []

    def mean_auroc(score: str, kind: str) -> float:
        return float(np.mean([one_auroc(result, score, kind) for result in results]))

    for kind in KINDS:
        value = mean_auroc("suspicion", kind)
        rivals = {name: mean_auroc(name, kind) for name in BASELINES}
        best = max(rivals, key=lambda name: rivals[name])
        least = 0.90 if kind in STRONG else rivals[best]
        lines.append(
            {
                "measure": f"AUROC of suspicion, {kind}",
                "value": value,
                "target": f"≥ {max(least, rivals[best]):.3f}",
                "met": value >= max(least, rivals[best]),
                "note": ", ".join(f"{name} {rivals[name]:.3f}" for name in BASELINES),
            }
        )
    for kind in STRONG:
        value = mean_auroc("judge", kind)
        lines.append(
            {
                "measure": f"AUROC with one extra forward, {kind}",
                "value": value,
                "target": "≥ 0.96",
                "met": value >= 0.96,
                "note": f"difficulty ratio alone {mean_auroc('difficulty', kind):.3f}",
            }
        )
    for name in ("suspicion", *BASELINES):
        value = float(np.mean([precision_at_k(result, name) for result in results]))
        lines.append({"measure": f"precision@k of {name}, all kinds", "value": value})
    parts = (
        "opening",
        "first",
        "closing",
        "grad_norm",
        "drift",
        "progress_weight",
        "article_weight",
    )
    for name in parts:
        found = ", ".join(f"{kind} {mean_auroc(name, kind):.3f}" for kind in KINDS)
        lines.append({"measure": f"ablation: {name} alone", "value": found})
    capped = float(np.mean([np.mean(np.array(r["article_weight"]) <= -1.999) for r in results]))
    bound = float(
        np.mean([np.isin(np.round(r["progress_weight"], 4), (-0.1, -2.0)).mean() for r in results])
    )
    lines += [
        {"measure": "article's weight at its cap after the run", "value": capped},
        {
            "measure": "progress weight at a bound after the run",
            "value": bound,
            "target": "< 0.2",
            "met": bound < 0.2,
        },
    ]
    return lines


def one_auroc(result: dict[str, list], score: str, kind: str) -> float:
    """AUROC of a score for one kind of fault against the clean rows."""
    keep = [i for i, fault in enumerate(result["fault"]) if fault in (None, kind)]
    truth = np.array([result["fault"][i] == kind for i in keep])
    values = np.array([result[score][i] for i in keep], float)
    # Nothing is known of a sample whose visits a verdict has just set back.
    return float(auroc(truth, np.where(np.isnan(values), np.nanmedian(values), values)))


def precision_at_k(result: dict[str, list], score: str) -> float:
    """Share of faults among the k highest scores, k the number of faults."""
    truth = np.array([fault is not None for fault in result["fault"]])
    top = np.argsort(-np.array(result[score]))[: truth.sum()]
    return float(truth[top].mean())


def main() -> None:
    """Run the default seed, or five of them with ``--full``, and record the table."""
    flags = parser(__doc__)
    flags.add_argument("--epochs", type=int, default=3)
    flags.add_argument("--reuse", action="store_true", help="take seeds that were run before")
    args = flags.parse_args()
    seeds = range(args.seed, args.seed + (5 if args.full else 1))
    results = []
    for seed in seeds:
        path = RESUME / f"seed{seed}_epochs{args.epochs}.json"
        if not ((args.full or args.reuse) and path.exists()):
            atomic_write_json(path, run(seed, args.epochs))
        results.append(json.loads(Path(path).read_text("utf-8")))
    # Suspicion's readings were chosen on seeds 0 and 1; any other seed plants faults it never saw.
    seen = args.seed in (0, 1)
    record(
        "noise_detection" if seen else "noise_detection_held_out",
        table(results),
        args.seed,
        rows=192,
        faults="10 of each kind",
        tokens=f"≤ {MAX_LENGTH}",
        epochs=args.epochs,
        seeds=len(results),
    )


if __name__ == "__main__":
    main()
