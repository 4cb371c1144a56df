"""Per-sample signals of a training run: losses, gradient norms, embeddings and their ledger."""
