"""What ``--expect`` found as JUnit XML, the form in which CI systems show tests: a test case for each figure.

Equal figures give equal bytes, so there are no times in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pliant.schemas.metrics import CheckedFigure
from pliant.schemas.text import harmless
from pliant.tools.report.expectations import outcome

_SUITE: Final = "pliant report"


def junit_bytes(checked: Sequence[CheckedFigure]) -> bytes:
    """One suite. A case is named after its figure, its class after the run; a figure that is expected twice
    has a number, for names must differ.
    """
    missed = sum(not each.holds for each in checked)
    counts = {"tests": str(len(checked)), "failures": str(missed), "errors": "0", "skipped": "0"}
    root = Element("testsuites", {"name": _SUITE, **counts})
    suite = SubElement(root, "testsuite", {"name": _SUITE, **counts})
    seen: dict[tuple[str, str], int] = {}
    for each in checked:
        name = each.metric if each.over is None else f"{each.metric} over {each.over}"
        number = seen[each.policy, name] = seen.get((each.policy, name), 0) + 1
        title = name if number == 1 else f"{name} ({number})"
        case = SubElement(suite, "testcase", {"classname": harmless(each.policy), "name": harmless(title)})
        said = harmless(outcome(each))
        if each.holds:
            SubElement(case, "system-out").text = said
        else:
            failure = SubElement(case, "failure", {"type": "out of range", "message": said})
            failure.text = harmless(f"{said}; from {each.source}") if each.source else said
    indent(root)
    data: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"
