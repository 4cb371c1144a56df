"""Sample life cycle: weights, states, judges and the callback that applies them."""
