"""Policy and critics as one module: log-probabilities and values of response positions only.

Neither the logits of prompts nor a [rows, time, vocabulary] tensor ever exist. Shape letters:
b rows, W width of the pass, T response columns, H hidden size, D critics.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hf_glm_curriculum.errors import IncompatibleError, ModelError
from hf_glm_curriculum.kernels.linear_cross_entropy import linear_cross_entropy
from hf_glm_curriculum.kernels.output_head import LogitTransform, OutputHead
from hf_glm_curriculum.models import backbone, causal_lm
from hf_glm_curriculum.ppo.packing import PackedRows

_CHUNK = 256
"""Tokens whose logits exist at a time where the head has to be called as a module."""


class Readings(NamedTuple):
    """What a forward pass over packed rows says."""

    logprobs: Tensor | None
    """[b, T], 0 off the responses."""

    entropy: Tensor | None
    """[b, T], nats; None unless asked for."""

    values: Tensor | None
    """[b, T, D]."""


class ValueHead(nn.Module):
    """D values from the policy's own hidden states: a critic without a trunk of its own.

    Starts at 0 everywhere, which is what a critic knows before the first reward.
    """

    base_model_prefix = "score"

    def __init__(self, hidden_size: int, dimensions: int) -> None:
        super().__init__()
        self.score = nn.Linear(hidden_size, dimensions)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)


class PolicyAndValue(nn.Module):
    """The policy and its critics behind one ``forward``, so that one wrapper shards both.

    Args:
        policy: a causal language model, or a PEFT model around one.
        value_model: a sequence classifier (``base_model_prefix`` and ``score``) with D labels, or
            a `ValueHead` on the policy's trunk.
    """

    def __init__(self, policy: nn.Module, value_model: nn.Module) -> None:
        super().__init__()
        self.policy = policy
        self.value_model = value_model
        self.is_gradient_checkpointing = False

    @property
    def shares_trunk(self) -> bool:
        """Whether the critics read the policy's hidden states."""
        return isinstance(self.value_model, ValueHead)

    def gradient_checkpointing_enable(self, **kwargs: Any) -> None:
        """Recompute the activations of both models in the backward pass."""
        for model in self._trunks():
            _checkpointing(model, "enable", **kwargs)
        self.is_gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        """Keep the activations of both models."""
        for model in self._trunks():
            _checkpointing(model, "disable")
        self.is_gradient_checkpointing = False

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        starts: Tensor,
        lengths: Tensor,
        columns: int,
        temperature: float,
        entropy: bool = False,
        logprobs: bool = True,
        values: bool = True,
    ) -> Readings:
        """Log-probabilities, and if asked for entropies and values, of packed rows.

        Args:
            input_ids: [b, W], see `PackedRows`.
            attention_mask: [b, W].
            starts: [b].
            lengths: [b].
            columns: T.
            temperature: divides the logits.
            entropy: whether entropies are wanted.
            logprobs: whether log-probabilities are wanted.
            values: whether values are wanted.
        """
        rows = PackedRows(input_ids, attention_mask, starts, lengths, columns)
        hidden, found, spread = None, None, None
        if logprobs or self.shares_trunk:
            hidden = hidden_states(backbone(self.policy), rows)
        if logprobs and hidden is not None:
            found, spread = score_tokens(self.policy, hidden, rows, temperature, entropy)
        return Readings(found, spread, self._values(rows, hidden) if values else None)

    def _values(self, rows: PackedRows, hidden: Tensor | None) -> Tensor:
        critic: Any = self.value_model
        if not self.shares_trunk or hidden is None:
            hidden = hidden_states(getattr(critic, critic.base_model_prefix), rows)
        places = rows.state_places()[:, :, None].expand(-1, -1, hidden.shape[2])
        chosen = hidden.gather(1, places)
        return critic.score(chosen.to(critic.score.weight.dtype)).float()

    def _trunks(self) -> list[Any]:
        if self.shares_trunk:
            return [self.policy]
        critic: Any = self.value_model
        inner = getattr(critic, critic.base_model_prefix)
        return [self.policy, inner if isinstance(critic, BackboneCritic) else critic]


def hidden_states(trunk: Any, rows: PackedRows) -> Tensor:
    """The last hidden states of packed rows, after the final norm, [b, W, H]."""
    output = trunk(
        input_ids=rows.input_ids,
        attention_mask=rows.attention_mask,
        use_cache=False,
        return_dict=True,
    )
    return output.last_hidden_state


