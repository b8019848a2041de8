import sys
import threading
from types import ModuleType

import pytest

from pliant.schemas.file_io.record import Record

THREADS = 6
LOADER = "pydantic.plugin._loader"


def test_records_are_validated_without_looking_for_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    # ... and leave other models of pydantic what looks for theirs.
    loader = ModuleType(LOADER)  # cannot find any
    monkeypatch.setitem(sys.modules, LOADER, loader)
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        result = [built_at_once(number) for number in range(20)]
    finally:
        sys.setswitchinterval(before_s)
    assert result == [[1] * THREADS] * 20
    assert sys.modules[LOADER] is loader
    # What looks for plugins is not imported for records.
    monkeypatch.delitem(sys.modules, LOADER, raising=False)
    assert built_at_once(len(LOADER)) == [1] * THREADS
    assert LOADER not in sys.modules


def built_at_once(number: int) -> list[int]:
    """What new kinds of records read, each in a thread of its own."""
    fields = {"__annotations__": {"count": int}, "__module__": __name__}
    kinds = [type(f"Kind{number}x{place}", (Record,), dict(fields)) for place in range(THREADS)]
    begin, result = threading.Barrier(THREADS), []

    def build(kind: type[Record]) -> None:
        begin.wait()
        result.append(kind.model_validate({"count": 1}).__dict__["count"])

    threads = [threading.Thread(target=build, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return result
