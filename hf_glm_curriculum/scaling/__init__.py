"""Scaling laws: functional forms, robust fits with intervals, plans of compute, sweeps."""
