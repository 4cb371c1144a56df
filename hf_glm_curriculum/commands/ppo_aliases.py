"""Other names that PPO's settings go by: those of older TRL releases and of articles about them.

```yaml
ppo_config:
  model_name: ./output/sft_model
  reward_model_name: ./output/reward_model
  steps: 10000
save_steps: 500
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_glm_curriculum.errors import ConfigError

NEST = "ppo_config"
"""A mapping under this key counts as if its keys stood at the top level."""

ALIASES: Mapping[str, str] = {
    "model_name": "model",
    "sft_model_path": "model",
    "reward_model_name": "reward",
    "reward_model_path": "reward",
    "steps": "updates",
    "total_updates": "updates",
    "num_ppo_epochs": "ppo_epochs",
    "init_kl_coef": "kl_coef",
    "response_length": "max_new_tokens",
    "log_with": "report_to",
    "dataset_name": "prompts",
}
"""Other name → ours; `batch_size`, `ppo_epochs`, `kl_coef` and others are the same in both."""

_LISTS = ("reward", "prompts", "report_to", "eval_prompts")
# Articles set code with typographic quotes, which YAML reads as part of the text.
_QUOTES = "“”‘’"


def canonical_keys(tree: Mapping[Any, Any], prefix: str = "") -> dict[Any, Any]:
    """Rename aliases, take the nesting away, and make lists of single values where lists belong.

    Args:
        tree: what a YAML file holds.
        prefix: before the name of a setting in messages.

    Raises:
        ConfigError: A setting is given twice with different values, or the nest is no mapping.
    """
    found: dict[Any, tuple[str, Any]] = {}
    for shown, key, value in _leaves(tree, prefix):
        name = ALIASES.get(key, key)
        value = _cleaned(name, value)
        if name in found and found[name][1] != value:
            first, was = found[name]
            raise ConfigError(
                f"{prefix}{first} and {shown} are one setting, got {was!r} and {value!r}; keep one"
            )
        found.setdefault(name, (shown, value))
    return {name: value for name, (_, value) in found.items()}


def _leaves(tree: Mapping[Any, Any], prefix: str) -> list[tuple[str, Any, Any]]:
    """(name as it stands there, key, value) of all settings, those in the nest too."""
    leaves = []
    for key, value in tree.items():
        if key != NEST:
            leaves.append((str(key), _key(key), value))
            continue
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{prefix}{NEST}: must hold settings, got {value!r}; write them below it, indented"
            )
        leaves += [(f"{NEST}.{inner}", _key(inner), one) for inner, one in value.items()]
    return leaves


def _key(key: Any) -> Any:
    return key.replace("-", "_") if isinstance(key, str) else key


def _cleaned(name: Any, value: Any) -> Any:
    if isinstance(value, str) and value[:1] in _QUOTES and value[-1:] in _QUOTES:
        value = value.strip(_QUOTES)
    if name in _LISTS and isinstance(value, str):
        return [value]
    if name in _LISTS and value is None:
        return []
    return value
