"""In what order, and with how much effort, each instruction is trained."""
