"""Files that are either whole or absent: atomic writes and tensors on disk."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_glm_curriculum.errors import StateError

PathLike = str | os.PathLike[str]

_TEMPORARY = re.compile(r"\..+\.(\d+)\.[0-9a-f]{8}\.tmp")


@contextlib.contextmanager
def writing(path: PathLike) -> Iterator[None]:
    """Turn any OSError raised inside into a StateError that names `path` and the way out.

    Raises:
        StateError: The file or its folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StateError(
            f"cannot write {os.fspath(path)}: {reason}; "
            "free some space or choose a folder that you may write to"
        ) from error


def told_by_writer(error: BaseException) -> str | None:
    """Why a file could not be written, from errors of libraries that are no OSErrors; else None.

    safetensors, tokenizers and torch's own format tell of a full disk in errors of theirs.
    """
    said = " ".join(str(error).split())
    if "(os error " in said:
        return said.rpartition("I/O error: ")[2]
    if isinstance(error, RuntimeError) and ("inline_container" in said or "StreamWriter" in said):
        return "a file could not be written to its end, as on a full disk"
    return None


def ensure_folder(path: PathLike) -> Path:
    """Create a folder with its parents and return it.

    Raises:
        StateError: The folder cannot be created or is not writable.
    """
    folder = Path(path)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    return folder


