"""A split that is asked for, checked against the law that is to decide it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.scaling.plan_types import Plan
from hf_glm_curriculum.scaling.post_law import PostTrainingLaw
from hf_glm_curriculum.scaling.split import Problem, best_size
from hf_glm_curriculum.scaling.stage_costs import STAGES, StageCosts, unit_flops

Array = NDArray[np.float64]

_STAGE_OF = {unit: stage for stage, units in STAGES.items() for unit in units}


class PlanRequest:
    """A split that is asked for, checked against the law."""

    def __init__(
        self,
        flops: float,
        stages: Sequence[str],
        law: PostTrainingLaw | None,
        costs: StageCosts,
        fixed: Mapping[str, float],
        limits: Mapping[str, float],
    ) -> None:
        if law is None:
            raise DataError(
                f"a split over {', '.join(stages)} needs a fitted post-training law, and none was "
                "given; fit one to finished runs with `scaling fit --post RUNS` and pass it"
            )
        self.flops, self.law, self.costs = flops, law, costs
        self.stages = [stage for stage in STAGES if stage in stages]
        # A value that was the same in all of the law's runs is the one the law speaks of.
        self.fixed = {**law.constants, **fixed}
        self._check(fixed, limits)
        inside = [unit for stage in self.stages for unit in STAGES[stage]]
        self.bought = [unit for unit in inside if unit not in self.fixed and unit != "parameters"]
        self.paid = [unit for unit in inside if unit in self.fixed and unit != "parameters"]
        self.free_size = "pretrain" in self.stages and "parameters" not in self.fixed
        self._check_known()
        self.most = np.array([float(limits.get(unit, np.inf)) for unit in self.bought])

    def _check(self, fixed: Mapping[str, float], limits: Mapping[str, float]) -> None:
        for what, given in (("fixed", fixed), ("limits", limits)):
            for name, value in given.items():
                if name not in _STAGE_OF:
                    raise ConfigError(
                        f"{what}: {name!r} is unknown; valid: {', '.join(sorted(_STAGE_OF))}"
                    )
                if not (np.isfinite(value) and value > 0):
                    raise ConfigError(f"{what}.{name}: must be above 0, got {value}")

    def _check_known(self) -> None:
        """Refuse inputs without a value, and inputs that nothing is known about."""
        law = self.law
        for unit in self.bought + ["parameters"] * self.free_size:
            if unit not in law.inputs:
                raise DataError(
                    f"the post-training law does not know {unit} (it was fitted to "
                    f"{', '.join(law.inputs)}), so nothing says how much to spend on it; fit runs "
                    f"in which it varies, or fix it with {unit}=NUMBER"
                )
        for unit in law.inputs:
            if (
                unit not in self.bought
                and unit not in self.fixed
                and not (unit == "parameters" and self.free_size)
            ):
                raise DataError(
                    f"the post-training law depends on {unit}, whose stage is not in this plan; "
                    f"give its value with {unit}=NUMBER"
                )
        if not self.free_size and "parameters" not in self.fixed:
            raise DataError(
                "without pre-training in the plan the model is given: say how large it is with "
                "parameters=NUMBER"
            )
        if not self.bought:
            raise ConfigError("fixed: everything is fixed, so there is nothing to plan")

    def problem(self, natural: Array) -> Problem:
        """The split for laws [S, P]."""
        inputs = self.law.inputs
        place = [inputs.index(unit) for unit in self.bought]
        scales, exponents = natural[:, 1 : 1 + len(inputs)], natural[:, 1 + len(inputs) :]
        size = inputs.index("parameters") if self.free_size else None
        return Problem(
            scales[:, place],
            exponents[:, place],
            self.flops,
            lambda n: np.stack([self._unit(unit, n) for unit in self.bought], -1),
            self._paid,
            self.most,
            None if size is None else scales[:, size],
            None if size is None else exponents[:, size],
        )

    def _unit(self, unit: str, sizes: Array) -> Array:
        parts = unit_flops(unit, sizes, self.costs).values()
        return np.sum([np.broadcast_to(part, sizes.shape) for part in parts], axis=0)

    def _paid(self, sizes: Array) -> Array:
        """[G] FLOPs of the fixed units whose stage is in the plan."""
        costs = [self.fixed[unit] * self._unit(unit, sizes) for unit in self.paid]
        return np.sum(costs, axis=0) if costs else np.zeros(sizes.shape)

    def sizes(self, natural: Array, problem: Problem) -> Array:
        """[S] the best size of each law, or the fixed one."""
        if self.free_size:
            return best_size(problem)
        return np.full(len(natural), float(self.fixed["parameters"]))

    def results(self, natural: Array, made: Plan) -> Array:
        """[S, 1] what laws say of a plan."""
        values = {**self.fixed, "parameters": made.parameters.value}
        for stage in made.stages:
            values |= {name: units.value for name, units in stage.units.items()}
        x = np.log([[values[name] for name in self.law.inputs]])
        return self.law.results(natural, x)
