"""The ``cluster`` kind: the nodes, what is in them, and how teams share them (JSON)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from pliant.schemas.file_io.record import (
    MOST_GPUS,
    NODE_NAME,
    TEAM_NAME,
    Identifier,
    NonNegativeFloat,
    NonNegativeInt,
    PlainText,
    PositiveFloat,
    Record,
    broken_rule,
)
from pliant.schemas.job import Job
from pliant.schemas.quantities import Moment
from pliant.schemas.text import EPOCH_LIKE_S, counted

GpuLimit = Annotated[int, Field(ge=0, le=MOST_GPUS)]
TeamName = Annotated[str, Field(pattern=TEAM_NAME)]
OTHERS: Final = "*"
"""The team of all jobs that are in no other."""
USER: Final = "user"
"""As the label that names teams: each user is a team."""
Preemptible = Literal["all", "stated"]
"""Whose GPUs policies may take or change: of all jobs, or of those that state or show that they can save."""
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
        name = next(by_group, "") or next(by_account, "")
        return job.model_copy(update={"team": name}) if name else job

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


MOST_NODES: Final = 1_000_000
MOST_OF_NODE: Final = 1024
"""GPUs of a node."""
SlurmWord = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@,/-]{0,255}$")]
SbatchOption = Annotated[str, Field(pattern=r"^-[^\x00-\x1f]{1,1023}$")]
OWN_OPTIONS: Final = ("job-name", "array", "clusters", "wrap", "wait", "parsable", "test-only", "uid")
"""Options of sbatch that a cluster file may not set, not even abbreviated: sbatch accepts that, too."""
OWN_LETTERS: Final = "JaMW"
LEVEL_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
DEVICE_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9./_-]{0,127}$"


class Node(Record):
    """One machine. With ``count``, a shorthand for that many alike, ``{}`` in the name numbering them."""

    name: Annotated[str, Field(pattern=NODE_NAME)]
    gpus: Annotated[int, Field(ge=0, le=MOST_OF_NODE)]
    """GPUs, or CPU slots where the cluster's ``slots`` is "cpu": room for one worker each. A node with 0 can
    hold parameter servers only."""
    gpu_type: str = "gpu"
    """Key into the profile; one type a node."""
    count: Annotated[int, Field(gt=0, le=MOST_NODES)] | None = None
    """This many such nodes. Default: one, with the name as it stands."""
    address: str | None = None
    """Address other nodes reach it at. Default: its name; the loopback address on a local cluster."""
    cpus: PositiveFloat | None = None
    """CPU cores. What a node states limits the jobs that state a demand of it (``resources``)."""
    memory: NonNegativeInt | None = None
    """Main memory, bytes."""
    gpu_memory: NonNegativeInt | None = None
    """Memory of one GPU (or allowed to one CPU slot), bytes: the limit that profile probes against."""
    bandwidth: NonNegativeFloat | None = None
    """Network bandwidth, bytes per second."""
    resources: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Further capacities by name: disk, bytes; gpu, where ``gpus`` counts workers that use none or more."""
    switch: str | None = None
    """Name of the switch the node hangs on; nodes of one switch are near each other."""
    labels: dict[str, str] = Field(default_factory=dict)
    """What jobs may ask of a node by name and value: {"nvlink": "", "rack": "a"}; and its domain by level."""
    devices: tuple[Annotated[str, Field(pattern=DEVICE_NAME)], ...] = ()
    """Which GPUs of the machine these are, as CUDA_VISIBLE_DEVICES names them. Default: the next in order."""

    @model_validator(mode="after")
    def _has_a_device_for_each_gpu(self) -> Self:
        if not self.devices:
            return self
        if self.count is not None:
            raise broken_rule("is for one node, expected no count beside it", "/devices")
        if len(set(self.devices)) != self.gpus or len(self.devices) != self.gpus:
            devices = counted(len(set(self.devices)), "device")
            raise broken_rule(f"names {devices}, expected {self.gpus} as in gpus", "/devices")
        return self


class UserLimit(Record):
    """What the jobs of one user may hold together at a time."""

    gpus: Annotated[int, Field(gt=0, le=MOST_GPUS)] | None = None
    """GPUs (or CPU slots). Default: any number."""
    jobs: Annotated[int, Field(gt=0)] | None = None
    """Jobs. Default: any number."""


