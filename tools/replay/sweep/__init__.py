"""Sweeps: many replays described by one recipe."""
