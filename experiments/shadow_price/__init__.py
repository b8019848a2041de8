"""shadow-price beside every other policy: what it gains, where it loses, and how far any could go."""
