"""Pictures of a position graph: its edges as arcs or as a matrix, its similarities, a page."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np

from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.outline import KINDS
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.figures import new_figure, save_figure
from hf_glm_curriculum.storage import atomic_write_text

COLOURS = {
    "start": "#c9ccd1",
    "heading": "#4c78a8",
    "clause": "#54a24b",
    "definition": "#72b7b2",
    "reference": "#d64550",
    "turn_previous": "#f2b134",
    "turn_next": "#e7873b",
    "session_start": "#9d6cc3",
    "session_end": "#b279a2",
    "user": "#222222",
}
"""One colour a kind of edge, the same in every picture."""

_ARCS_UP_TO = 96  # blocks; arcs of longer sequences cover each other
_FAINT = ("session_start", "heading")  # every block of a dialogue or chapter has one
_CELLS = 512
_MARKS = 6000
_SNIPPET = 12  # tokens


def graph_png(graph: PositionGraph, path: Path, style: str = "auto") -> None:
    """Draw the edges between blocks, coloured by kind.

    Args:
        graph: The graph.
        path: PNG to write.
        style: "arcs" (blocks on a line), "matrix" (query blocks against key blocks), or "auto":
            arcs for short sequences.

    Raises:
        ConfigError: An unknown style.
        StateError: The file cannot be written.
    """
    if style not in ("auto", "arcs", "matrix"):
        raise ConfigError(f"style: must be auto, arcs or matrix, got {style!r}.")
    pairs = block_edges(graph)
    arcs = style == "arcs" or (style == "auto" and graph.n_blocks <= _ARCS_UP_TO)
    figure = new_figure(9.0, 4.2) if arcs else new_figure(6.6, 6.0)
    axes: Any = figure.subplots()
    (_draw_arcs if arcs else _draw_matrix)(axes, graph, pairs)
    axes.set_title(
        f"Position graph: {graph.n:,} positions in {graph.n_blocks:,} blocks", fontsize=10
    )
    axes.spines[["top", "right"]].set_visible(False)
    if pairs:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save_figure(figure, path)


def block_edges(graph: PositionGraph) -> dict[str, np.ndarray]:
    """Kind → pairs of different blocks that edges of the kind join: int64 [pairs, 2], later first.

    Edges to the document's start are left out: every block has one.
    """
    size = graph.config.block_size
    table = graph.edge_table
    found = {}
    for code, kind in enumerate(KINDS):
        blocks = np.unique(table[table[:, 2] == code, :2] // size, axis=0)
        blocks = blocks[blocks[:, 0] != blocks[:, 1]]
        if kind != "start" and len(blocks):
            found[kind] = blocks
    return found


def _draw_arcs(axes: Any, graph: PositionGraph, pairs: dict[str, np.ndarray]) -> None:
    angle = np.linspace(0, np.pi, 40)
    for kind, blocks in pairs.items():
        look = {
            "color": COLOURS[kind], "linewidth": 0.9, "alpha": 0.2 if kind in _FAINT else 0.7,
        }  # fmt: skip
        axes.plot([], [], label=f"{kind} ({len(blocks)})", color=COLOURS[kind])
        for later, earlier in blocks.tolist():
            middle, radius = (later + earlier) / 2, (later - earlier) / 2
            axes.plot(middle + radius * np.cos(angle), radius * np.sin(angle), **look)
    axes.plot(range(graph.n_blocks), np.zeros(graph.n_blocks), "|", color="#666", markersize=6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"block of {graph.config.block_size} positions")


def _draw_matrix(axes: Any, graph: PositionGraph, pairs: dict[str, np.ndarray]) -> None:
    blocks = graph.n_blocks
    window = graph.config.window_blocks
    line = np.array([0, blocks])
    axes.fill_betweenx(line, line - window, line, color="#c9ccd1", linewidth=0, label="window")
    size = float(np.clip(20000 / max(blocks, 1) ** 1.3, 1.0, 30.0))
    for kind, found in pairs.items():
        axes.scatter(
            found[:, 1], found[:, 0], s=size, c=COLOURS[kind], linewidths=0, alpha=0.8,
            label=f"{kind} ({len(found)})",
        )  # fmt: skip
    axes.set_xlim(0, blocks)
    axes.set_ylim(blocks, 0)
    axes.set_xlabel("key block")
    axes.set_ylabel("query block")
    axes.set_aspect("equal")


def similarity_png(graph: PositionGraph, path: Path) -> None:
    """Draw how similar the encoder finds every query block and earlier block.

    Sequences of more than 512 blocks are pooled: a cell shows the highest similarity in it.

    Raises:
        StateError: The file cannot be written.
    """
    values = pooled_similarities(graph, _CELLS)
    figure = new_figure(6.2, 5.2)
    axes: Any = figure.subplots()
    shown = np.ma.masked_where(np.triu(np.ones(values.shape, bool), 1), values)
    end = max(1, graph.n_blocks)
    image = axes.imshow(
        shown, cmap="viridis", vmin=0, vmax=1, extent=(0, end, end, 0), interpolation="nearest"
    )
    axes.set_xlabel("key block")
    axes.set_ylabel("query block")
    axes.set_title(f"Similarity of blocks ({graph.config.encoder})", fontsize=10)
    figure.colorbar(image, ax=axes, fraction=0.046)
    save_figure(figure, path)


def pooled_similarities(graph: PositionGraph, cells: int) -> np.ndarray:
    """Highest similarity of query and key blocks in a grid: float64 [rows, rows], rows ≤ cells."""
    full = graph.n // graph.config.block_size
    step = max(1, -(-full // cells))
    rows = max(1, -(-full // step))
    found = np.zeros((rows, rows))
    for row in range(rows):
        first, last = row * step, min(full, (row + 1) * step)
        if first < last:
            values = graph.similarities(first, last)[:, :full].max(0)
            values = np.pad(values, (0, rows * step - full))
            found[row] = values.reshape(rows, step).max(1)
    return found


def graph_html(graph: PositionGraph, path: Path) -> None:
    """Write the edges as one page without dependencies: a matrix whose marks tell their edge.

    Each kind can be hidden; at most 6,000 marks are drawn, and the page says if some are not.

    Raises:
        StateError: The file cannot be written.
    """
    pairs = block_edges(graph)
    total = sum(map(len, pairs.values()))
    share = min(1.0, _MARKS / total) if total else 1.0
    boxes, marks, styles = [], [], []
    for kind, blocks in pairs.items():
        kept = blocks[
            np.unique(np.linspace(0, len(blocks) - 1, int(len(blocks) * share) or 1).astype(int))
        ]
        boxes.append(
            f'<input type="checkbox" id="{kind}" checked><label for="{kind}" '
            f'style="color:{COLOURS[kind]}">{kind} ({len(blocks)})</label>'
        )
        styles.append(f"#{kind}:not(:checked)~svg .{kind}{{display:none}}")
        marks.append(f'<g class="{kind}" fill="{COLOURS[kind]}">{_marks(graph, kind, kept)}</g>')
    note = f"<p>{share:.0%} of {total:,} edges are drawn.</p>" if share < 1 else ""
    size = max(1, graph.n_blocks)
    page = _PAGE.format(
        title=f"Position graph: {graph.n:,} positions in blocks of {graph.config.block_size}",
        styles="".join(styles), boxes=" ".join(boxes), size=size, marks="".join(marks), note=note,
    )  # fmt: skip
    atomic_write_text(path, page)


def _marks(graph: PositionGraph, kind: str, blocks: np.ndarray) -> str:
    size = graph.config.block_size
    texts: dict[int, str] = {}
    found = []
    for later, earlier in blocks.tolist():
        if earlier not in texts:
            texts[earlier] = graph.text(earlier * size, earlier * size + _SNIPPET)
        words = html.escape(f"{kind}: block {later} → {earlier} {texts[earlier]!r}", quote=True)
        found.append(
            f'<rect x="{earlier}" y="{later}" width="1" height="1"><title>{words}</title></rect>'
        )
    return "".join(found)


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>
body{{font:14px system-ui,sans-serif;margin:1.5rem;color:#222;background:#fff}}
label{{margin-right:1rem}}
svg{{display:block;width:min(90vw,80vh);border:1px solid #ddd;margin-top:1rem}}
{styles}</style><h1 style="font-size:1.1rem">{title}</h1>
<p>Down: query blocks. Across: the earlier blocks that edges join to them. Point at a mark.</p>
{boxes}<svg viewBox="0 0 {size} {size}" role="img" aria-label="edges between blocks">
<path d="M0 0L{size} {size}" stroke="#ddd" stroke-width="0.3"/>{marks}</svg>{note}</html>
"""
