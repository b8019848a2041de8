"""The event log: appended to, read, folded to a state, kept short by a snapshot, repaired."""
