"""Replaying as published simulators do."""
