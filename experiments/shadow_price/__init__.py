"""shadow-price beside other policies: what it gains, where it loses, and how far any could go."""
