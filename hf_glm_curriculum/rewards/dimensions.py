"""Names of reward dimensions, and the checks that every part makes of scores and confidences.

Scores and confidences are tensors [B, D]: B rows (a prompt with a response), D dimensions in the
reward model's order. A score of NaN is null: nothing is known of that row in that dimension.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import torch
from torch import Tensor

from hf_glm_curriculum.data.record_formats import DIMENSIONS
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.config import check_dimensions

__all__ = [
    "DIMENSIONS",
    "check_dimensions",
    "check_mask",
    "check_rows_known",
    "check_scores",
    "dimension_index",
    "open_mask",
]


def dimension_index(name: str, dimensions: Sequence[str], field: str = "dimension") -> int:
    """The column of a dimension.

    Args:
        name: the dimension asked for.
        dimensions: the names there are, in column order.
        field: what the name was given as, for the message.

    Raises:
        ConfigError: if there is no such dimension; the message names the nearest.
    """
    if name in dimensions:
        return list(dimensions).index(name)
    close = difflib.get_close_matches(str(name), list(dimensions), n=1, cutoff=0.5)
    way_out = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(dimensions)}"
    raise ConfigError(
        f"{field}: unknown dimension {name!r} (there are {', '.join(dimensions)}); {way_out}"
    )


def check_scores(
    scores: Tensor,
    dimensions: Sequence[str],
    *,
    field: str = "scores",
    allow_null: bool = True,
    bounded: bool = True,
) -> None:
    """Check that scores (or confidences) are [B, D], finite and, if `bounded`, within [0, 1].

    Args:
        scores: floats [B, D].
        dimensions: the D names.
        field: what the tensor is, for the message.
        allow_null: whether NaN may stand for "nothing is known".
        bounded: whether values must lie in [0, 1]; shaped scores need not.

    Raises:
        DataError: naming the first row and dimension that breaks the rule, and the value.
    """
    if scores.dim() != 2 or scores.shape[1] != len(dimensions):
        raise DataError(
            f"{field}: must be [rows, {len(dimensions)}] for {', '.join(dimensions)}, "
            f"got {list(scores.shape)}; give one column for each dimension"
        )
    bad = ~torch.isfinite(scores) if not bounded else ~((scores >= 0) & (scores <= 1))
    null = torch.isnan(scores)
    if allow_null:
        bad &= ~null
    if not bool(bad.any()):
        return
    row, column = (int(i) for i in bad.nonzero()[0])
    value = float(scores[row, column])
    rule = "must lie in [0, 1]" if bounded else "must be finite"
    hint = (
        "a head gave NaN: look at its inputs and weights"
        if value != value
        else "pass raw rewards through a sigmoid, or through ScalarReward"
    )
    raise DataError(f"{field}: {dimensions[column]} of row {row} {rule}, got {value:g}; {hint}")


def check_mask(mask: Tensor, scores: Tensor, field: str = "mask") -> Tensor:
    """The mask as bool, of the shape of the scores.

    Raises:
        DataError: if the shapes differ.
    """
    if mask.shape != scores.shape:
        raise DataError(
            f"{field}: must have the shape of the scores, {list(scores.shape)}, "
            f"got {list(mask.shape)}; give one value for each row and dimension"
        )
    return mask.to(scores.device).bool()


def open_mask(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Where a score counts: open in `mask` (everywhere without one) and not null, bool [B, D].

    Raises:
        DataError: if the shapes differ.
    """
    known = ~torch.isnan(scores)
    return known if mask is None else check_mask(mask, scores) & known


def check_rows_known(scores: Tensor, dimensions: Sequence[str], field: str = "scores") -> None:
    """Check that every row has a score in some dimension.

    Raises:
        DataError: naming the rows where every dimension is null.
    """
    lost = torch.isnan(scores).all(dim=1).nonzero().flatten().tolist()
    if lost:
        shown = ", ".join(map(str, lost[:5])) + (", …" if len(lost) > 5 else "")
        raise DataError(
            f"{field}: null in every dimension ({', '.join(dimensions)}) in {len(lost)} rows "
            f"({shown}); drop these rows or give one dimension a score"
        )
