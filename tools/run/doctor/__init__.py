"""Is everything there that runs need: versions, the state directory, clocks, GPUs, Slurm, the loop."""
