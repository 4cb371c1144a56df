"""One forward pass: its sequences, its layout, and each layer's selection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.attention.backends.base import AttentionProblem
from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.layout import BlockLayout, block_layout
from hf_glm_curriculum.attention.rotary import KeyShift
from hf_glm_curriculum.attention.selection import BlockSelection
from hf_glm_curriculum.attention.selector import SelectionFacts, SelectionInput, Selector
from hf_glm_curriculum.attention.sequence_state import UNKNOWN_TOKEN, SequenceState
from hf_glm_curriculum.errors import DataError, IncompatibleError


@dataclass
class ForwardPlan:
    """What the attention layers of one forward pass share.

    It travels with the pass through the layers' keyword arguments, so that gradient checkpointing
    recomputes each layer with the plan it had.

    Attributes:
        selector: chooses blocks.
        state: the sequences, these queries among them.
        queries: columns that this pass brought.
        keep: whether later passes build on this one.
        shift: re-rotates keys in compact mode.
        facts: what the selections were like, by layer.
        served: how many calls each backend took.
    """

    selector: Selector
    state: SequenceState
    queries: int
    keep: bool
    shift: KeyShift | None = None
    facts: dict[int, SelectionFacts] = field(default_factory=dict)
    _layouts: dict[int, tuple[BlockLayout, list[int]]] = field(default_factory=dict)
    _selections: dict[int, BlockSelection] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)

    @property
    def config(self) -> PositionGraphConfig:
        """The settings."""
        return self.selector.config

    def layout(self, keys: int) -> tuple[BlockLayout, list[int]]:
        """The layout for keys of so many slots, and its sequences' numbers in the state."""
        if keys not in self._layouts:
            sequences, known = self.state.sequences(self.queries)
            state, config = self.state, self.config
            layout = block_layout(
                sequences,
                state.rows,
                state.seen,
                self.queries,
                config.block_size,
                config.tile,
                keys,
            )
            self._layouts[keys] = (layout, known)
        return self._layouts[keys]

    def problem(
        self, layer: int, query: Tensor, key: Tensor, scaling: float, dropout: float
    ) -> AttentionProblem:
        """What a layer's backend is to compute.

        Args:
            layer: its number.
            query: [B, H, Q, d].
            key: [B, K, N, d].
            scaling: factor on the scores.
            dropout: share of attention weights dropped.

        Raises:
            DataError: if query and key do not fit what the model was called with.
        """
        if query.shape[2] != self.queries or query.shape[0] != self.state.rows:
            raise DataError(
                f"attention: the model was called with {self.state.rows} × {self.queries} tokens "
                f"and a layer asks for {query.shape[0]} × {query.shape[2]}; this model changes its "
                "input on the way, which position-graph attention does not follow."
            )
        layout, known = self.layout(key.shape[2])
        leader = self._leader(layer)
        selection = self._selections.get(leader)
        if selection is None:
            given = SelectionInput(
                layout, known, self.state, self.keep, leader, query, key, scaling
            )
            selection, self.facts[leader] = self.selector.select(given)
            self._selections[leader] = selection
        return AttentionProblem(layout, selection, scaling, dropout, self.shift)

    def report(self) -> dict[str, float]:
        """Means over the selections made: see `PositionGraphHandle.report`."""
        if not self.facts or not self._layouts:
            return {}
        layout = next(iter(self._layouts.values()))[0]
        facts = list(self.facts.values())
        choosing = [fact for fact in facts if fact.choosing]
        kept = [fact.kept for fact in facts]
        found = {
            "choosing_share": float(
                np.mean([fact.choosing for fact in facts]) / max(1, layout.tiles)
            ),
            "kept_share": float(np.mean(kept)),
        }
        if choosing:
            found["keys"] = float(np.mean([fact.budget for fact in choosing]))
            if self.config.reads_content:
                found["entropy"] = float(torch.stack([fact.entropy for fact in choosing]).mean())
        return found

    def _leader(self, layer: int) -> int:
        """The layer whose selection this one uses; -1 for one that no layer makes alone."""
        if not self.config.reads_content:
            return -1
        return layer - layer % self.config.share_layers


