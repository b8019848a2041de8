"""Replay traces: event engine, job progress, rescale cost, generators."""
