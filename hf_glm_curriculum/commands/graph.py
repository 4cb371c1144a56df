"""`graph build|show|explain`: the position graph of a document or dialogue, seen and questioned."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_glm_curriculum.attention.config import PositionGraphConfig
    from hf_glm_curriculum.attention.graph import PositionGraph

_FLAGS = (
    "block_size", "top_k", "window", "sink_blocks", "structure", "turns", "encoder", "num_perm",
    "minhash_scheme", "hops", "seed",
)  # fmt: skip
_TEXT = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's three forms."""
    forms = parser.add_subparsers(dest="form", metavar="FORM", required=True)
    build = forms.add_parser("build", help="read a text or a JSONL record and save its graph")
    build.add_argument("file", help="a text file, or JSONL with messages, prompt/response or text")
    build.add_argument("--row", type=int, default=0, help="the record of a JSONL file, from 0")
    build.add_argument("--out", help="the .npz file to write (default: runs/graph/NAME.npz)")
    build.add_argument("--config", help="YAML file of a PositionGraphConfig")
    build.add_argument(
        "--edge", type=int, nargs=2, action="append", default=[], metavar=("LATER", "EARLIER"),
        help="two positions to link; can be given several times",
    )  # fmt: skip
    _add_model(build)
    _add_config(build)
    show = forms.add_parser("show", help="draw a saved graph")
    show.add_argument("graph", help="the .npz file")
    show.add_argument(
        "--out",
        help="folder for graph.png, similarity.png, graph.html (default: the graph's, by its name)",
    )
    show.add_argument("--style", default="auto", choices=("auto", "arcs", "matrix"))
    _add_model(show)
    explain = forms.add_parser("explain", help="which blocks a query keeps, and why")
    explain.add_argument("graph", help="the .npz file")
    explain.add_argument("--position", type=int, required=True, help="the query, from 0")
    explain.add_argument("--json", action="store_true", help="write JSON instead of a table")
    _add_model(explain)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="embedded", help="whose tokenizer splits the text")


def _add_config(parser: argparse.ArgumentParser) -> None:
    """The graph's own settings; those of attention come from the YAML file."""
    from hf_glm_curriculum.attention.config import PositionGraphConfig
    from hf_glm_curriculum.config import add_config_flags

    whole = argparse.ArgumentParser(add_help=False)
    add_config_flags(whole, PositionGraphConfig)
    for action in whole._actions:
        if action.dest in _FLAGS:
            parser._add_action(action)


def run(args: argparse.Namespace) -> int:
    """Run one of the forms.

    Raises:
        ConfigError: A setting is wrong, or the file has no such record.
        DataError: The file is unreadable; a position or an edge lies outside the graph.
        ModelError: The tokenizer cannot be loaded.
        StateError: The graph's file cannot be read or written, or belongs to another tokenizer.
    """
    return {"build": _build, "show": _show, "explain": _explain}[args.form](args)


def _build(args: argparse.Namespace) -> int:
    from hf_glm_curriculum.attention.config import PositionGraphConfig
    from hf_glm_curriculum.attention.graph import PositionGraph
    from hf_glm_curriculum.commands.console import say, show_table
    from hf_glm_curriculum.commands.graph_input import read_input
    from hf_glm_curriculum.config import config_from_args
    from hf_glm_curriculum.models import load_tokenizer

    config: PositionGraphConfig = config_from_args(PositionGraphConfig, args)
    content = read_input(Path(args.file).expanduser(), args.row)
    tokenizer = load_tokenizer(args.model)
    out = Path(args.out or f"runs/graph/{Path(args.file).stem}.npz").expanduser()
    edges = [tuple(pair) for pair in args.edge]
    if isinstance(content, str):
        graph = PositionGraph.from_text(content, tokenizer, config, edges)
    else:
        graph = PositionGraph.from_messages(content, tokenizer, config, edges)
    graph.save(out)
    kinds = graph.edge_kinds
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    say(f"{graph.n:,} positions in {graph.n_blocks:,} blocks of {config.block_size}: {out}")
    show_table("Edges", ("kind", "edges"), sorted(counts.items()), right=(1,))
    say(f"next: hf-glm-curriculum graph show {out}, or graph explain {out} --position N")
    return 0


def _load(args: argparse.Namespace) -> PositionGraph:
    from hf_glm_curriculum.attention.graph_file import load_graph, needs_tokenizer
    from hf_glm_curriculum.models import load_tokenizer

    path = Path(args.graph).expanduser()
    return load_graph(path, load_tokenizer(args.model) if needs_tokenizer(path) else None)


def _show(args: argparse.Namespace) -> int:
    from hf_glm_curriculum.attention.graph_pictures import graph_html, graph_png, similarity_png
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.storage import ensure_folder

    out = Path(args.out or Path(args.graph).with_suffix("")).expanduser()
    graph, folder = _load(args), ensure_folder(out)
    graph_png(graph, folder / "graph.png", args.style)
    similarity_png(graph, folder / "similarity.png")
    graph_html(graph, folder / "graph.html")
    say(f"{folder / 'graph.png'}, {folder / 'similarity.png'}, {folder / 'graph.html'}")
    return 0


def _explain(args: argparse.Namespace) -> int:
    from hf_glm_curriculum.commands.console import say, show_table

    found = _load(args).explain(args.position)
    if args.json:
        say(json.dumps(found, ensure_ascii=False, indent=2))
        return 0
    say(f"position {found['position']} in block {found['block']}, at {found['text'][-_TEXT:]!r}")
    columns = ("block", "positions", "similarity", "why", "text")
    show_table(f"{len(found['kept'])} blocks kept", columns, map(_row, found["kept"]), right=(2,))
    return 0


def _row(entry: dict[str, Any]) -> tuple[Any, ...]:
    near = entry["similarity"]
    return (
        entry["block"],
        f"{entry['first']}–{entry['last']}",
        None if near is None else f"{near:.2f}",
        "; ".join(dict.fromkeys(entry["reasons"])),
        " ".join(entry["text"].split())[:_TEXT],
    )
