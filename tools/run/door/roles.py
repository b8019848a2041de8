"""Who may do what in a shared run, what others see, and the limits of each user: the file of ``--roles``.

Each account may do everything with its own jobs. Operators and root may hold, release, cancel and change the
jobs of all, and drain nodes; the leads of a team may do so with the jobs of its users. Environment,
arguments and output of a job are its owner's alone.
"""

from __future__ import annotations

import grp
import logging
import os
import pwd
import stat
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pydantic import Field, ValidationError

from pliant.schemas.errors import BadInputError, PliantError, UsageError
from pliant.schemas.file_io.record import BoundedFloat, PositiveFloat, Record, problems_of
from pliant.tools.run.door.place import check_way
from pliant.tools.run.statedir.account import Account, account_name
from pliant.tools.run.statedir.directory import ROOT

MOST_BYTES: Final = 1 << 20
LOOK_S: Final = 1.0
"""A changed file takes effect within this time."""
KNOWN_S: Final = 60.0
"""The groups of an account are looked up again after this time."""
_NO_GROUP: Final = 65534
_log = logging.getLogger("pliant")
Visibility = Literal["public", "private"]


class AccountLimits(Record):
    """What one account may ask for; more is refused with one line, and is that account's problem alone."""

    requests_per_second: PositiveFloat = 20.0
    """In the long run."""
    burst: int = Field(default=60, ge=1)
    """Requests at once, after a pause."""
    connections: int = Field(default=16, ge=1)
    """At one time; each ``log -f``, ``status --watch`` or ``wait`` holds at most one."""
    waiting_jobs: int = Field(default=1000, ge=0)
    """Jobs without GPUs, of those that it submitted."""
    request_bytes: int = Field(default=4 << 20, ge=1024)
    """Of one request, such as a job file."""
    spool_bytes: int = Field(default=32 << 20, ge=1024)
    """Of its requests that the run has not taken up yet."""
    priority: BoundedFloat | None = None
    """The most that it may give its own jobs; null: any."""


class TeamRoles(Record):
    """Names of accounts, and of groups as ``@group``."""

    leads: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


class Roles(Record):
    """The file of ``--roles``."""

    schema_: Literal["pliant.roles/1"] = Field(default="pliant.roles/1", alias="schema")
    operators: tuple[str, ...] = ()
    """Accounts, and groups as ``@group``, beside root."""
    teams: dict[str, TeamRoles] = Field(default_factory=dict)
    visibility: Visibility = "public"
    """What an account sees of the jobs of others: id, user, sizes, state and times, or only counts."""
    limits: AccountLimits = AccountLimits()
    limits_of: dict[str, AccountLimits] = Field(default_factory=dict)
    """By account, instead of ``limits``."""

    def is_operator(self, who: Person) -> bool:
        return who.uid == ROOT or who.is_among(self.operators)

    def may_order(self, who: Person, owner: int) -> bool:
        """Whether an account may hold, release, cancel and change the jobs of another, or of its own."""
        if who.uid == owner or self.is_operator(who):
            return True
        led = [team for team in self.teams.values() if who.is_among(team.leads)]
        return owner != ROOT and any(Person.of(owner).is_among(team.users) for team in led)

    def may_see(self, who: Person, owner: int) -> bool:
        """Whether it sees that there is a job of that owner, and what is public of it."""
        return self.visibility == "public" or self.may_order(who, owner)

    def limits_for(self, who: Account) -> AccountLimits:
        return self.limits_of.get(who.name, self.limits)


class Person(NamedTuple):
    """An account with the groups that it is in."""

    uid: int
    name: str
    gid: int
    groups: frozenset[str]

    @classmethod
    def of(cls, uid: int) -> Person:
        return _person(uid, int(time.monotonic() / KNOWN_S))

    @property
    def account(self) -> Account:
        return Account(self.uid, self.name)

    def is_among(self, names: Iterable[str]) -> bool:
        return any(name[1:] in self.groups if name.startswith("@") else name == self.name for name in names)


@lru_cache(maxsize=4096)
def _person(uid: int, _at: int) -> Person:
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return Person(uid, account_name(uid), _NO_GROUP, frozenset())
    return Person(uid, found.pw_name, found.pw_gid, frozenset(_groups(found)))


def _groups(found: pwd.struct_passwd) -> Iterable[str]:
    for gid in os.getgrouplist(found.pw_name, found.pw_gid):
        try:
            yield grp.getgrgid(gid).gr_name
        except KeyError:
            continue


def read_roles(path: Path) -> Roles:
    """:raises UsageError: the file is not root's, or others can write it or replace it.
    :raises BadInputError: it does not say what it should.
    """
    check_way(path.resolve().parent, ROOT)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != ROOT or found.st_mode & 0o022:
            raise UsageError(f"{path}: expected a plain file of root's that no other account can write")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise BadInputError.one(str(path), f"has more than {MOST_BYTES:,} bytes")
    try:
        return Roles.model_validate_json(data)
    except ValidationError as error:
        raise BadInputError(problems_of(error, str(path))) from error


class RolesFile:
    """The roles in force. A change of the file counts at once; one that is wrong is warned of, and the roles
    before stay.

    :param path: None: only root has a role, and the limits are the default ones.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen = self._mark()
        self._roles = Roles() if path is None else read_roles(path)
        self._next_s = 0.0

    def __call__(self) -> Roles:
        if self._path is not None and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + LOOK_S
            seen = self._mark()
            if seen != self._seen:
                self._seen = seen
                try:
                    self._roles = read_roles(self._path)
                    _log.warning("the roles have changed: %s counts", self._path)
                except PliantError as error:
                    _log.warning("the roles stay as they were: %s", error)
        return self._roles

    def _mark(self) -> tuple[int, ...]:
        try:
            found = os.lstat(self._path or "")
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size, found.st_uid, found.st_mode
