"""Which source of a mixture a sample came from, by its content id."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.data.content_id import UNUSED_ID
from hf_glm_curriculum.data.mixture_board import MixtureBoard
from hf_glm_curriculum.data.mixture_sources import MapSource, StreamSource

logger = logging.getLogger(__name__)


class SourceIndex:
    """Content id → source: a sorted table for numbered rows, the board's memory for streams.

    The table follows the ids it is asked about to their device.
    """

    def __init__(self, sources: Sequence[MapSource | StreamSource], board: MixtureBoard) -> None:
        """Hash every numbered row; content of several sources counts as the first's."""
        known = [(i, s.ids) for i, s in enumerate(sources) if isinstance(s, MapSource)]
        ids = np.concatenate([np.empty(0, np.int64), *(one for _, one in known)])
        owner = np.concatenate([np.empty(0, np.int64), *(np.full(len(x), i) for i, x in known)])
        values, first = np.unique(ids, return_index=True)
        shared = sum(len(np.unique(one)) for _, one in known) - len(values)
        if shared:
            logger.warning(
                "hf_glm_curriculum: %d samples are in more than one source of the mixture and "
                "count as the first one's",
                shared,
            )
        # An id that no sample has ends the table, so that a search never runs off it.
        self._ids = torch.from_numpy(np.append(values, UNUSED_ID))
        self._owner = torch.from_numpy(np.append(owner[first], -1))
        self._board = board if any(source.streams for source in sources) else None

    def lookup(self, ids: Tensor) -> Tensor:
        """Find the sources of ids: int64 [Q] on their device, -1 where unknown."""
        if self._ids.device != ids.device:
            self._ids, self._owner = self._ids.to(ids.device), self._owner.to(ids.device)
        place = torch.searchsorted(self._ids, ids.contiguous()).clamp(max=self._ids.numel() - 1)
        found = torch.where(self._ids[place] == ids, self._owner[place], -1)
        if self._board is None:
            return found
        recent = self._board.source_of(ids.cpu()).to(ids.device)
        return torch.where(found < 0, recent, found)
