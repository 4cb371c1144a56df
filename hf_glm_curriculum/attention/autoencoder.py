"""A graph auto-encoder over blocks: vectors whose distance says how near two blocks are.

Kipf and Welling (2016), "Variational Graph Auto-Encoders", without the variational part, by
torch-geometric: two convolutions that average over neighbours (Hamilton et al., 2017), linear as
in Salha et al. (2019), trained so that the inner product of two vectors tells whether an edge
joins them.

It stays causal: a block's input is a random vector drawn from its number, its output depends on
edges that lead back, and the weights come from other graphs than the one at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.growing import GrowingArray
from hf_glm_curriculum.attention.nearest import SCORE_BITS, nearest_rows
from hf_glm_curriculum.attention.neighbourhoods import Neighbourhoods
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.optional import require
from hf_glm_curriculum.storage import PathLike, load_tensors, save_tensors

if TYPE_CHECKING:
    from hf_glm_curriculum.attention.graph import PositionGraph

DIMENSIONS = 128
"""Length of a block's vector, as in the article."""

_EXAMPLE_BLOCKS = 384


class GraphAutoencoder(torch.nn.Module):
    """Two convolutions over the block graph; see the module.

    Attributes:
        seed: Of the random vectors that stand for block numbers.
    """

    def __init__(self, dimensions: int = DIMENSIONS, seed: int = 1) -> None:
        """Start with random weights.

        Raises:
            MissingDependencyError: torch-geometric is not installed.
        """
        geometric = require("torch_geometric.nn", "gae")
        super().__init__()
        self.seed, self.dimensions = seed, dimensions
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first = geometric.SAGEConv(dimensions, dimensions)
            self.second = geometric.SAGEConv(dimensions, dimensions)
        self.scale, self.offset = (torch.nn.Parameter(torch.tensor(x)) for x in (10.0, -3.0))

    def inputs(self, first: int, last: int) -> Tensor:
        """Random vectors of blocks `first` to `last` − 1: float64 [blocks, dimensions]."""
        rows = [
            np.random.default_rng((self.seed, block)).standard_normal(self.dimensions)
            for block in range(first, last)
        ]
        found = np.array(rows).reshape(last - first, self.dimensions)
        return torch.from_numpy(found) / self.dimensions**0.5

    def hidden(self, inputs: Tensor, own: Tensor, edges: Tensor) -> Tensor:
        """First convolution: from all blocks' inputs to some blocks.

        Args:
            inputs: [blocks, dimensions].
            own: [some, dimensions], the inputs of those some.
            edges: int64 [2, edges]: a block, and the number among the some that it leads to.
        """
        return self.first((inputs, own), edges)

    def vectors(self, hidden: Tensor, own: Tensor, edges: Tensor) -> Tensor:
        """Second convolution: unit vectors [some, dimensions]; arguments as `hidden`."""
        return torch.nn.functional.normalize(self.second((hidden, own), edges), dim=-1)

    def forward(self, vectors: Tensor, edge_index: Tensor, sigmoid: bool = True) -> Tensor:
        """The decoder: how likely an edge joins the pairs of vectors that `edge_index` names."""
        products = (vectors[edge_index[0]] * vectors[edge_index[1]]).sum(-1)
        logits = self.scale * products + self.offset
        return torch.sigmoid(logits) if sigmoid else logits

    def save(self, path: PathLike) -> None:
        """Write the weights to a safetensors file.

        Raises:
            StateError: The file cannot be written.
        """
        about = {"seed": str(self.seed), "dimensions": str(self.dimensions)}
        save_tensors(path, self.state_dict(), about)

    @classmethod
    def load(cls, path: PathLike) -> GraphAutoencoder:
        """Read weights that `save` wrote.

        Raises:
            StateError: The file is missing or unreadable.
            MissingDependencyError: torch-geometric is not installed.
        """
        tensors, about = load_tensors(path)
        found = cls(int(about["dimensions"]), int(about["seed"]))
        found.double().load_state_dict(tensors)
        return found.eval()


def fit_autoencoder(
    graphs: Sequence[PositionGraph],
    *,
    epochs: int = 200,
    learning_rate: float = 0.01,
    dimensions: int = DIMENSIONS,
    seed: int = 1,
) -> GraphAutoencoder:
    """Train an auto-encoder on the edges of graphs.

    Use graphs of other documents than those it will serve: weights that have seen a document know
    what comes later in it.

    Args:
        graphs: Graphs of documents.
        epochs: Passes over the edges of every graph.
        learning_rate: Of Adam.
        dimensions: Length of a vector.
        seed: Of weights, inputs and the pairs without an edge.

    Raises:
        ConfigError: No graph has two full blocks.
        MissingDependencyError: torch-geometric is not installed.
    """
    around = [graph.neighbourhoods for graph in graphs if len(graph.neighbourhoods) > 1]
    return _fitted(around, epochs, learning_rate, dimensions, seed)


def _fitted(
    graphs: Sequence[Neighbourhoods], epochs: int, learning_rate: float, dimensions: int, seed: int
) -> GraphAutoencoder:
    if not graphs:
        raise ConfigError("graphs: at least one must have two full blocks, got none.")
    model = GraphAutoencoder(dimensions, seed)
    with torch.random.fork_rng(devices=[]):  # GAE draws the weights of its decoder anew
        torch.manual_seed(seed)
        gae = require("torch_geometric.nn", "gae").GAE(torch.nn.Identity(), model)
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    random = torch.Generator().manual_seed(seed)
    edges = [(len(around), *_key_edges(around, 0, len(around))) for around in graphs]
    for _ in range(epochs):
        for blocks, wide, back in edges:
            # New inputs each time: weights must not learn the vectors of single numbers.
            inputs = torch.randn(int(wide.max()) + 1, dimensions, generator=random)
            inputs /= dimensions**0.5
            hidden = model.hidden(inputs, inputs[:blocks], wide)
            vectors = model.vectors(hidden, hidden, back)
            absent = torch.randint(blocks, (2, back.shape[1]), generator=random)
            loss = gae.recon_loss(vectors, back, absent)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    # In double precision, rounding differences between one block and many change no order.
    return model.double().eval()


