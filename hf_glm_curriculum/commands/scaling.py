"""`scaling fit | plan | sweep | plot`: laws from runs, and what a budget buys by them."""

from __future__ import annotations

import argparse
from importlib import import_module

from hf_glm_curriculum.commands.scaling_config import (
    ScalingFitConfig,
    ScalingPlanConfig,
    ScalingPlotConfig,
)
from hf_glm_curriculum.commands.scaling_sweep_config import ScalingSweepConfig
from hf_glm_curriculum.config import add_config_flags, config_from_args

_ACTIONS = {
    "fit": (ScalingFitConfig, "fit a law to a table of runs (or, with --post, to runs' logs)"),
    "plan": (ScalingPlanConfig, "say what a budget buys: model, tokens, rows, hours, money"),
    "sweep": (ScalingSweepConfig, "train a grid of small models and fit their law"),
    "plot": (ScalingPlotConfig, "draw a law again, with further runs or other budgets"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions, each with `--config` and a flag for every setting."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    words = "show tracebacks and more of the log"
    for name, (config, help_text) in _ACTIONS.items():
        sub = actions.add_parser(name, help=help_text, description=help_text)
        sub.add_argument("--config", help="YAML file of settings; flags override it")
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=words)
        if name == "fit":
            sub.add_argument("files", nargs="*", metavar="RUNS", help="the same as --runs")
        add_config_flags(sub, config)


def run(args: argparse.Namespace) -> int:
    """Do the action.

    Raises:
        HfGlmCurriculumError: Settings, tables, laws or folders do not allow it.
    """
    if getattr(args, "files", None):
        args.runs = args.files
    config = config_from_args(_ACTIONS[args.action][0], args)
    return import_module(f"{__package__}.scaling_{args.action}").run(config, args.argv)