def atomic_write_bytes(path: PathLike, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    The bytes go to a temporary file in the same folder, are flushed to disk and renamed.
    Missing parent folders are created.

    Raises:
        StateError: The disk is full or the folder is not writable; `path` is as it was before.
    """
    target = Path(path)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        # Opened by hand: tempfile makes private files, a result file follows the user's umask.
        temporary = _temporary_for(target)
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            _write_all(handle, data)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(target.parent)


def atomic_write_text(path: PathLike, text: str) -> None:
    """Write UTF-8 text atomically; see `atomic_write_bytes`.

    Raises:
        StateError: The disk is full or the folder is not writable; `path` is as it was before.
    """
    atomic_write_bytes(path, text.encode("utf-8"))


def atomic_write_json(path: PathLike, value: Any, indent: int | None = 2) -> None:
    """Write `value` as JSON atomically; see `atomic_write_bytes`.

    Raises:
        StateError: The disk is full or the folder is not writable; `path` is as it was before.
    """
    atomic_write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def replacing(path: PathLike) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends without an error.

    The block may make a file or a folder there. A folder takes the place of nothing or of an
    empty folder. After an error, `path` is as it was before and nothing is left beside it.

    Raises:
        StateError: The disk is full, or the folder is not writable.
    """
    target = Path(path)
    temporary = _temporary_for(target)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            for file in (p for p in (temporary, *temporary.rglob("*")) if p.is_file()):
                _sync(file)
            os.replace(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(target.parent)


def sweep_temporaries(folder: PathLike) -> None:
    """Delete what writers that were killed left half-written anywhere below a folder.

    Files of processes that live on this machine stay. Nothing is said of what cannot be deleted.
    """
    for path in Path(folder).rglob(".*.tmp"):
        _sweep(path)


def _sweep(path: Path) -> None:
    """Delete one such file or folder, if its writer is dead."""
    named = _TEMPORARY.fullmatch(path.name)
    if named is None or _lives(int(named[1])):
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def locked(path: PathLike) -> Iterator[None]:
    """Hold a file lock, waiting for it; the system lets go of it when its owner dies.

    Raises:
        StateError: The lock file cannot be written.
    """
    from filelock import FileLock

    lock = FileLock(os.fspath(path))
    with writing(path):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def append_line(path: PathLike, line: str, *, durable: bool = False) -> None:
    """Append one line to a text file; if the disk fills up, the file is as it was before.

    A last line that lacks its line break, as a kill may leave it, stays a line of its own.

    Args:
        path: The file, made if it is not there.
        line: The line without its line break.
        durable: Wait until the line is on the disk.

    Raises:
        StateError: The disk is full or the file is not writable.
    """
    with writing(path):
        handle = os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o666)
        try:
            end = os.fstat(handle).st_size
            torn = end > 0 and os.pread(handle, 1, end - 1) != b"\n"
            try:
                _write_fully(handle, (b"\n" if torn else b"") + f"{line}\n".encode())
                if durable:
                    os.fsync(handle)
            except OSError:
                os.ftruncate(handle, end)
                raise
        finally:
            os.close(handle)
        if durable and end == 0:
            _sync_folder(Path(path).parent)


def read_json(path: PathLike) -> Any:
    """Read a JSON file.

    Raises:
        StateError: The file is missing, unreadable or not JSON.
    """
    try:
        return json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise StateError(f"cannot read {os.fspath(path)}: {reason}; check the path") from error
    except ValueError as error:
        raise StateError(
            f"{os.fspath(path)} is not valid JSON ({error}); delete it or restore it from a copy"
        ) from error


def save_tensors(
    path: PathLike, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors to one safetensors file, atomically.

    Args:
        path: The file to write.
        tensors: Name → tensor of any dtype and device. Written from where they lie: contiguous
            CPU tensors, memory-mapped ones too, are not copied.
        metadata: Strings kept in the file's header.

    Raises:
        StateError: The disk is full or the folder is not writable; `path` is as it was before.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing(path) as temporary:
        try:
            save_file(_apart(tensors), temporary, metadata=dict(metadata) if metadata else None)
        except SafetensorError as error:
            raise OSError(0, str(error)) from error


def _temporary_for(target: Path) -> Path:
    """A name beside `target` that tells whose it is; those of killed writers go."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(target.parent):
            if entry.name.startswith(f".{target.name}.") and entry.name.endswith(".tmp"):
                _sweep(Path(entry.path))
    return target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def _lives(process: int) -> bool:
    """Whether a process of this machine has the number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def _apart(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Contiguous CPU tensors; copied only where two share storage, which safetensors refuses."""
    found: dict[str, Any] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage().data_ptr()
        found[name] = plain.clone() if storage in storages else plain
        storages.add(storage)
    return found


def load_tensors(path: PathLike) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a file of `save_tensors` → (name → CPU tensor, metadata).

    Raises:
        StateError: The file is missing, unreadable or not a safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except OSError as error:
        reason = error.strerror or str(error)
        raise StateError(f"cannot read {os.fspath(path)}: {reason}; check the path") from error
    except SafetensorError as error:
        raise StateError(
            f"{os.fspath(path)} is not a safetensors file ({error}); "
            "resume from an earlier checkpoint"
        ) from error


def _write_all(handle: int, data: bytes) -> None:
    """Write every byte to a file descriptor, flush it to disk and close it."""
    try:
        _write_fully(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_fully(handle: int, data: bytes) -> None:
    """Write every byte: one system call may take only a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _sync(file: Path) -> None:
    """Flush a file to disk."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries, where the platform lets a folder be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_whole_lines(path: PathLike) -> list[dict[str, Any]]:
    """The JSON objects of a file with one a line, without lines that a kill tore; [] without one.

    Raises:
        StateError: The file cannot be read.
    """
    place, found = Path(path), []
    try:
        lines = place.read_text("utf-8").split("\n") if place.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"cannot read {place}: {error}; restore it or delete it") from error
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def rewind_lines(path: PathLike, step: int, *, again: bool = False) -> None:
    """Take the lines after ``step`` out of such a file, all of them at step 0.

    A resumed run writes the lines of the steps that it repeats again.

    Args:
        path: The file; need not be there.
        step: The step that the run goes on from.
        again: Take the lines of that step out too.

    Raises:
        StateError: The file cannot be read or written.
    """
    if Path(path).exists():
        last = step - again
        kept = [row for row in read_whole_lines(path) if step and row.get("step", 0) <= last]
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in kept)
        atomic_write_text(path, "".join(lines))
