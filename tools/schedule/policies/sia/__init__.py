"""Sia: goodput per GPU type and size, assigned by an integer program."""
