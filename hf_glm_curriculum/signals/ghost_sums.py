"""Sums of squared gradient norms of a micro-batch, and how its tensors are cut by sample.

Shape letters: B rows, T positions, S samples, K samples of a bucket, L positions of a bucket, H
width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.signals.ghost_layout import Bucket, Layout
from hf_glm_curriculum.signals.ghost_math import gram, head_rows
from hf_glm_curriculum.signals.microbatch import Microbatch, segment_sum


class ExactNorms:
    """Squared gradient norms of one micro-batch, added up while its backward runs.

    Gradients arrive multiplied with k = coefficient · weight of their sample; a fused head's
    share is computed without it. So there are three sums: of k², of k and of no factor.
    """

    def __init__(
        self,
        batch: Microbatch,
        input_ids: Tensor,
        check: Callable[[ExactNorms], None],
        flattened: bool,
    ) -> None:
        """Start at zero; packed batches read their samples' lengths (one copy to the host).

        Args:
            batch: the micro-batch.
            input_ids: [B, T] int64.
            check: asked once the norms are read; raises if they miss something.
            flattened: whether samples are cut out of the flattened batch, across its rows.

        Raises:
            IncompatibleError: if a packed sample's first token is predicted by another's last one.
        """
        self.input_ids = input_ids
        self.segments = batch.segments.index
        self.target = batch.target
        self.count = batch.count
        self.labels = batch.labels
        self.tapped: set[str] = set()
        self.fired: set[str] = set()
        self._check = check
        self._rows, self._length = input_ids.shape
        whole_rows = self.count == self._rows and not (flattened and self._rows > 1)
        if not whole_rows:
            _refuse_crossed(self.target, self.segments)
        self._layout = None if whole_rows else Layout.of(self.segments, count=self.count)[0]
        self._buckets: list[Bucket | None] = (
            [None] if self._layout is None else [*self._layout.buckets()]
        )
        self._squares, self._mixed, self._raw = input_ids.new_zeros(
            (3, self.count), dtype=torch.float32
        )
        self._inputs: SharedInput | None = None
        self._head_rows: Tensor | None = None
        self._head_is_raw = False

    # -- shapes ------------------------------------------------------------------------------

    def aligned(self, tensor: Tensor, name: str, features: int | None) -> Tensor:
        """Bring a tensor to [B, T] or [B, T, features].

        Args:
            tensor: [B, T, ...], or flattened [B·T, ...].
            name: module, for the message.
            features: 0 or 1 feature dimensions; None for one, with any heads summed.

        Raises:
            IncompatibleError: if positions cannot be told apart.
        """
        rows, length = self._rows, self._length
        whole = (rows, length)
        if features is None and tensor.dim() == 4 and tensor.shape[:2] != whole:
            tensor = tensor.transpose(1, 2) if tensor.shape[2] == length else tensor
        if tensor.shape[:2] != whole and tensor.shape[0] == rows * length:
            tensor = tensor.unflatten(0, whole)
        if features is None and tensor.dim() > 3:
            tensor = tensor.sum(tuple(range(2, tensor.dim() - 1)))
        if tensor.shape[:2] != whole or tensor.dim() != 2 + (1 if features is None else features):
            raise IncompatibleError(
                f"grad_norm: 'exact' cannot tell samples apart in {name}, which works on "
                f"{list(tensor.shape)} for a batch of {list(whole)}; use grad_norm='hidden'."
            )
        return tensor

    def buckets(self) -> list[Bucket | None]:
        """Groups of samples of similar length; one None where each row is a sample."""
        return self._buckets

    def take(self, bucket: Bucket | None, values: Tensor) -> Tensor:
        """[B, T, ...] → [K, L, ...]."""
        return values if bucket is None else bucket.take(values)

    def take_gradient(self, bucket: Bucket | None, values: Tensor) -> Tensor:
        """[B, T, O] → [K, L, O], zero where a position belongs to no sample."""
        return values if bucket is None else bucket.take_gradient(values)

    def inputs(self, x: Tensor, dtype: torch.dtype) -> SharedInput:
        """A linear layer's input by sample; layers that share it share the work."""
        if self._inputs is None or not self._inputs.is_for(x, dtype):
            self._inputs = SharedInput(x, dtype, self)
        return self._inputs

    # -- sums --------------------------------------------------------------------------------

    def add(self, bucket: Bucket | None, squares: Tensor) -> None:
        """Add squared norms [K] of gradients that carry k."""
        _add(self._squares, bucket, squares)

    def add_raw(self, bucket: Bucket | None, squares: Tensor) -> None:
        """Add squared norms [K] of gradients of the summed loss itself."""
        _add(self._raw, bucket, squares)

    def add_sums(self, gradient: Tensor) -> None:
        """Add the squared norms of gradients [B, T, H] summed over each sample's positions."""
        self._squares += self._per_sample(gradient).square().sum(1)

    def keep_head_rows(self, bucket: Bucket | None, x: Tensor, gradient: Tensor) -> None:
        """Keep what a tied head shares with the embedding until its gradient arrives."""
        tokens = self.take(bucket, self.input_ids)
        self.keep_rows(bucket, head_rows(x, gradient, tokens), raw=False)

    def keep_rows(self, bucket: Bucket | None, rows: Tensor, raw: bool) -> None:
        """Keep rows [K, L, H] of the head's gradient by input position."""
        self._head_is_raw = raw
        if bucket is None:
            self._head_rows = rows
            return
        if self._head_rows is None:
            self._head_rows = rows.new_zeros(self._rows * self._length + 1, rows.shape[-1])
        nowhere = self._rows * self._length
        place = torch.where(bucket.used, bucket.positions, nowhere)
        self._head_rows[place.reshape(-1)] = rows.reshape(-1, rows.shape[-1])

    def add_tied(self, gradient: Tensor) -> None:
        """Add 2⟨E, H⟩ for the embedding's output gradient [B, T, H]."""
        if self._head_rows is None:
            return
        rows = self._head_rows
        if rows.dim() == 2:
            rows = rows[:-1].view(self._rows, self._length, -1)
        shared = torch.linalg.vecdot(gradient, rows.to(gradient)).unsqueeze(-1)
        total = self._mixed if self._head_is_raw else self._squares
        total += 2 * self._per_sample(shared).squeeze(1)
        self._head_rows = None

    def _per_sample(self, values: Tensor) -> Tensor:
        """[B, T, H] → [S, H] float32 sums."""
        if self._layout is None:
            return values.sum(1).float()
        return segment_sum(values, self.segments, self.count).float()

    # -- results -----------------------------------------------------------------------------

    def fire(self, name: str) -> None:
        """Note that a module's backward has come.

        Raises:
            IncompatibleError: if it has come before, because gradients of two calls add up.
        """
        if name in self.fired:
            raise IncompatibleError(
                f"grad_norm: 'exact' knows modules that run once a forward, {name} ran twice; use "
                "grad_norm='hidden'."
            )
        self.fired.add(name)

    def norms(self, batch: Microbatch) -> Tensor | None:
        """Norms [S] of the gradients of the samples' mean losses; NaN where unobserved."""
        self._inputs = None
        self._check(self)
        if batch.coefficient is None or batch.weight is None or not self.fired:
            return None
        factor = (batch.coefficient * batch.weight).float()
        seen = (factor != 0) & (batch.n_tokens > 0)
        safe = torch.where(seen, factor, 1)
        # Divided twice: the square of a small factor may leave float32's range.
        total = self._squares / safe / safe + self._mixed / safe + self._raw
        norm = total.clamp(min=0).sqrt() / batch.n_tokens.clamp(min=1)
        return torch.where(seen & torch.isfinite(norm), norm, torch.nan)


