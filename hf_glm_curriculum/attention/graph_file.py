"""A position graph on disk: what it was built from, its edges, and what its signatures mean."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.document_reader import TurnReader, tokenizer_fingerprint
from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.outline import CODES
from hf_glm_curriculum.errors import HfGlmCurriculumError, StateError
from hf_glm_curriculum.storage import PathLike, atomic_write_bytes

FORMAT = 1
HASH = "sha1_hash32"
"""datasketch's hash function behind the MinHash signatures."""


def save_graph(graph: PositionGraph, path: PathLike) -> None:
    """Write a graph to one ``.npz`` file, atomically.

    It holds the token ids, every edge, and as JSON the config, the length, the tokenizer's
    fingerprint and the MinHash scheme, seed and hash: signatures of other ones look alike and
    compare without an error.

    Raises:
        StateError: The file cannot be written.
    """
    config = graph.config
    about = {
        "format": FORMAT,
        "length": graph.n,
        "block_size": config.block_size,
        "tokenizer": graph.fingerprint,
        "minhash": {"scheme": config.minhash_scheme, "seed": config.seed, "hash": HASH},
        "turns_given": isinstance(graph._reader, TurnReader),
        "config": asdict(config),
    }
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps(about, ensure_ascii=False).encode(), np.uint8)
    np.savez_compressed(buffer, about=text, ids=graph.token_ids, edges=graph.edge_table)
    atomic_write_bytes(path, buffer.getvalue())


def load_graph(path: PathLike, tokenizer: Any = None, length: int | None = None) -> PositionGraph:
    """Read a graph that `save_graph` wrote.

    It is built anew from its token ids and compared with the edges in the file.

    Args:
        path: The file.
        tokenizer: The one it was built with; needed if it was built with one.
        length: The length it must have, if that matters.

    Raises:
        StateError: The file is unreadable; the graph is of another length or tokenizer; the
            detectors find other edges than they did.
    """
    about, ids, edges = _read(path)
    _check(path, about, ids, tokenizer, length)
    try:
        config = PositionGraphConfig(**about["config"])
    except (TypeError, HfGlmCurriculumError) as error:
        raise StateError(
            f"{path}: the graph's config does not fit this version: {error}"
        ) from error
    if about["turns_given"]:
        graph = PositionGraph.from_turns(ids, config)
    else:
        user = [(int(a), int(b)) for a, b, kind, _ in edges if kind == CODES["user"]]
        graph = PositionGraph(config, tokenizer)
        graph.append(ids, user)
    if not np.array_equal(np.unique(graph.edge_table, axis=0), np.unique(edges, axis=0)):
        raise StateError(
            f"{path}: the detectors find other edges in the text than when the graph was saved; "
            "build it anew, or register the detectors it was built with."
        )
    return graph


def needs_tokenizer(path: PathLike) -> bool:
    """Whether a saved graph was built with a tokenizer.

    Raises:
        StateError: The file is unreadable.
    """
    return bool(_read(path)[0]["tokenizer"])


def _read(path: PathLike) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    try:
        with np.load(Path(path), allow_pickle=False) as file:
            about = json.loads(bytes(file["about"]))
            found = about, file["ids"], file["edges"]
    except OSError as error:
        raise StateError(
            f"cannot read {path}: {error.strerror or error}; check the path"
        ) from error
    except Exception as error:  # what is no archive, or a broken one, fails in many ways
        raise StateError(
            f"{path} is not a saved position graph; make one of a text by `hf-glm-curriculum graph "
            "build TEXT`, and name the .npz that it writes"
        ) from error
    if about.get("format") != FORMAT:
        raise StateError(
            f"{path}: must have format {FORMAT}, got {about.get('format')}; build the graph anew"
        )
    return found


def _check(
    path: PathLike, about: dict[str, Any], ids: np.ndarray, tokenizer: Any, length: int | None
) -> None:
    if len(ids) != about["length"]:
        raise StateError(f"{path}: holds {len(ids)} of {about['length']} positions; build it anew")
    if length is not None and length != about["length"]:
        raise StateError(
            f"{path}: the graph was built for {about['length']} positions, not for {length}; "
            "build it from the sequence it is used with."
        )
    fingerprint = "" if tokenizer is None else tokenizer_fingerprint(tokenizer)
    if fingerprint == about["tokenizer"] or (about["turns_given"] and not about["tokenizer"]):
        return
    if tokenizer is None:
        raise StateError(f"{path}: the graph was built with a tokenizer; pass it as tokenizer=.")
    raise StateError(
        f"{path}: the graph was built with another tokenizer (or chat template): fingerprint "
        f"{about['tokenizer'] or 'none'}, not {fingerprint}; build it anew."
    )
