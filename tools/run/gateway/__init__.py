"""The gateway of a run that root shares with all accounts of a machine (``pliant serve``)."""
