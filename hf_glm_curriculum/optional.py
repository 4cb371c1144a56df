"""Optional libraries: one place that imports them, and one wording when they are missing."""

from __future__ import annotations

import importlib
import importlib.util
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from hf_glm_curriculum.errors import MissingDependencyError


def available(module: str) -> bool:
    """Whether `module` (dotted names allowed) can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution such as `"trl"`, or None if it is absent."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module.

    Args:
        module: Dotted name of the module to import, such as `"trl.experimental.ppo"`.
        extra: The extra of this package that installs it.

    Raises:
        MissingDependencyError: The module is absent, or what it imports is absent or broken.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(_missing(module, extra, error)) from error


def _missing(module: str, extra: str, error: ImportError) -> str:
    """Say whether the library is absent or present without the module, and what installs it."""
    root = module.partition(".")[0]
    found = version_of(root)
    if not available(root):
        state = "is not installed"
    else:
        reason = " ".join(str(error).split())
        state = f"cannot be imported from {root} {found or '(unknown version)'} ({reason})"
    return f'{module} {state}; install it with: pip install "hf-glm-curriculum[{extra}]"'
