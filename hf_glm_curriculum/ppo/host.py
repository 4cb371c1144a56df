"""Whether TRL's PPOTrainer is there to build on."""

from __future__ import annotations

import warnings

from packaging.version import Version

from hf_glm_curriculum.errors import MissingDependencyError
from hf_glm_curriculum.optional import available, version_of

FIRST_WITHOUT_PPO = "1.13"
INSTALL = 'pip install "hf-glm-curriculum[ppo]"'


def require_ppo() -> None:
    """Check that a TRL with ``trl.experimental.ppo`` is installed.

    Raises:
        MissingDependencyError: there is no TRL, or one that has no PPOTrainer any more; names the
            extra that installs the right one.
    """
    found = version_of("trl")
    if found is None:
        raise MissingDependencyError(f"ppo: needs TRL, which is not installed; {INSTALL}")
    if Version(found) >= Version(FIRST_WITHOUT_PPO) or not _has_ppo():
        raise MissingDependencyError(
            f"ppo: TRL {found} has no PPOTrainer (it was removed in {FIRST_WITHOUT_PPO}); "
            f"{INSTALL} takes the last that has it, in an environment of its own if the rest of "
            "your code needs the newest TRL; or use structured_reward_functions with GRPOTrainer"
        )


def _has_ppo() -> bool:
    with warnings.catch_warnings():
        # TRL warns that the module may change without notice; the extra's version range answers.
        warnings.simplefilter("ignore")
        return available("trl.experimental.ppo")
