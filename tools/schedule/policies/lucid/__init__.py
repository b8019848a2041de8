"""Lucid: shortest predicted jobs first, light ones two on one set of GPUs."""
