from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tools.run.door.people import (
    LIMITS,
    MAL,
    ROLES,
    Shared,
    all_may_enter,
    only_root_becomes_others,
    shared_run,
)


@pytest.fixture(scope="session")
def one_run() -> Iterator[Shared]:
    only_root_becomes_others()
    with all_may_enter() as folder, shared_run(folder) as found:
        yield found


@pytest.fixture
def run(one_run: Shared) -> Shared:
    """A shared run that shows what is public; an operator, a lead of one user, and one with small limits."""
    one_run.set_roles(**ROLES, limits_of={str(MAL): LIMITS})
    return one_run
