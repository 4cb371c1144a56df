"""What a law's numbers mean: which parameters are counted, what a FLOP is, in what the loss is.

Counting embeddings or not moves the fitted exponents (Porian et al. 2024, arXiv 2406.19146), so a
law carries its conventions and refuses to be mixed with another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from hf_glm_curriculum.errors import ConfigError

PARAMETERS = {
    "unspecified": "as counted in the table of runs",
    "total": "all weights, tied ones once",
    "matmul": "all weights but tables that are only looked up (what 6·N·D counts)",
    "non_embedding": "all weights but token embeddings and output head",
}
"""Ways of counting a model's parameters."""


@dataclass(frozen=True)
class Conventions:
    """Units of a scaling law.

    Attributes:
        parameters: How N counts: a key of `PARAMETERS`.
        flops_per_parameter_token: k in C = k·N·D; 6 counts a multiply and an add, once forward
            and twice backward (Kaplan et al. 2020, §2.1), attention scores left out.
        loss: What L is, such as "nats per token".
        tokenizer: What a token is; laws of different tokenizers do not compare.
    """

    parameters: str = "unspecified"
    flops_per_parameter_token: float = 6.0
    loss: str = "nats per token"
    tokenizer: str = "unspecified"

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        if self.parameters not in PARAMETERS:
            raise ConfigError(
                f"parameters: must be one of {', '.join(PARAMETERS)}, got {self.parameters!r}"
            )
        if not self.flops_per_parameter_token > 0:
            raise ConfigError(
                "flops_per_parameter_token: must be above 0 (6 for training), got "
                f"{self.flops_per_parameter_token}"
            )

    def flops(self, parameters: Any, tokens: Any) -> Any:
        """Training FLOPs C = k·N·D."""
        return self.flops_per_parameter_token * parameters * tokens

    def tokens(self, flops: Any, parameters: Any) -> Any:
        """Tokens D = C/(k·N) that a budget buys."""
        return flops / (self.flops_per_parameter_token * parameters)

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Conventions:
        """Conventions as `as_dict` wrote them; keys of later versions are left out."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in kept.items() if name in names})

    def line(self) -> str:
        """The conventions in one line."""
        k = self.flops_per_parameter_token
        return (
            f"N: {PARAMETERS[self.parameters]}; C = {k:g}·N·D; loss in {self.loss}; "
            f"tokenizer {self.tokenizer}"
        )
