"""The state directory: what lies in it, who may read and write it, and what it means."""
