"""Measure training jobs and build the throughput model that schedulers ask."""
