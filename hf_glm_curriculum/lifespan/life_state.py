"""Whether saved state fits the run that resumes from it."""

from __future__ import annotations

from torch import Tensor

from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.lifespan.config import LifespanConfig
from hf_glm_curriculum.signals.ledger import SampleLedger


def check_fits(tensors: dict[str, Tensor], ledger: SampleLedger, config: LifespanConfig) -> None:
    """Refuse columns that were kept with other settings; missing ones are found later.

    Raises:
        StateError: naming the setting.
    """
    rings, table = tensors.get("loss_ring"), tensors.get("neighbours")
    history = config.history if rings is None else rings.shape[1]
    if history != config.history:
        raise StateError(
            f"history: the checkpoint keeps {history} visits and the config "
            f"asks for {config.history}; set history={history} to resume."
        )
    if ("embedding" in tensors) != ("drift" in config.signals):
        raise StateError(
            "signals: the checkpoint and the config disagree about drift; resume with the "
            "signals the run was started with."
        )
    neighbours = 0 if table is None else table.shape[1]
    if neighbours != ledger.neighbour_count:
        raise StateError(
            f"neighbour_count: the checkpoint keeps {neighbours} neighbours a "
            f"sample and the config asks for {ledger.neighbour_count}; resume with the "
            "neighbours and neighbour_count the run was started with."
        )
