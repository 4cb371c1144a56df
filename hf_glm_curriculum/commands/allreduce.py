"""A two-process all-reduce, to see whether distributed training can work on this machine.

`python -m hf_glm_curriculum.commands.allreduce RANK SIZE FILE` is one of the processes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

_SIZE = 2


def check_allreduce(timeout: float = 60.0) -> str | None:
    """Sum a number over two gloo processes on this machine.

    They meet through a file, so that no port has to be free.

    Args:
        timeout: Seconds after which the processes are stopped.

    Returns:
        None if it works, else what went wrong in one line.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        module = f"{__package__}.allreduce"
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, str(rank), str(_SIZE), meeting],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(_SIZE)
        ]
        try:
            return _wait(processes, time.monotonic() + timeout)
        finally:
            for process in processes:
                process.kill()
                process.wait()
                if process.stderr is not None:
                    process.stderr.close()


def _wait(processes: list[subprocess.Popen[str]], deadline: float) -> str | None:
    """The first failure of any process, or None when all came through."""
    for rank, process in enumerate(processes):
        try:
            _, errors = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return "the processes did not meet in time"
        if process.returncode:
            lines = errors.strip().splitlines() or [f"exit status {process.returncode}"]
            return f"process {rank}: {lines[-1]}"
    return None


def join(rank: int, size: int, meeting: str) -> None:
    """Be one process of the group: add up the ranks and check the sum.

    Raises:
        RuntimeError: The sum is wrong, or the group cannot be formed.
    """
    import torch
    from torch import distributed

    distributed.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=45),
    )
    total = torch.tensor(float(rank + 1))
    distributed.all_reduce(total)
    distributed.destroy_process_group()
    if total.item() != size * (size + 1) / 2:
        raise RuntimeError(f"the sum over {size} processes came out as {total.item()}")


if __name__ == "__main__":
    join(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
