"""Demo data of the project's own: written by generators from facts and rules, any size."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_glm_curriculum.data.demo.dialogues import demo_dialogues as demo_dialogues
    from hf_glm_curriculum.data.demo.documents import demo_documents as demo_documents
    from hf_glm_curriculum.data.demo.faults import FAULT_KINDS as FAULT_KINDS
    from hf_glm_curriculum.data.demo.instructions import checkable_split as checkable_split
    from hf_glm_curriculum.data.demo.instructions import demo_instructions as demo_instructions
    from hf_glm_curriculum.data.demo.preferences import demo_preferences as demo_preferences
    from hf_glm_curriculum.data.demo.write import write_demo_data as write_demo_data

_HOMES = {
    "FAULT_KINDS": "faults",
    "checkable_split": "instructions",
    "demo_dialogues": "dialogues",
    "demo_documents": "documents",
    "demo_instructions": "instructions",
    "demo_preferences": "preferences",
    "write_demo_data": "write",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(_HOMES)