class Sharing(Record):
    """When two jobs may train on the same GPUs, and how fast, where the profile has not measured the pair.

    Jobs that a profile has measured together are taken as measured. The memory of others is known where the
    profile has measured both alone and every node of the type states its ``gpu_memory``: then they share
    where both fit.
    """

    unmeasured: Literal["alone", "together"] = "alone"
    """What two jobs do if it is not known whether the memory of a GPU holds both."""
    speed: Annotated[float, Field(gt=0, le=1)] = 0.65
    """Part of its speed alone that each keeps, where that was not measured."""


class IdleRule(Record):
    """What happens to jobs that hardly use their GPUs, or CPU slots. Not measured is not idle."""

    below: Annotated[float, Field(gt=0, le=1)]
    """A job is idle while it uses less than this part of its slots, as a mean over a minute."""
    for_seconds: PositiveFloat
    """For how long without a break."""
    then: Literal["warn", "shrink", "end"] = "warn"
    """"shrink": an elastic job keeps its smallest size for an hour; "end": it saves and is cancelled."""


class StragglerRule(Record):
    """What happens to workers that need longer for their part of a step than the others of their job.

    Known of jobs with the elastic library on CPU slots; workers on GPUs do not measure it.
    """

    slower: Annotated[float, Field(gt=1)] = 1.5
    """A worker is slow while it needs this many times the median of its peers; alone, of its own best."""
    for_seconds: PositiveFloat = 300.0
    """For how long without a break."""
    then: Literal["warn", "move"] = "move"
    """"move": an elastic job moves once to a free slot, and no job gets the slow one for an hour."""


NoticeKind = Literal[
    "finished", "failed", "cancelled", "rejected", "waiting", "quarantined", "node_down"
]  # fmt: skip


class Retention(Record):
    """How many days what has ended is kept."""

    jobs: PositiveFloat | None = None
    """After the end of a job: then its events move from the log to an archive. Default: never."""
    events: PositiveFloat | None = None
    """After a decision: then its event moves with those of jobs. Default: as for jobs."""
    outputs: PositiveFloat | None = None
    """After the end of a job: then what its attempts printed and noted is removed. Default: never."""
    checkpoints: PositiveFloat | None = None
    """After the end of a job: then those in its folder are removed. Default: never."""

    @model_validator(mode="after")
    def _jobs_stay_longest(self) -> Self:
        for name in ("outputs", "checkpoints"):
            days = getattr(self, name)
            if days is not None and self.jobs is not None and days > self.jobs:
                raise broken_rule(f"expected no more than the {self.jobs:g} days of jobs", f"/{name}")
        if self.events is not None and self.jobs is None:
            raise broken_rule("moves with jobs, expected their days, too", "/events")
        return self


class Notify(Record):
    """Who hears of what happens, as JSON: a command on its stdin, or a web server."""

    on: tuple[NoticeKind, ...] = ("failed", "waiting", "quarantined", "node_down")
    """What it hears of; "quarantined": a slot that waits for an operator."""
    command: tuple[str, ...] = ()
    """Words of a command; it has taken a notice when it exits with 0."""
    url: str | None = None
    """Address that notices are posted to. All accounts see the cluster file of a shared run."""
    url_file: str | None = None
    """File that holds the address, where that is a secret."""
    waiting_seconds: PositiveFloat = 3600.0
    """A job waits too long when it has not started by then."""

    @model_validator(mode="after")
    def _has_one_way(self) -> Self:
        if sum(map(bool, (self.command, self.url, self.url_file))) != 1:
            raise broken_rule("expected one of command, url and url_file", "")
        return self

    @property
    def name(self) -> str:
        """The target in messages, without what may be secret."""
        return self.command[0] if self.command else self.url_file or "its url"


class LeaseLimits(Record):
    """How many nodes are leased, and for how long without a job."""

    min_nodes: NonNegativeInt = 0
    """Nodes that are kept from the first job on."""
    max_nodes: Annotated[int, Field(gt=0)] | None = None
    """The most nodes at a time. Default: all."""
    idle_seconds: NonNegativeFloat = 300.0
    """A node on which nothing runs is given back after this time."""

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        if self.max_nodes is not None and self.min_nodes > self.max_nodes:
            raise broken_rule(f"{self.min_nodes} is above max_nodes {self.max_nodes}", "/min_nodes")
        return self


