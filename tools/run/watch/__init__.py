"""A state directory as others see it: status, screen, output of jobs."""
