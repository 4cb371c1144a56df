"""`plan`: compute over pre-training, SFT and RLHF, with intervals, hours and money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.scaling.law import ScalingLaw
from hf_glm_curriculum.scaling.money import Device
from hf_glm_curriculum.scaling.plan_request import PlanRequest
from hf_glm_curriculum.scaling.plan_types import Plan, SizeChoice, StagePlan
from hf_glm_curriculum.scaling.post_law import Estimate, PostTrainingLaw
from hf_glm_curriculum.scaling.split import at_size
from hf_glm_curriculum.scaling.stage_costs import STAGES, StageCosts, unit_flops
from hf_glm_curriculum.scaling.uncertainty import interval


def plan(
    flops: float,
    stages: Sequence[str] = ("pretrain",),
    *,
    law: ScalingLaw | None = None,
    post_law: PostTrainingLaw | None = None,
    costs: StageCosts | None = None,
    fixed: Mapping[str, float] | None = None,
    limits: Mapping[str, float] | None = None,
    device: Device | None = None,
) -> Plan:
    """Split a budget over stages.

    Pre-training alone follows `law`. With more stages the split is the one at which `post_law`, a
    law fitted to the user's own runs, is best; there is no default for it.

    Args:
        flops: The budget, all stages together.
        stages: Of "pretrain", "sft", "rlhf".
        law: Of pre-training.
        post_law: Of what post-training comes to.
        costs: Sizes that decide what a row, a pair and an episode cost.
        fixed: Inputs that are given and not chosen: "parameters" and "pretrain_tokens" of a base
            model at hand, a number of pairs. What belongs to a stage of the plan costs compute.
        limits: Input → how many there are.
        device: For hours and money.

    Raises:
        ConfigError: A stage, input or limit is unknown.
        DataError: There is no fitted law for what is asked, or the budget is too small.
    """
    _check_stages(flops, stages)
    costs, fixed = costs or StageCosts(), dict(fixed or {})
    if tuple(stages) == ("pretrain",):
        found = _pretraining(flops, law, fixed, limits or {})
    else:
        found = _split(PlanRequest(flops, stages, post_law, costs, fixed, dict(limits or {})))
    for stage in found.stages:
        stage.share = sum(stage.flops.values()) / flops
        if device is not None:
            stage.hours = device.hours(stage.flops)
            stage.money = stage.hours * device.price
    return found


def compare_sizes(
    flops: float,
    sizes: Sequence[float],
    stages: Sequence[str] = ("pretrain", "sft", "rlhf"),
    *,
    post_law: PostTrainingLaw | None = None,
    costs: StageCosts | None = None,
    fixed: Mapping[str, float] | None = None,
    limits: Mapping[str, float] | None = None,
) -> list[SizeChoice]:
    """A larger model lightly post-trained against a smaller one heavily, at equal compute.

    Args:
        flops: The budget of each.
        sizes: Parameters of the models compared.
        stages: See `plan`.
        post_law: See `plan`; it must know the parameters.
        costs: See `plan`.
        fixed: See `plan`, without "parameters".
        limits: See `plan`.

    Raises:
        ConfigError: See `plan`.
        DataError: See `plan`; or the law does not know the parameters.
    """
    _check_stages(flops, stages)
    if post_law is not None and "parameters" not in post_law.inputs:
        raise DataError(
            "the post-training law does not know the models' size: its runs are all of one; fit it "
            "to runs of at least three sizes"
        )
    results, choices = [], []
    for size in sizes:
        given = {**(fixed or {}), "parameters": float(size)}
        request = PlanRequest(
            flops, stages, post_law, costs or StageCosts(), given, dict(limits or {})
        )
        found = _split(request)
        results.append(request.results(request.law.natural_draws, found)[:, 0])
        for stage in found.stages:
            stage.share = sum(stage.flops.values()) / flops
        choices.append(found)
    table = np.stack(results) * (-1 if post_law is not None and post_law.rises else 1)
    wins = np.bincount(table.argmin(0), minlength=len(sizes)) / table.shape[1]
    return [
        SizeChoice(
            parameters=float(size),
            result=one.result,
            shares={stage.stage: stage.share for stage in one.stages},
            units={name: n.value for stage in one.stages for name, n in stage.units.items()},
            best=float(win),
        )
        for size, one, win in zip(sizes, choices, wins, strict=True)
    ]


def _check_stages(flops: float, stages: Sequence[str]) -> None:
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown or not stages or len(set(stages)) < len(stages):
        raise ConfigError(
            f"stages: must be some of {', '.join(STAGES)}, each once, got {' '.join(stages) or '–'}"
        )
    if not (np.isfinite(flops) and flops > 0):
        raise ConfigError(f"flops: must be above 0, got {flops}")


def _pretraining(
    flops: float, law: ScalingLaw | None, fixed: Mapping[str, float], limits: Mapping[str, float]
) -> Plan:
    """Pre-training alone."""
    if law is None:
        raise DataError(
            "a plan of pre-training needs a fitted law; pass --law LAW.json, as `scaling fit` "
            "writes it"
        )
    extra = set(fixed) - {"parameters"} | set(limits)
    if extra:
        raise ConfigError(f"{', '.join(sorted(extra))}: pre-training alone takes no such setting")
    known = law.evidence is not None
    if "parameters" in fixed:
        size = float(fixed["parameters"])
        tokens = float(law.conventions.tokens(flops, size))
        n, d = Estimate(size, size, size), Estimate(tokens, tokens, tokens)
        value = law.predict(size, tokens)
        bounds = law.predict_interval(size, tokens) if known else (np.nan, np.nan)
    else:
        best = law.optimal(flops)
        spread = law.optimal_interval(flops) if known else {}
        nowhere = (float("nan"), float("nan"))
        n = Estimate(best.N, *spread.get("N", nowhere))
        d = Estimate(best.D, *spread.get("D", nowhere))
        value = best.L
        bounds = law.predict_interval(best.N, best.D) if known else nowhere
    k = law.conventions.flops_per_parameter_token
    parts = {"forward": flops / 3, "backward": 2 * flops / 3} if k == 6 else {"training": flops}
    stage = StagePlan("pretrain", {"pretrain_tokens": d}, parts)
    notes = [] if known else ["this law was given, not fitted: there are no intervals"]
    return Plan(
        flops, n, Estimate(value, *bounds), f"loss, {law.conventions.loss}", [stage], 0.0, notes
    )


def _split(request: PlanRequest) -> Plan:
    """The split that the point estimate calls best, with the spread over the draws."""
    natural, draws = request.law.natural, request.law.natural_draws
    problem, problems = request.problem(natural), request.problem(draws)
    size, sizes = request.sizes(natural, problem), request.sizes(draws, problems)
    units, value = at_size(problem, size[:, None])
    if not np.isfinite(value[0, 0]):
        raise DataError(
            f"flops: {request.flops:.3g} does not pay for what is fixed "
            f"({', '.join(request.paid)}); raise the budget or fix less"
        )
    spread = at_size(problems, sizes[:, None])[0][:, 0]
    bought = {
        name: Estimate(float(units[0, 0, i]), *interval(spread[:, i]))
        for i, name in enumerate(request.bought)
    }
    made = Plan(
        request.flops,
        Estimate(float(size[0]), *interval(sizes)),
        Estimate(np.nan, np.nan, np.nan),
        request.law.metric,
        _stages(request, float(size[0]), bought),
    )
    made.unspent = max(0.0, request.flops - sum(sum(s.flops.values()) for s in made.stages))
    if made.unspent < 1e-6 * request.flops:
        made.unspent = 0.0
    result = request.results(draws, made)[:, 0]
    made.result = Estimate(float(request.results(natural, made)[0, 0]), *interval(result))
    made.notes = _notes(request, made)
    return made


def _stages(request: PlanRequest, size: float, bought: Mapping[str, Estimate]) -> list[StagePlan]:
    """Units and FLOPs of every stage."""
    found = []
    for stage in request.stages:
        units, parts = {}, {}
        for unit in STAGES[stage]:
            if unit == "parameters":
                continue
            given = request.fixed.get(unit)
            units[unit] = bought[unit] if given is None else Estimate(given, given, given)
            for part, flops in unit_flops(unit, size, request.costs).items():
                label = f"reward model, {part}" if unit == "preference_pairs" else part
                parts[label] = parts.get(label, 0.0) + float(flops) * units[unit].value
        found.append(StagePlan(stage, units, parts))
    return found


def _notes(request: PlanRequest, made: Plan) -> list[str]:
    """Where the plan leaves what the law was fitted to."""
    found = []
    seen: dict[str, Any] = request.law.evidence.runs.inputs
    values = {"parameters": made.parameters.value}
    for stage in made.stages:
        values |= {name: units.value for name, units in stage.units.items()}
    for name, value in values.items():
        if name in seen and not seen[name].min() / 2 <= value <= seen[name].max() * 10:
            found.append(
                f"{name} {value:.3g} lies far outside the runs ({seen[name].min():.3g} to "
                f"{seen[name].max():.3g}): the law is a guess there"
            )
    if made.unspent:
        found.append(f"every limit is reached with {made.unspent:.3g} FLOPs left")
    return found
