"""What jobs shall hold, on which slots, and how a gang gets there: pure functions."""
