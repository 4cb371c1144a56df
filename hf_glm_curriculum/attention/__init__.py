"""Position-graph attention: which keys each query needs, and attention over those alone."""
