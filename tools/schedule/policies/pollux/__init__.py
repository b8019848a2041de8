"""Pollux: co-adaptive goodput scheduling."""