def _key_edges(around: Neighbourhoods, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Edges into key blocks `first` to `last` − 1, which are numbered from 0.

    Returns:
        Those of one step in both directions, and of them those that do not lead ahead.
    """
    links = [around.links(block) for block in range(first, last)]
    return _edges(links, first, around.window)


def _edges(links: Sequence[tuple[int, ...]], first: int, window: int) -> tuple[Tensor, Tensor]:
    sources: list[int] = []
    ends: list[int] = []
    for row, led in enumerate(links):
        block = first + row
        near = range(max(0, block - window), block + window + 1)
        around = sorted({*near, *led})
        sources += around
        ends += [row] * len(around)
    wide = torch.tensor([sources, ends], dtype=torch.long).reshape(2, -1)
    return wide, wide[:, wide[0] <= wide[1] + first]


@lru_cache(maxsize=8)
def _example(window: int, hops: int, seed: int) -> Neighbourhoods:
    """The block graph of a made-up document: sections of random length, some references."""
    random = np.random.default_rng(seed)
    around = Neighbourhoods(window, hops)
    sections = [0, 0]  # where the chapter and the section under way begin
    for block in range(_EXAMPLE_BLOCKS):
        for level, odds in enumerate((0.02, 0.1)):
            if random.random() < odds:
                sections[level:] = [block] * (2 - level)
        led = [at for at in sections if at < block]
        if block and random.random() < 0.1:
            led.append(int(random.integers(block)))
        around.open(led)
        around.close(led)
    return around


@lru_cache(maxsize=8)
def _fitted_on_example(window: int, hops: int, seed: int) -> GraphAutoencoder:
    return _fitted([_example(window, hops, seed)], 100, 0.01, DIMENSIONS, seed)


def fitted_on_example(config: PositionGraphConfig) -> GraphAutoencoder:
    """The auto-encoder of graphs that name none: trained once on a made-up document.

    Raises:
        MissingDependencyError: torch-geometric is not installed.
    """
    require("torch_geometric.nn", "gae")
    window = config.window_blocks
    return _fitted_on_example(window, config.hops, config.seed)


class AutoencoderEncoder:
    """Nearness = Euclidean distance between a graph auto-encoder's vectors."""

    def __init__(self, autoencoder: GraphAutoencoder) -> None:
        """Use this auto-encoder."""
        self.autoencoder = autoencoder
        shape = (autoencoder.dimensions,)
        self._inputs, self._hidden, self._keys, self._queries = (
            GrowingArray(np.float64, shape) for _ in range(4)
        )

    def _follow(self, around: Neighbourhoods) -> None:
        """Add vectors of the blocks that are new."""
        known, needed = len(self._inputs), len(around.queries) + around.window
        if known < needed:
            self._inputs.extend(self.autoencoder.inputs(known, needed).numpy())
        with torch.no_grad():
            if len(self._keys) < len(around):
                self._follow_keys(around, len(self._keys), len(around))
            if len(self._queries) < len(around.queries):
                self._follow_queries(around, len(self._queries), len(around.queries))

    def _follow_keys(self, around: Neighbourhoods, first: int, last: int) -> None:
        wide, back = _key_edges(around, first, last)
        inputs = torch.from_numpy(self._inputs.values)
        self._hidden.extend(self.autoencoder.hidden(inputs, inputs[first:last], wide).numpy())
        hidden = torch.from_numpy(self._hidden.values)
        self._keys.extend(self.autoencoder.vectors(hidden, hidden[first:last], back).numpy())

    def _follow_queries(self, around: Neighbourhoods, first: int, last: int) -> None:
        links = [around.query_links(block) for block in range(first, last)]
        wide, back = _edges(links, first, around.window)
        inputs = torch.from_numpy(self._inputs.values)
        own = self.autoencoder.hidden(inputs, inputs[first:last], wide)
        before = back[:, back[0] < back[1] + first]  # its own tokens are not known yet
        hidden = torch.from_numpy(self._hidden.values)
        self._queries.extend(self.autoencoder.vectors(hidden, own, before).numpy())

    def nearest(self, around: Neighbourhoods, first: int, last: int, count: int) -> np.ndarray:
        """The nearest blocks by distance of vectors."""
        self._follow(around)

        def scores(begin: int, end: int, keys: int) -> np.ndarray:
            # Of unit vectors the nearest have the largest inner product.
            near = self._products(slice(begin, end), keys)
            return ((near + 1) * (2 ** (SCORE_BITS - 2))).astype(np.int64)

        return nearest_rows(scores, first, last, count)

    def _products(self, queries: slice, keys: int) -> np.ndarray:
        products = self._queries.values[queries] @ self._keys.values[:keys].T
        return np.round(np.clip(products, -1, 1), 7)

    def similarities(self, around: Neighbourhoods, queries: slice) -> np.ndarray:
        """How likely the decoder holds an edge between two blocks."""
        self._follow(around)
        scale, offset = self.autoencoder.scale.item(), self.autoencoder.offset.item()
        return 1 / (1 + np.exp(-scale * self._products(queries, len(around)) - offset))

    def copy(self) -> AutoencoderEncoder:
        """An independent copy."""
        other = AutoencoderEncoder(self.autoencoder)
        for name in ("_inputs", "_hidden", "_keys", "_queries"):
            setattr(other, name, getattr(self, name).copy())
        return other
