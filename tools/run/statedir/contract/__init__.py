"""The files that launcher, backend and workers share: plans, outcomes, presence, progress."""
