"""Measuring a job: what to measure, how it is launched, and the workers' side."""
