"""Benchmarks: figures measured on demand, written to results/, never asserted by a test."""
