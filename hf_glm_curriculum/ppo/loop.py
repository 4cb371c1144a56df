"""The training loop around an update: events, logs, checkpoints, evaluation, stopping."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import ProgressCallback
from transformers.trainer_utils import TrainOutput

from hf_glm_curriculum.csv_dump import CsvDump
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.ppo.completions import (
    EVALUATION_FILE,
    FILE,
    CompletionLog,
    completion_rows,
    send_table,
)
from hf_glm_curriculum.ppo.metrics import (
    over_ranks,
    rollout_metrics,
    total_over_ranks,
    weighted_means,
)
from hf_glm_curriculum.ppo.progress import PPOProgress
from hf_glm_curriculum.ppo.prompts import IDS, PROMPT, TEXT, prepare_prompts
from hf_glm_curriculum.ppo.rollout import Rollout, SampledLogprobs
from hf_glm_curriculum.ppo.scoring import Judged, RewardJudge
from hf_glm_curriculum.ppo.setup import prompt_room, set_precision
from hf_glm_curriculum.ppo.state import checkpoint_to_resume, load_state, save_state
from hf_glm_curriculum.ppo.stream import PromptStream
from hf_glm_curriculum.signals.distributed import rank, world_size

logger = logging.getLogger(__name__)

_DRAWN_ELSEWHERE = 0.05
"""Nats by which a token may seem drawn from another distribution than the policy's (rounding)."""


