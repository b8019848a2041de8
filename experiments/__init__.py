"""Reproductions of published tables and figures; CONTRIBUTING.md says how one is made."""
