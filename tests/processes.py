"""Two gloo processes through ``accelerate launch``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY

# accelerate's --cpu starts one process whatever is asked for; its torchrun launcher starts two, and
# ACCELERATE_USE_CPU makes them gloo workers.
_LAUNCH = (
    *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
    *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
    *("--main_process_port", "0"),
)


def launch(*words: Any, timeout: float = 400) -> subprocess.CompletedProcess[str]:
    """Run ``accelerate launch WORDS`` on two processes, which must end well."""
    done = subprocess.run(
        [sys.executable, *_LAUNCH, *map(str, words)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def launch_script(script: str, folder: Path, *words: str, timeout: float = 400) -> None:
    """Run a program on two processes; its arguments are the folder and ``words``.

    Args:
        script: the program, with ``{root!r}`` for the repository's path and other braces doubled.
        folder: where it is written.
        *words: further arguments.
        timeout: seconds.
    """
    path = folder / "run.py"
    path.write_text(script.format(root=str(REPOSITORY)))
    launch(path, folder, *words, timeout=timeout)
