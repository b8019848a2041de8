"""Who calls: the process at the other end of a socket, and its account with the groups that it is in."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from pliant.tools.run.statedir.directory import Account, account_name

GROUPS_TTL_S: Final = 60.0
"""Seconds for which the groups of an account are cached."""
_NO_GROUP: Final = 65534
_CREDENTIALS: Final = struct.Struct("iII")


class Peer(NamedTuple):
    """The process at the other end of a socket."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(credentials))


class Caller(NamedTuple):
    """An account with the groups that it is in."""

    uid: int
    name: str
    gid: int
    groups: frozenset[str]

    @classmethod
    def of(cls, uid: int) -> Caller:
        return _person(uid, int(time.monotonic() / GROUPS_TTL_S))

    @property
    def account(self) -> Account:
        return Account(self.uid, self.name)

    def is_among(self, names: Iterable[str]) -> bool:
        return any(name[1:] in self.groups if name.startswith("@") else name == self.name for name in names)


@lru_cache(maxsize=4096)
def _person(uid: int, _at: int) -> Caller:
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return Caller(uid, account_name(uid), _NO_GROUP, frozenset())
    return Caller(uid, account.pw_name, account.pw_gid, frozenset(_groups(account)))


def _groups(found: pwd.struct_passwd) -> Iterable[str]:
    for gid in os.getgrouplist(found.pw_name, found.pw_gid):
        try:
            yield grp.getgrgid(gid).gr_name
        except KeyError:
            continue
