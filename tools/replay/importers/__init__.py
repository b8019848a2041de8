"""Importers: public traces and measurements as pliant's own files, read by the modules of :mod:`.formats`.

:mod:`.run` is the entry and holds the table of formats. A format's module says what its columns
mean and which of its rows are not GPU training jobs; strictness, counting, ids, order and writing are shared.

Times: a trace of absolute times is shifted so that its first job is submitted at 0; a trace that counts
from its own start keeps its times. Jobs are written by submission time, ties in the order of the input.
"""