@dataclass(frozen=True)
class ModelCall:
    """The inputs of a backbone's forward that matter here.

    Attributes:
        ids: int64 [B, n]; `UNKNOWN_TOKEN` where only embeddings are known.
        mask: bool [B, n] of these tokens, None where all are real.
        past_mask: bool [B, past] of the cached tokens before them, None where all are real.
        position_ids: as given.
        cu_seq_lens: as given.
        past: tokens in the cache.
    """

    ids: Tensor
    mask: Tensor | None
    past_mask: Tensor | None
    position_ids: Tensor | None
    cu_seq_lens: Tensor | None
    past: int


def read_call(arguments: dict[str, Any], past: int) -> ModelCall:
    """Read a backbone's arguments.

    Args:
        arguments: by name.
        past: tokens in its cache.

    Raises:
        DataError: if there are neither ids nor embeddings.
        IncompatibleError: if the attention mask is not one for padding.
    """
    ids, embeddings = arguments.get("input_ids"), arguments.get("inputs_embeds")
    if ids is None:
        if embeddings is None:
            raise DataError("attention: input_ids or inputs_embeds must be given.")
        shape = embeddings.shape[:2]
        ids = torch.full(shape, UNKNOWN_TOKEN, dtype=torch.int64, device=embeddings.device)
    mask = _padding_mask(arguments.get("attention_mask"))
    past_mask = None
    if mask is not None:
        columns = ids.shape[1]
        if mask.shape[0] != ids.shape[0] or mask.shape[1] < columns:
            raise DataError(
                f"attention_mask: must be [{ids.shape[0]}, {past + columns}] for {past} cached and "
                f"{columns} new tokens, got {list(mask.shape)}."
            )
        whole = mask.shape[1] >= past + columns
        start = past if whole else mask.shape[1] - columns
        past_mask = mask[:, :past] if whole and past else None
        mask = mask[:, start : start + columns]
    return ModelCall(
        ids,
        mask,
        past_mask,
        arguments.get("position_ids"),
        arguments.get("cu_seq_lens_q", arguments.get("cu_seq_lens")),
        past,
    )


def _padding_mask(mask: Any) -> Tensor | None:
    if isinstance(mask, dict):
        mask = mask.get("full_attention")
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        shape = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise IncompatibleError(
            "attention_mask: must be a padding mask [rows, tokens] with position-graph attention, "
            f"got {shape}; give the padding mask, or disable_position_graph(model)."
        )
    return mask != 0


def extended_state(
    state: SequenceState | None, call: ModelCall, config: PositionGraphConfig
) -> SequenceState:
    """Bring the state up to a call.

    A state that saw more tokens than the cache holds is cut back; one that saw fewer (a cache
    filled elsewhere) begins with unknown tokens.

    Raises:
        DataError: if the call does not fit the state.
    """
    if state is None:
        state = SequenceState(call.ids.shape[0], config.reads_text)
    if state.seen > call.past:
        state.crop(call.past, config.block_size)
    if state.seen < call.past:
        lacking = call.past - state.seen
        unknown = call.ids.new_full((call.ids.shape[0], lacking), UNKNOWN_TOKEN)
        mask = None if call.past_mask is None else call.past_mask[:, state.seen :]
        state.extend(unknown, mask, None)
    state.extend(call.ids, call.mask, call.position_ids, call.cu_seq_lens)
    return state


def given_graphs(
    state: SequenceState, graphs: list[PositionGraph], config: PositionGraphConfig
) -> None:
    """Use graphs made beforehand (with edges of the user's own) for the sequences of a call.

    Raises:
        DataError: if they are not one a sequence, or were built from other tokens or in other
            blocks than the call has.
    """
    numbers = sorted(state.texts)
    if len(graphs) != len(numbers):
        raise DataError(
            f"graphs: must hold one graph a sequence, {len(numbers)} here, got {len(graphs)}."
        )
    for number, graph in zip(numbers, graphs, strict=True):
        text = state.texts[number]
        if graph.config.block_size != config.block_size:
            raise DataError(
                f"graphs: a graph over blocks of {graph.config.block_size} cannot serve a model "
                f"enabled with block_size = {config.block_size}; build it with the same settings."
            )
        if graph.n != len(text):
            raise DataError(
                f"graphs: a graph over {graph.n} positions was built for another text than the "
                f"sequence of {len(text)} tokens it is given for; build it from the same tokens."
            )
        known = text.ids.values != UNKNOWN_TOKEN
        if (graph.token_ids[known] != text.ids.values[known]).any():
            raise DataError(
                "graphs: a graph was built from other tokens than the sequence it is given for; "
                "build it from the ids the model is called with."
            )
        text.graph = graph
