"""What a worker reports: progress, history, how it ended."""
