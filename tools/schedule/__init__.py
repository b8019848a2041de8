"""Decide who gets which GPUs and which batch size."""