class LeaseRule(LeaseLimits):
    """Leases follow the jobs. Its limits are for the nodes that are in none of its partitions."""

    partitions: dict[SlurmWord, LeaseLimits] = Field(default_factory=dict)
    """Limits for the nodes of a partition of Slurm, which are leased there; of several the first counts."""


class SlurmOptions(Record):
    """How nodes are asked for where the backend is Slurm."""

    partition: SlurmWord | None = None
    """Default: Slurm's own, as for all of these."""
    account: SlurmWord | None = None
    qos: SlurmWord | None = None
    reservation: SlurmWord | None = None
    lease_seconds: PositiveFloat | None = None
    """For how long a node is asked for at a time. Default: what Slurm gives to jobs that state nothing."""
    gres: SlurmWord = "gpu"
    """What its GPUs are called in --gres, type included: "gpu:a100"."""
    gpu_choice: Literal["slot", "slurm"] = "slot"
    """"slot": a worker gets the GPU of its slot; "slurm": Slurm chooses, by number only."""
    exclusive: bool = True
    """Ask for whole nodes; otherwise for the GPUs (or CPU slots), cpus and memory that the file names."""
    options: tuple[SbatchOption, ...] = ()
    """Further options of sbatch: "--constraint=ib"."""
    leases: LeaseRule | None = None
    """Take leases when jobs need them, and give them back. Default: the first job leases all nodes."""
    notice_seconds: Annotated[float, Field(gt=0, le=65_535)] | None = None
    """How long before a time limit Slurm announces the end (--signal=USR1@…), so that jobs leave the node
    while they train, or save. Default: not at all."""

    @model_validator(mode="after")
    def _leaves_jobs_to_be_found(self) -> Self:
        """Jobs are found again by their names."""
        for index, option in enumerate(self.options):
            long = option.partition("=")[0].removeprefix("--")
            is_long = option.startswith("--")
            if any(name.startswith(long) for name in OWN_OPTIONS) if is_long else option[1] in OWN_LETTERS:
                raise broken_rule(f"{option.partition('=')[0]} is set by pliant itself", f"/options/{index}")
        return self


Time = Annotated[NonNegativeFloat, Moment()]
OF_SLURM: Final = "Slurm's own"
"""Maker of reservations that Slurm has; no account has this name."""


class NodeReservation(Record):
    """Nodes that are kept free for a time: for maintenance, or for the jobs of some teams and users."""

    name: Identifier
    nodes: tuple[str, ...]
    """Names of nodes of the cluster."""
    begin: Time
    """A date ("2026-12-24T08:00:00Z", without an offset local time), or seconds on the clock of the jobs'
    submit_time: in a replay those of its trace."""
    end: Time
    """As ``begin``."""
    teams: tuple[TeamName, ...] = ()
    """Teams whose jobs may run there meanwhile."""
    users: tuple[str, ...] = ()
    """Users whose jobs may. Nobody is named: it is for maintenance."""
    notice_seconds: NonNegativeFloat = 120.0
    """How long before its begin the jobs that can save leave; the others may end there until it begins."""
    reason: PlainText = ""
    made_by: PlainText = ""
    """Who made it with ``pliant reserve``, or "Slurm's own"; a changed cluster file leaves it as it is."""

    @model_validator(mode="after")
    def _lasts(self) -> Self:
        if not self.nodes:
            raise broken_rule("names no node", "/nodes")
        if self.end <= self.begin:
            raise broken_rule("is not after its begin", "/end")
        return self

    @property
    def is_maintenance(self) -> bool:
        return not (self.teams or self.users)

    def on_clock(self, origin_s: float) -> tuple[float, float, float]:
        """When its nodes get closed, when it begins and when it ends, on a clock behind UTC by this much."""
        begin_s, end_s = (at if at < EPOCH_LIKE_S else at - origin_s for at in (self.begin, self.end))
        return begin_s - self.notice_seconds, begin_s, end_s


