"""How teams share a cluster: the ``shares`` section of a cluster file."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Annotated, Final, NamedTuple, Self

from pydantic import Field, model_validator

from pliant.schemas.file_io.record import (
    MOST_GPUS,
    TEAM_NAME,
    Identifier,
    NonNegativeFloat,
    PositiveFloat,
    Record,
    broken_rule,
)
from pliant.schemas.job import Job

GpuLimit = Annotated[int, Field(ge=0, le=MOST_GPUS)]
TeamName = Annotated[str, Field(pattern=TEAM_NAME)]
OTHERS: Final = "*"
"""The team of all jobs that are in no other."""
USER: Final = "user"
"""As the label that names teams: each user is a team."""
ANY_TYPE: Final = "*"
"""As a GPU type in ``guaranteed`` and ``max``: all types together."""


class Team(Record):
    """What one team is entitled to, and who is in it."""

    users: tuple[str, ...] | dict[str, PositiveFloat] = ()
    """Its members by account name. With weights ({"ann": 2, "bob": 1}) the team's GPUs are divided among them
    in the same way as the cluster among teams; a list leaves that to the policy."""
    groups: tuple[str, ...] = ()
    """UNIX groups whose members are in it; looked up when a job is submitted."""
    accounts: tuple[str, ...] = ()
    """Slurm accounts whose members are in it; looked up with ``sacctmgr`` when a job is submitted."""
    weight: PositiveFloat = 1.0
    """Its part of what is not guaranteed, beside the weights of the other teams."""
    guaranteed: dict[str, GpuLimit] = Field(default_factory=dict)
    """GPUs by type ("*": of any type) that it gets before anything is divided by weight."""
    max: dict[str, GpuLimit] = Field(default_factory=dict)
    """GPUs by type ("*": of all types together) that it never exceeds."""
    lends: bool = True
    """Whether others may use what it is guaranteed and does not need."""
    borrows: bool = True
    """Whether it may use what others leave, beyond its own share."""

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        for kind, most in self.max.items():
            if self.guaranteed.get(kind, 0) > most:
                text = f"{self.guaranteed[kind]} of {kind!r} is above max {most}"
                raise broken_rule(text, f"/guaranteed/{kind}")
        return self

    @property
    def weighs_users(self) -> bool:
        return isinstance(self.users, dict)


class Shares(Record):
    """The teams of a cluster. Who is in no team is in the team "*", by default of weight 1."""

    teams: dict[TeamName, Team] = Field(default_factory=dict)
    half_life_hours: NonNegativeFloat = 24.0
    """Usage counts with this half-life: a team that used more than its part of the weights gets less of what
    is not guaranteed. 0: only what teams hold and ask for now counts."""
    label: Identifier | None = None
    """Label of jobs that names their team if nothing else does, as the virtual cluster of a trace. A team
    that is not in the file has weight 1. "user": each user is a team."""

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        for field in ("groups", "accounts"):
            seen: dict[str, str] = {}
            for name, team in self.teams.items():
                for member in getattr(team, field):
                    if seen.setdefault(member, name) != name:
                        text = f"has {member!r}, which is in team {seen[member]!r}, too"
                        raise broken_rule(text, f"/teams/{name}/{field}")
        return self

    @classmethod
    def by_label(cls, label: str) -> Shares:
        """A team of weight 1 for each value of a label; only what teams hold and ask for now counts."""
        return cls(label=label, half_life_hours=0.0)

    def teams_of(self, user: str) -> list[str]:
        """Names of the teams that list a user, in the order of the file."""
        return [name for name, team in self.teams.items() if user in team.users]

    def joined(self, job: Job, groups: Collection[str], accounts: Collection[str] = ()) -> Job:
        """The job with the team of its user's UNIX groups, else Slurm accounts, if nothing else names one."""
        if job.team or self.teams_of(job.user):
            return job
        by_group = (name for name, team in self.teams.items() if set(team.groups) & {*groups})
        by_account = (name for name, team in self.teams.items() if set(team.accounts) & {*accounts})
        found = next(by_group, "") or next(by_account, "")
        return job.model_copy(update={"team": found}) if found else job

    def hangs_on_accounts(self, job: Job, groups: Collection[str]) -> bool:
        """Whether it takes the Slurm accounts of its user to say which team a job is in, or may name."""
        if job.team:
            named = self.teams.get(job.team)
            return named is not None and bool(named.accounts) and self.why_not(job, groups) is not None
        known = self.teams_of(job.user) or self.joined(job, groups).team
        return not known and any(team.accounts for team in self.teams.values())

    def why_not(self, job: Job, groups: Collection[str], accounts: Collection[str] = ()) -> str | None:
        """Why a job may not count for the team that it names, as a clause; None: it may."""
        team = self.teams.get(job.team)
        if not job.team:
            return None
        if team is not None and job.user in team.users:
            return None
        if team is not None and (set(team.groups) & {*groups} or set(team.accounts) & {*accounts}):
            return None
        if team is None:
            return f'names team "{job.team}", expected one of {", ".join(self.teams) or "none"}'
        return f'names team "{job.team}", which user {job.user or "(none)"} is not in'

    def team_of(self, job: Job) -> str:
        """The team that a job counts for: the one that it names, else the first that lists its user, else
        that of its label, whether it is in the file or not, else "*".
        """
        if job.team and job.team in self.teams:
            return job.team
        listed = self.teams_of(job.user)
        if listed:
            return listed[0]
        if self.label == USER:
            return job.user or OTHERS
        return (job.labels.get(self.label, "") if self.label is not None else "") or OTHERS

    def team(self, name: str) -> Team:
        return self.teams.get(name) or _OTHERS

    def most_gpus(self, job: Job) -> float:
        """GPUs that the team of a job never exceeds; infinity: it has no such limit."""
        return self.team(self.team_of(job)).max.get(ANY_TYPE, math.inf)

    def owner_of(self, job: Job) -> Owner:
        name = self.team_of(job)
        return Owner(name, job.user if self.team(name).weighs_users else "")

    def weight_of(self, owner: Owner) -> float:
        """The weight of a user within the team; one that the team does not list has 1."""
        users = self.team(owner.team).users
        return users.get(owner.user, 1.0) if isinstance(users, dict) else 1.0


class Owner(NamedTuple):
    """Whom GPUs are counted for: a team, or one user of a team that weighs its users."""

    team: str
    user: str = ""
    """Empty: all of the team."""


_OTHERS: Final = Team.model_construct()
