"""Laws and runs that tests make: known parameters, losses without or with noise."""

import numpy as np

from hf_glm_curriculum.scaling.law import ScalingLaw

PARAMETERS = {
    "chinchilla": {"E": 1.7, "A": 420.0, "B": 980.0, "alpha": 0.34, "beta": 0.31},
    "two_power": {"N_c": 9e13, "D_c": 5e13, "alpha_N": 0.076, "alpha_D": 0.095},
    "simplified": {"A": 1.3, "alpha_N": 0.076, "alpha_D": 0.103},
    "kaplan": {"N_c": 8.8e13, "D_c": 5.4e13, "alpha_N": 0.076, "alpha_D": 0.095},
    "data_limited": {"E": 1.8, "A": 520.0, "B": 1480.0, "alpha": 0.35, "beta": 0.36, "R": 15.0},
}


def law_of(form: str) -> ScalingLaw:
    return ScalingLaw(form=form, parameters=PARAMETERS[form])


def grid_runs(sizes=7, data=6, seed=0):
    """N and D of a grid over three and a half decades of compute, a little jittered."""
    generator = np.random.default_rng(seed)
    n = np.repeat(np.geomspace(2e7, 6e9, sizes), data)
    d = n * np.tile(np.geomspace(2, 300, data), sizes) * generator.uniform(0.9, 1.1, sizes * data)
    return n, d


def unique_tokens(d):
    """Some runs read fresh data, others theirs up to thirty times."""
    epochs = np.tile([0.5, 1.0, 3.0, 8.0, 30.0], len(d) // 5 + 1)[: len(d)]
    return d / epochs


def runs_of(form: str, noise: float = 0.0, seed: int = 0):
    """N, D, L, unique (None but for data_limited) of a known law."""
    n, d = grid_runs(seed=seed)
    unique = unique_tokens(d) if form == "data_limited" else None
    loss = law_of(form).predict(n, d, unique)
    return n, d, loss * np.exp(noise * np.random.default_rng(seed).standard_normal(len(n))), unique
