"""Files of equal content under different paths: found by SHA-256, reduced to one canonical path."""

import hashlib
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.progress import progress

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20


@dataclass(frozen=True)
class FileAudit:
    """Digests of files and what they have in common.

    Attributes:
        digests: path -> SHA-256 of the content, in hex; paths as given (or found in folders).
    """

    digests: dict[str, str]

    @cached_property
    def duplicates(self) -> list[list[str]]:
        """Groups of paths with equal content, the canonical one first."""
        groups: dict[str, list[str]] = {}
        for path, digest in self.digests.items():
            groups.setdefault(digest, []).append(path)
        return [sorted(group, key=_preference) for group in groups.values() if len(group) > 1]

    @cached_property
    def canonical(self) -> dict[str, str]:
        """Path -> the path to use for its content: the shallowest, then the first by name."""
        kept = {path: path for path in self.digests}
        for group in self.duplicates:
            kept.update(dict.fromkeys(group, group[0]))
        return kept

    @property
    def unique_paths(self) -> list[str]:
        """One path for each content, in the order given."""
        return list(dict.fromkeys(self.canonical.values()))

    @property
    def warnings(self) -> list[str]:
        """One line for each group of equal files."""
        return [
            f"{', '.join(group[1:])}: same content as {group[0]}; use that path only"
            for group in self.duplicates
        ]

    def summary(self) -> dict[str, Any]:
        """Return counts, digests and groups as plain values."""
        return {
            "files": len(self.digests),
            "distinct_contents": len(set(self.digests.values())),
            "digests": self.digests,
            "duplicates": self.duplicates,
        }


def audit_files(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> FileAudit:
    """Hash files and warn of equal content under different paths.

    A path is no identity: the same file copied, or mounted elsewhere on another worker, counts
    twice in training. Naming one file twice is no duplicate, nor is a link to a file given too.

    Args:
        paths: files, or folders whose files are taken with those of their sub-folders.

    Raises:
        DataError: if a path does not exist or a file cannot be read.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: dict[Path, Path] = {}
    for path in given:
        for file in _files_at(Path(path).expanduser()):
            files.setdefault(file.resolve(), file)
    digests: dict[str, str] = {}
    with progress(len(files), "hashing files") as bar:
        for file in files.values():
            digests[str(file)] = file_digest(file)
            bar.advance()
    audit = FileAudit(digests)
    for line in audit.warnings:
        logger.warning("%s", line)
    return audit


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content in hex, read a piece at a time.

    Raises:
        DataError: if it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}); check its permissions"
        ) from error
    return digest.hexdigest()


def _files_at(path: Path) -> list[Path]:
    """Return the file at a path or those below a folder."""
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; check the path")
    return [path]


def _preference(path: str) -> tuple[int, str]:
    """Order paths by depth, then by name, whatever order they were given in."""
    return len(Path(path).parts), path
