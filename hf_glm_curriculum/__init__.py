"""Per-sample signals, sample life cycles and curricula for the Hugging Face post-training stack.

Names are loaded on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_glm_curriculum.attention.callback import PositionGraphCallback as PositionGraphCallback
    from hf_glm_curriculum.attention.chunk_graph import ChunkGraph as ChunkGraph
    from hf_glm_curriculum.attention.config import PositionGraphConfig as PositionGraphConfig
    from hf_glm_curriculum.attention.graph import PositionGraph as PositionGraph
    from hf_glm_curriculum.attention.registration import (
        disable_position_graph as disable_position_graph,
    )
    from hf_glm_curriculum.attention.registration import (
        enable_position_graph as enable_position_graph,
    )
    from hf_glm_curriculum.curriculum.alignment_callback import (
        AlignmentMonitorCallback as AlignmentMonitorCallback,
    )
    from hf_glm_curriculum.curriculum.alignment_config import AlignmentConfig as AlignmentConfig
    from hf_glm_curriculum.curriculum.bundle import CurriculumCallback as CurriculumCallback
    from hf_glm_curriculum.curriculum.entropy import (
        InstructionEntropyEstimator as InstructionEntropyEstimator,
    )
    from hf_glm_curriculum.curriculum.lane_build import build_lanes as build_lanes
    from hf_glm_curriculum.curriculum.lane_callback import LaneCallback as LaneCallback
    from hf_glm_curriculum.curriculum.lane_config import LaneConfig as LaneConfig
    from hf_glm_curriculum.curriculum.temperature import TemperatureField as TemperatureField
    from hf_glm_curriculum.curriculum.temperature_callback import (
        TemperatureFieldCallback as TemperatureFieldCallback,
    )
    from hf_glm_curriculum.curriculum.temperature_loss import (
        TemperatureFieldLoss as TemperatureFieldLoss,
    )
    from hf_glm_curriculum.curriculum.temperature_processor import (
        TemperatureFieldLogitsProcessor as TemperatureFieldLogitsProcessor,
    )
    from hf_glm_curriculum.data.audit import audit_files as audit_files
    from hf_glm_curriculum.data.audit import audit_records as audit_records
    from hf_glm_curriculum.data.content_id import content_ids as content_ids
    from hf_glm_curriculum.data.index import SampleIndex as SampleIndex
    from hf_glm_curriculum.data.mixture import CurriculumMixture as CurriculumMixture
    from hf_glm_curriculum.evaluation.sample_callback import (
        SampleGenerationCallback as SampleGenerationCallback,
    )
    from hf_glm_curriculum.lifespan.callback import SampleLifespanCallback as SampleLifespanCallback
    from hf_glm_curriculum.lifespan.config import LifespanConfig as LifespanConfig
    from hf_glm_curriculum.lifespan.judges import SignalJudge as SignalJudge
    from hf_glm_curriculum.lifespan.reference_judge import ReferenceJudge as ReferenceJudge
    from hf_glm_curriculum.lifespan.sampling import LifespanSampling as LifespanSampling
    from hf_glm_curriculum.losses.callback import CompositeLossCallback as CompositeLossCallback
    from hf_glm_curriculum.losses.check import check_loss as check_loss
    from hf_glm_curriculum.losses.composite import CompositeLoss as CompositeLoss
    from hf_glm_curriculum.losses.context import LossContext as LossContext
    from hf_glm_curriculum.losses.swap import LossSwapCallback as LossSwapCallback
    from hf_glm_curriculum.migration.callback import (
        ObjectiveMigrationCallback as ObjectiveMigrationCallback,
    )
    from hf_glm_curriculum.migration.config import MigrationConfig as MigrationConfig
    from hf_glm_curriculum.rewards.config import StructuredRewardConfig as StructuredRewardConfig
    from hf_glm_curriculum.rewards.ensemble import RewardEnsemble as RewardEnsemble
    from hf_glm_curriculum.rewards.gate import RewardGate as RewardGate
    from hf_glm_curriculum.rewards.kl import KLController as KLController
    from hf_glm_curriculum.rewards.model import StructuredRewardModel as StructuredRewardModel
    from hf_glm_curriculum.rewards.monitor import RewardHackingMonitor as RewardHackingMonitor
    from hf_glm_curriculum.rewards.reinforcement import (
        NegativeReinforcement as NegativeReinforcement,
    )
    from hf_glm_curriculum.rewards.scalar import RewardPanel as RewardPanel
    from hf_glm_curriculum.rewards.scalar import ScalarReward as ScalarReward
    from hf_glm_curriculum.rewards.shaper import RewardShaper as RewardShaper
    from hf_glm_curriculum.rewards.trl_functions import (
        combined_reward_function as combined_reward_function,
    )
    from hf_glm_curriculum.rewards.trl_functions import (
        structured_reward_functions as structured_reward_functions,
    )
    from hf_glm_curriculum.rewards.trl_host import RewardStateCallback as RewardStateCallback
    from hf_glm_curriculum.rewards.unlock import ProgressiveUnlock as ProgressiveUnlock
    from hf_glm_curriculum.rewards.weights import DimensionWeights as DimensionWeights
    from hf_glm_curriculum.scaling.fit import fit_scaling_law as fit_scaling_law
    from hf_glm_curriculum.scaling.law import ScalingLaw as ScalingLaw
    from hf_glm_curriculum.signals.ledger import SampleLedger as SampleLedger
    from hf_glm_curriculum.signals.mixture_callback import MixtureCallback as MixtureCallback
    from hf_glm_curriculum.signals.probe import SampleProbe as SampleProbe

__version__ = "0.1.0"

_PUBLIC = {
    "AlignmentConfig": "curriculum.alignment_config",
    "AlignmentMonitorCallback": "curriculum.alignment_callback",
    "ChunkGraph": "attention.chunk_graph",
    "CompositeLoss": "losses.composite",
    "CompositeLossCallback": "losses.callback",
    "CurriculumCallback": "curriculum.bundle",
    "CurriculumMixture": "data.mixture",
    "DimensionWeights": "rewards.weights",
    "InstructionEntropyEstimator": "curriculum.entropy",
    "KLController": "rewards.kl",
    "LaneCallback": "curriculum.lane_callback",
    "LaneConfig": "curriculum.lane_config",
    "LifespanConfig": "lifespan.config",
    "LifespanSampling": "lifespan.sampling",
    "LossContext": "losses.context",
    "LossSwapCallback": "losses.swap",
    "MigrationConfig": "migration.config",
    "MixtureCallback": "signals.mixture_callback",
    "ObjectiveMigrationCallback": "migration.callback",
    "NegativeReinforcement": "rewards.reinforcement",
    "PositionGraph": "attention.graph",
    "PositionGraphCallback": "attention.callback",
    "PositionGraphConfig": "attention.config",
    "ProgressiveUnlock": "rewards.unlock",
    "ReferenceJudge": "lifespan.reference_judge",
    "RewardEnsemble": "rewards.ensemble",
    "RewardGate": "rewards.gate",
    "RewardHackingMonitor": "rewards.monitor",
    "RewardPanel": "rewards.scalar",
    "RewardShaper": "rewards.shaper",
    "RewardStateCallback": "rewards.trl_host",
    "SampleGenerationCallback": "evaluation.sample_callback",
    "SampleIndex": "data.index",
    "SampleLedger": "signals.ledger",
    "SampleLifespanCallback": "lifespan.callback",
    "SampleProbe": "signals.probe",
    "ScalarReward": "rewards.scalar",
    "ScalingLaw": "scaling.law",
    "SignalJudge": "lifespan.judges",
    "StructuredRewardConfig": "rewards.config",
    "StructuredRewardModel": "rewards.model",
    "TemperatureField": "curriculum.temperature",
    "TemperatureFieldCallback": "curriculum.temperature_callback",
    "TemperatureFieldLogitsProcessor": "curriculum.temperature_processor",
    "TemperatureFieldLoss": "curriculum.temperature_loss",
    "audit_files": "data.audit",
    "audit_records": "data.audit",
    "build_lanes": "curriculum.lane_build",
    "check_loss": "losses.check",
    "combined_reward_function": "rewards.trl_functions",
    "content_ids": "data.content_id",
    "disable_position_graph": "attention.registration",
    "enable_position_graph": "attention.registration",
    "fit_scaling_law": "scaling.fit",
    "structured_reward_functions": "rewards.trl_functions",
}

__all__ = [
    "AlignmentConfig",
    "AlignmentMonitorCallback",
    "ChunkGraph",
    "CompositeLoss",
    "CompositeLossCallback",
    "CurriculumCallback",
    "CurriculumMixture",
    "DimensionWeights",
    "InstructionEntropyEstimator",
    "KLController",
    "LaneCallback",
    "LaneConfig",
    "LifespanConfig",
    "LifespanSampling",
    "LossContext",
    "LossSwapCallback",
    "MigrationConfig",
    "MixtureCallback",
    "NegativeReinforcement",
    "ObjectiveMigrationCallback",
    "PositionGraph",
    "PositionGraphCallback",
    "PositionGraphConfig",
    "ProgressiveUnlock",
    "ReferenceJudge",
    "RewardEnsemble",
    "RewardGate",
    "RewardHackingMonitor",
    "RewardPanel",
    "RewardShaper",
    "RewardStateCallback",
    "SampleGenerationCallback",
    "SampleIndex",
    "SampleLedger",
    "SampleLifespanCallback",
    "SampleProbe",
    "ScalarReward",
    "ScalingLaw",
    "SignalJudge",
    "StructuredRewardConfig",
    "StructuredRewardModel",
    "TemperatureField",
    "TemperatureFieldCallback",
    "TemperatureFieldLogitsProcessor",
    "TemperatureFieldLoss",
    "audit_files",
    "audit_records",
    "build_lanes",
    "check_loss",
    "combined_reward_function",
    "content_ids",
    "disable_position_graph",
    "enable_position_graph",
    "fit_scaling_law",
    "structured_reward_functions",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the part it lives in."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names before they are loaded."""
    return sorted({*globals(), *_PUBLIC})
