from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that the commands of the test run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
