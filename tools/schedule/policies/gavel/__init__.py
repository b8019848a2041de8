"""Gavel: fractions of time by a linear program, and rounds that follow them."""
