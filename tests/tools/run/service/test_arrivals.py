"""What a run takes up of jobs that were submitted before it."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.cluster import Shares, Team
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.io import write_cluster
from pliant.schemas.job import Job, Utility
from pliant.tools.run.service import submit as requests
from pliant.tools.run.service.decisions import Arrivals
from pliant.tools.run.service.submit import SubmissionResult, cancel, check_new, free_id, order_nodes, submit
from pliant.tools.run.statedir.log.events import run_event
from pliant.tools.run.statedir.log.fold import JobLog
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import State
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.demand import JobCheck
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job
from tests.tools.run.live_states import a_queue, live_state

ORIGIN_S = 2e9


@contextmanager
def arriving(
    folder: Path, now_s: list[float], *ahead: Job, shares: Shares | None = None
) -> Iterator[tuple[Arrivals, State, Session]]:
    """A run of two GPUs to which these jobs of its schedule are still to come; the clock is the list's."""
    nodes = cluster(2).model_copy(update={"shares": shares})
    session = Session(make_policy("fifo"), nodes, throughput_for(None, nodes))
    with State(folder) as state:
        if state.log.info is None:
            state.record([run_event(decide([], nodes, None, Question("fifo")), "hash", ORIGIN_S)])
        yield Arrivals(state, session, lambda: now_s[0], ORIGIN_S, ahead), state, session


def taken_up(state_dir: Path, shares: Shares) -> Mapping[str, JobLog]:
    """What a first run makes of the jobs that were submitted."""
    with arriving(state_dir, [ORIGIN_S + 1.0], shares=shares) as (arrivals, state, _):
        arrivals.poll_requests(ORIGIN_S + 1.0)
        return state.log.jobs


def test_jobs_of_before_the_first_run_join_their_teams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """None is refused because Slurm gives no answer."""
    monkeypatch.setattr(requests, "_groups_of", lambda user: ["vision"] if user == "ann" else [])
    (tmp_path / "train.py").touch()
    command = {"command": ("train.py",)}
    jobs = [job("a", user="ann", **command), job("b", user="bob", **command)]
    wrong = job("c", user="bob", team="vision", **command)
    submit(tmp_path / "state", [*jobs, wrong], "jobs", folder=tmp_path, now_s=100.0)
    taken = taken_up(tmp_path / "state", Shares(teams={"vision": Team(groups=("vision",))}))
    assert {name: (each.job.team, each.phase, each.reason) for name, each in taken.items()} == {
        "a": ("vision", "waiting", ""),
        "b": ("", "waiting", ""),
        "c": ("vision", "rejected", 'job "c" names team "vision", which user bob is not in'),
    }
    monkeypatch.setattr(requests, "_accounts_of", lambda user, minute: "sacctmgr: no answer")
    submit(tmp_path / "other", [wrong], "jobs", folder=tmp_path, now_s=100.0)
    teams = Shares(teams={"vision": Team(groups=("vision",), accounts=("cv",))})
    found = taken_up(tmp_path / "other", teams)["c"]
    assert (found.job.team, found.phase, "sacctmgr: no answer" in caplog.text) == ("vision", "waiting", True)


def test_groups_of_an_account_are_those_of_the_system() -> None:
    root = pwd.getpwuid(0)
    assert grp.getgrgid(root.pw_gid).gr_name in requests._groups_of(root.pw_name)
    assert requests._groups_of("no such account") == []


def to_come(job_id: str, at: float, **more: Any) -> Job:
    return job(job_id, at=at, command=("train.py",), workdir="/", **more)


