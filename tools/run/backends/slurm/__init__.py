"""The Slurm backend: a lease job on each node, and in it a step for each unit of a training job."""
