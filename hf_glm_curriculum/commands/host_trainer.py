"""The host trainer of a command's run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.training_settings import TrainingSettings
from hf_glm_curriculum.optional import require

if TYPE_CHECKING:
    from transformers import TrainerCallback

HOSTS = {"trainer": "transformers.Trainer", "sft_trainer": "trl.SFTTrainer"}
"""What the hosts of `TrainingSettings.trainer` are called."""


def build_trainer(
    config: TrainingSettings,
    args: Any,
    model: Any,
    tokenizer: Any,
    train: Any,
    callbacks: Sequence[TrainerCallback],
) -> Any:
    """The host trainer with our callbacks and padding collator.

    Raises:
        MissingDependencyError: TRL is asked for and not installed.
    """
    from transformers import PrinterCallback

    from hf_glm_curriculum.data.collator import SftCollator

    if config.trainer == "sft_trainer":
        kind = require("trl", "trl").SFTTrainer
    else:
        from transformers import Trainer as kind
    trainer = ending_in_time(kind)(
        model=model,
        args=args,
        train_dataset=train,
        data_collator=SftCollator(tokenizer.pad_token_id),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def ending_in_time(kind: Any) -> Any:
    """A trainer class that does nothing where it goes on from its last step.

    transformers looks at `max_steps` after a step only: resumed from the checkpoint of the last
    one, it trains one more, unless an epoch ends there too.
    """

    class EndingInTime(kind):
        def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
            if self.state.global_step < self.state.max_steps:
                return super().get_batch_samples(*args, **kwargs)
            self.control.should_training_stop = True
            return [], None

    EndingInTime.__name__ = EndingInTime.__qualname__ = kind.__name__
    return EndingInTime
