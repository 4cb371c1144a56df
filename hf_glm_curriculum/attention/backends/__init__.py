"""Ways to compute attention over selected blocks, behind one interface."""
