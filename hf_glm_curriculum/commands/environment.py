"""What a run was made with: versions, device and the state of the code."""

from __future__ import annotations

import hashlib
import platform
import subprocess

from hf_glm_curriculum.optional import version_of

_DISTRIBUTIONS = ("torch", "transformers", "trl", "accelerate", "datasets", "peft", "numpy")


def versions() -> dict[str, str]:
    """Versions of everything that a result may depend on."""
    from hf_glm_curriculum import __version__

    known = {name: version_of(name) for name in _DISTRIBUTIONS}
    return {
        "hf_glm_curriculum": __version__,
        "python": platform.python_version(),
        **{name: version for name, version in known.items() if version},
        "platform": platform.platform(terse=True),
    }


def device_name() -> str:
    """What the tensors of a run would lie on: the first GPU's name, or "cpu"."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"


def git_state() -> dict[str, str | None]:
    """The working directory's commit, and a digest of what was changed on top of it.

    Returns:
        ``git`` and ``git_changes``; None outside a repository, and without changes.
    """
    commit = _git("rev-parse", "HEAD")
    changes = _git("diff", "HEAD") if commit else None
    digest = hashlib.sha256(changes.encode("utf-8", "replace")).hexdigest() if changes else None
    return {"git": commit, "git_changes": digest}


def _git(*words: str) -> str | None:
    """What git says; None where it is not there or refuses."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip() or None
