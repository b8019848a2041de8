"""What a worker reports: progress and history."""
