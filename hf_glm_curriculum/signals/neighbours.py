"""Which samples are alike, and how far a sample stands from those it is like.

Drift compares a sample with its neighbours, so that a movement the whole neighbourhood makes (the
model learning the task they share) is not counted as the sample's own.

Shape letters: N rows of the data set, R ledger rows, M samples of a step, E embedding size, k
neighbours, P permutations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hf_glm_curriculum.data.content_column import ROWS_PER_BATCH, token_lists
from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.progress import ProgressBar, progress

COMMON_SHARE = 0.2
"""Tokens in more than this share of the rows (templates, function words) tell nothing apart."""
COMMON_ROWS = 16
"""A token in no more rows than this is never common, however small the data set."""
_SURVEYED_ROWS = 20_000
_PAIRS_PER_BLOCK = 1 << 16
_REACH = 2
_ROWS_PER_BLOCK = 2048


# -- distance and drift --------------------------------------------------------------------------


def neighbour_distance(own: Tensor, neighbours: Tensor, known: Tensor) -> Tensor:
    """Distance d = 1 − cos(e, mean of e over the neighbours that were seen).

    Args:
        own: [M, E] float32 unit-norm embeddings.
        neighbours: [M, k, E] embeddings of each sample's neighbours, as last seen.
        known: [M, k] bool: whether a neighbour exists and was seen.

    Returns:
        [M] float32 in [0, 2]; NaN where no neighbour was seen.
    """
    total = torch.where(known.unsqueeze(2), neighbours.to(own), 0.0).sum(1)
    cosine = (own * nn.functional.normalize(total, dim=1)).sum(1)
    return torch.where(known.any(1), (1 - cosine).clamp(min=0), torch.nan)


def drift(moved: Tensor, distance: Tensor, before: Tensor) -> Tensor:
    """|dₜ − dₜ₋₁|; a sample without neighbours that were seen both times uses its own movement.

    Args:
        moved: [M] 1 − cos(eₜ, eₜ₋₁).
        distance: [M] dₜ, NaN where unknown.
        before: [M] dₜ₋₁, NaN where unknown.

    Returns:
        [M] float32 ≥ 0.
    """
    change = (distance - before).abs()
    return torch.where(torch.isfinite(change), change, moved.clamp(min=0))


# -- neighbours by tokens --------------------------------------------------------------------------


def minhash_neighbours(
    dataset: Any,
    index: SampleIndex,
    count: int = 5,
    *,
    threshold: float = 0.05,
    num_perm: int = 64,
    bands: int = 32,
    seed: int = 1,
    show_progress: bool | None = None,
) -> Tensor:
    """The k rows most alike by the Jaccard similarity of their token sets, by MinHash LSH.

    Signatures are datasketch's (``affine32``). Rows that share a band are compared by sorting one
    band at a time, each with the two next to it on either side, so that memory stays at
    ``2 * num_perm`` bytes a row (16 bits of a hash value are kept: Li and König, "b-Bit minwise
    hashing", WWW 2010) and time stays linear. A band is one hash value, because rows of real
    instruction data share few telling tokens (the most alike pairs of a diverse set have a
    similarity about 0.1). Tokens in more than a fifth of the rows are left out. Of rows with
    equal content the first stands for all.

    Args:
        dataset: tokenised rows; see `content_ids_column`.
        index: the index of this data set.
        count: k.
        threshold: least estimated similarity of a neighbour.
        num_perm: P.
        bands: hash values that rows are brought together by, at most P.
        seed: of the permutations.
        show_progress: see `progress`.

    Returns:
        int32 [N, k] rows, most alike first, -1 where there are fewer.
    """
    ids = index.row_ids[: len(index)]
    first = (index.lookup(ids.to(index.device)).cpu() == torch.arange(len(ids))).numpy()
    total = len(ids) // ROWS_PER_BATCH + bands + 1
    with progress(
        total, "Neighbours", show_progress if len(ids) > ROWS_PER_BATCH else False
    ) as bar:
        common = _common_tokens(dataset, len(ids))
        table, filled = _signatures(dataset, common, len(ids), num_perm, seed, bar)
        search = _NeighbourTable(table, count, threshold)
        for band in range(bands):
            search.compare(table[:, band], table[:, (band + 1) % num_perm], first & filled)
            bar.advance()
    return torch.from_numpy(search.result())


def _common_tokens(dataset: Any, rows: int) -> np.ndarray:
    """Bool by token id: whether it is in too many rows to tell them apart; from a spread sample."""
    stride = max(1, rows // _SURVEYED_ROWS)
    count, surveyed = np.zeros(1, np.int64), 0
    for tokens, offsets, _ in token_lists(dataset):
        for row in range(0, len(offsets) - 1, stride):
            found = np.unique(tokens[offsets[row] : offsets[row + 1]])
            if len(found) and found[-1] >= len(count):
                count = np.concatenate([count, np.zeros(found[-1] + 1, np.int64)])
            count[found] += 1
            surveyed += 1
    return count > max(COMMON_SHARE * surveyed, COMMON_ROWS)


def _signatures(
    dataset: Any, common: np.ndarray, rows: int, num_perm: int, seed: int, bar: ProgressBar
) -> tuple[np.ndarray, np.ndarray]:
    """Low 16 bits of the rows' signatures, uint16 [N, P], and whether a row has a token, [N]."""
    from datasketch import MinHash

    table, filled = np.zeros((rows, num_perm), np.uint16), np.zeros(rows, bool)
    sets = _token_sets(dataset, common, filled, bar)
    sketches = MinHash.generator(
        sets, num_perm=num_perm, seed=seed, hashfunc=int, scheme="affine32"
    )
    for row, sketch in enumerate(sketches):
        table[row] = sketch.hashvalues & 0xFFFF
    return table, filled


def _token_sets(
    dataset: Any, common: np.ndarray, filled: np.ndarray, bar: ProgressBar
) -> Iterator[list[int]]:
    """Yield the telling tokens of each row; marks in ``filled`` the rows that have any."""
    row = 0
    for tokens, offsets, mask in token_lists(dataset):
        # Ids above every surveyed one are rare by definition.
        telling = ~common[np.minimum(tokens, len(common) - 1)] | (tokens >= len(common))
        if mask is not None:
            telling &= mask != 0
        for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            kept = tokens[start:end][telling[start:end]]
            filled[row] = len(kept) > 0
            row += 1
            yield kept.tolist()
        bar.advance()


class _NeighbourTable:
    """The best k rows found so far for every row."""

    def __init__(self, table: np.ndarray, count: int, threshold: float) -> None:
        self.table = table
        self.rows = np.full((len(table), count), -1, np.int32)
        self.score = np.zeros((len(table), count), np.float32)
        # What a candidate has to exceed; a score of just the threshold is enough.
        self.bar = np.full(len(table), np.nextafter(np.float32(threshold), np.float32(0)))

    def compare(self, keys: np.ndarray, following: np.ndarray, use: np.ndarray) -> None:
        """Offer each row those next to it among the rows of equal key.

        Ordering a key's rows by the next band brings the more alike ones together.
        """
        order = np.lexsort((following, keys))
        order = order[use[order]]
        ordered = keys[order]
        for gap in range(1, _REACH + 1):
            same = np.flatnonzero(ordered[gap:] == ordered[:-gap])
            for start in range(0, len(same), _PAIRS_PER_BLOCK):
                part = same[start : start + _PAIRS_PER_BLOCK]
                one, two = order[part], order[part + gap]
                score = (self.table[one] == self.table[two]).mean(1, dtype=np.float32)
                self._offer(one, two, score)
                self._offer(two, one, score)

    def _offer(self, rows: np.ndarray, candidates: np.ndarray, score: np.ndarray) -> None:
        """Put candidates in the place of the worst neighbour; each row occurs once at most."""
        better = score > self.bar[rows]
        rows, candidates, score = rows[better], candidates[better], score[better]
        new = (self.rows[rows] != candidates[:, None]).all(1)
        rows, candidates, score = rows[new], candidates[new], score[new]
        place = self.score[rows].argmin(1)
        self.rows[rows, place], self.score[rows, place] = candidates, score
        self.bar[rows] = np.maximum(self.bar[rows], self.score[rows].min(1))

    def result(self) -> np.ndarray:
        """int32 [N, k], most alike first, -1 behind."""
        order = np.argsort(-self.score, axis=1, kind="stable")
        return np.take_along_axis(self.rows, order, axis=1)


# -- neighbours by embedding -----------------------------------------------------------------------


def embedding_neighbours(
    embedding: Tensor,
    seen: Tensor,
    count: int = 5,
    *,
    candidates: int = 65_536,
    show_progress: bool | None = None,
) -> Tensor:
    """The k samples of greatest cosine similarity, by matrix products a block at a time.

    Args:
        embedding: [R, E] unit-norm embeddings, any float dtype.
        seen: [R] bool: samples that have one.
        count: k.
        candidates: neighbours are looked for among at most so many samples, evenly spaced.
        show_progress: see `progress`.

    Returns:
        int32 [R, k] rows on the embeddings' device, most alike first, -1 where there are fewer.
    """
    rows = torch.nonzero(seen).squeeze(1)
    result = torch.full((len(embedding), count), -1, dtype=torch.int32, device=embedding.device)
    among = rows[:: max(1, -(-len(rows) // candidates))]
    if len(among) < 2:
        return result
    reference = embedding[among].float()
    width = min(count, len(among) - 1)
    show = show_progress if len(rows) > 16 * _ROWS_PER_BLOCK else False
    with progress(len(rows), "Neighbours", show) as bar:
        for part in rows.split(_ROWS_PER_BLOCK):
            cosine = embedding[part].float() @ reference.T
            cosine.masked_fill_(part.unsqueeze(1) == among, -torch.inf)
            result[part, :width] = among[cosine.topk(width, dim=1).indices].int()
            bar.advance(len(part))
    return result


def checked_neighbours(table: Any, rows: int) -> Tensor:
    """A neighbour table given by the user, as int32 [rows, k].

    Args:
        table: integers [rows, k]: for each row of the data set the rows it is like, -1 for none.
        rows: how many there must be.

    Raises:
        ConfigError: if the shape or a value does not fit.
    """
    given = torch.as_tensor(table)
    if given.dim() != 2 or len(given) != rows or given.is_floating_point():
        raise ConfigError(
            f"neighbours: must be integers [{rows}, k], one line a row of the data set, got "
            f"{given.dtype} {list(given.shape)}; number rows as the data set does."
        )
    if given.numel() and not (int(given.min()) >= -1 and int(given.max()) < rows):
        raise ConfigError(
            f"neighbours: must be rows 0..{rows - 1}, or -1 for none, got values from "
            f"{int(given.min())} to {int(given.max())}."
        )
    return given.int()
