"""Lower bounds on the mean JCT of every schedule, tighter than each job alone."""
