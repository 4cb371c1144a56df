"""`review RUN`: look at the samples of the observation pool and keep, fix or drop them."""

from __future__ import annotations

import argparse
import getpass
import ipaddress
import logging
import os
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.errors import ConfigError, DataError

if TYPE_CHECKING:
    from hf_glm_curriculum.commands.review_session import Neighbours, Population, ReviewSession
    from hf_glm_curriculum.lifespan.pool import ObservationPool
    from hf_glm_curriculum.lifespan.review import ReviewStore

logger = logging.getLogger(__name__)

SAMPLES_FILE = "samples.csv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("run", help="output folder of a finished run, or its observation_pool.jsonl")
    add("--host", default="127.0.0.1", help="address to serve the page on")
    add("--port", type=int, help="port to serve the page on (default: a free one from 7860 on)")
    add("--no-browser", action="store_true", help="do not open a browser")
    add("--reviewer", help="name written beside each decision (default: the user's)")
    add(
        "--data",
        nargs="+",
        metavar="FILE",
        help="what the run was trained on: files, folders or a hub id; for --export, and to show "
        "similar prompts from all of it",
    )
    add("--export", metavar="OUT", help="write the corrected data (.jsonl, .csv, .parquet, folder)")
    add("--answers", metavar="FILE", help="with --export: take these answers, not the page's")
    add("--export-pool", metavar="OUT", help="write the pool for annotators, in the same formats")


def run(args: argparse.Namespace) -> int:
    """Write what is asked for, or serve the page until interrupted.

    Raises:
        ConfigError: Arguments do not go together, or the address cannot be served.
        DataError: The pool, the data or the answers are missing, malformed or do not match.
        StateError: The decisions cannot be read, or a result cannot be written.
        MissingDependencyError: gradio is not installed.
    """
    from hf_glm_curriculum.lifespan.pool import read_pool

    if args.export and not args.data:
        raise ConfigError("--export: needs the data to correct; add --data FILE")
    if args.answers and not args.export:
        raise ConfigError("--answers: are read for an export; add --export OUT and --data FILE")
    if args.port is not None and not 1 <= args.port <= 65535:
        raise ConfigError(f"--port: must lie between 1 and 65535, got {args.port}")
    pool = read_pool(args.run)
    if args.export_pool:
        _export_pool(pool, args.export_pool)
    if args.export:
        _export(pool, args)
    if not (args.export or args.export_pool):
        _serve(pool, args)
    return 0


def _export_pool(pool: ObservationPool, out: str) -> None:
    from hf_glm_curriculum.commands.console import say

    path = pool.export(Path(out).expanduser())
    say(
        f"{len(pool.rows):,} samples: {path}; fill in decision (keep, fix or drop) and "
        "corrected_response, then give it to --answers"
    )


def _export(pool: ObservationPool, args: argparse.Namespace) -> None:
    """Write the corrected data."""
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.lifespan.corrections import import_annotations
    from hf_glm_curriculum.lifespan.review import ReviewStore

    answers = args.answers or ReviewStore(pool).answers()
    if not answers:
        raise DataError(
            f"{ReviewStore(pool).path}: holds no decision yet; review the pool first, or give "
            "--answers"
        )
    done = import_annotations(pool, answers, args.data, args.export)
    say(
        f"{done.path}: {done.kept:,} kept, {done.fixed:,} fixed, {done.dropped:,} dropped, "
        f"{done.unreviewed:,} not reviewed"
    )


def _serve(pool: ObservationPool, args: argparse.Namespace) -> None:
    """Serve the page until the process is interrupted."""
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.lifespan.review import ReviewStore

    gradio = _gradio()
    if not pool.rows:
        raise DataError(f"{pool.path}: the pool is empty; there is nothing to review")
    store = ReviewStore(pool)
    page, url = _launch(gradio, *_session(pool, store, args), args)
    say(f"review: {url} ({len(store.decisions())} of {len(pool.rows)} decided); Ctrl+C ends it")
    if not args.no_browser:
        webbrowser.open(url)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        say(f"decisions are in {store.path}")
    finally:
        page.close(verbose=False)


def _gradio() -> Any:
    """Import gradio with its calls home switched off.

    Raises:
        MissingDependencyError: it is not installed.
    """
    from hf_glm_curriculum.optional import require

    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    return require("gradio", "review")


def _session(
    pool: ObservationPool, store: ReviewStore, args: argparse.Namespace
) -> tuple[ReviewSession, str]:
    """The session, and what its signals are ranked among."""
    from hf_glm_curriculum.commands.review_session import Neighbours, Population, ReviewSession

    population, words = _population(pool)
    neighbours: Neighbours = Neighbours(pool, _texts(args.data) if args.data else ())
    population = population or Population.of_pool(pool)
    return ReviewSession(store, population, neighbours, _reviewer(args.reviewer)), words


def _population(pool: ObservationPool) -> tuple[Population | None, str]:
    """Signals of all samples of the run, if its table lies beside the pool."""
    import pandas as pd

    from hf_glm_curriculum.commands.review_session import Population

    path = pool.path.with_name(SAMPLES_FILE)
    if not path.exists():
        return None, f"percentile in the pool of {len(pool.rows):,}"
    try:
        frame = pd.read_csv(path)
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: not a table ({error}); restore it or delete it") from error
    numbers = frame.select_dtypes("number").drop(columns=["id", "row"], errors="ignore")
    values = {str(name): numbers[name].dropna().tolist() for name in numbers.columns}
    return Population(values), f"percentile of {len(frame):,} samples"


def _texts(data: list[str]) -> list[tuple[str, str]]:
    """Prompts and responses of the data."""
    from hf_glm_curriculum.data.records import load_records

    records = load_records(data)
    return list(zip(records["prompt"], records["response"], strict=True))


def _reviewer(name: str | None) -> str:
    if name:
        return name
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user without a name, as in some containers
        return ""


def _launch(
    gradio: Any, session: ReviewSession, population: str, args: argparse.Namespace
) -> tuple[Any, str]:
    """Start the server; the page and its address.

    Raises:
        ConfigError: the address is taken or not this machine's.
    """
    from hf_glm_curriculum.commands.review_page import build_page, launch_settings

    if not _is_local(args.host):
        logger.warning(
            "--host %s: whoever can reach this machine can read the samples and decide about them",
            args.host,
        )
    page = build_page(gradio, session, str(args.run), population)
    try:
        _, url, _ = page.launch(
            server_name=args.host, server_port=args.port, **launch_settings(gradio)
        )
    except OSError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"--host, --port: {args.host}:{args.port or 'any port'} cannot be served ({reason}); "
            "choose another port"
        ) from error
    return page, url


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
