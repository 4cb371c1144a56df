"""Evaluation: how well faults are found, what a model answers, and the report of a run."""
