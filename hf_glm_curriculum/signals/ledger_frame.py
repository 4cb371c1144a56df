"""A ledger's rows as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from hf_glm_curriculum.signals.sample_state import SampleState
from hf_glm_curriculum.signals.slopes import last_valid, slope

if TYPE_CHECKING:
    from hf_glm_curriculum.signals.ledger import SampleLedger


def ledger_frame(ledger: SampleLedger, rows: Tensor) -> pd.DataFrame:
    """The columns of `SampleLedger.to_pandas` for some rows.

    Args:
        ledger: where they are read.
        rows: [M] int64 rows of samples that were seen.
    """
    history = ledger.history(rows)
    data = {
        "id": ledger.index.row_ids[rows.cpu()],
        "row": _data_rows(ledger, rows.cpu()),
        "visits": ledger.column("visits")[rows],
        "loss": last_valid(history.loss),
        "loss_mean": ledger.mean_of("loss", rows),
        "onset_loss": ledger.mean_of("onset", rows),
        "loss_slope": slope(history.loss),
        "grad_norm": last_valid(history.grad_norm),
        "drift": ledger.column("drift")[rows],
        "weight": ledger.column("weight")[rows],
        "weight_raw": ledger.column("weight_raw")[rows],
        "suspicion": ledger.column("suspicion")[rows],
        "opening_loss": ledger.mean_of("opening", rows),
        "first_loss": ledger.mean_of("first", rows),
        "closing_loss": ledger.mean_of("closing", rows),
        "confidence": ledger.mean_of("probability", rows),
        "variability": ledger.variability(rows),
        "lifetime": ledger.column("lifetime")[rows],
        "n_tokens": ledger.column("n_tokens")[rows],
        "resamples": ledger.column("resamples")[rows],
    }
    frame = pd.DataFrame({name: value.cpu().numpy() for name, value in data.items()})
    names = np.array([state.name for state in SampleState], dtype=object)
    frame.insert(11, "state", names[ledger.column("state")[rows].cpu().numpy()])
    return frame


def _data_rows(ledger: SampleLedger, rows: Tensor) -> Tensor:
    """Rows of the data set behind ledger rows, which differ where the data set is packed."""
    packed = ledger.index.packed_row
    if packed is None:
        return rows
    table = torch.as_tensor(packed)
    listed = table[rows.clamp(max=len(table) - 1)]
    return torch.where(rows < len(table), listed, -1)
