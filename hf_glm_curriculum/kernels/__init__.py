"""Numerical kernels that training-time parts share."""
