"""What a measure finds for one model, and how models compare: figures, differences, intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hf_glm_curriculum.evaluation.bootstrap import Interval, figure_interval, paired_difference


@dataclass
class Measured:
    """One measure of one model; plain values only, so that it can be kept as JSON.

    Attributes:
        figures: Metric → value, None where nothing could be measured.
        parts: Metric → (numerator, denominator) of every row, None where a row has no say. Rows
            are the same for all models, so that differences are paired.
        rows: What each row was and became, for the page and for exports.
        notes: What a reader must know, a line each.
    """

    figures: dict[str, float | None] = field(default_factory=dict)
    parts: dict[str, list[Any]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def rates(parts: Mapping[str, list[Any]]) -> dict[str, float | None]:
    """Metric → Σ numerators / Σ denominators; None without a row."""
    found: dict[str, float | None] = {}
    for name, rows in parts.items():
        known = [row for row in rows if row is not None]
        below = sum(row[1] for row in known)
        found[name] = sum(row[0] for row in known) / below if below else None
    return found


def by_group(
    name: str, values: Sequence[Any], groups: Sequence[str], overall: bool = True
) -> dict[str, list[Any]]:
    """Parts of a metric as a whole and in every group, as `name` and `name/group`."""
    found: dict[str, list[Any]] = {name: list(values)} if overall else {}
    for group in dict.fromkeys(groups):
        found[f"{name}/{group}"] = [
            value if own == group else None for value, own in zip(values, groups, strict=True)
        ]
    return found


def flag(value: bool | None) -> tuple[float, float] | None:
    """A verdict as a row's part of a share."""
    return None if value is None else (float(value), 1.0)


def compare(
    results: Mapping[str, Measured], draws: int, level: float, seed: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """Every metric's value, interval and difference to the first model.

    Args:
        results: Model → what was measured; the first is compared with.
        draws: Bootstrap resamples.
        level: Share of resamples inside an interval.
        seed: Of the resamples.

    Returns:
        Metric → model → ``value`` and, where rows allow it, ``low``, ``high``, ``n`` and (for all
        models but the first) ``difference``, ``difference_low``, ``difference_high``.
    """
    first = next(iter(results))
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for name in dict.fromkeys(name for one in results.values() for name in one.figures):
        for model, measured in results.items():
            if name not in measured.figures:
                continue
            cell: dict[str, Any] = {"value": measured.figures[name]}
            parts = measured.parts.get(name)
            if parts is not None:
                cell |= _own(figure_interval(parts, draws, level, seed))
            base = results[first]
            if model != first and measured.figures[name] is not None:
                cell |= _against(base, measured, name, draws, level, seed)
            table.setdefault(name, {})[model] = cell
    return table


def _own(found: Interval | None) -> dict[str, Any]:
    return {} if found is None else {"low": found.low, "high": found.high, "n": found.n}


def _against(
    base: Measured, other: Measured, name: str, draws: int, level: float, seed: int
) -> dict[str, Any]:
    """The difference to the first model; without an interval where there are no rows."""
    start, end = base.figures.get(name), other.figures[name]
    if start is None or end is None:
        return {}
    if name in base.parts and name in other.parts:
        found = paired_difference(base.parts[name], other.parts[name], draws, level, seed)
        if found is not None:
            return {
                "difference": found.value,
                "difference_low": found.low,
                "difference_high": found.high,
            }
    return {"difference": end - start}
