"""The fallback for a Slurm without leases: one job of its own for each attempt of a training job."""
