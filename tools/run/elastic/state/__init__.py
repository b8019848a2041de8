"""What a job's training consists of, and its way to disk and back."""
