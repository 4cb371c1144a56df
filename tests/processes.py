"""Two gloo processes: through ``accelerate launch``, or forked from a server that has imported."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.conftest import REPOSITORY

# accelerate's --cpu starts one process whatever is asked for; its torchrun launcher starts two, and
# ACCELERATE_USE_CPU makes them gloo workers.
_LAUNCH = (
    *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
    *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
    *("--main_process_port", "0"),
)
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
# What scripts import anyway, and what takes a process most of its time.
_IMPORTED = (
    *("torch", "torch.distributed", "datasets", "accelerate", "peft", "transformers.trainer"),
    *("transformers.models.llama.modeling_llama", "transformers.models.glm.modeling_glm"),
    *("trl.trainer.sft_trainer", "pandas", "gradio", "hf_glm_curriculum"),
)


def launch(*words: Any, timeout: float = 400) -> subprocess.CompletedProcess[str]:
    """Run ``accelerate launch WORDS`` on two processes, which must end well."""
    done = subprocess.run(
        [sys.executable, *_LAUNCH, *map(str, words)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **_ENVIRONMENT},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def launch_script(script: str, folder: Path, *words: str, timeout: float = 400) -> None:
    """Run a program on two processes as torchrun would; its arguments are the folder and ``words``.

    Args:
        script: the program, with ``{root!r}`` for the repository's path and other braces doubled.
        folder: where it is written.
        *words: further arguments.
        timeout: seconds.
    """
    path = folder / "run.py"
    path.write_text(script.format(root=str(REPOSITORY)))
    run_two(_run, folder, [str(path), str(folder), *words], timeout=timeout)


def run_two(work: Callable[..., None], folder: Path, *rest: Any, timeout: float = 400) -> None:
    """Call ``work(rank, *rest)`` in two processes that find each other, which must end well.

    They are forked from a server that has imported the libraries once for all tests of this
    process; they share nothing with each other or with the tests.

    Args:
        work: a function of a test module.
        folder: for what the processes print.
        *rest: further arguments.
        timeout: seconds.
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    workers = [_forked(folder / f"rank{r}.log", _be_one, r, port, work, *rest) for r in (0, 1)]
    codes = _waited_for(workers, time.monotonic() + timeout)
    logs = "".join(path.read_text()[-3000:] for path in sorted(folder.glob("rank?.log")))
    assert codes == [0, 0], f"{codes}\n{logs}"


def start_python(log: Path, code: str, *words: Any) -> Any:
    """Start what ``python -c CODE WORDS`` would run, forked as in `run_two`.

    Args:
        log: where its output goes.
        code: the program.
        *words: its arguments.

    Returns:
        The running `multiprocessing.Process`.
    """
    worker = _forked(log, _execute, code, list(map(str, words)))
    worker.start()
    return worker


def run_python(log: Path, code: str, *words: Any, timeout: float = 400) -> int | None:
    """Exit status of `start_python`, once it has ended; minus the signal that killed it."""
    worker = start_python(log, code, *words)
    worker.join(timeout)
    status = worker.exitcode
    worker.kill()
    return status


def _forked(log: Path, work: Callable[..., None], *rest: Any) -> Any:
    """A process to be forked from the server, not yet started."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    about = (log, dict(os.environ), torch.get_num_threads())
    return context.Process(target=_begin, args=(about, work, rest))


def _waited_for(workers: list[Any], until: float) -> list[int | None]:
    """Run processes to their end, or to that of the first one that fails."""
    try:
        for worker in workers:
            worker.start()
        running = list(workers)
        while running and time.monotonic() < until:
            multiprocessing.connection.wait([w.sentinel for w in running], timeout=1)
            if any(w.exitcode for w in workers):
                break
            running = [w for w in workers if w.exitcode is None]
        return [worker.exitcode for worker in workers]
    finally:
        for worker in workers:
            worker.kill()


def _begin(
    about: tuple[Path, dict[str, str], int], work: Callable[..., None], rest: tuple[Any, ...]
) -> None:
    """Be as a fresh process in the repository's folder, and work."""
    log, environment, threads = about
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1) for fd in (1, 2))
    os.chdir(REPOSITORY)
    os.environ.clear()
    os.environ.update(environment)
    # Sums of floats depend on it.
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Data loaders' workers start as they would anywhere else.
    multiprocessing.set_start_method("fork", force=True)
    work(*rest)


def _be_one(rank: int, port: int, work: Callable[..., None], *rest: Any) -> None:
    """Be one process of two."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update(_ENVIRONMENT | {name: str(v) for name, v in (place | address).items()})
    torch.set_num_threads(1)
    work(rank, *rest)


def _execute(code: str, words: list[str]) -> None:
    """Run a program given as text."""
    sys.argv = ["-c", *words]
    exec(compile(code, "<test>", "exec"), {"__name__": "__main__"})


def _run(rank: int, arguments: list[str]) -> None:
    """Run a program."""
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
