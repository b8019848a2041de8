"""shadow-price: GPUs by the worth of a unit of each job's progress."""
