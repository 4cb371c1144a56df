"""Several losses at once, changed while training runs."""
