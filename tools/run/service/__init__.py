"""The service: make what runs equal to what shall run, and record what happened."""
