"""What all experiments share: replay, compare with the published numbers, draw, write the page."""
