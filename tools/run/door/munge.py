"""Credentials of munge, which says on every host of a Slurm cluster whose process made one.

A credential holds the digest of what it is about, and what that is: so it vouches for nothing else. munge
refuses one that it has seen before, and one that is too old.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from typing import Final, NamedTuple

from pliant.schemas.errors import ServiceMissingError, UsageError

LIVES_S: Final = 60
"""A credential is refused when it is older."""
WITHIN_S: Final = 30.0
"""A munged that does not answer for so long is not there."""


class Vouched(NamedTuple):
    """What a credential says."""

    uid: int
    about: dict[str, str]


@dataclass(frozen=True, slots=True)
class Munge:
    """:param socket: of munged; empty for its usual one."""

    socket: str = ""

    def encode(self, data: bytes, about: dict[str, str], *, only_for: int | None = None) -> str:
        """A credential of this account for some bytes.

        :param only_for: no other account can read it.
        :raises ServiceMissingError: munge does not answer.
        """
        payload = json.dumps({**about, "sha256": digest(data)})
        restricted = () if only_for is None else (f"--restrict-uid={only_for}",)
        words = ["munge", f"--ttl={LIVES_S}", *restricted, *self._socket()]
        done = self._call(words, payload)
        if done.returncode:
            raise ServiceMissingError(f"munge does not work here: {done.stderr.strip()}")
        return done.stdout.strip()

    def decode(self, credential: str) -> Vouched:
        """Whose a credential is. It counts once.

        :raises UsageError: munge refuses it: it was used, is too old, or is no credential.
        :raises ServiceMissingError: munge does not answer.
        """
        words = ["unmunge", "--keys=STATUS,UID,TTL", *self._socket()]
        done = self._call(words, credential)
        head, _, payload = done.stdout.partition("\n\n")
        said = dict(line.split(":", 1) for line in head.splitlines() if ":" in line)
        if done.returncode:
            why = done.stderr.strip() or said.get("STATUS", "").strip() or f"code {done.returncode}"
            raise UsageError(f"munge refuses the credential: {why}")
        if not 0 < int(said["TTL"]) <= LIVES_S:
            raise UsageError(f"munge refuses the credential: it lives longer than {LIVES_S} s")
        try:
            about = json.loads(payload)
        except (ValueError, RecursionError):
            about = None
        if not isinstance(about, dict):
            raise UsageError("munge's credential is about something else")
        uid = int(said["UID"].rpartition("(")[2].rstrip(") "))  # after the name, if it has one
        return Vouched(uid, {str(name): str(value) for name, value in about.items()})

    def check(self, credential: str, data: bytes, about: dict[str, str]) -> int:
        """The account that vouches for these bytes; raises as :meth:`decode`."""
        found = self.decode(credential)
        if found.about != {**about, "sha256": digest(data)}:
            raise UsageError("munge's credential is about something else")
        return found.uid

    def _socket(self) -> tuple[str, ...]:
        return (f"--socket={self.socket}",) if self.socket else ()

    @staticmethod
    def _call(words: list[str], given: str) -> subprocess.CompletedProcess[str]:
        if shutil.which(words[0]) is None:
            raise ServiceMissingError(f"{words[0]} is not installed here")
        try:
            return subprocess.run(
                words, input=given, capture_output=True, text=True, check=False, timeout=WITHIN_S
            )
        except subprocess.TimeoutExpired as error:
            raise ServiceMissingError("munge does not answer: is munged there?") from error


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
