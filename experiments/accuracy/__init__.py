"""What changes of size and batch do to a model: accuracy under elastic training."""