def score_tokens(
    model: nn.Module, hidden: Tensor, rows: PackedRows, temperature: float, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of the response tokens and, if asked for, entropies before them, [b, T].

    Args:
        model: whose head reads the hidden states.
        hidden: [b, W, H].
        rows: what the hidden states are of.
        temperature: divides the logits.
        entropy: whether entropies are wanted.
    """
    labels = rows.labels()
    # The extra 1e-7 is the one that sampling adds.
    heat = temperature + 1e-7
    try:
        head = OutputHead.of(model)
    except IncompatibleError:
        logprobs, found = _through_module(model, hidden, labels, heat, entropy)
    else:
        scores = linear_cross_entropy(
            hidden,
            head.weight,
            labels,
            bias=head.bias,
            logit_scale=head.transform.scale,
            softcap=head.transform.cap,
            temperature=heat,
            distribution=entropy,
        )
        logprobs, found = scores.log_probs, scores.entropy
    places = rows.state_places()
    inside = torch.arange(rows.columns, device=hidden.device) < rows.lengths[:, None]

    def laid_out(values: Tensor) -> Tensor:
        return torch.where(inside, values.gather(1, places), 0.0)

    return laid_out(logprobs), laid_out(found) if entropy else None


def _through_module(
    model: nn.Module, hidden: Tensor, labels: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor]:
    """The same through the head's own forward: adapters on it, weights that are partitioned."""
    inner = causal_lm(model)
    head: Any = inner.get_output_embeddings()
    transform = LogitTransform.of(inner.config)

    def score(part: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = transform(head(part).float()) / temperature
        logs = torch.log_softmax(logits, dim=-1)
        spread = -(logs.exp() * logs).sum(dim=-1) if entropy else torch.zeros_like(logs[:, 0])
        return logs.gather(1, targets[:, None])[:, 0], spread

    chosen = labels >= 0
    flat, targets = hidden[chosen], labels[chosen]
    parts = [
        checkpoint(score, h, t, use_reentrant=False)
        for h, t in zip(flat.split(_CHUNK), targets.split(_CHUNK), strict=True)
    ]
    logs, spreads = (torch.cat(list(column)) for column in zip(*cast(Any, parts), strict=True))
    empty = logs.new_zeros(labels.shape)
    return empty.masked_scatter(chosen, logs), empty.masked_scatter(chosen, spreads)


def critic_for(policy: Any, dimensions: int, kind: str) -> nn.Module:
    """A value model for a policy that comes without one.

    Args:
        policy: the causal language model, plain or in PEFT.
        dimensions: D.
        kind: ``"copy"`` takes a copy of the policy's backbone as it is now, ``"shared"`` its trunk.

    Raises:
        ModelError: if the policy's family has no sequence classifier to copy into.
    """
    inner = causal_lm(policy)
    config = inner.config.get_text_config()
    if kind == "shared":
        return ValueHead(config.hidden_size, dimensions)
    if inner is not policy:
        raise ModelError(
            "value_model_kind: copy would copy adapters too; use shared for a PEFT policy, or "
            "pass a value_model"
        )
    return BackboneCritic(copy.deepcopy(backbone(policy)), config.hidden_size, dimensions)


class BackboneCritic(nn.Module):
    """A backbone of its own with a linear head of D values, started at 0."""

    base_model_prefix = "backbone"

    def __init__(self, trunk: nn.Module, hidden_size: int, dimensions: int) -> None:
        super().__init__()
        self.backbone = trunk
        self.config = trunk.config
        dtype = next(trunk.parameters()).dtype
        self.score = nn.Linear(hidden_size, dimensions, bias=False, dtype=dtype)
        nn.init.zeros_(self.score.weight)


def _checkpointing(model: Any, verb: str, **kwargs: Any) -> None:
    """Turn activation checkpointing on or off, by the name this transformers has for it."""
    for name in ("activation", "gradient"):
        change = getattr(model, f"{name}_checkpointing_{verb}", None)
        if change is not None:
            if name == "activation" and kwargs:
                kwargs = {_kwargs_name(change): next(iter(kwargs.values()))}
            change(**kwargs)
            return


def _kwargs_name(change: Any) -> str:
    names = inspect.signature(change).parameters
    return next((n for n in names if n.endswith("checkpointing_kwargs")), next(iter(names)))


def check_critic(value_model: Any, dimensions: int, policy: Any) -> None:
    """Refuse a value model that cannot judge this policy's answers.

    Raises:
        ModelError: if it is no sequence classifier, has another number of outputs than there are
            critics, or reads another vocabulary.
    """
    score = getattr(value_model, "score", None)
    if score is None or not hasattr(value_model, "base_model_prefix"):
        raise ModelError(
            f"value_model: must be a sequence classifier with a score head, got "
            f"{type(value_model).__name__}; pass AutoModelForSequenceClassification, or None"
        )
    width = getattr(score, "out_features", None) or score.weight.shape[0]
    if width != dimensions:
        raise ModelError(
            f"value_model: its head gives {width} values, and {dimensions} critics are needed; "
            f"load it with num_labels={dimensions}, pass None, or set advantage_mode='scalar' "
            "for one critic"
        )
    ours = _vocabulary(policy)
    theirs = None if isinstance(value_model, ValueHead) else _vocabulary(value_model)
    if theirs is not None and ours is not None and theirs < ours:
        raise ModelError(
            f"value_model: reads {theirs:,} token ids, the policy writes {ours:,}; use one of the "
            "policy's own family, or None"
        )


def _vocabulary(model: Any) -> int | None:
    config = getattr(model, "config", None)
    return None if config is None else getattr(config.get_text_config(), "vocab_size", None)
