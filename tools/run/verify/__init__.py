"""``pliant verify``: does a script keep, on any number of workers, what the elastic library promises?

A small part of its training runs as one plain process, and again under the executor of ``pliant run``: on two
workers, in micro-steps, through changes, a stop and a loss. What the workers record is compared.
"""
