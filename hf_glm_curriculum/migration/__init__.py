"""From pre-training to instruction tuning in one run, layer by layer."""
