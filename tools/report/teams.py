"""How the teams of a shared cluster fared: JCT and service of each, and what it lacked of its entitlement.

The log says with each decision what every team held and was entitled to. A team's deficit are the GPU-seconds
that it held less than its entitlement while it had jobs that waited; what it held beyond its own share it had
borrowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pliant.schemas.metrics import TeamFigures
from pliant.schemas.schedule import TeamStanding
from pliant.tools.report.metrics import mean, percentile
from pliant.tools.report.records import JobRecord, RunRecord

HOUR_S = 3600.0


def team_figures(run: RunRecord) -> tuple[TeamFigures, ...]:
    """Of each team, and then of each user of a team with several; empty where the cluster is one pool."""
    shares = run.info.cluster.shares
    if shares is None:
        return ()
    jobs: dict[tuple[str, str], list[JobRecord]] = {}
    for job in run.jobs:
        team = shares.team_of(job.job)
        jobs.setdefault((team, ""), []).append(job)
        jobs.setdefault((team, job.job.user), []).append(job)
    users = {team: sum(1 for name, user in jobs if name == team and user) for team, _ in jobs}
    deficit, borrowed = _integrals(run)
    found = []
    for team, user in sorted(jobs):
        if user and users[team] < 2:
            continue
        own = jobs[team, user]
        times = [job.jct_s for job in own if job.jct_s is not None]
        found.append(
            TeamFigures(
                team=team,
                user=user,
                jobs=len(own),
                finished=len(times),
                mean_jct_s=mean(times),
                p99_jct_s=percentile(times, 0.99),
                service_gpu_hours=sum(job.gpu_seconds(run.last_event_s) for job in own) / HOUR_S,
                deficit_gpu_hours=deficit.get((team, user)),
                borrowed_gpu_hours=borrowed.get((team, user)),
            )
        )
    return tuple(found)


def _integrals(run: RunRecord) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """GPU-hours below the entitlement while jobs waited, and beyond the own share; by team and by user."""
    deficit: dict[tuple[str, str], float] = {}
    borrowed: dict[tuple[str, str], float] = {}
    for seconds, standings in spans(run):
        for each in standings:
            hours = seconds / HOUR_S
            lacks = max(0, each.entitled - each.held) if each.waiting_jobs else 0
            for key in {(each.team, ""), (each.team, each.user)}:
                deficit[key] = deficit.get(key, 0.0) + lacks * hours
                borrowed[key] = borrowed.get(key, 0.0) + each.borrowed * hours
    return deficit, borrowed


def spans(run: RunRecord) -> Iterator[tuple[float, Sequence[TeamStanding]]]:
    """How long teams stood as they did."""
    ends = [*run.teams, (run.last_event_s, ())]
    for (since_s, standings), (until_s, _) in pairwise(ends):
        if until_s > since_s:
            yield until_s - since_s, standings


def over_time(run: RunRecord) -> dict[str, tuple[list[float], list[int], list[int]]]:
    """By team: times, GPUs held and GPUs entitled to from then on."""
    names = sorted({each.team for _, standings in run.teams for each in standings})
    found: dict[str, tuple[list[float], list[int], list[int]]] = {name: ([0.0], [0], [0]) for name in names}
    for time_s, standings in run.teams:
        for name, (times, held, entitled) in found.items():
            own = [each for each in standings if each.team == name]
            times.append(time_s)
            held.append(sum(each.held for each in own))
            entitled.append(sum(each.entitled for each in own))
    for times, held, entitled in found.values():
        times.append(run.last_event_s)
        held.append(held[-1])
        entitled.append(entitled[-1])
    return found
