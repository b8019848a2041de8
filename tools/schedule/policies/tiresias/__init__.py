"""Tiresias: least attained service in queues, with and without the Gittins index."""
