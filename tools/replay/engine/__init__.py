"""Discrete events around a session: what happens next, what it costs, what fails."""
