"""What `doctor` looks at; every check is a function that returns findings."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from hf_glm_curriculum.optional import available, version_of

DISTRIBUTION = "hf-glm-curriculum"
_LEAST_FREE_GIB = 2.0

Status = Literal["ok", "note", "warning", "broken"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: What was looked at.
        status: ok; note (optional and absent); warning (works in part); broken (has to be fixed).
        detail: What was found.
        fix: What to do, where something is to be done.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""


def check_python() -> Iterator[Finding]:
    """The interpreter."""
    version = platform.python_version()
    if tuple(int(part) for part in version.split(".")[:2]) >= (3, 11):
        yield Finding("python", "ok", version)
    else:
        yield Finding("python", "broken", version, "install Python 3.11 or newer")


def check_requirements() -> Iterator[Finding]:
    """Every library the package needs, at a version it needs."""
    from packaging.requirements import Requirement

    try:
        listed = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        yield Finding(
            DISTRIBUTION, "warning", "runs from a source folder, not installed", "pip install -e ."
        )
        return
    for requirement in map(Requirement, listed):
        if requirement.marker is not None and "extra" in str(requirement.marker):
            continue
        found = version_of(requirement.name)
        wanted = f'pip install "{requirement.name}{requirement.specifier}"'
        if found is None:
            yield Finding(requirement.name, "broken", "not installed", wanted)
        elif not requirement.specifier.contains(found, prereleases=True):
            detail = f"{found}, needs {requirement.specifier}"
            yield Finding(requirement.name, "broken", detail, wanted)
        else:
            yield Finding(requirement.name, "ok", found)


def check_trl() -> Iterator[Finding]:
    """TRL, and whether it still has the PPO trainer."""
    found = version_of("trl")
    if found is None:
        yield Finding("trl", "note", "not installed; SFTTrainer is not there", _extra("trl"))
    elif _has_ppo():
        yield Finding("trl", "ok", f"{found}, with PPO")
    else:
        yield Finding(
            "trl",
            "note",
            f"{found}, without PPO (TRL removed it in 1.13); everything else works",
            f"for PPO, in an environment of its own: {_extra('ppo')}",
        )


def _has_ppo() -> bool:
    """Whether the installed TRL holds the PPO trainer; looked up as a file, for TRL warns."""
    spec = importlib.util.find_spec("trl")
    folders = spec.submodule_search_locations if spec is not None else None
    return any((Path(folder) / "experimental" / "ppo").is_dir() for folder in folders or ())


def check_optional() -> Iterator[Finding]:
    """Libraries that parts of the package use where they are there."""
    for name, module, extra, purpose in _OPTIONAL:
        found = version_of(name) if available(module) else None
        if found is not None:
            yield Finding(name, "ok", found)
        else:
            status: Status = "warning" if extra == "peft" else "note"
            yield Finding(name, status, f"not installed; {purpose}", _extra(extra))


_OPTIONAL = (
    ("peft", "peft", "peft", "LoRA, which quickstart uses, needs it"),
    ("tensorboard", "tensorboard", "tensorboard", "for report_to=tensorboard"),
    ("flash-attn", "flash_attn", "flash", "block-sparse attention on CUDA"),
    ("torch-geometric", "torch_geometric", "gae", "graph auto-encoder"),
    ("deepspeed", "deepspeed", "deepspeed", "ZeRO on several GPUs"),
    ("gradio", "gradio", "review", "the review page"),
    ("optuna", "optuna", "search", "hyper-parameter search"),
    ("lm-eval", "lm_eval", "eval", "lm-eval tasks"),
)


def check_device() -> Iterator[Finding]:
    """Where training would run."""
    try:
        import torch
    except ImportError as error:
        yield Finding("device", "broken", f"torch cannot be imported ({error})", "reinstall torch")
        return
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        bf16 = "with" if torch.cuda.is_bf16_supported() else "without"
        yield Finding("device", "ok", f"CUDA {torch.version.cuda}: {', '.join(names)}; {bf16} bf16")
    elif torch.backends.mps.is_available():
        yield Finding("device", "ok", "Apple GPU (MPS)")
    else:
        threads = torch.get_num_threads()
        yield Finding("device", "ok", f"CPU, {threads} threads of {os.cpu_count()} cores; no CUDA")


def check_embedded() -> Iterator[Finding]:
    """The embedded model: its wheel, and its converted copy."""
    from hf_glm_curriculum.embedded import cache_folder, embedded_gguf
    from hf_glm_curriculum.errors import HfGlmCurriculumError

    copies = [path for path in cache_folder().glob("smollm2-*") if path.is_dir()]
    if any((path / "config.json").exists() for path in copies):
        yield Finding("embedded model", "ok", f"converted, in {copies[0]}")
        return
    try:
        gguf = embedded_gguf()
    except HfGlmCurriculumError as error:
        message, _, fix = str(error).partition("; install it")
        yield Finding("embedded model", "warning", message, f"install it{fix}; or pass --model")
        return
    if available("gguf"):
        yield Finding("embedded model", "ok", f"{gguf.name}, converted at first use (once)")
    else:
        detail = "the wheel is there, gguf is not installed"
        yield Finding("embedded model", "warning", detail, _extra("embedded"))


def check_cache() -> Iterator[Finding]:
    """Permission and space where converted models are kept."""
    from hf_glm_curriculum.embedded import cache_folder

    folder = cache_folder()
    place = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    fix = "set HGC_CACHE to a folder that you may write to"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        yield Finding("cache folder", "broken", f"{folder} cannot be written", fix)
        return
    free = shutil.disk_usage(place).free / 2**30
    status: Status = "ok" if free >= _LEAST_FREE_GIB else "warning"
    fix = "" if status == "ok" else f"free some space; {_LEAST_FREE_GIB:g} GiB are enough"
    yield Finding("cache folder", status, f"{folder}, {free:.1f} GiB free", fix)


def check_launcher() -> Iterator[Finding]:
    """Launch environments that split a model in ways no part here can follow."""
    from hf_glm_curriculum.commands.sft_train import foreign_launcher

    launcher = foreign_launcher()
    if launcher is None:
        yield Finding("launcher", "ok", "none of tensor parallelism, Megatron, Colossal-AI")
    else:
        yield Finding(
            "launcher",
            "broken",
            f"{launcher} is refused: samples cannot be followed where layers are split",
            "start with accelerate launch or torchrun (DDP, FSDP2, DeepSpeed ZeRO)",
        )


def check_distributed() -> Iterator[Finding]:
    """An all-reduce over two processes."""
    from hf_glm_curriculum.commands.allreduce import check_allreduce

    problem = check_allreduce()
    if problem is None:
        yield Finding("all-reduce", "ok", "two gloo processes on this machine agree")
    else:
        yield Finding(
            "all-reduce",
            "warning",
            problem,
            "training on one process works; for several, check the host name and firewall "
            "(GLOO_SOCKET_IFNAME=lo helps at times)",
        )


def _extra(name: str) -> str:
    return f'pip install "{DISTRIBUTION}[{name}]"'


CHECKS = (
    check_python,
    check_requirements,
    check_trl,
    check_optional,
    check_device,
    check_embedded,
    check_cache,
    check_launcher,
    check_distributed,
)
"""Every check, in the order of the report."""


def source_folder() -> Path:
    """Where the package that is running lies."""
    return Path(__file__).resolve().parents[1]
