"""Simulated nodes: a backend in memory, for tests and benchmarks of whatever drives one."""
