"""Which backend serves a call."""

from __future__ import annotations

import logging
from functools import cache

import torch

from hf_glm_curriculum.attention.backends.base import Backend, Call
from hf_glm_curriculum.attention.backends.flash import FlashBackend
from hf_glm_curriculum.attention.backends.flex import FlexBackend
from hf_glm_curriculum.attention.backends.gather import GatherBackend
from hf_glm_curriculum.attention.backends.reference import ReferenceBackend
from hf_glm_curriculum.errors import IncompatibleError

logger = logging.getLogger(__name__)

BACKENDS: dict[str, Backend] = {
    "reference": ReferenceBackend(),
    "gather": GatherBackend(),
    "flex": FlexBackend(),
    "flash": FlashBackend(),
}


def choose_backend(name: str, call: Call) -> Backend:
    """The backend for a call.

    Args:
        name: of a backend, or "auto" for the fastest that can serve the call: flash, then gather.
        call: what is to be computed.

    Returns:
        The backend asked for; where it cannot serve the call but gather can, that one, said once.

    Raises:
        IncompatibleError: if none can.
    """
    if call.dtype == torch.float64 and name != "reference":
        raise IncompatibleError(f"backend: {name} does not compute in float64; {_way_out(call)}")
    if name == "auto":
        return _first_that_serves(("flash", "gather"), call)
    reason = BACKENDS[name].supports(call)
    if reason is None:
        return BACKENDS[name]
    if name != "gather" and BACKENDS["gather"].supports(call) is None:
        _say_once(name, reason)
        return BACKENDS["gather"]
    raise IncompatibleError(f"backend: {name} cannot serve this call, {reason}; {_way_out(call)}")


def _first_that_serves(names: tuple[str, ...], call: Call) -> Backend:
    reasons = []
    for name in names:
        reason = BACKENDS[name].supports(call)
        if reason is None:
            return BACKENDS[name]
        reasons.append(f"{name}: {reason}")
    raise IncompatibleError(
        f"backend: none can serve this call ({'; '.join(reasons)}); {_way_out(call)}"
    )


def _way_out(call: Call) -> str:
    if BACKENDS["gather"].supports(call) is None:
        return "use backend='gather'."
    return "load the model in float32 or bfloat16, or use backend='reference' for small tests."


@cache
def _say_once(name: str, reason: str) -> None:
    logger.warning(
        "hf_glm_curriculum: attention backend %s is not used where %s; gather serves instead.",
        name,
        reason,
    )
