"""A strict reader of the OpenMetrics text format, as far as ``pliant`` writes it."""

from __future__ import annotations

import re

KINDS = {"gauge": "", "counter": "_total", "info": "_info"}
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
LABEL = re.compile(rf'({NAME})="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
Labels = frozenset[tuple[str, str]]


def read(text: str) -> dict[tuple[str, Labels], float]:
    """The value of each sample, by its name and labels; a rule that is broken fails the test."""
    *lines, end, nothing = text.split("\n")
    assert (end, nothing) == ("# EOF", ""), "the file is whole"
    found: dict[tuple[str, Labels], float] = {}
    family, kind, seen = "", "", set[str]()
    for line in lines:
        if line.startswith("# "):
            _, word, name, rest = line.split(" ", 3)
            if word == "TYPE":
                assert name not in seen, f"{name}: one place for each family"
                family, kind = name, rest
                seen.add(name)
            assert word in ("TYPE", "UNIT", "HELP")
            assert name == family, f"{line}: the lines of a family are together"
            assert word != "UNIT" or name.endswith(f"_{rest}"), "a unit is the end of its name"
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        assert match[1] == family + KINDS[kind], line
        labels = labels_of(match[2] or "")
        key = (match[1], frozenset(labels.items()))
        assert key not in found, f"{line}: each sample once"
        found[key] = float(match[3])
    return found


def labels_of(text: str) -> dict[str, str]:
    found, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match is not None, text
        found[match[1]] = re.sub(r"\\(.)", lambda it: "\n" if it[1] == "n" else it[1], match[2])
        at = match.end()
    return found


def value(text: str, name: str, **labels: str) -> float:
    return read(text)[name, frozenset(labels.items())]