class Cluster(Record):
    """All nodes of a cluster and how to reach them."""

    schema_: Literal["pliant.cluster/1"] = Field(default="pliant.cluster/1", alias="schema")
    nodes: tuple[Node, ...]
    slots: Literal["gpu", "cpu"] = "gpu"
    """"cpu": a slot is one CPU worker (laptops, CI); "gpu": a slot is a GPU."""
    levels: tuple[Annotated[str, Field(pattern=LEVEL_NAME)], ...] = ()
    """Levels of its network, the smallest first, each a label of its nodes: ["island", "rack"]. Nodes with
    one value of it are a domain of that level; a job stays in one of the lowest level that holds it."""
    backend: Literal["local", "slurm", "slurm-jobs"] = "local"
    """"slurm": leases of nodes, and steps in them; "slurm-jobs": a job of Slurm for each start of a job."""
    slurm: SlurmOptions = Field(default_factory=SlurmOptions)
    speeds: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Relative speed of a GPU type where the profile knows only another type. Default: 1."""
    price: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Price of an hour of a GPU by its type, in any currency. Default: bills have no money."""
    min_run_seconds: NonNegativeFloat = 0.0
    """No policy preempts a job that has had its GPUs for less than this."""
    cooldown_seconds: NonNegativeFloat = 0.0
    """No policy changes the GPUs or the batch of a job whose last change is less than this ago."""
    preemptible: Preemptible | None = None
    """Whose GPUs policies may take or change in ``schedule`` and ``run``: of all jobs, or of those that state
    or show that they can save. Default: stated. In a replay its option says so."""
    user_limits: dict[str, UserLimit] = Field(default_factory=dict)
    """Limits by the user that jobs name; "*": those of each user that is not named here."""
    sharing: Sharing = Sharing.model_construct()
    """What policies that pack jobs may assume of two jobs on one GPU."""
    shares: Shares | None = None
    """The teams that share it, and how. Default: it is one pool."""
    idle: IdleRule | None = None
    """A rule about jobs that hardly use their slots. Default: none."""
    stragglers: StragglerRule | None = None
    """A rule about workers that are slower than the others of their job. Default: none."""
    reservations: tuple[NodeReservation, ...] = ()
    """Nodes that are kept free for a time."""
    notify: tuple[Notify, ...] = ()
    """Who hears of jobs that end, fail or wait, and of sick slots and nodes."""
    retention: Retention | None = None
    """How long jobs that ended stay in the log and on disk. Default: for ever."""
    isolation: bool = True
    """Whether each unit of a job on the local backend gets a control group, where the system lets one be
    made: no more memory and cores than the job demands, or its share of the node, and only its GPUs."""

    @model_validator(mode="after")
    def _is_of_this_world(self) -> Self:
        """Checked before nodes are expanded: a count too large would fill memory."""
        nodes = sum(node.count or 1 for node in self.nodes)
        for what, count, most in (("nodes", nodes, MOST_NODES), ("GPUs", self.total_gpus, MOST_GPUS)):
            if count > most:
                raise broken_rule(f"{count:,} {what} in all, expected {most:,} or less", "/nodes")
        return self

    @model_validator(mode="after")
    def _has_leases(self) -> Self:
        if self.slurm.leases is not None and self.backend == "slurm-jobs":
            raise broken_rule('is for the backend "slurm": this one leases no nodes', "/slurm/leases")
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        seen: set[str] = set()
        for index, node in enumerate(self.nodes):
            for name in names_of(node):
                if name in seen:
                    raise broken_rule(f"node name {name!r} is used twice", f"/nodes/{index}/name")
                seen.add(name)
        return self

    @model_validator(mode="after")
    def _reservations_fit(self) -> Self:
        there = {name for node in self.nodes for name in names_of(node)} if self.reservations else set()
        seen = set[str]()
        for index, each in enumerate(self.reservations):
            if each.name in seen:
                raise broken_rule(f"reservation {each.name!r} is there twice", f"/reservations/{index}/name")
            if unknown := [name for name in each.nodes if name not in there]:
                text = f"the cluster has no node {unknown[0]!r}"
                raise broken_rule(text, f"/reservations/{index}/nodes")
            if each.teams and self.shares is None:
                text = f"names team {each.teams[0]!r}, and no teams share the cluster"
                raise broken_rule(text, f"/reservations/{index}/teams")
            seen.add(each.name)
        return self

    @model_validator(mode="after")
    def _levels_nest(self) -> Self:
        """Whether nodes that share a domain share those of all higher levels, too."""
        for place, level in enumerate(self.levels):
            if level in self.levels[:place]:
                raise broken_rule(f"names level {level!r} twice", f"/levels/{place}")
            if not any(level in node.labels for node in self.nodes):
                raise broken_rule(f"no node has the label {level!r}", f"/levels/{place}")
        for low, high in pairwise(self.levels):
            around: dict[str, str | None] = {}
            for index, node in enumerate(self.nodes):
                if (own := node.labels.get(low)) is None:
                    continue
                above = node.labels.get(high)
                if around.setdefault(own, above) != above or (above is None and node.count not in (None, 1)):
                    text = f"nodes of {low} {own!r} differ in {high}, expected a {low} within one {high}"
                    raise broken_rule(text, f"/nodes/{index}/labels")
        return self

    def expanded(self) -> tuple[Node, ...]:
        """One entry for each node."""
        return expanded(self.nodes)

    @property
    def minor(self) -> int:
        """1: nodes name devices, or it says how Slurm is asked, or has rules. 2: nodes have ``resources``, or
        it says when jobs share GPUs. 3: teams share it, Slurm gives notice, or it
        has rules about idle jobs or stragglers, or levels. 4: it says whose GPUs policies may take, or that
        jobs are not isolated. 5: GPUs have prices, or it says who is notified. 6: it has reservations, or
        leases that follow the jobs, or says what is retained.
        """
        if self.reservations or self.slurm.leases is not None or self.retention is not None:
            return 6
        if self.price or self.notify:
            return 5
        if self.preemptible is not None or not self.isolation:
            return 4
        newest = (self.shares, self.slurm.notice_seconds, self.idle, self.stragglers)
        if self.levels or any(each is not None for each in newest):
            return 3
        if self.sharing != Sharing() or any(node.resources for node in self.nodes):
            return 2
        rules = (self.min_run_seconds, self.cooldown_seconds, self.user_limits)
        asks = self.slurm != SlurmOptions() or self.backend == "slurm-jobs"
        asks = asks or any(node.devices for node in self.nodes)
        return int(asks or any(rules))

    def keeping_reservations(self, own: Cluster, now_s: float = -math.inf) -> Self:
        """With the reservations of a run's cluster that no file stated, as far as their nodes are here.

        Those for teams are left out where no teams share this cluster, as are those that are over.
        """
        names = {each.name for each in self.reservations}
        there = {name for node in self.nodes for name in names_of(node)} if own.reservations else set()
        kept = [
            each.model_copy(update={"nodes": nodes})
            for each in own.reservations
            if each.made_by and each.name not in names and each.end > now_s
            if self.shares is not None or not each.teams
            if (nodes := tuple(name for name in each.nodes if name in there))
        ]
        return self.model_copy(update={"reservations": (*self.reservations, *kept)}) if kept else self

    def with_preemptible(self, who: Preemptible | None) -> Self:
        """The cluster where policies may take the GPUs of these jobs; None: as it says itself."""
        same = who in (None, self.preemptible or "stated")
        return self if same else self.model_copy(update={"preemptible": who})

    @property
    def shares_gpus(self) -> bool:
        """Slurm gives a GPU to one job."""
        return self.backend == "local"

    def limit_of(self, user: str) -> UserLimit | None:
        """Returns None if the user has no limit."""
        return self.user_limits.get(user) or self.user_limits.get("*")

    @property
    def total_gpus(self) -> int:
        return sum(node.gpus * (node.count or 1) for node in self.nodes)


def expanded(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(
        node if node.count is None else node.model_copy(update={"name": name, "count": None})
        for node in nodes
        for name in names_of(node)
    )


def names_of(node: Node) -> list[str]:
    """Names of the nodes that it stands for."""
    if node.count is None:
        return [node.name]
    if "{}" not in node.name:
        return [f"{node.name}{index}" for index in range(node.count)]
    return [node.name.replace("{}", str(index)) for index in range(node.count)]
