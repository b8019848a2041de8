"""Elastic scaling with batch sizes: figures 5 to 9 and tables III and IV of Saxena et al., 2020."""
