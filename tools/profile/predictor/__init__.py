"""How far jobs are that do not state their work: a Beta distribution learned from jobs that ended."""
