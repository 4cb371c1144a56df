"""Structured rewards: model, training, calibration, gate, shaping and monitors."""
