"""What Slurm's commands print, of any version from 20.11 on: pure functions from text to records.

They read text for people, as ``--json`` is an option of the build and changes with every release.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Final

from pliant.schemas.cluster import OF_SLURM, NodeReservation
from pliant.schemas.quantities import read_time

_PAIR: Final = re.compile(r"(?:^|\s)([A-Z][A-Za-z_]*(?::[A-Z][A-Za-z]*)?)=")
_GPUS: Final = re.compile(
    r"^gpu(?::(?P<type>(?!no_consume)[^:()]+))??(?::no_consume)?(?:\([^)]*\))?(?::(?P<count>\d+)[KMG]?)?(?:\([^)]*\))?$"
)
_SETTING: Final = re.compile(r"^(\S+)\s+=\s?(.*)$")
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
_SYMBOLS: Final = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINT",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""Signs after a state, which releases before 21.08 print instead of words."""
_SERVES: Final = frozenset({"IDLE", "ALLOCATED", "MIXED", "COMPLETING", "PLANNED", "RESERVED"})
_WITHDRAWN: Final = frozenset(
    {"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "INVALID", "INVALID_REG", "BLOCKED"}
    | {"POWERING_DOWN", "POWER_DOWN", "POWER_DRAIN", "REBOOT_ISSUED", "MAINT", "MAINTENANCE"}
)
"""Flags with which a node gets no new job. A node that is powered down wakes up for one."""
_UNSET: Final = frozenset({"", "(null)", "N/A", "None", "n/a"})
_NO_LIMIT: Final = frozenset({"", "UNLIMITED", "INFINITE", "NONE"})
_MEGABYTE: Final = 1 << 20
_MOST_HOSTS: Final = 100_000
"""Maximum hosts of one range of names."""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node, as Slurm sees it."""

    name: str
    address: str
    """Host name or IP address."""
    host: str
    state: frozenset[str]
    """Words like IDLE, DRAIN, NOT_RESPONDING."""
    cpus: int
    memory_bytes: int
    gpus: tuple[tuple[str, int], ...]
    """(type, count) of its GPUs; the type is empty if Slurm names none."""
    partitions: tuple[str, ...]
    reason: str = ""
    version: str = ""
    features: tuple[str, ...] = ()
    threads_per_core: int = 1

    @property
    def cores(self) -> int:
        return self.cpus // self.threads_per_core

    def gpu_count(self, gres: str = "gpu") -> int:
        """The GPUs that ``--gres`` means by that name: all, or those of one type ("gpu:a100")."""
        kind = gres.partition(":")[2]
        return sum(count for name, count in self.gpus if kind in ("", name))

    @property
    def serves(self) -> bool | None:
        """Whether jobs can run there. Returns None if the controller does not know, as after a restart."""
        if "UNKNOWN" in self.state or not self.state:
            return None
        return bool(self.state & _SERVES) and not self.state & _WITHDRAWN

    @property
    def responds(self) -> bool:
        return "NOT_RESPONDING" not in self.state


@dataclass(frozen=True, slots=True)
class SlurmPartition:
    """One queue of jobs."""

    name: str
    default: bool
    up: bool
    limit: str
    """Limit of the running time of jobs, as Slurm writes it; empty for none."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job that waits or runs."""

    id: str
    state: str
    """PENDING, RUNNING, COMPLETING, …"""
    nodes: str
    reason: str
    uid: int
    name: str


@dataclass(frozen=True, slots=True)
class SlurmStep:
    """One step that runs."""

    id: str
    """JOB.STEP."""
    node: str
    name: str

    @property
    def job_id(self) -> str:
        return self.id.partition(".")[0]


def jobs(text: str, mark: str = "") -> list[SlurmJob]:
    """What ``squeue`` printed for :data:`.commands.JOB_FIELDS`.

    :param mark: with which each job begins. A name may have lines that look like jobs of other accounts.
    """
    read = []
    for line in text.splitlines():
        if not line.startswith(mark):
            continue
        fields = [field.strip() for field in line.removeprefix(mark).split("|", 5)]
        if len(fields) == 6 and fields[4].isdecimal():
            job_id, state, nodes, reason, uid, name = fields
            read.append(SlurmJob(job_id, state, nodes, reason, int(uid), name))
    return read


def steps(text: str) -> list[SlurmStep]:
    """What ``squeue --steps`` printed for :data:`.commands.STEP_FIELDS`."""
    rows = (line.split("|", 2) for line in text.splitlines())
    return [SlurmStep(*(field.strip() for field in row)) for row in rows if len(row) == 3]


def nodes(text: str) -> list[SlurmNode]:
    """What ``scontrol --oneliner show node`` printed, except for lines that are not about nodes."""
    read = []
    for line in text.splitlines():
        fields = _fields(line)
        if "NodeName" in fields:
            read.append(_node(fields))
    return read


def partitions(text: str) -> list[SlurmPartition]:
    """What ``scontrol --oneliner show partition`` printed."""
    rows = [_fields(line) for line in text.splitlines()]
    return [
        SlurmPartition(
            name=row["PartitionName"],
            default=row.get("Default", "") == "YES",
            up=row.get("State", "") == "UP",
            limit="" if (limit := row.get("MaxTime", "")) in _NO_LIMIT else limit,
        )
        for row in rows
        if "PartitionName" in row
    ]


def reservations(text: str, account: str) -> list[NodeReservation]:
    """What ``scontrol --oneliner show reservation`` printed of those with nodes, times in seconds.

    Without those that hold parts of nodes, whose times float with the clock, or in which the account may run.
    """
    read = []
    for row in map(_fields, text.splitlines()):
        flags, users = ({*row.get(name, "").split(",")} for name in ("Flags", "Users"))
        if {"PART_NODES", "TIME_FLOAT"} & flags or (account in users and "MAINT" not in flags):
            continue
        nodes = host_names(row.get("Nodes", ""))
        with suppress(KeyError, ValueError):  # one that is none here: without nodes, or without an end
            begin_s, end_s = read_time(row["StartTime"]), read_time(row["EndTime"])
            read.append(
                NodeReservation(
                    name=row["ReservationName"],
                    nodes=tuple(nodes),
                    begin=begin_s,
                    end=end_s,
                    reason=row.get("Comment", ""),
                    made_by=OF_SLURM,
                )
            )
    return sorted(read, key=lambda each: each.name)


def topology(text: str) -> dict[str, dict[str, str]]:
    """What ``scontrol show topology`` printed: by level, the lowest first, the domain of each node.

    Levels are ``switch0``, ``switch1``, … of a tree, or ``block`` and, of N nodes each, ``blocksN``. Without
    those in which nodes are in several domains: no such network is a tree.
    """
    domains: dict[tuple[int, str], dict[str, str]] = {}
    overlapping: set[str] = set()
    for line in text.splitlines():
        fields = _fields(line)
        if (name := fields.get("SwitchName")) is not None:
            rank = _number(fields.get("Level", ""))
            level = f"switch{rank}"
        elif (name := fields.get("BlockName")) is not None:
            rank, level = 0, "block"
        elif (name := fields.get("AggregatedBlock")) is not None:
            rank = _number(fields.get("BlockSize", ""))
            level = f"blocks{rank}"
        else:
            continue
        domain_of = domains.setdefault((rank, level), {})
        for node in host_names(fields.get("Nodes", "")):
            if domain_of.setdefault(node, name) != name:
                overlapping.add(level)
    return {level: domains[rank, level] for rank, level in sorted(domains) if level not in overlapping}


def host_names(text: str) -> list[str]:
    """The names of a list: ``n[01-03,7]x,m`` are n01x, n02x, n03x, n7x and m."""
    names = []
    for part in re.split(r",(?![^[]*\])", text):
        pieces = [_numbers(piece) for piece in re.split(r"(\[[^]]*\])", part) if piece]
        names += ["".join(each) for each in product(*pieces)] if pieces and text not in _UNSET else []
    return names


def _numbers(piece: str) -> list[str]:
    """What may stand at a place of a name: the numbers in brackets, or the text itself."""
    if not piece.startswith("["):
        return [piece]
    numbers: list[str] = []
    for part in piece[1:-1].split(","):
        low, _, high = part.partition("-")
        last = min(_number(high or low), _number(low) + _MOST_HOSTS)
        numbers += [str(number).zfill(len(low)) for number in range(_number(low), last + 1)]
    return numbers


def job_state(text: str) -> str:
    """The state of the job in what ``scontrol --oneliner show job`` printed; empty if there is none."""
    return _fields(text.strip()).get("JobState", "")


def accounts(text: str) -> list[str]:
    """What ``sacctmgr`` printed for :func:`.commands.show_accounts`, each account once."""
    return sorted({line.strip() for line in text.splitlines()} - {""})


def settings(text: str) -> dict[str, str]:
    """What ``scontrol show config`` printed, by name."""
    matches = (_SETTING.match(line) for line in text.splitlines())
    return {one[1]: one[2].strip() for one in matches if one is not None}


def version(text: str) -> tuple[int, int] | None:
    """Year and month of the release, in what a command printed for ``--version``."""
    match = _VERSION.search(text)
    return None if match is None else (int(match[1]), int(match[2]))


def state_words(text: str) -> frozenset[str]:
    """The words of a node's state: ``IDLE*+DRAIN`` and ``IDLE+DRAIN+NOT_RESPONDING`` are the same."""
    words: set[str] = set()
    for word in text.upper().split("+"):
        bare = word.rstrip("".join(_SYMBOLS))
        words.add(bare)
        words.update(_SYMBOLS[sign] for sign in word[len(bare) :])
    return frozenset(words - {""})


def gpus(text: str) -> tuple[tuple[str, int], ...]:
    """(type, count) of each kind of GPU in a list of resources: ``gpu:a100:4(S:0-1),shard:8``."""
    counts: dict[str, int] = {}
    for part in re.split(r",(?![^(]*\))", text):
        one = _GPUS.match(part.strip())
        if one is not None:
            kind, count = one["type"] or "", one["count"]
            if count is None and kind.isdecimal():  # "gpu:4": what follows the name is the count
                kind, count = "", kind
            counts[kind] = counts.get(kind, 0) + int(count or 1)
    return tuple(counts.items())


def _fields(line: str) -> dict[str, str]:
    """The ``Name=value`` pairs of a line, whose values may contain blanks.

    The first of each name counts: a reason, which people have written, comes after what Slurm says.
    """
    fields: dict[str, str] = {}
    places = list(_PAIR.finditer(line))
    ends = [*(place.start() for place in places[1:]), len(line)]
    for place, end in zip(places, ends, strict=False):
        fields.setdefault(place[1], line[place.end() : end].strip())
    return fields


def _node(fields: dict[str, str]) -> SlurmNode:
    name = fields["NodeName"]
    given = {key: value for key, value in fields.items() if value not in _UNSET}
    return SlurmNode(
        name=name,
        address=given.get("NodeAddr", name),
        host=given.get("NodeHostName", name),
        state=state_words(given.get("State", "")),
        cpus=_number(given.get("CPUEfctv", given.get("CPUTot", ""))),
        memory_bytes=_number(given.get("RealMemory", "")) * _MEGABYTE,
        gpus=gpus(given.get("Gres", "")),
        partitions=tuple(part for part in given.get("Partitions", "").split(",") if part),
        reason=given.get("Reason", "").partition(" [")[0],
        version=given.get("Version", ""),
        features=tuple(word for word in given.get("AvailableFeatures", "").split(",") if word),
        threads_per_core=max(1, _number(given.get("ThreadsPerCore", ""))),
    )


def _number(text: str) -> int:
    digits = re.match(r"\d{1,15}", text)
    return 0 if digits is None else int(digits[0])
