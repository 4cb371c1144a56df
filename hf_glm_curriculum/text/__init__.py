"""Language-aware text rules in pure Python, shared by rewards and evaluation."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_glm_curriculum.text.checks import check_answer as check_answer
    from hf_glm_curriculum.text.constraints import check_format as check_format
    from hf_glm_curriculum.text.ifeval import ifeval_checks as ifeval_checks
    from hf_glm_curriculum.text.language import detect_language as detect_language
    from hf_glm_curriculum.text.refusals import is_refusal as is_refusal
    from hf_glm_curriculum.text.repetition import distinct_n as distinct_n
    from hf_glm_curriculum.text.repetition import repeated_ngram_share as repeated_ngram_share
    from hf_glm_curriculum.text.templates import template_opening as template_opening
    from hf_glm_curriculum.text.truncation import looks_truncated as looks_truncated

_HOMES = {
    "check_answer": "checks",
    "check_format": "constraints",
    "detect_language": "language",
    "distinct_n": "repetition",
    "ifeval_checks": "ifeval",
    "is_refusal": "refusals",
    "looks_truncated": "truncation",
    "repeated_ngram_share": "repetition",
    "template_opening": "templates",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(_HOMES)
