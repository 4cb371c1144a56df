"""StructuredPPOTrainer: rollout → score → shape → advantages → optimize."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback
from trl.experimental.ppo import PPOTrainer
from trl.models.utils import unwrap_model_for_generation

from hf_glm_curriculum.models import backbone
from hf_glm_curriculum.ppo import setup
from hf_glm_curriculum.ppo.advantages import (
    combined_advantages,
    generalised_advantages,
    kl_per_token,
    terminal_columns,
    token_rewards,
    whiten,
)
from hf_glm_curriculum.ppo.callbacks import MetricsFile
from hf_glm_curriculum.ppo.config import StructuredPPOConfig
from hf_glm_curriculum.ppo.loop import PPOLoop
from hf_glm_curriculum.ppo.metrics import UpdateStats
from hf_glm_curriculum.ppo.modules import PolicyAndValue, Readings, hidden_states, score_tokens
from hf_glm_curriculum.ppo.objective import policy_terms, value_terms
from hf_glm_curriculum.ppo.packing import READING_FILL, by_length
from hf_glm_curriculum.ppo.prompts import PromptCollator, prepare_prompts
from hf_glm_curriculum.ppo.reward_source import reward_source
from hf_glm_curriculum.ppo.rollout import (
    Rollout,
    SampledLogprobs,
    generate,
    generation_settings,
    response_ends,
)
from hf_glm_curriculum.ppo.scoring import Judged, RewardJudge, RewardParts
from hf_glm_curriculum.ppo.stream import PromptStream
from hf_glm_curriculum.signals.distributed import sum_over_ranks, world_size


@dataclass(frozen=True)
class _MicroBatch:
    """Some rows of a mini-batch, and what their losses need."""

    rows: list[int]
    rollout: Rollout
    judged: Judged
    advantages: Tensor
    returns: Tensor
    counts: Tensor

    @property
    def index(self) -> Tensor:
        """The rows as a tensor on the device."""
        return torch.as_tensor(self.rows, device=self.rollout.lengths.device)


class StructuredPPOTrainer(PPOLoop, PPOTrainer):
    """PPO on TRL's `PPOTrainer`, with structured rewards, exact masks, and resume.

    Sources: PPO, Schulman et al. 2017; the per-token KL penalty, Ziegler et al. 2019; the
    decoupled dimensions, arXiv 2601.05242. The method card says where it departs from TRL.

    Args:
        args: settings; one trainer step is one update (rollout and epochs).
        processing_class: the policy's tokenizer.
        model: the policy, a causal language model or a PEFT model.
        ref_model: the reference; None copies the policy as it is, or switches its adapter off.
        reward_model: a `StructuredRewardModel`, `RewardEnsemble`, `ScalarReward` or `RewardPanel`;
            a sequence classifier; a function ``f(prompts, completions, **columns)``; or functions
            by dimension (a mapping, or a list of named functions).
        train_dataset: prompts, see `prepare_prompts`; other columns go to reward functions.
        value_model: a sequence classifier with one label a critic; None makes one.
        data_collator: in place of `PromptCollator`.
        eval_dataset: prompts for `evaluate`.
        optimizers: optimizer and scheduler in place of the usual.
        callbacks: of the trainer, every event of which is fired.
        peft_config: wraps the policy in an adapter.
        gate: which dimensions of which rows are open.
        weights: of the dimensions.
        shaper: normalisation and penalties.
        unlock: which dimensions are in use when.
        kl_controller: a KL coefficient for each row, and a target.
        negative_reinforcement: rows that weigh more.
        reward_processing_class: the tokenizer of a classifier that has another than the policy.

    Raises:
        HfGlmCurriculumError: naming what does not fit, before anything is generated.
    """

    def __init__(
        self,
        args: StructuredPPOConfig,
        processing_class: Any,
        model: Any,
        ref_model: Any = None,
        reward_model: Any = None,
        train_dataset: Any = None,
        value_model: Any = None,
        data_collator: Any = None,
        eval_dataset: Any = None,
        optimizers: Any = (None, None),
        callbacks: list[TrainerCallback] | None = None,
        peft_config: Any = None,
        *,
        gate: Any = None,
        weights: Any = None,
        shaper: Any = None,
        unlock: Any = None,
        kl_controller: Any = None,
        negative_reinforcement: Any = None,
        reward_processing_class: Any = None,
    ) -> None:
        setup.check_policy(model, ref_model, peft_config, processing_class)
        stops = setup.stop_tokens(args, processing_class, model)
        source = reward_source(
            reward_model,
            processing_class,
            reward_processing_class,
            args.local_rollout_forward_batch_size,
        )
        parts = RewardParts(gate, weights, shaper, unlock, kl_controller, negative_reinforcement)
        structured = args.structured_defaults
        if source.bounded if structured is None else structured:
            own_penalty = args.missing_eos_penalty is not None
            parts = parts.with_defaults(source.dimensions, args.kl_coef, own_penalty)
        self.judge = RewardJudge(
            source,
            parts,
            args.kl_coef,
            scalar=args.advantage_mode == "scalar",
            missing_eos_penalty=args.missing_eos_penalty,
        )
        room = setup.prompt_room(args, model)
        how = {"room": room, "long_prompts": args.long_prompts}
        prepared = prepare_prompts(train_dataset, processing_class, **how)
        if eval_dataset is not None:
            eval_dataset = prepare_prompts(
                eval_dataset, processing_class, **how, field="eval_dataset"
            )
        setup.set_precision(args)
        setup.check_rows(args, len(prepared))
        peft = peft_config is not None or hasattr(model, "peft_config")
        if data_collator is not None:
            setup.check_collator(data_collator, prepared)
        value_model = setup.value_model_for(args, value_model, model, self.judge.critics, peft)
        super().__init__(
            args=args,
            processing_class=processing_class,
            model=model,
            ref_model=ref_model,
            reward_model=source,  # pyright: ignore[reportArgumentType]
            train_dataset=prepared,
            value_model=value_model,
            data_collator=data_collator or PromptCollator(processing_class.pad_token_id),  # pyright: ignore[reportArgumentType]
            eval_dataset=eval_dataset,
            optimizers=optimizers,
            callbacks=[MetricsFile(), *(callbacks or [])],
            peft_config=peft_config,
        )
        self.stop_token_ids = stops
        if stops:
            # TRL has put the tokenizer's EOS in place of all that end a turn of this model.
            self.policy_model.generation_config.eos_token_id = stops
        # Micro-batches are weighed by what their mini-batch holds, not divided by their number.
        self.accelerator.gradient_accumulation_steps = 1
        for one in (self.policy_model, self.ref_model, self.value_model, source):
            if one is not None:
                setup.without_dropout(one)
        self.prompts = PromptStream(self.dataloader, self._on_pass)

    # -- set-up ------------------------------------------------------------------------------

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Put our policy-and-value module in place of TRL's before parameters are collected."""
        self.model = PolicyAndValue(self.policy_model, self.value_model)
        self.model.config = self.policy_model.config
        if self.args.fp16:
            setup.float_head(self.model)
        if self.args.gradient_checkpointing:
            self._enable_checkpointing()
        super().create_optimizer_and_scheduler(num_training_steps)

    def _enable_checkpointing(self) -> None:
        kwargs = self.args.gradient_checkpointing_kwargs or {"use_reentrant": False}
        if hasattr(self.policy_model, "enable_input_require_grads"):
            self.policy_model.enable_input_require_grads()
        self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)

    @property
    def bare_model(self) -> Any:
        """Policy and value without what accelerate wraps them in."""
        return self.accelerator.unwrap_model(self.model)

    @property
    def is_sharded(self) -> bool:
        """Whether DeepSpeed or FSDP keep the weights and save them themselves."""
        return bool(self.is_deepspeed_enabled or self.is_fsdp_enabled)

    # -- one update --------------------------------------------------------------------------

    @torch.no_grad()
    def rollout(self, batch: Any, *, greedy: bool = False) -> Rollout:
        """Answer prompts, and read what policy, critics and reference say of the answers.

        Log-probabilities come from forward passes, also the policy's: what generation reports has
        been through its processors.

        Args:
            batch: of the data collator.
            greedy: take the most probable token in place of a drawn one, as evaluation does.
        """
        query_ids = batch["input_ids"].to(self.accelerator.device)
        query_mask = batch["attention_mask"].to(query_ids.device).bool()
        watch = self._watch_sampling and not greedy
        watched = SampledLogprobs(self.args.temperature + 1e-7) if watch else None
        settings = generation_settings(
            self.args.temperature, self.args.response_length, greedy=greedy
        )
        response_ids = self.generate(query_ids, query_mask, settings, watched)
        lengths, ended = response_ends(response_ids, self.stop_token_ids)
        # One column more than the longest answer, for the state after it.
        columns = min(int(lengths.max()) + 1, self.args.response_length)
        response_ids = torch.nn.functional.pad(
            response_ids, (0, max(0, columns - response_ids.shape[1]))
        )[:, :columns]
        texts = [
            self.processing_class.decode(row[:length], skip_special_tokens=True)
            for row, length in zip(response_ids.tolist(), lengths.tolist(), strict=True)
        ]
        rollout = Rollout(
            query_ids=query_ids,
            query_mask=query_mask,
            response_ids=response_ids,
            lengths=lengths,
            ended=ended,
            prompts=batch["prompts"],
            prompt_texts=batch["prompt_texts"],
            responses=texts,
            columns=batch["columns"],
        )
        self._read(rollout)
        if watched is not None:
            self._check_sampling(watched, rollout)
        return rollout

    @torch.no_grad()
    def generate(
        self,
        query_ids: Tensor,
        query_mask: Tensor,
        settings: dict[str, Any],
        record: SampledLogprobs | None = None,
    ) -> Tensor:
        """Answers to prompts, token ids [B, T]; what a subclass with an engine of its own replaces.

        Args:
            query_ids: [B, P], padded on the left.
            query_mask: bool [B, P].
            settings: fields of a `GenerationConfig`.
            record: keeps what the first rows were drawn with.
        """
        with unwrap_model_for_generation(
            self.model,
            self.accelerator,
            gather_deepspeed3_params=self.args.ds3_gather_for_generation,
            generation_kwargs=settings,
        ) as unwrapped:
            return generate(
                unwrapped.policy,
                query_ids,
                query_mask,
                settings,
                self.processing_class.pad_token_id,
                self.args.local_rollout_forward_batch_size,
                record,
            )

    def score(self, rollout: Rollout) -> Judged:
        """Reward, gates and weights of every row.

        Raises:
            DataError: if the reward fails.
        """
        return self.judge.judge(rollout)

    def shape(self, rollout: Rollout, judged: Judged) -> tuple[Tensor, Tensor]:
        """Token rewards of every critic's stream [B, T, C], and KL estimates [B, T]."""
        args = self.args
        kl = kl_per_token(rollout.logprobs, rollout.reference, rollout.tokens, args.kl_estimator)
        places = terminal_columns(rollout.lengths, args.response_length, args.terminal_reward)
        rewards = token_rewards(judged.terminal, kl, judged.kl_coefficients, places)
        if args.whiten_rewards:
            streams = [
                whiten(stream, rollout.states & opened[:, None], shift=False)
                for stream, opened in zip(rewards.unbind(2), judged.open.unbind(1), strict=True)
            ]
            rewards = torch.stack(streams, dim=2)
        return rewards, kl

    def advantages(
        self, rollout: Rollout, judged: Judged, rewards: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Advantages of every token [B, T], and returns of every critic [B, T, C]."""
        args = self.args
        # A critic knows nothing of a row that it is closed in, where its stream is KL alone.
        values = rollout.values * judged.open[:, None]
        found, returns = generalised_advantages(rewards, values, args.gamma, args.lam)
        spread = args.least_spread
        if spread is None:
            spread = float(self.judge.one_scale)
        tokens, opened = rollout.tokens, judged.open
        return combined_advantages(found, tokens, opened, judged.importance, spread), returns

    def optimize(
        self, rollout: Rollout, judged: Judged, advantages: Tensor, returns: Tensor
    ) -> UpdateStats:
        """The epochs of one update."""
        args, rows = self.args, len(rollout)
        stats = UpdateStats(self.judge.critics, self.accelerator.device)
        size = rows // args.num_mini_batches
        for _ in range(args.num_ppo_epochs):
            order = np.random.permutation(rows)
            for start in range(0, rows, size):
                part = order[start : start + size].tolist()
                kl = self._mini_batch(part, rollout, judged, advantages, returns, stats)
                if args.max_update_kl is not None and kl > args.max_update_kl:
                    stats.stopped_early = True
                    return stats
        return stats

    def _mini_batch(
        self,
        rows: list[int],
        rollout: Rollout,
        judged: Judged,
        advantages: Tensor,
        returns: Tensor,
        stats: UpdateStats,
    ) -> float:
        """One optimizer step; the policy's approximate KL to the one that answered, if asked for.

        Losses are divided by the tokens and states of the whole mini-batch on all ranks, so that
        how it is split into micro-batches and over processes changes nothing.
        """
        args, model = self.args, self.model
        index = torch.as_tensor(rows, device=rollout.lengths.device)
        counts = self._counts(rollout, judged, index)
        parts = list(by_length(rollout.total_lengths, rows, args.per_device_train_batch_size))
        for place, part in enumerate(parts):
            last = place == len(parts) - 1
            with nullcontext() if last else self.accelerator.no_sync(model):
                self.accelerator.gradient_state._set_sync_gradients(last)
                batch = _MicroBatch(part, rollout, judged, advantages, returns, counts)
                for loss in self._losses(batch, stats):
                    self.accelerator.backward(loss * self._loss_factor())
        moved = stats.take_moved()
        self._step(stats)
        if args.max_update_kl is None:
            return 0.0
        if world_size() > 1:
            sum_over_ranks(moved)
        return float(moved / counts[0])

    def _losses(self, batch: _MicroBatch, stats: UpdateStats) -> Iterator[Tensor]:
        """A micro-batch's share of its mini-batch's loss, in the parts that go backward alone.

        Policy and critic with a trunk each go one after the other, so that the activations of one
        exist at a time. A wrapper that reduces gradients wants one pass, as does a shared trunk.
        """
        apart = self.model is self.bare_model and not self.bare_model.shares_trunk
        if not apart:
            found = self._forward(self.model, batch.rollout, batch.rows)
            yield self._policy_loss(batch, found, stats) + self._value_loss(batch, found, stats)
            return
        found = self._forward(self.model, batch.rollout, batch.rows, values=False)
        yield self._policy_loss(batch, found, stats)
        found = self._forward(self.model, batch.rollout, batch.rows, logprobs=False)
        yield self._value_loss(batch, found, stats)

    def _policy_loss(self, batch: _MicroBatch, found: Readings, stats: UpdateStats) -> Tensor:
        index, weights = batch.index, batch.judged.weights[batch.index]
        tokens = batch.rollout.tokens[index] & (weights > 0)[:, None]
        terms = policy_terms(
            found.logprobs,  # pyright: ignore[reportArgumentType]
            batch.rollout.logprobs[index],
            batch.advantages[index],
            tokens,
            weights,
            self.args.cliprange,
        )
        stats.add_policy(terms, tokens.sum())
        return terms.loss / batch.counts[0]

    def _value_loss(self, batch: _MicroBatch, found: Readings, stats: UpdateStats) -> Tensor:
        index = batch.index
        states = batch.rollout.states[index][:, :, None] & batch.judged.open[index][:, None]
        terms = value_terms(
            found.values,  # pyright: ignore[reportArgumentType]
            batch.rollout.values[index],
            batch.returns[index],
            states,
            batch.judged.weights[index],
            self.args.cliprange_value,
        )
        stats.add_value(terms, states.sum(dim=(0, 1)))
        return self.args.vf_coef * (terms.loss / batch.counts[1:]).mean()

    def _counts(self, rollout: Rollout, judged: Judged, index: Tensor) -> Tensor:
        """Tokens, and states by critic, of a mini-batch on all ranks, float [1 + C]."""
        known = (judged.weights[index] > 0)[:, None]
        tokens = (rollout.tokens[index] & known).sum()[None]
        states = (rollout.states[index][:, :, None] & judged.open[index][:, None]).sum(dim=(0, 1))
        counts = torch.cat([tokens, states]).float()
        if world_size() > 1:
            sum_over_ranks(counts)
        return counts.clamp_min(1)

    def _step(self, stats: UpdateStats) -> None:
        """Clip and step, with the events around them."""
        limit = self.args.max_grad_norm
        if limit:
            norm = self.accelerator.clip_grad_norm_(self.model.parameters(), limit)
            if norm is not None:
                stats.grad_norms.append(torch.as_tensor(norm).detach())
        self._event("on_pre_optimizer_step")
        self.optimizer.step()
        self._event("on_optimizer_step")
        self.optimizer.zero_grad()
        stats.mini_batches += 1

    def _loss_factor(self) -> float:
        """What undoes the mean that DDP takes over ranks, and DeepSpeed over its accumulation."""
        engine = getattr(self.model, "gradient_accumulation_steps", None)
        steps: Any = engine() if self.is_deepspeed_enabled and callable(engine) else 1
        return float(world_size() * steps)

    # -- forward passes ----------------------------------------------------------------------

    def _forward(self, model: Any, rollout: Rollout, rows: list[int], **wanted: bool) -> Readings:
        packed = rollout.packed(rows)
        with self.accelerator.autocast():
            return model(
                input_ids=packed.input_ids,
                attention_mask=packed.attention_mask,
                starts=packed.starts,
                lengths=packed.lengths,
                columns=packed.columns,
                temperature=self.args.temperature,
                **wanted,
            )

    def _read(self, rollout: Rollout) -> None:
        """Fill in log-probabilities, entropies and values, trimmed and sorted by length."""
        rows, columns = rollout.response_ids.shape
        empty = rollout.query_ids.new_zeros((rows, columns), dtype=torch.float32)
        rollout.logprobs, rollout.entropy, rollout.reference = (empty.clone() for _ in range(3))
        rollout.values = empty[:, :, None].repeat(1, 1, self.judge.critics)
        chunk = self.args.local_rollout_forward_batch_size
        # Without the wrapper, whose forward waits for the other ranks': how many passes a rank
        # makes depends on its rows, and in evaluation on its share of the prompts.
        model = self.model if self.is_sharded else self.bare_model
        fill = 0.0 if self.is_sharded else READING_FILL
        for part in by_length(rollout.total_lengths, range(rows), chunk, fill):
            found = self._forward(model, rollout, part, entropy=True)
            rollout.logprobs[part] = found.logprobs.float()  # pyright: ignore[reportOptionalMemberAccess]
            rollout.entropy[part] = found.entropy.float()  # pyright: ignore[reportOptionalMemberAccess]
            rollout.values[part] = found.values.float()  # pyright: ignore[reportOptionalMemberAccess]
            rollout.reference[part] = self._reference(rollout, part)
        rollout.values = torch.where(rollout.states[:, :, None], rollout.values, 0.0)

    def _reference(self, rollout: Rollout, rows: list[int]) -> Tensor:
        """Log-probabilities under the reference: a model, or the policy without its adapter."""
        packed = rollout.packed(rows)
        with self._reference_model() as model, self.accelerator.autocast():
            hidden = hidden_states(backbone(model), packed)
            return score_tokens(model, hidden, packed, self.args.temperature)[0].float()

    @contextmanager
    def _reference_model(self) -> Iterator[Any]:
        if self.ref_model is not None:
            yield self.ref_model
            return
        policy = self.bare_model.policy
        if not self.ref_adapter_name:
            with policy.disable_adapter():
                yield policy
            return
        policy.set_adapter(self.ref_adapter_name)
        try:
            yield policy
        finally:
            policy.set_adapter(self.model_adapter_name or "default")
