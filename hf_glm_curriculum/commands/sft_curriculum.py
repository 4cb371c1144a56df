"""What `sft` adds for a curriculum: the data in lanes, and the callbacks that go with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.sft_config import SftCommandConfig

if TYPE_CHECKING:
    import datasets

    from hf_glm_curriculum.curriculum.bundle import CurriculumCallback


def with_curriculum(
    config: SftCommandConfig, train: datasets.Dataset, tokenizer: Any
) -> tuple[datasets.Dataset, CurriculumCallback | None]:
    """The data to train on, and the callback of lanes, monitor and losses.

    Args:
        config: the command's settings.
        train: tokenised training rows.
        tokenizer: the model's.

    Returns:
        The rows, wrapped where a part chooses among them, and the callback; None without any.

    Raises:
        ConfigError: a setting is wrong.
        DataError: the base data are missing or malformed, or a row has no instruction.
    """
    settings = config.curriculum()
    if settings is None:
        return train, None
    from hf_glm_curriculum.curriculum.bundle import CurriculumCallback

    curriculum = CurriculumCallback(settings)
    base = _base(config, train, tokenizer) if config.base_data else None
    return curriculum.dataset(train, base, tokenizer=tokenizer), curriculum


def chooses_rows(config: SftCommandConfig) -> bool:
    """Whether a part of the curriculum lays the rows out, so that the trainer must not shuffle."""
    settings = config.curriculum()
    if settings is None:
        return False
    switches = settings.monitor is not None and not settings.monitor.observe_only
    return switches or (settings.lanes is not None and not settings.lanes.observe_only)


def _base(config: SftCommandConfig, train: datasets.Dataset, tokenizer: Any) -> datasets.Dataset:
    """The base data, tokenised as the training data, with their columns."""
    from hf_glm_curriculum.data.records import load_records
    from hf_glm_curriculum.data.tokenization import tokenize_sft

    rows = tokenize_sft(
        load_records(config.base_data),
        tokenizer,
        config.max_length,
        config.chat_template,
        without_labels=config.without_labels,
    )
    rows = rows.select_columns([name for name in rows.column_names if name in train.features])
    for name in train.column_names:
        if name not in rows.column_names:
            rows = rows.add_column(name, [None] * len(rows), feature=train.features[name])
    return rows.cast(train.features)