class SharedInput:
    """A linear layer's input by sample, with its Gram matrices once they are asked for."""

    def __init__(self, x: Tensor, dtype: torch.dtype, norms: ExactNorms) -> None:
        """Keep ``x``, so that its memory is not handed to another tensor meanwhile."""
        self._x = x
        self._norms = norms
        self._dtype = dtype
        whole = x.to(dtype)
        self._rows = [norms.take(bucket, whole) for bucket in norms.buckets()]
        self._grams: dict[int, Tensor] = {}

    def is_for(self, x: Tensor, dtype: torch.dtype) -> bool:
        """Whether ``x`` is the tensor that was kept."""
        mine = self._x
        return (
            dtype == self._dtype
            and x.data_ptr() == mine.data_ptr()
            and x.shape == mine.shape
            and x.stride() == mine.stride()
            and x.dtype == mine.dtype
            and x._version == mine._version
        )

    def with_gradient(self, g: Tensor) -> Iterator[tuple[int, Bucket | None, Tensor, Tensor]]:
        """Number, bucket, input [K, L, I] and output gradient [K, L, O] of every bucket."""
        for number, (bucket, x) in enumerate(zip(self._norms.buckets(), self._rows, strict=True)):
            yield number, bucket, x, self._norms.take_gradient(bucket, g)

    def knows_gram(self, number: int) -> bool:
        """Whether the Gram matrices of a bucket have been computed."""
        return number in self._grams

    def gram(self, number: int) -> Tensor:
        """[K, L, L] Gram matrices of a bucket."""
        if number not in self._grams:
            self._grams[number] = gram(self._rows[number])
        return self._grams[number]


def _refuse_crossed(target: Tensor, segments: Tensor) -> None:
    """Refuse a packed batch in which a sample pays a loss of another one.

    Its gradient would flow through both, and one backward cannot tell the two apart.

    Args:
        target: [B, T] int64 sample of the label each position predicts, -1 for none.
        segments: [B, T] int64 sample of each position, -1 for none.

    Raises:
        IncompatibleError: naming the ways out.
    """
    if bool(((target >= 0) & (target != segments)).any()):
        raise IncompatibleError(
            "labels: the first token of a packed sample has a label, which the sample before it "
            "predicts, so grad_norm='exact' cannot tell the two apart; set the first label of "
            "each sample to -100 (as DataCollatorWithFlattening and TRL's packing do) or use "
            "grad_norm='hidden'."
        )


def _add(total: Tensor, bucket: Bucket | None, squares: Tensor) -> None:
    squares = squares.to(total)
    if bucket is None:
        total += squares
    else:
        total.index_add_(0, bucket.samples, squares)
