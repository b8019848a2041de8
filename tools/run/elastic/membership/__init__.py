"""Which workers train together, and how that changes while they train."""
