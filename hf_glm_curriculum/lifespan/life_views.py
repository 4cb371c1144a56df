"""What is read out of a ledger: figures for the log, and the samples a judge gets to see.

Nothing here holds more than a few values a ledger row at a time, however many rows there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_glm_curriculum.lifespan import weighting
from hf_glm_curriculum.lifespan.config import LifespanConfig
from hf_glm_curriculum.signals.ledger import SampleLedger, SampleState

if TYPE_CHECKING:
    import pandas as pd

ROWS_PER_BLOCK = 1 << 20
"""Rows that work on the whole ledger takes at a time; quantiles are of at most so many."""


def blocks(rows: int) -> Iterator[slice]:
    """Slices that cover ``rows`` rows."""
    for start in range(0, rows, ROWS_PER_BLOCK):
        yield slice(start, min(start + ROWS_PER_BLOCK, rows))


def mean_training_weight(ledger: SampleLedger) -> Tensor:
    """Token-weighted mean raw weight, 0-dim, over the samples seen and in TRAINING."""
    total = torch.zeros(2, device=ledger.device)
    for part in blocks(len(ledger)):
        state, lifetime = ledger.column("state")[part], ledger.column("lifetime")[part]
        training = (lifetime > 0) & (state == SampleState.TRAINING)
        raw, tokens = ledger.column("weight_raw")[part], ledger.column("n_tokens")[part]
        total += torch.stack(weighting.token_sums(raw, tokens, training))
    return weighting.mean_of_sums(*total)


def summary(
    ledger: SampleLedger, population: weighting.Population, config: LifespanConfig
) -> dict[str, float]:
    """Figures for the log: weights, bounds, states and what is known; copies to the host.

    ``weight_*`` describe the samples seen so far (``weight_p*`` at most a million of them, evenly
    spaced); ``at_bound`` is the share of samples in training whose raw weight sits at its floor or
    cap; ``state_*`` count samples.
    """
    seen = ledger.column("lifetime") > 0
    if not bool(seen.any()):
        return {"samples_seen": 0.0}
    weight = ledger.column("weight")[seen]
    state = ledger.column("state")[seen]
    raw = ledger.column("weight_raw")[seen & (ledger.column("state") == 0)]
    bound = (raw <= config.weight_floor) | (raw >= config.weight_cap)
    values = {"samples_seen": float(weight.numel()), "weight_mean": float(weight.mean())}
    spread_weight = weight[:: max(1, -(-weight.numel() // ROWS_PER_BLOCK))]
    for percent in (10, 50, 90):
        values[f"weight_p{percent}"] = quantile(spread_weight, percent / 100)
    values["at_bound"] = float(bound.float().mean()) if raw.numel() else 0.0
    values["visits_mean"] = float(ledger.column("lifetime")[seen].float().mean())
    values["loss_median"] = float(population.loss_median)
    values["progress_median"] = float(population.progress[0])
    for member in SampleState:
        values[f"state_{member.name.lower()}"] = float((state == member).sum())
    return values


def quantile(values: Tensor, q: float) -> float:
    """The q-quantile of [N] values, by the nearest rank; any N."""
    rank = round(q * (values.numel() - 1)) + 1
    return float(values.float().kthvalue(rank).values)


def observed_cases(ledger: SampleLedger) -> pd.DataFrame:
    """Samples in the pool that await a verdict, as :class:`Judge` gets them (without text)."""
    observed = ledger.column("state") == SampleState.OBSERVED
    rows = torch.nonzero(observed & (ledger.column("lifetime") > 0)).squeeze(1)
    return _ranked(ledger, rows)


def spread_cases(ledger: SampleLedger, count: int) -> pd.DataFrame:
    """At most ``count`` of the samples seen, evenly spaced; columns as in `observed_cases`."""
    rows = ledger.seen_rows()
    return _ranked(ledger, rows[:: max(1, -(-len(rows) // count))])


def _ranked(ledger: SampleLedger, rows: Tensor) -> pd.DataFrame:
    """Rows as a frame, with the rank of their mean loss among all samples seen, in (0, 1]."""
    frame = ledger.to_pandas(rows)
    means = ledger.mean_of("loss")
    own = means[rows]
    means = means[torch.isfinite(means)].sort().values
    below = torch.searchsorted(means, own)
    upto = torch.searchsorted(means, own, right=True)
    # Equal losses share the mean of their ranks.
    frame["loss_rank"] = ((below + 1 + upto).double() / 2 / max(1, len(means))).cpu().numpy()
    return frame
