"""The choice of a client for a state directory."""

from __future__ import annotations

import os
from pathlib import Path

from pliant.tools.run.gateway.client import Client
from pliant.tools.run.gateway.own_client import OwnClient
from pliant.tools.run.statedir.directory import ROOT, StateDir


def client_for(state: Path) -> Client:
    """The client for a state directory."""
    path = state.resolve()
    try:
        is_remote = os.geteuid() not in (ROOT, os.lstat(path).st_uid) and bool(os.lstat(StateDir(path).door))
    except OSError:
        is_remote = False
    if not is_remote:
        return OwnClient(state)
    from pliant.tools.run.gateway.munge_transport import munge_for
    from pliant.tools.run.gateway.remote_client import MungeClient, SocketClient

    munge = munge_for(StateDir(path))
    return SocketClient(state) if munge is None else MungeClient(state, munge)
