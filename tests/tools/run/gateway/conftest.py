from collections.abc import Iterator

import pytest

from tests.tools.run.gateway import people


@pytest.fixture(scope="session")
def one_run() -> Iterator[people.Shared]:
    people.only_root_becomes_others()
    with people.all_may_enter() as folder, people.shared_run(folder) as found:
        yield found


@pytest.fixture
def run(one_run: people.Shared) -> people.Shared:
    """A shared run that shows what is public; an operator, a lead of one user, and one with small limits."""
    one_run.set_roles(**people.ROLES, limits_of={str(people.MAL): people.LIMITS})
    return one_run
