"""A policy in use: what changed, the decision, its check, and its execution on exact nodes."""
