"""The work on one batch of tiles: gather its queries and keys, attend, differentiate.

Letters: R tiles, H query heads, K key-value heads, g = H / K, t queries a tile, L keys, d head
size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.attention.backends import kernels
from hf_glm_curriculum.attention.backends.base import AttentionProblem
from hf_glm_curriculum.attention.backends.rows import HeadRows
from hf_glm_curriculum.attention.backends.tiles import KeyPart, TileBatch

TABLE_TILES = 4
"""Tables of row numbers are made where a call has a tile for so many blocks."""


class Gathering:
    """The tensors of a call as rows, and room for what is gathered from them."""

    def __init__(
        self, tensors: tuple[Tensor, Tensor, Tensor], problem: AttentionProblem, seed: int
    ) -> None:
        """Take query [B, H, Q, d], key and value [B, K, N, d]."""
        self.query = tensors[0]
        self.rows = tuple(HeadRows.of(x) for x in tensors)
        self.heads, self.kv_heads = tensors[0].shape[1], tensors[1].shape[1]
        self.problem, self.seed = problem, seed
        layout = problem.layout
        self._slots = (
            self._on_device(layout.query_slots.clip(min=0)),
            self._on_device(layout.key_slots),
        )
        self._alike = self.rows[1].strides == self.rows[2].strides
        # Tables of row numbers pay where keys are gathered more than once, not in decoding.
        self._bases: tuple[Tensor, ...] | None = None
        if layout.tiles * TABLE_TILES >= layout.blocks:
            key_slots = self._filled(torch.arange(layout.key_slots.size, device=self.query.device))
            self._bases = (
                self.rows[0].base(self._slots[0]),
                *(rows.base(key_slots) for rows in self.rows[1:]),
            )
        self._room: dict[int, Tensor] = {}

    def _on_device(self, slots: np.ndarray) -> Tensor:
        return torch.from_numpy(slots).reshape(-1).to(self.query.device)

    def _filled(self, places: Tensor) -> Tensor:
        """Key slots at places in the list of blocks' keys; the block's first past its end."""
        slots = self._slots[1]
        found, size = slots[places], self.problem.layout.block_size
        return torch.where(found < 0, slots[places // size * size], found)

    def asked(self, places: Tensor) -> Tensor:
        """Query slots at places in the list of tiles' queries."""
        return self._slots[0][places]

    def index(self, number: int, places: Tensor) -> Tensor:
        """Rows [R, K, L] of tensor ``number`` for places [R, L] (all heads) or [R, K, L]."""
        rows, heads = self.rows[number], self.kv_heads if number else self.heads
        if self._bases is not None:
            base = self._bases[number].index_select(0, places.reshape(-1)).view(places.shape)
        else:
            base = rows.base(self._filled(places) if number else self.asked(places))
        if places.dim() == 2:
            base = base.unsqueeze(1)
        return base + rows.head_offsets(heads)[:, None]

    def key_and_value_index(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of keys and of values; one tensor where both lie alike in memory."""
        key = self.index(1, places)
        return key, (key if self._alike else self.index(2, places))

    def gather(self, number: int, index: Tensor) -> Tensor:
        """Rows of tensor ``number`` at ``index`` [R, K, L], in memory used again: [R, K, L, d]."""
        flat = self.rows[number].flat
        room = self._room.get(number)
        if room is None or len(room) < index.numel():
            room = flat.new_empty(index.numel(), flat.shape[-1])
            self._room[number] = room
        out = room[: index.numel()]
        torch.index_select(flat, 0, index.reshape(-1), out=out)
        return out.view(*index.shape, -1)


class TileQueries:
    """A batch of tiles of one call."""

    def __init__(self, tensors: Gathering, batch: TileBatch) -> None:
        """Gather the queries of ``batch``."""
        self.tensors, self.batch = tensors, batch
        self.group = tensors.heads // tensors.kv_heads
        tiles, width = batch.queries.shape
        self.shape = (tiles, tensors.kv_heads, self.group * width)
        index = tensors.index(0, batch.queries)
        self.query = tensors.rows[0].flat.index_select(0, index.reshape(-1)).view(*self.shape, -1)
        head = torch.arange(tensors.heads, device=batch.queries.device)
        slots = tensors.asked(batch.queries)
        self.all_places = (slots.unsqueeze(1) * tensors.heads + head[:, None]).reshape(-1)
        self.real, self.places = None, self.all_places
        if batch.real is not None:
            real = batch.real.unsqueeze(1).expand(-1, tensors.heads, -1)
            self.real = real.reshape(-1).nonzero()[:, 0]
            self.places = self.all_places[self.real]

    def real_rows(self, tiles: Tensor) -> Tensor:
        """The rows of real queries among those of the tiles, [P, d]."""
        flat = tiles.reshape(-1, tiles.shape[-1])
        return flat if self.real is None else flat.index_select(0, self.real)

    def take(self, flat: Tensor) -> Tensor:
        """Rows of an output-shaped tensor for the tiles' queries, zeros for repeated queries.

        Log-sum-exps come as one column and leave without it; those of repeats are kept.
        """
        taken = flat.index_select(0, self.all_places)
        if flat.shape[-1] == 1:
            return taken.view(self.shape)
        if self.real is not None:
            keep = torch.zeros(len(taken), 1, dtype=taken.dtype, device=taken.device)
            keep[self.real] = 1
            taken = taken * keep
        return taken.view(*self.shape, -1)

    def attend(self) -> tuple[Tensor, Tensor]:
        """Output [R, K, g·t, d] of the tiles and log-sum-exp [R, K, g·t]."""
        found = []
        for place, part, key, value, _ in self._parts():
            found.append(kernels.tile_attention(self.query, key, value, *self._rules(place, part)))
        return found[0] if len(found) == 1 else kernels.merge(*found)

    def differentiate(
        self, grad: Tensor, output: Tensor, total: Tensor, d_key: Tensor, d_value: Tensor
    ) -> Tensor:
        """Gradient of the queries; those of keys and values are added to their rows."""
        size, d_query = grad.shape[-1], None
        for place, part, key, value, index in self._parts():
            slopes = kernels.tile_gradients(
                grad, output, total, self.query, key, value, *self._rules(place, part)
            )
            d_query = slopes[0] if d_query is None else d_query + slopes[0]
            key_slope = slopes[1]
            if part.delta is not None and self.tensors.problem.shift is not None:
                key_slope = self.tensors.problem.shift(key_slope, -part.delta)
            d_key.index_add_(0, index[0].reshape(-1), key_slope.reshape(-1, size).float())
            d_value.index_add_(0, index[1].reshape(-1), slopes[2].reshape(-1, size).float())
        assert d_query is not None
        return d_query

    def _parts(self) -> Iterator[tuple[int, KeyPart, Tensor, Tensor, tuple[Tensor, Tensor]]]:
        """Each part with its gathered keys and values [R, K, L, d] and their row numbers."""
        for place, part in enumerate(self.batch.parts):
            index = self.tensors.key_and_value_index(part.places)
            key = self.tensors.gather(1, index[0])
            if part.delta is not None and self.tensors.problem.shift is not None:
                key = self.tensors.problem.shift(key, part.delta)
            yield place, part, key, self.tensors.gather(2, index[1]), index

    def _rules(self, place: int, part: KeyPart) -> tuple[Tensor | None, float, int, Tensor | None]:
        """What a kernel must know of a part: mask, scaling, causality, dropout."""
        problem = self.tensors.problem
        keep = self._keep(place, part) if problem.dropout > 0 else None
        mask = part.mask(self.group, self.query.dtype)
        return mask, problem.scaling, self.group if part.causal else 0, keep

    def _keep(self, place: int, part: KeyPart) -> Tensor:
        """What dropout leaves of the weights of a part, the same in forward and backward."""
        problem, device = self.tensors.problem, self.query.device
        seed = self.tensors.seed + 2 * self.batch.number + place
        generator = torch.Generator(device).manual_seed(seed)
        shape = (*self.shape, part.places.shape[-1])
        draw = torch.rand(shape, generator=generator, device=device)
        return (draw >= problem.dropout).float() / (1.0 - problem.dropout)
