"""Checks of an installation and of a state directory (``pliant doctor``)."""
