"""The container that each process of a job runs in."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from pliant.schemas.file_io.record import PlainText, Record, broken_rule

ContainerRuntime = Literal["apptainer", "docker", "podman", "pyxis"]
_MODES: Final = ("ro", "rw")
_OWN_OPTIONS: Final = frozenset(
    {
        *("-d", "--detach", "--name", "--rm", "-t", "--tty", "-it", "-ti", "--entrypoint", "--restart"),
        *("--cidfile", "--replace", "-w", "--workdir", "--pwd", "--container-image", "--container-workdir"),
    }
)
"""Options that would keep the command from running as it would without a container."""
_ENV_OPTIONS: Final = ("-e", "--env")


class Container(Record):
    """A container around each process of the job: same paths, same process ids, the image's programs.

    The job's folder and its workdir are mounted where they are, and the network, process ids and shared
    memory are the node's.
    """

    image: Annotated[PlainText, Field(min_length=1)]
    """Name or file of the image, as the runtime takes it; relative to workdir."""
    runtime: ContainerRuntime = "podman"
    """The program that runs it; pyxis: Slurm's plugin, through srun."""
    mounts: tuple[PlainText, ...] = ()
    """More files and folders of the node that it sees: ``SOURCE[:TARGET[:ro]]``, SOURCE relative to
    workdir. Default of TARGET: the same path."""
    options: tuple[PlainText, ...] = ()
    """More options of the runtime's run or exec (of srun, for pyxis), one word each."""

    @model_validator(mode="after")
    def _can_be_passed_on(self) -> Self:
        if self.image.startswith("-"):
            raise broken_rule(f"{self.image} is an option, expected an image", "/image")
        for at, mount in enumerate(self.mounts):
            source, *rest = mount.split(":")
            if not source or len(rest) > 2 or any(not target.startswith("/") for target in rest[:1]):
                text = f"{mount} is no mount, expected SOURCE, SOURCE:/TARGET or SOURCE:/TARGET:ro"
                raise broken_rule(text, f"/mounts/{at}")
            if rest[1:] and rest[1] not in _MODES:
                raise broken_rule(f"{mount} ends in {rest[1]}, expected ro or rw", f"/mounts/{at}")
        for at, option in enumerate(self.options):
            name, _, value = option.partition("=")
            if name in _OWN_OPTIONS:
                raise broken_rule(f"{name} is for pliant to say, leave it out", f"/options/{at}")
            follows = self.options[at + 1] if not value and at + 1 < len(self.options) else ""
            if name in _ENV_OPTIONS and "=" in (value or follows):
                text = f"{name} shows a value on the command line, expected it in env of the job"
                raise broken_rule(text, f"/options/{at}")
        return self
