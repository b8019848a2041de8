"""DRL: a small network, trained by policy gradient, that changes one job at a time."""
