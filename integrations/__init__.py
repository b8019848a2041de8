"""Callbacks and helpers for training loops of others: progress, saves on request, and the global batch.

Each module needs the library that it is named after, and none of them is imported by the rest of pliant. What
they do for a loop of one's own, :mod:`pliant.tools.run.progress` does with the standard library alone.
docs/elastic-training.md has a recipe for each.
"""
