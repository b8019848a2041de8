import pytest

from benchmarks import house
from benchmarks.house import (
    Source,
    classes_defined_twice,
    imports,
    lines_by_kind,
    longest_chain,
    small_with_one_importer,
    sources,
)
from benchmarks.parts.visits import Stays, recording
from pliant.schemas.text import counted

ONE = Source(
    "tools/one.py",
    '''"""Page."""

import ast
from pliant.tools.two import (
    Two,
)

# Why.
class Pair(Two):
    """A class."""

    def both(
        self,
    ) -> int:
        """Text
        of two lines."""
        return 1
''',
)
TWO = Source("tools/two.py", "class Two:\n    pass\n\n\nclass Pair:\n    pass\n")


def test_each_line_is_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "MEASURES", ("schemas",))
    assert lines_by_kind(ONE) == {
        "docstrings": 4,
        "blank": 3,
        "imports": 4,
        "comments": 1,
        "code": 2,
        "signatures": 3,
    }
    for source in sources():
        assert lines_by_kind(source).total() == len(source.text.splitlines())


def test_what_is_counted_of_imports_and_calls() -> None:
    assert imports([ONE, TWO]) == {"tools.one": {"tools.two"}, "tools.two": set()}
    assert longest_chain({"a": {"b", "d"}, "b": {"c"}, "c": set(), "d": set()}) == 3
    assert classes_defined_twice([ONE, TWO]) == {"Pair": 2}
    assert small_with_one_importer([ONE, TWO]) == ["tools/two.py"]
    # Calls of the product are recorded.
    with recording() as passed:
        counted(2, "job")
    assert passed.modules == {"schemas/text.py"}
    assert "schemas/text.py:counted" in passed.functions
    # A module that is entered again is a return.
    handed = Stays(["a", "a", "b", "a", "c", "b"])
    assert handed.stays == ["a", "b", "a", "c", "b"]
    assert handed.returns == 2
