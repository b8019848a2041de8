"""The package of a new policy: ``pliant new policy``. docs/writing-a-policy.md explains it.

It begins with a policy that works, to be changed: the most important jobs first.
"""

from __future__ import annotations

import re
from string import Template
from typing import Final

from pliant.schemas.errors import UsageError
from pliant.tools.schedule.registry import BUILT_IN

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

_PROJECT: Final = Template(
    """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "pliant-$name"
version = "1.0"
dependencies = ["pliant"]

[project.entry-points."pliant.policies"]
$name = "pliant_$word:$class_name"

[tool.setuptools]
py-modules = ["pliant_$word"]
"""
)
_POLICY: Final = Template(
    '''\
"""The policy $name: jobs of higher priority first."""

from typing import ClassVar

from pliant.tools.schedule.policy import Decision, Explanation, Policy, Target, Traits


class $class_name(Policy):
    """Highest priority first: free GPUs go to the most important waiting jobs, on what they requested."""

    name: ClassVar[str] = "$name"
    traits: ClassVar[Traits] = Traits(
        knows="nothing", priority_means="free GPUs go to waiting jobs of higher priority first"
    )

    def __init__(self, floor: float = 0.0) -> None:
        self.floor = floor

    def decide(self, snapshot, rng):
        free = dict(snapshot.free_gpus)
        decision = Decision()
        for job in self._waiting(snapshot):
            gpus = job.spec.gpus.requested
            for gpu_type in sorted(free):
                if free[gpu_type] >= gpus and snapshot.speeds.rate(job, gpus, gpu_type) > 0:
                    decision.targets[job.id] = Target(gpus, gpu_type)
                    free[gpu_type] -= gpus
                    break
        return decision

    def explain(self, snapshot):
        return {
            job.id: Explanation(f"priority {job.spec.priority:g}, {place} before it", job.spec.gpus.requested)
            for place, job in enumerate(self._waiting(snapshot))
        }

    def _waiting(self, snapshot):
        jobs = [job for job in snapshot.jobs.values() if not job.gpus and job.spec.priority >= self.floor]
        return sorted(jobs, key=lambda job: (-job.spec.priority, job.arrival))
'''
)
_TEST: Final = Template(
    """\
from pliant.tools.schedule.testing.conformance import check_all
from pliant_$word import $class_name


def test_$word():
    check_all($class_name)
"""
)


def package_files(name: str) -> dict[str, str]:
    """The files of a package for a policy of that name, by file name.

    :raises UsageError: it is not a name for a policy, or that of a built-in one.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f'"{name}": expected small letters, digits and single hyphens, as in my-policy')
    if name in BUILT_IN:
        raise UsageError(f'"{name}" is a policy of pliant: choose another name')
    words = {
        "name": name,
        "word": name.replace("-", "_"),
        "class_name": "".join(part.capitalize() for part in name.split("-")),
    }
    return {
        "pyproject.toml": _PROJECT.substitute(words),
        f"pliant_{words['word']}.py": _POLICY.substitute(words),
        f"test_{words['word']}.py": _TEST.substitute(words),
    }
