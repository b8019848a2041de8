"""ONES: online evolutionary search for batch sizes."""
