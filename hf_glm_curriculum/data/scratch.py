"""Arrays that may be larger than memory: in a temporary file that is unlinked at once."""

import os
import tempfile
from math import prod

import numpy as np

from hf_glm_curriculum.storage import writing

MEMORY_BYTES = 32 << 20
"""Arrays of at most this size stay in memory."""


def scratch_array(shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
    """Make an array of zeros; a large one lies in a file in ``TMPDIR`` that nobody else sees.

    Raises:
        StateError: if the disk is full or the folder cannot be written.
    """
    size = prod(shape) * np.dtype(dtype).itemsize
    if size <= MEMORY_BYTES:
        return np.zeros(shape, dtype)
    with writing(tempfile.gettempdir()), tempfile.TemporaryFile() as file:
        file.truncate(size)
        if hasattr(os, "posix_fallocate"):
            # Otherwise a full disk would show as a killed process, not as an error.
            os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(file, dtype, mode="r+", shape=shape)