def test_jobs_arrive_at_their_time_or_once_they_are_given_gpus(tmp_path: Path) -> None:
    now_s = [ORIGIN_S]
    ahead = to_come("b", 50.0), to_come("a", 50.0), to_come("c", 90.0)
    with arriving(tmp_path, now_s, *ahead) as (arrivals, _, session):
        assert (arrivals.arrive(), arrivals.more_to_come) == ([], True)
        now_s[0] = ORIGIN_S + 60.0
        here = arrivals.arrive()
        assert [(event.event, event.job, event.time) for event in here] == [
            ("submit", "a", ORIGIN_S + 50.0),
            ("submit", "b", ORIGIN_S + 50.0),
        ]
        assert [event.job for event in arrivals.arrive({"c"})] == ["c"]
        assert (arrivals.arrive({"c"}), arrivals.more_to_come) == ([], False)
        assert {*session.jobs} == {"a", "b", "c"}


def test_jobs_still_to_come_wait_for_the_next_process_once(tmp_path: Path) -> None:
    now_s = [ORIGIN_S]
    with arriving(tmp_path, now_s, to_come("a", 50.0), to_come("b", 90.0)) as (arrivals, state, _):
        for _ in range(2):
            arrivals.keep_for_later()
        asked = [job for request in Spool(state.dirs).requests() for job in request.jobs]
        assert [(job.id, job.submit_time) for job in asked] == [("a", ORIGIN_S + 50), ("b", ORIGIN_S + 90)]
    now_s[0] = ORIGIN_S + 60.0
    with arriving(tmp_path, now_s) as (following, state, _):
        assert following.more_to_come
        assert following.poll_requests(now_s[0]) == (True, [])
        assert (list(state.log.jobs), following.more_to_come) == (["a"], True)
        assert state.log.jobs["a"].submitted_s == ORIGIN_S + 50.0
        for _ in range(2):
            cancel(tmp_path, ["b"])
        assert len([each for each in Spool(state.dirs).requests() if each.cancelled]) == 1
        assert following.poll_requests(now_s[0]) == (True, ["b"])
        assert state.log.jobs["b"].phase == "cancelled"
        assert (following.more_to_come, Spool(state.dirs).requests()) == (False, [])


def test_all_requests_are_heard_rejected_ones_leave_no_secrets(tmp_path: Path) -> None:
    with arriving(tmp_path, [ORIGIN_S]) as (arrivals, state, session):
        write_cluster(cluster(9), state.dirs.cluster)
        listed = [to_come("large", 0.0, gpus=9), to_come("a", 0.0)]
        how = {"folder": tmp_path, "now_s": ORIGIN_S, "check_scripts": False, "hidden": {"TOKEN": "x"}}
        submit(tmp_path, listed, "jobs", **how)  # type: ignore[arg-type]
        for _ in range(2):
            cancel(tmp_path, ["a"])
        requests.order_jobs(tmp_path, "requeue", ["a"])
        requests.order_jobs(tmp_path, "hold", ["a"])
        cancel(tmp_path, ["a"])
        names = [path.name.split(".")[-2] for path in sorted(state.dirs.spool.glob("*.j*"))]
        assert names == ["jobs", "cancel", "order", "order", "cancel"]
        assert [arrivals.poll_requests(ORIGIN_S)[1] for _ in range(3)] == [["a"], ["a", "a"], []]
        phases = {job_id: each.phase for job_id, each in state.log.jobs.items()}
        assert (phases, len(state.log.executed)) == ({"large": "rejected", "a": "cancelled"}, 2)
        assert ([*session.jobs], arrivals.more_to_come, os.listdir(state.dirs.jobs)) == ([], False, ["a"])


