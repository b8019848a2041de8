"""What a cluster file says, found out: by asking this machine, or Slurm."""
