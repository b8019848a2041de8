"""Elastic scaling with batch sizes: the optimizer, the autoscaler and their baselines."""
