"""Figures of any job that people have: its command, its environment, where it may run, what it may lose."""
