"""Execute decisions on real processes: backends, state directory, elastic training library."""
