"""Progress models: how a job's work advances while it holds GPUs."""
