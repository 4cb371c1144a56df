"""How laws and plans look on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.console import say, show_table

if TYPE_CHECKING:
    from hf_glm_curriculum.scaling.law import ScalingLaw
    from hf_glm_curriculum.scaling.plan_types import Plan, SizeChoice
    from hf_glm_curriculum.scaling.post_law import Estimate, PostTrainingLaw
    from hf_glm_curriculum.scaling.runs import Flag

_MOST_FLAGS = 12
_LABELS = {
    "pretrain_tokens": "pre-training tokens",
    "sft_rows": "SFT rows",
    "preference_pairs": "preference pairs",
    "ppo_episodes": "PPO episodes",
}


def figure(value: float) -> str:
    """A number short enough for a table."""
    if value != value:
        return "–"
    if value == float("inf"):
        return "no number"
    if value == 0 or 0.01 <= abs(value) < 10_000:
        return f"{value:.4g}"
    return f"{value:.3g}"


def bounds(low: float, high: float) -> str:
    """An interval."""
    return f"{figure(low)} … {figure(high)}"


def show_law(law: ScalingLaw | PostTrainingLaw, title: str) -> None:
    """Parameters with units and intervals."""
    units = law.units if hasattr(law, "units") else law.form.units  # type: ignore[union-attr]
    intervals = law.intervals
    rows = [
        (name, figure(value), bounds(*intervals[name]), units[name])
        for name, value in law.parameters.items()
    ]
    if "a" in intervals:
        slope = law.compute_exponent  # type: ignore[union-attr]
        rows.append(("a", figure(slope or 0.0), bounds(*intervals["a"]), "N_opt ∝ C^a"))
    show_table(title, ("", "value", "95 % interval", "unit"), rows, right=(1, 2))


def show_evidence(law: Any, lines: Sequence[int] | None = None) -> None:
    """How the fit went, what looks odd, and what to know before using it."""
    report, kept = law.evidence.report, law.evidence
    what = "bootstraps" if kept.draws_from == "bootstrap" else "the covariance"
    say(
        f"{report.runs} runs, objective {kept.objective:.6g}; {report.at_best:.0%} of "
        f"{report.starts} starts at this minimum, {report.converged:.0%} converged; intervals from "
        f"{report.bootstraps or ''} {what} ({report.seconds:.1f} s)".replace("  ", " ")
    )
    sizes = report.residuals
    say(f"relative errors: mean {sizes['mean_abs']:.2%}, largest {sizes['max']:.1%}")
    left = report.largest_left_out
    if "refused" in left:
        say(f"largest runs left out: not possible ({left['refused']})")
    else:
        say(
            f"the {left['predicted']} largest runs, predicted by the {left['fitted']} of at most "
            f"1/{left['factor']:g} of the largest: off by {left['mean_abs']:.2%} on average, "
            f"{left['max']:.1%} at most"
        )
    _show_flags(kept.runs.flags, lines)
    for words in report.warnings:
        say(f"warning: {words}", style="yellow")


def _show_flags(flags: Sequence[Flag], lines: Sequence[int] | None) -> None:
    """One line a flagged run."""
    for flag in flags[:_MOST_FLAGS]:
        place = f"row {flag.row}" if lines is None else f"line {lines[flag.row]}"
        say(f"{place}: {flag.kind}, {'kept' if flag.used else 'not in the fit'}: {flag.words}")
    if len(flags) > _MOST_FLAGS:
        say(f"… and {len(flags) - _MOST_FLAGS} more flags in law.json")


def show_plan(made: Plan, device: Any = None) -> None:
    """Stages with what they buy, what they cost, and what the law says of it all."""
    size = made.parameters
    rows: list[list[Any]] = [["parameters", figure(size.value), _span(size), None, None]]
    rows += [row for stage in made.stages for row in _stage_rows(stage)]
    columns = ("what", "how many", "95 % interval", "FLOPs", "share")
    show_table(f"{made.flops:.3g} FLOPs", columns, rows, right=(1, 2, 3, 4))
    if device is not None:
        _show_costs(made, device)
    result = made.result
    say(f"{made.metric}: {figure(result.value)} ({_span(result) or 'no interval'})")
    for words in made.notes:
        say(f"note: {words}")


def _stage_rows(stage: Any) -> list[list[Any]]:
    rows = []
    for place, (unit, count) in enumerate(stage.units.items()):
        row: list[Any] = [_LABELS[unit], figure(count.value), _span(count)]
        flops = sum(stage.flops.values())
        rows.append([*row, f"{flops:.3g}", f"{stage.share:.1%}"] if not place else [*row, "", ""])
    return rows


def _show_costs(made: Plan, device: Any) -> None:
    """Hours and money by stage."""
    rows = [(one.stage, f"{one.hours:,.1f}", f"{one.money:,.2f}") for one in made.stages]
    if len(rows) > 1:
        rows.append(("all", f"{made.hours:,.1f}", f"{made.money:,.2f}"))
    columns = ("stage", f"{device.name} hours", device.currency or "money")
    show_table("", columns, rows, right=(1, 2))


def _span(one: Estimate) -> str | None:
    """An interval; None where nothing is uncertain or nothing is known."""
    if one.low != one.low or one.low == one.high:
        return None
    return bounds(one.low, one.high)


def show_parts(made: Plan) -> None:
    """FLOPs of every stage part by part."""
    rows = [
        (stage.stage if place == 0 else "", part, f"{flops:.3g}", f"{flops / made.flops:.1%}")
        for stage in made.stages
        for place, (part, flops) in enumerate(stage.flops.items())
    ]
    show_table("What the FLOPs are", ("stage", "part", "FLOPs", "share"), rows, right=(2, 3))


def show_sizes(choices: Sequence[SizeChoice], metric: str) -> None:
    """A comparison of sizes at equal compute, a column a size."""
    rows = [
        [metric, *(figure(one.result.value) for one in choices)],
        ["95 % interval", *(_span(one.result) for one in choices)],
        ["best in", *(f"{one.best:.0%}" for one in choices)],
    ]
    rows += [
        [f"share of {stage}", *(f"{one.shares[stage]:.1%}" for one in choices)]
        for stage in choices[0].shares
    ]
    rows += [
        [_LABELS[unit], *(figure(one.units[unit]) for one in choices)] for unit in choices[0].units
    ]
    columns = ["parameters", *(figure(one.parameters) for one in choices)]
    show_table("At equal compute", columns, rows, right=range(1, len(columns)))


def show_more(law: PostTrainingLaw, at: dict[str, float], change: float) -> None:
    """How much more of each input a step takes."""
    what = "of the range of rewards more" if law.rises else "less"
    rows = []
    for name in law.inputs:
        more = law.more_for(name, change, **at)
        rows.append((name, figure(at[name]), figure(more.value), bounds(more.low, more.high)))
    title = f"{change:.0%} {what} {law.metric} takes one of"
    show_table(title, ("input", "now", "more", "95 % interval"), rows, right=(1, 2, 3))
