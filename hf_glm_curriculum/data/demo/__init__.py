"""Demo data of the project's own: written by generators from facts and rules, any size."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_glm_curriculum.data.demo.faults import FAULT_KINDS as FAULT_KINDS
    from hf_glm_curriculum.data.demo.instructions import demo_instructions as demo_instructions

_HOMES = {
    "FAULT_KINDS": "faults",
    "demo_instructions": "instructions",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(_HOMES)
