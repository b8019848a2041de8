"""Shapes of training loops that people write, and what the elastic library makes of them."""
