"""The storm of ``make chaos``: what it does to a state directory, and what must have become of it."""
