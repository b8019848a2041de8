"""What other accounts can run, by the modes of all folders and links on the way."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pliant.tools.run.gateway import readable_install
from pliant.tools.run.gateway.readable_install import closed_to_others


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder above which nothing counts as closed."""
    allows, above = readable_install._allows, {tmp_path, *tmp_path.parents}
    monkeypatch.setattr(
        readable_install, "_allows", lambda path, needed: path in above or allows(path, needed)
    )
    (tmp_path / "home" / "bin").mkdir(parents=True)
    for each in (tmp_path / "home", tmp_path / "home" / "bin"):
        each.chmod(0o755)
    (tmp_path / "home" / "bin" / "python").touch(0o755)
    (tmp_path / "home" / "bin" / "python").chmod(0o755)
    return tmp_path


def test_a_folder_or_a_link_on_the_way_may_be_closed(place: Path) -> None:
    python = place / "home" / "bin" / "python"
    link = place / "python"
    link.symlink_to(python)
    assert closed_to_others(link, executes=True) is None
    (place / "home").chmod(0o750)
    assert closed_to_others(link, executes=True) == place / "home"
    (place / "home").chmod(0o711)
    assert closed_to_others(link, executes=True) is None
    assert closed_to_others(place / "home") == place / "home", "a package is looked for by its folder's list"
    python.chmod(0o754)
    assert closed_to_others(link, executes=True) == python
    assert closed_to_others(link) is None
    assert closed_to_others(place / "home" / "nothing") == place / "home" / "nothing"
