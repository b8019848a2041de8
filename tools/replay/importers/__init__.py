"""Importers: public traces and measurements as pliant's own files.

:mod:`.run` is the entry and holds the table of formats; a module of :mod:`.formats` says what its columns
mean and which of its rows are not GPU training jobs.

A trace of absolute times is shifted so that its first job is submitted at 0; one that counts from its own
start keeps its times. Jobs are written by submission time, ties in the order of the input.
"""