class PPOLoop:
    """What `StructuredPPOTrainer` does around its five steps; not used alone."""

    # What the trainer it is mixed into has.
    args: Any
    state: Any
    control: Any
    model: Any
    bare_model: Any
    callback_handler: Any
    accelerator: Any
    processing_class: Any
    optimizer: Any
    lr_scheduler: Any
    train_dataset: Any
    train_dataset_len: Any
    eval_dataset: Any
    data_collator: Any
    ref_model: Any
    stop_token_id: Any
    is_deepspeed_enabled: Any
    is_fsdp_enabled: Any
    is_sharded: Any
    log: Any
    rollout: Any
    score: Any
    shape: Any
    advantages: Any
    optimize: Any
    judge: RewardJudge
    prompts: PromptStream
    _load_from_checkpoint: Any
    _load_optimizer_and_scheduler: Any
    _load_scaler: Any
    _determine_best_metric: Any
    _load_rng_state: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # What checkpoints ask of a trainer that TRL's PPO never was.
        self.is_fsdp_xla_v1_enabled = self.is_fsdp_xla_enabled = False
        self.is_distributed_loading_by_transformers = False
        self._completions = CompletionLog(Path(self.args.output_dir) / FILE)
        self._bar: PPOProgress | None = self._own_bar()
        self._watch_sampling = True
        self._seconds: dict[str, float] = {}
        self.since_log: list[dict[str, float]] = []
        self._stream_state: dict[str, torch.Tensor] | None = None
        self._dump: CsvDump | None = None
        self._began_at: int | None = None
        self._first_schedule = copy.deepcopy(self.lr_scheduler.state_dict())

    def train(self, resume_from_checkpoint: Any = None, **unused: Any) -> TrainOutput:
        """Make the updates that are left.

        Args:
            resume_from_checkpoint: None to begin, True to go on from the newest whole checkpoint
                in ``output_dir``, or a checkpoint's folder.
            unused: what `Trainer.train` takes besides; ignored.

        Returns:
            Updates made, and the last logged figures.

        Raises:
            StateError: if there is no whole checkpoint, or one of a run with other settings.
            DataError: if the reward fails; before the first rollout where one prompt shows it.
        """
        checkpoint = checkpoint_to_resume(resume_from_checkpoint, self.args.output_dir)
        self._begin(checkpoint)
        if self.args.preflight and checkpoint is None:
            self._preflight()
        try:
            self._event("on_train_begin")
            if checkpoint is not None:
                self._restore_stream(checkpoint)
            while self._goes_on():
                self._update()
            self.prompts.finish()
            self._log_rest()
        finally:
            if self._bar is not None and self._bar.training_bar is not None:
                self._bar.training_bar.close()
        self._event("on_train_end")
        if self.control.should_save:
            self._save_now()
        self._take_best()
        last = self.state.log_history[-1] if self.state.log_history else {}
        return TrainOutput(self.state.global_step, float(last.get("loss/policy_avg", 0.0)), last)

    def _goes_on(self) -> bool:
        left = self.state.global_step < self.state.max_steps
        return left and not (self.control.should_training_stop or self.control.should_epoch_stop)

    def _update(self) -> None:
        """One update, from prompts to log and checkpoint."""
        start = time.perf_counter()
        self._seconds = {}
        batch = self.prompts.draw()
        self._event("on_step_begin")
        with self._phase("rollout"):
            rollout = self.rollout(batch)
        with self._phase("score"):
            judged = self.score(rollout)
        self._require_something(judged)
        rewards, kl = self.shape(rollout, judged)
        advantages, returns = self.advantages(rollout, judged, rewards)
        with self._phase("optimize"):
            stats = self.optimize(rollout, judged, advantages, returns)
        metrics = over_ranks(rollout_metrics(rollout, judged, kl)) | stats.metrics()
        self._steer(metrics["objective/kl"], len(rollout))
        self._advance(metrics, time.perf_counter() - start)
        self._keep_completions(rollout, judged, kl)
        self._after_step()

    def _own_bar(self) -> PPOProgress | None:
        """Our progress bar in place of the trainer's, where there is one."""
        if self.callback_handler.pop_callback(ProgressCallback) is None:
            return None
        bar = PPOProgress()
        self.callback_handler.add_callback(bar)
        return bar

    # -- begin and end -----------------------------------------------------------------------

    def _begin(self, checkpoint: Path | None) -> None:
        """Set the counters of the run, or take up those of a checkpoint."""
        args, state = self.args, self.state
        state.global_step, state.episode, state.epoch = 0, 0, 0
        state.log_history, self.since_log = [], []
        state.best_metric = state.best_global_step = state.best_model_checkpoint = None
        self._stream_state = None
        if self.accelerator.mixed_precision != args.mixed_precision and not self.is_sharded:
            # A trainer made since with another precision changed what all of them share.
            set_precision(args)
        if checkpoint is None and self._began_at is not None:
            self._start_over()
        if checkpoint is not None:
            self._load(checkpoint)
        self._began_at = state.global_step
        state.max_steps = args.num_total_batches
        state.num_train_epochs = math.ceil(args.total_episodes / self.train_dataset_len)
        for name in ("logging_steps", "eval_steps", "save_steps"):
            value = getattr(args, name)
            if value is not None:
                setattr(
                    state, name, math.ceil(state.max_steps * value) if value < 1 else int(value)
                )
        self.control.should_training_stop = self.control.should_epoch_stop = False
        self.model.train()
        if self.is_deepspeed_enabled:
            self.deepspeed = self.model_wrapped = self.model
        if rank() == 0:
            self._completions.rewind(state.global_step)
            if state.global_step:
                self._evaluation_log().rewind(state.global_step)
        self._dump = None

    def _start_over(self) -> None:
        """Begin a second run of this trainer with the schedule and optimizer of the first."""
        self.prompts.reset()
        if self.is_sharded:
            return
        self.lr_scheduler.load_state_dict(copy.deepcopy(self._first_schedule))
        plain = getattr(self.optimizer, "optimizer", self.optimizer)
        plain.state.clear()
        rates = self.lr_scheduler.get_last_lr()
        for group, rate in zip(plain.param_groups, rates, strict=True):
            group["lr"] = rate

    def _take_best(self) -> None:
        """Take up the best checkpoint's policy, if that is wished."""
        best = self.state.best_model_checkpoint
        if not self.args.load_best_model_at_end or best is None:
            return
        if self.is_sharded:
            logger.warning("load_best_model_at_end: split weights stay as they are; load %s", best)
            return
        self._load_from_checkpoint(best, model=self.bare_model.policy)

    def _load(self, folder: Path) -> None:
        """Weights, optimizer, schedule, scaler, counters and reward state of a checkpoint."""
        loaded = type(self.state).load_from_json(str(folder / "trainer_state.json"))
        self.state.global_step, self.state.epoch = loaded.global_step, loaded.epoch
        self.state.log_history = loaded.log_history
        for name in ("best_metric", "best_global_step", "best_model_checkpoint"):
            setattr(self.state, name, getattr(loaded, name))
        self._stream_state = load_state(self, folder)
        if self.is_deepspeed_enabled:
            self.model.load_checkpoint(str(folder))
        elif self.is_fsdp_enabled:
            self._load_from_checkpoint(str(folder), model=self.model)
        else:
            self._load_from_checkpoint(str(folder), model=self.bare_model.policy)
        self._load_optimizer_and_scheduler(str(folder))
        self._load_scaler(str(folder))

    def _restore_stream(self, folder: Path) -> None:
        """Deal the prompts again up to where the checkpoint was, then take up its random state."""
        self.prompts.load_state_dict(self._stream_state or {})
        self._load_rng_state(str(folder))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Our part first: a checkpoint with a ``trainer_state.json`` is whole."""
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        save_state(self, folder)
        self.accelerator.wait_for_everyone()
        super()._save_checkpoint(model, trial)  # pyright: ignore[reportAttributeAccessIssue]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the policy (its adapter, for PEFT) with the tokenizer."""
        above: Any = super(_ppo_trainer(), self)  # pyright: ignore[reportArgumentType]
        # TRL's own looks for the policy on a model that DDP wraps.
        with self._policy_in_front():
            above.save_model(output_dir, _internal_call)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """As TRL's trainers do, which ask the model for its config."""
        above: Any = super()
        with self._policy_in_front():
            above.create_model_card(*args, **kwargs)

    @contextmanager
    def _policy_in_front(self) -> Iterator[None]:
        """Let the trainer's model be the bare policy for a while."""
        wrapped = self.model
        self.model = self.bare_model.policy
        try:
            yield
        finally:
            self.model = wrapped

    def _save_now(self) -> None:
        self._save_checkpoint(self.model, trial=None)
        self._event("on_save")

    # -- around an update --------------------------------------------------------------------

    def _advance(self, metrics: dict[str, float], seconds: float) -> None:
        """Count the update and keep its figures for the next log."""
        args, state = self.args, self.state
        state.global_step += 1
        state.episode += args.batch_size
        state.epoch = state.episode / self.train_dataset_len
        metrics["lr"] = self.lr_scheduler.get_last_lr()[0]
        metrics["eps"] = args.batch_size / seconds
        metrics |= {f"ppo/seconds_{name}": value for name, value in self._seconds.items()}
        metrics["ppo/seconds"] = seconds
        self.since_log.append(metrics)
        self.lr_scheduler.step()

    def _after_step(self) -> None:
        """What callbacks want after an update."""
        self._event("on_step_end")
        self._obey()

    def _obey(self) -> None:
        """Log, evaluate and save where callbacks want it."""
        if self.control.should_log and self.since_log:
            self._log()
        if self.control.should_evaluate and self.eval_dataset is not None:
            better = self._determine_best_metric(self.evaluate(), trial=None)
            if self.args.save_strategy == "best":
                self.control.should_save = better
        if self.control.should_save:
            self._save_now()

    def _log(self) -> None:
        """Means over the updates since the last log."""
        names = {name for one in self.since_log for name in one}
        found = {}
        for name in sorted(names):
            values = [one[name] for one in self.since_log if name in one]
            found[name] = sum(values) / len(values)
        self.since_log = []
        self.log({**found, "episode": self.state.episode})

    def _log_rest(self) -> None:
        """Log the updates since the last log: a run may end, or be stopped, between two."""
        if self.since_log and self.args.logging_strategy != "no":
            self._log()

    def _event(self, name: str) -> None:
        self.control = getattr(self.callback_handler, name)(self.args, self.state, self.control)

    def _on_pass(self, begins: bool) -> None:
        """The stream of prompts begins or has finished a pass over the data."""
        self._event("on_epoch_begin" if begins else "on_epoch_end")
        # A resumed run comes to the end of its checkpoint's pass a second time.
        if not begins and self.state.global_step != self._began_at:
            self._obey()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Say what is being done, and measure it."""
        if self._bar is not None:
            self._bar.phase(name)
        start = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - start

    def _steer(self, kl: float, rows: int) -> None:
        """Move the KL coefficient toward its target; every rank by the same mean."""
        controller = self.judge.parts.kl_controller
        if controller is not None:
            controller.update(kl, rows * max(self.args.world_size or 1, 1))

    def _keep_completions(self, rollout: Rollout, judged: Judged, kl: torch.Tensor) -> None:
        """Write the update's first answers, and every row's rewards where they are asked for."""
        args, step = self.args, self.state.global_step
        if args.debug_dir is not None:
            self._write_debug(rollout, judged, kl)
        if rank() != 0 or not args.completion_rows or (step - 1) % args.completion_steps:
            return
        rows = completion_rows(rollout, judged.scored, kl.sum(dim=1), step, args.completion_rows)
        self._completions.write(rows)
        send_table(rows, args.report_to)

    def _write_debug(self, rollout: Rollout, judged: Judged, kl: torch.Tensor) -> None:
        rows = completion_rows(
            rollout, judged.scored, kl.sum(dim=1), self.state.global_step, len(rollout)
        )
        names = judged.scored.dimensions
        kinds = ("scores", "confidence", "open")
        columns = ["step", "row", "reward", "kl", "length", "ended", "weight", "kl_coefficient"]
        columns += [f"{kind}_{name}" for name in names for kind in kinds]
        if self._dump is None:
            name = "ppo.csv" if rank() == 0 else f"ppo-rank{rank()}.csv"
            self._dump = CsvDump(Path(self.args.debug_dir or ".") / name, columns)
            self._dump.rewind(self.state.global_step - 1)
        weights, betas = judged.weights.tolist(), judged.kl_coefficients.tolist()
        self._dump.write(
            [row["step"], i, row["reward"], row["kl"], row["length"], row["ended"]]
            + [weights[i], betas[i]]
            + [row[kind][name] for name in names for kind in kinds]
            for i, row in enumerate(rows)
        )

    # -- evaluation --------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Answer held-out prompts greedily and score them; running state stays as it is.

        Args:
            eval_dataset: prompts in place of the trainer's, in any form it takes.
            ignore_keys: as `Trainer.evaluate` takes it; unused.
            metric_key_prefix: of the figures' names.

        Returns:
            Means over all prompts; the answers go to ``completions_eval.jsonl``.

        Raises:
            DataError: if there are no prompts, or the reward fails.
        """
        data = self._evaluation_data(eval_dataset)
        size, state = self.args.per_device_eval_batch_size, self.state
        mine = range(rank(), len(data), world_size())
        # Where weights are split, every rank has to make as many passes as the others: one whose
        # share is smaller answers a prompt again, and forgets the answer.
        share = [*mine, 0][: math.ceil(len(data) / world_size())]
        found: list[tuple[int, dict[str, float]]] = []
        lines: list[dict[str, Any]] = []
        for start in range(0, len(share), size):
            rows = [data[i] for i in share[start : start + size]]
            rollout = self.rollout(self.data_collator(rows), greedy=True)
            rollout = rollout.first(len(mine[start : start + size]))
            if not len(rollout):
                continue
            scored = self.judge.scored(rollout, update=False)
            kl = torch.where(rollout.tokens, rollout.logprobs - rollout.reference, 0.0).sum(dim=1)
            lines += completion_rows(rollout, scored, kl, state.global_step, len(rollout))
            figures = {
                **scored.metrics(),
                "kl": float(kl.mean()),
                "length": float(rollout.lengths.float().mean()),
                "ended": float(rollout.ended.float().mean()),
            }
            found.append((len(rollout), figures))
        if rank() == 0:
            self._evaluation_log().write(lines)
        weighed = weighted_means(found)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in weighed.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, state, self.control, metrics)
        return metrics

    def generate_completions(self, sampling: bool = False) -> None:
        """TRL's name for looking at answers to the evaluation prompts."""
        if self.eval_dataset is not None:
            self.evaluate()

    def _evaluation_log(self) -> CompletionLog:
        return CompletionLog(Path(self.args.output_dir) / EVALUATION_FILE)

    def _evaluation_data(self, given: Any) -> Any:
        if given is None:
            if self.eval_dataset is None:
                raise DataError("eval_dataset: there are no prompts to evaluate on; pass some")
            return self.eval_dataset
        room = prompt_room(self.args, self.bare_model.policy)
        return prepare_prompts(
            given,
            self.processing_class,
            room=room,
            long_prompts=self.args.long_prompts,
            field="eval_dataset",
        )

    # -- checks ------------------------------------------------------------------------------

    def _require_something(self, judged: Judged) -> None:
        known = total_over_ranks(float((judged.weights > 0).sum()), judged.weights.device)
        if not known:
            raise DataError(
                "reward_model: says nothing of any answer of this update (every row is None or "
                "locked); give at least one row a number"
            )

    def _preflight(self) -> None:
        """Ask for one reward before the first rollout: what fails here fails at once.

        Raises:
            DataError: if the reward raises, or returns something else than numbers.
        """
        row = dict(self.train_dataset[0])
        device = self.accelerator.device
        ids = torch.tensor([row[IDS]], device=device)
        answer = self.processing_class("OK", add_special_tokens=False)["input_ids"][:1]
        response = torch.tensor([answer or row[IDS][-1:]], device=device)
        trial = Rollout(
            query_ids=ids,
            query_mask=torch.ones_like(ids, dtype=torch.bool),
            response_ids=response,
            lengths=torch.ones(1, dtype=torch.long, device=device),
            ended=torch.ones(1, dtype=torch.bool, device=device),
            prompts=[row[PROMPT]],
            prompt_texts=[row[TEXT]],
            responses=["OK"],
            columns={k: [v] for k, v in row.items() if k not in (IDS, PROMPT, TEXT)},
        )
        self.judge.source.scores(trial)

    def _check_sampling(self, watched: SampledLogprobs, rollout: Rollout) -> None:
        """Say once if answers are drawn from another distribution than the policy's."""
        self._watch_sampling = False
        gap = watched.differs(rollout.logprobs, rollout.lengths)
        rounding = 1.0 if self.args.mixed_precision != "no" else _DRAWN_ELSEWHERE
        if gap > rounding:
            logger.warning(
                "answers are drawn from another distribution than the policy's (up to %.2f nats "
                "apart): the model's generation_config suppresses or penalises tokens. Ratios and "
                "KL are right, as they come from forward passes, but the sampling is off-policy; "
                "clear those settings in model.generation_config",
                gap,
            )


def _ppo_trainer() -> type:
    from trl.experimental.ppo import PPOTrainer

    return PPOTrainer
