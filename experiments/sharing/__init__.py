"""What it is worth to a cluster's teams to lend each other their GPUs."""
