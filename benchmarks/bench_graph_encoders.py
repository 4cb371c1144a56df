"""``graph_encoders``: MinHash, graph auto-encoder and breadth-first search against exact Jaccard.

On long documents (``longdoc_*``, tokenised by SmolLM2): how far each encoder's similarities agree
with MinHash's and with the exact Jaccard similarity, whether the clause that a text cites is
among the 32 nearest blocks of the block after the citation, and how long all rows take. The
auto-encoder's weights come from a made-up document and, as a second row, from one of the laws.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import parser, record

from hf_glm_curriculum.attention.agreement import encoder_agreement
from hf_glm_curriculum.attention.autoencoder import (
    AutoencoderEncoder,
    fit_autoencoder,
    fitted_on_example,
)
from hf_glm_curriculum.attention.breadth_first import BreadthFirstEncoder
from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.encoders import Encoder, ExactEncoder, MinHashEncoder
from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.minhash import Permutations
from hf_glm_curriculum.attention.outline import CODES
from hf_glm_curriculum.models import load_tokenizer

DATA = Path(os.environ.get("HGC_DATA") or Path(__file__).parents[2] / "shared" / "data")
DOCUMENTS = (
    "longdoc_contracts_en/common_paper_CSA.md",
    "longdoc_contracts_en/github-terms-of-service.md",
    "longdoc_contracts_en/github-marketplace-developer-agreement.md",
    "longdoc_zh_statutes/company_law.md",
    "longdoc_zh_statutes/civil_code_contracts.md",
)
FITTED_ON = "longdoc_zh_statutes/e_commerce_law.md"
CLAIM = 0.92
COUNT = 32


def encoders(config: PositionGraphConfig, tokenizer: Any) -> dict[str, Encoder]:
    """The encoders compared, by name."""
    law = PositionGraph.from_text((DATA / FITTED_ON).read_text("utf-8"), tokenizer, config)
    permutations = Permutations(config.num_perm, config.seed, config.minhash_scheme)
    return {
        "minhash": MinHashEncoder(permutations),
        "auto-encoder": AutoencoderEncoder(fitted_on_example(config)),
        "auto-encoder fitted on a law": AutoencoderEncoder(fit_autoencoder([law])),
        "breadth-first": BreadthFirstEncoder(),
        "exact": ExactEncoder(),
    }


def cited_among_nearest(graph: PositionGraph, encoder: Encoder) -> list[bool]:
    """Whether the nearest blocks of the block after a citation hold the clause cited."""
    size, window = graph.config.block_size, graph.neighbourhoods.window
    table = graph.edge_table
    cited = table[table[:, 2] == CODES["reference"]]
    found = []
    for _, earlier, _, known in cited.tolist():
        query = -(-known // size)
        block = earlier // size
        if 0 < block < query - window and query < len(graph.neighbourhoods.queries):
            near = encoder.nearest(graph.neighbourhoods, query, query + 1, COUNT)[0]
            found.append(block in near)
    return found


def measure(graphs: list[PositionGraph], encoder: Encoder) -> dict[str, float]:
    """Means over the documents."""
    agreements: list[dict[str, float]] = []
    against: list[float] = []
    cited: list[bool] = []
    seconds = blocks = 0.0
    for graph in graphs:
        one, other = encoder.copy(), encoder.copy()
        permutations = Permutations(graph.config.num_perm)
        agreements.append(encoder_agreement(graph, MinHashEncoder(permutations), one))
        against.append(encoder_agreement(graph, ExactEncoder(), one)["overlap"])
        cited += cited_among_nearest(graph, one)
        start = time.perf_counter()
        other.nearest(graph.neighbourhoods, 0, graph.n_blocks, COUNT)
        seconds, blocks = seconds + time.perf_counter() - start, blocks + graph.n_blocks
    return {
        "cosine": float(np.mean([found["cosine"] for found in agreements])),
        "rank": float(np.mean([found["rank"] for found in agreements])),
        "overlap": float(np.mean(against)),
        "cited": float(np.mean(cited)),
        "citations": len(cited),
        "milliseconds": 1e6 * seconds / blocks,
    }


def main() -> None:
    """Measure every encoder and record the table."""
    args = parser(__doc__, seed=1).parse_args()
    config = replace(PositionGraphConfig(), seed=args.seed)
    tokenizer = load_tokenizer("embedded")
    texts = [(DATA / name).read_text("utf-8") for name in DOCUMENTS]
    graphs = [PositionGraph.from_text(text, tokenizer, config) for text in texts]
    rows: list[dict[str, Any]] = []
    for name, encoder in encoders(config, tokenizer).items():
        found = measure(graphs, encoder)
        claim = f"{CLAIM}" if name.startswith("auto") else None
        rows += [
            {
                "measure": f"{name}: cosine of similarities with minhash's",
                "value": found["cosine"],
                "claim": claim,
                "note": f"rank correlation {found['rank']:.3f}",
            },
            {
                "measure": f"{name}: share of exact Jaccard's {COUNT} nearest",
                "value": found["overlap"],
                "note": f"{found['milliseconds']:.0f} ms for 1,000 blocks",
            },
            {
                "measure": f"{name}: cited clause among the {COUNT} nearest blocks",
                "value": found["cited"],
                "note": f"{found['citations']:.0f} citations beyond the window",
            },
        ]
    record(
        "graph_encoders", rows, args.seed, documents=len(graphs),
        positions=sum(graph.n for graph in graphs), block_size=config.block_size,
    )  # fmt: skip


if __name__ == "__main__":
    main()
