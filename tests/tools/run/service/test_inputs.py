"""What a run refuses before it touches anything, or does not ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.schemas.io import read_schedule, write_schedule
from pliant.tools.run.service import inputs
from pliant.tools.run.service.inputs import PreparedRun
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.submit import submit
from tests.tools.run.instant import opens
from tests.tools.run.site import Site


def prepared(options: RunOptions, *, dry: bool = False) -> PreparedRun:
    return PreparedRun.read(options, opens({}), resume=True, dry=dry)


def begin(options: RunOptions) -> None:
    """As far as the first decision."""
    found = prepared(options)
    with found.open() as state:
        found.loop(state, follow=False)


def test_a_schedule_with_a_parameter_that_its_policy_lacks_is_refused_by_the_name_of_its_file(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    site.job("a")
    options = site.options("fifo")
    path = Path(str(options.schedule))
    found = read_schedule(path)
    policy = found.policy.model_copy(update={"parameters": {"speed": 2}})
    write_schedule(found.model_copy(update={"policy": policy}), path)
    with pytest.raises(BadInputError, match=r"schedule\.json: /policy: .*speed"):
        prepared(options)
    assert not site.state.exists()


@pytest.mark.parametrize("backend", ["local", "slurm"])
def test_torch_has_to_be_on_this_machine_only_where_jobs_train_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    def is_not_there(library: str, what: str) -> None:
        raise ServiceMissingError(f"{what}, but {library} is not installed")

    monkeypatch.setattr(inputs, "require", is_not_there)
    site = Site(tmp_path)
    site.job("a", elastic="none")
    prepared(site.options("fifo", backend=backend))
    site.job("b", high=2)
    options = site.options("fifo", backend=backend)
    prepared(options, dry=True)
    if backend == "slurm":
        prepared(options)
    else:
        with pytest.raises(ServiceMissingError, match='job "b" trains with torch, but torch is not'):
            prepared(options)


def test_a_job_of_the_schedule_may_have_been_submitted_if_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another command it would be unknown which of the two runs."""
    site = Site(tmp_path)
    monkeypatch.chdir(site.folder)
    same = site.job("a").model_copy(update={"submit_time": 7.0, "priority": 2.0})
    options = site.options("fifo")
    submit(site.state, [same], "jobs", folder=site.folder, now_s=0.0)
    begin(options)
    assert site.log().jobs.keys() == {"a"}

    other = Site(tmp_path / "other")
    monkeypatch.chdir(other.folder)
    another = other.job("a").model_copy(update={"command": (other.script, "--samples", "1")})
    options = other.options("fifo")
    submit(other.state, [another], "jobs", folder=other.folder, now_s=0.0)
    with pytest.raises(BadInputError, match='job "a" is in the schedule, too, and another one there'):
        begin(options)
    assert not other.log().jobs
