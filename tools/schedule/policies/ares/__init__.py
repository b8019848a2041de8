"""Ares: elastic fair queuing."""
