"""Synthetic traces: recipes and what is drawn from them."""