def test_jobs_that_cannot_be_served_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No policy is asked of them; the session has taken the second one up when the error comes."""
    refusal = JobCheck.refusal
    monkeypatch.setattr(
        JobCheck, "refusal", lambda self, job: 1 / 0 if job.id == "broken" else refusal(self, job)
    )
    ahead = to_come("large", 1.0, gpus=3), to_come("broken", 1.5), to_come("a", 2.0)
    with arriving(tmp_path, [ORIGIN_S + 5.0], *ahead) as (arrivals, state, session):
        state.record(arrivals.arrive())
        assert {name: (each.phase, each.reason) for name, each in state.log.jobs.items()} == {
            "large": ("rejected", 'job "large" needs 3 GPUs, the cluster has 2'),
            "broken": ("rejected", "internal error: ZeroDivisionError: division by zero"),
            "a": ("waiting", ""),
        }
        assert ([*session.jobs], [*session.book.ended], session.book.rejections) == (
            ["a"],
            ["large", "broken"],
            {},
        )


# What the answer to a submission says, and names that are free.


PLAIN = job("plain", gpu_seconds=100.0)
URGENT = PLAIN.model_copy(update={"priority": 2.0})
HEAVY = PLAIN.model_copy(update={"weight": 2.0})
DUE = PLAIN.model_copy(update={"utility": Utility(shape="step", value=1.0, target=100.0)})


@pytest.mark.parametrize(
    ("policy", "ignores"),
    [
        ("ares", {"priority", "deadline"}),
        ("fifo", {"weight", "deadline"}),
        ("pollux", {"priority", "weight", "deadline"}),
        ("shadow-price", set()),
    ],
)
def test_jobs_that_state_what_the_policy_ignores_are_named(tmp_path: Path, policy: str, ignores: set[str]):
    assert SubmissionResult.of(tmp_path, [URGENT, HEAVY, DUE], []) == SubmissionResult([]), "there is no run"
    state = live_state(tmp_path / "live", a_queue(1), cluster(4), policy=policy)

    def ignored(*jobs: Job) -> set[str]:
        ids = [one.id for one in jobs]
        found = SubmissionResult.of(state, jobs, ids)
        assert found.ids == ids
        if found.overlooked_deadlines is not None:
            assert found.overlooked_deadlines.startswith(f'policy "{policy}" ignores ')
        assert {found.ignores_priority, found.ignores_weight} <= {policy, None}
        words = {"priority": found.ignores_priority, "weight": found.ignores_weight}
        words["deadline"] = found.overlooked_deadlines
        return {what for what, text in words.items() if text is not None}

    assert ignored(PLAIN) == set()
    assert ignored(PLAIN, URGENT) == ignores & {"priority"}
    assert ignored(PLAIN, HEAVY) == ignores & {"weight"}
    assert ignored(PLAIN, DUE) == ignores & {"deadline"}
    assert ignored(URGENT, HEAVY, DUE) == ignores


def test_what_would_be_refused_is_refused_in_a_question_too(tmp_path: Path) -> None:
    state = live_state(tmp_path / "live", a_queue(1), cluster(4))
    (found,) = check_new(state, [PLAIN.model_copy(update={"submit_time": 5.0})], "jobs", 2e9)
    assert found.submit_time == 2e9 + 5.0
    waits = PLAIN.model_copy(update={"after": {"missing": "ok"}})
    for wrong, words in ((job("j0"), "before"), (job("big", gpus=9), "9 GPUs"), (waits, "missing")):
        with pytest.raises(BadInputError, match=words):
            check_new(state, [PLAIN, wrong], "jobs", 2e9)


def test_a_name_gets_the_first_number_free_for_all_its_endings() -> None:
    assert free_id("a", ()) == free_id("a", ("a-2", "b")) == "a"
    assert free_id("a", ("a", "a-2")) == "a-3"
    assert free_id("a", ("a-1", "a-2-0"), ("-0", "-1")) == "a-3"


def test_of_several_nodes_none_is_drained_if_one_is_not_there(tmp_path: Path) -> None:
    state = live_state(tmp_path / "live", a_queue(1), cluster(2, 2))
    with pytest.raises(UsageError, match="has no node n7; it has: n0, n1"):
        order_nodes(state, "drain", ["n0", "n7"])
    assert list((state / "spool").glob("*.order.json")) == []
    order_nodes(state, "drain", ["n0", "n1", "n0"])
    assert len(list((state / "spool").glob("*.order.json"))) == 2
