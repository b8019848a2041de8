"""A training loop of one worker: batches, gradients, steps."""
