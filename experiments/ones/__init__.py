"""Online evolutionary batch size orchestration (SC '21) beside its baselines."""
