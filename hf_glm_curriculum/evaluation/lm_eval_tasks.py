"""Tasks of lm-evaluation-harness on a loaded model, from the hub or from one's own YAML files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.evaluation.measured import Measured
from hf_glm_curriculum.optional import require


def measure_tasks(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[str],
    include_path: str | None = None,
    limit: int | None = None,
    batch_size: int = 8,
) -> Measured:
    """Run lm-eval tasks.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        tasks: Their names.
        include_path: Folder with further task YAML files.
        limit: Documents of a task at most.
        batch_size: Requests at once.

    Returns:
        ``<task>/<metric>`` of each, without lm-eval's standard errors.

    Raises:
        MissingDependencyError: lm-eval is not installed.
        ConfigError: A task is unknown or cannot be run.
    """
    evaluator = require("lm_eval.evaluator", "eval")
    task_manager = require("lm_eval.tasks", "eval").TaskManager(include_path=include_path)
    hf_model = require("lm_eval.models.huggingface", "eval").HFLM
    unknown = [name for name in tasks if name not in task_manager.all_tasks]
    if unknown:
        raise ConfigError(
            f"tasks: lm-eval knows no {', '.join(unknown)}; name its tasks, or pass "
            "tasks_path with the folder of your own"
        )
    was_training = model.training
    try:
        found = evaluator.simple_evaluate(
            model=hf_model(pretrained=model, tokenizer=tokenizer, batch_size=batch_size),
            tasks=list(tasks),
            task_manager=task_manager,
            limit=limit,
            bootstrap_iters=0,
            log_samples=False,
        )
    except (KeyError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"tasks: lm-eval cannot run {', '.join(tasks)} ({reason})") from error
    finally:
        model.train(was_training)
    figures: dict[str, float | None] = {}
    for task, metrics in found["results"].items():
        for name, value in metrics.items():
            if isinstance(value, int | float) and "stderr" not in name and name != "alias":
                figures[f"{task}/{name.partition(',')[0]}"] = float(value)
    return Measured(figures)
