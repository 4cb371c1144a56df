"""What the samples of a ledger have in common: the population that each is compared with.

Shape letters: S surveyed rows, K history length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_glm_curriculum.lifespan import weighting
from hf_glm_curriculum.signals.ledger import History, SampleLedger, SampleState


@dataclass(frozen=True)
class Survey:
    """Statistics over evenly spaced ledger rows, with what they were taken from."""

    population: weighting.Population
    history: History
    """[S, K] of the surveyed rows."""
    seen: Tensor
    """[S] bool: surveyed rows that were visited."""
    lifetime: Tensor
    """[S] int32 visits."""
    drift: Tensor
    """[S] float32."""


def survey(ledger: SampleLedger) -> Survey | None:
    """Robust statistics over at most ``REFERENCE_ROWS`` evenly spaced rows; None without rows."""
    stride = max(1, -(-len(ledger) // weighting.REFERENCE_ROWS))
    sample = slice(None, None, stride)
    rows = torch.arange(0, len(ledger), stride, device=ledger.device)
    if rows.numel() == 0:
        return None
    lifetime = ledger.column("lifetime")[sample]
    seen = lifetime > 0
    history = ledger.history(rows)
    training = seen & (ledger.column("state")[sample] == SampleState.TRAINING)
    scale, upper = weighting.reference_scale, weighting.upper_scale
    population = weighting.Population(
        progress=scale(weighting.relative_progress(history.loss), seen),
        instability=scale(weighting.instability(history.grad_norm), seen)[0],
        readings={name: upper(ledger.mean_of(name, sample), seen) for name in weighting.READINGS},
        loss_median=scale(ledger.mean_of("loss", sample), seen)[0],
        mean_weight=weighting.token_weighted_mean(
            ledger.column("weight_raw")[sample], ledger.column("n_tokens")[sample], training
        ),
    )
    return Survey(population, history, seen, lifetime, ledger.column("drift")[sample])


def warm_scale(found: Survey, warmup: int) -> tuple[Tensor, Tensor]:
    """Medians of the life vector's components over the samples that are through the warm-up.

    Args:
        found: of this step.
        warmup: visits of the warm-up.

    Returns:
        [3] float32, and 0-dim bool: whether at least half of the seen samples are that far.
    """
    warm = found.lifetime >= warmup
    history = found.history
    vector = weighting.life_vector(history.loss, history.grad_norm, found.drift)
    scale = torch.nanmedian(torch.where(warm.unsqueeze(1), vector, torch.nan), dim=0).values
    return scale, (2 * warm.sum() >= found.seen.sum()) & (warm.sum() > 0)


def unknown_population(device: torch.device) -> weighting.Population:
    """A population of which nothing is known: every weight it leads to is 1."""
    nothing = torch.full((), torch.nan, device=device)
    pair = (nothing, nothing)
    return weighting.Population(
        progress=pair,
        instability=nothing,
        readings=dict.fromkeys(weighting.READINGS, pair),
        loss_median=nothing,
        mean_weight=torch.ones((), device=device),
    )
