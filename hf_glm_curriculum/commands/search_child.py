"""A trial's process: the command, ended when the search that started it is no more.

A search that is killed ends nothing itself; its trials would go on beside those of the next call.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

POLL_SECONDS = 0.5


def end_with(parent: int) -> None:
    """End this process's group, from a thread, once `parent` is not its parent any more.

    Args:
        parent: The process id of the search. The caller leads a process group of its own.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end_with(int(os.environ.pop("HGC_SEARCH_PROCESS")))
    from hf_glm_curriculum.commands.main import main

    sys.exit(main())
