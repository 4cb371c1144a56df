"""Drawing a data set anew so that its rows' entropies lie in chosen bands at chosen shares."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hf_glm_curriculum.errors import ConfigError, DataError

_BAND = re.compile(r"^\s*(-?[\d.]+|-?inf)\s*:\s*(-?[\d.]+|-?inf)\s*=\s*([\d.]+)\s*$")


@dataclass(frozen=True)
class Band:
    """Rows with low ≤ entropy < high are to be this share of the result."""

    low: float
    high: float
    share: float


@dataclass(frozen=True)
class Draw:
    """Rows of the new set.

    Attributes:
        rows: int64 [M], in the order of the old set; a row may come several times.
        asked, drawn, there: by band, rows wanted, rows drawn, and different rows there are.
        repeated: how many rows of the result are second or further copies.
        left_out: rows of the old set that do not occur in the result.
    """

    rows: np.ndarray
    asked: list[int]
    drawn: list[int]
    there: list[int]
    repeated: int
    left_out: int


def parse_bands(texts: Sequence[str]) -> list[Band]:
    """Bands as the command line names them: ``LOW:HIGH=SHARE``, such as ``8:14=0.7``.

    Raises:
        ConfigError: a band is malformed, empty or overlaps another, or shares do not sum to 1.
    """
    found = []
    for text in texts:
        match = _BAND.match(text)
        if match is None:
            raise ConfigError(f"bands: must be LOW:HIGH=SHARE, such as 8:14=0.7, got {text!r}")
        found.append(Band(*map(float, match.groups())))
    check_bands(found)
    return found


def check_bands(bands: Sequence[Band]) -> None:
    """Check that bands make sense together.

    Raises:
        ConfigError: naming the band and the rule.
    """
    if not bands:
        raise ConfigError("bands: needs one band at least, got none")
    for band in bands:
        if not band.low < band.high:
            raise ConfigError(f"bands: low must be below high, got {band.low}:{band.high}")
        if not 0 <= band.share <= 1:
            raise ConfigError(f"bands: a share lies in [0, 1], got {band.share}")
    ordered = sorted(bands, key=lambda band: band.low)
    for before, after in pairwise(ordered):
        if after.low < before.high:
            raise ConfigError(
                f"bands: must not overlap, got {before.low}:{before.high} and "
                f"{after.low}:{after.high}"
            )
    total = sum(band.share for band in bands)
    if not math.isclose(total, 1.0, abs_tol=1e-6):
        raise ConfigError(f"bands: shares must sum to 1, got {total:g}")


def draw_bands(
    scores: np.ndarray,
    bands: Sequence[Band],
    size: int | None = None,
    repeat: bool = False,
    seed: int = 0,
) -> Draw:
    """Draw rows so that each band has its share.

    Without ``repeat`` no row comes twice: the result is as large as the scarcest band allows, at
    most ``size``. With it, every row of a band comes once before any comes again.

    Args:
        scores: float [N], entropy of each row.
        bands: see `Band`.
        size: rows of the result; as many as possible without repeats (N with them) by default.
        repeat: whether rows may come several times.
        seed: of the draw; the same arguments give the same rows.

    Raises:
        DataError: a band with a share holds no row.
        ConfigError: bands or size make no sense.
    """
    check_bands(bands)
    scores = np.asarray(scores, dtype=np.float64)
    if size is not None and size < 1:
        raise ConfigError(f"size: must be at least 1, got {size}")
    members = [np.flatnonzero((scores >= b.low) & (scores < b.high)) for b in bands]
    for band, rows in zip(bands, members, strict=True):
        if band.share > 0 and not len(rows):
            reach = f"{scores.min():.2f} … {scores.max():.2f}" if len(scores) else "empty"
            raise DataError(
                f"bands: no row lies in {band.low:g}:{band.high:g}, the data are {reach}; move the "
                "band or give it the share 0"
            )
    asked = _asked(bands, members, size, repeat, len(scores))
    generator = np.random.default_rng(seed)
    drawn = [_drawn(generator, m, n) for m, n in zip(members, asked, strict=True)]
    rows = np.sort(np.concatenate(drawn))
    different = len(np.unique(rows))
    return Draw(
        rows=rows,
        asked=asked,
        drawn=[len(part) for part in drawn],
        there=[len(part) for part in members],
        repeated=len(rows) - different,
        left_out=len(scores) - different,
    )


def _asked(
    bands: Sequence[Band], members: list[np.ndarray], size: int | None, repeat: bool, rows: int
) -> list[int]:
    """Rows of each band: the size by largest remainders."""
    if repeat:
        total = rows if size is None else size
    else:
        most = [len(m) / b.share for b, m in zip(bands, members, strict=True) if b.share > 0]
        total = int(min(most) + 1e-9)
        total = total if size is None else min(size, total)
    exact = np.array([band.share * total for band in bands])
    found = np.floor(exact + 1e-9).astype(int)
    for place in np.argsort(-(exact - found), kind="stable")[: total - int(found.sum())]:
        found[place] += 1
    if not repeat:
        found = np.minimum(found, [len(m) for m in members])
    return found.tolist()


def _drawn(generator: np.random.Generator, members: np.ndarray, count: int) -> np.ndarray:
    """Every member as often as any other, and a random rest."""
    if not count:
        return members[:0]
    whole, rest = divmod(count, len(members))
    return np.concatenate([np.tile(members, whole), generator.permutation(members)[:rest]])
