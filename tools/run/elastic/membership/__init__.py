"""Which workers train together, and how that changes while they train.

A planned grow, step by step. The vote has agreed on a newer plan. The loop asks ``Membership.boundary``,
which answers ``REGROUP``. The loop lets go of DistributedDataParallel and asks ``Membership.regroup``. That
leaves the ``ProcessGroup``; ``Rendezvous.meet`` brings the workers of the plan together, in one ``Round`` or
more, and connects them; ``broadcast_state`` gives newcomers the state. The answer is a ``Resplit``: the loop
takes the state, divides the work and calls ``Membership.settle``.

The generation that a worker is in is ``WorkerContext.plan``; only the boundary that switches to a newer plan
and the rendezvous change it.
"""
