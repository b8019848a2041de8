"""Code as people keep it: whether each attempt of a job records it, and says what was edited before it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.parts.figure import Figure
from benchmarks.parts.jobs.cluster import SmallCluster
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.watch.attempt_code import differing, recorded_code

_GIT: Final = "git config --global user.name a; git config --global user.email a@b; git init -q; "
_SCRIPT: Final = """mkdir -p code; cd code; cat > job.sh <<'END'
#!/bin/bash
[ $PLIANT_ATTEMPT = 2 ] || { sleep 2; echo "# edited" >> "$(readlink -f "$EDITED")"; exit 75; }
END
export EDITED=$PWD/job.sh; printf 'results\\n*.bin\\n' > .gitignore; """
_COMMIT: Final = "git add -A; git commit -qm all; "
_SUBMIT: Final = "pliant submit job.sh --name $1 --retries 1 --env EDITED"


class Case(NamedTuple):
    """How somebody keeps code, and what they type; ``$1`` is the job's name."""

    typed: str
    edited: str | None = "job.sh"
    """What differs before the second attempt; None: nothing, or there is only one attempt."""
    has_commit: bool = True


CASES: Final = {
    "clean": Case(f"{_SCRIPT}{_GIT}{_COMMIT}{_SUBMIT}"),
    "dirty": Case(f"{_SCRIPT}{_GIT}{_COMMIT}echo '# mine' >> job.sh; {_SUBMIT}"),
    "staged": Case(f"{_SCRIPT}{_GIT}{_COMMIT}echo '# mine' >> job.sh; git add job.sh; {_SUBMIT}"),
    "untracked": Case(f"{_SCRIPT}{_GIT}git add .gitignore; git commit -qm one; {_SUBMIT}"),
    "no-commit": Case(f"{_SCRIPT}{_GIT}{_SUBMIT}", has_commit=False),
    "no-git": Case(f"{_SCRIPT}{_SUBMIT}", has_commit=False),
    "git-missing": Case(
        f"{_SCRIPT}{_GIT}{_COMMIT}mkdir ../bin; for each in bash sleep readlink env; do "
        f"ln -s $(command -v $each) ../bin; done; "
        f"ln -s $(python3 -c 'import sys; print(sys.executable)') ../bin/python3; "
        f"{_SUBMIT} --env PATH=$PWD/../bin",
        has_commit=False,
    ),
    "another-account": Case(
        f"{_SCRIPT}{_GIT}{_COMMIT}{_SUBMIT} --env GIT_TEST_ASSUME_DIFFERENT_OWNER=1", has_commit=False
    ),
    "detached": Case(f"{_SCRIPT}{_GIT}{_COMMIT}git checkout -q --detach; {_SUBMIT}"),
    "worktree": Case(
        f"{_SCRIPT}{_GIT}{_COMMIT}git worktree add -q ../tree; cd ../tree; EDITED=$PWD/job.sh; {_SUBMIT}"
    ),
    "below": Case(
        f"{_SCRIPT}mkdir sub; mv job.sh sub; EDITED=$PWD/sub/job.sh; {_GIT}{_COMMIT}cd sub; {_SUBMIT}",
        "sub/job.sh",
    ),
    "by-a-link": Case(f"{_SCRIPT}{_GIT}{_COMMIT}ln -s $PWD ../link; cd ../link; {_SUBMIT}"),
    "submodule": Case(
        f"{_SCRIPT}{_GIT}{_COMMIT}mkdir ../all; cd ../all; git init -q; "
        f"git -c protocol.file.allow=always submodule -q add ../code part; {_COMMIT}"
        f"EDITED=$PWD/part/job.sh; cd part; {_SUBMIT}"
    ),
    "part-of-all": Case(
        f"{_SCRIPT}{_GIT}{_COMMIT}mkdir ../all; cd ../all; git init -q; "
        f"git -c protocol.file.allow=always submodule -q add ../code part; {_COMMIT}"
        f"EDITED=$PWD/part/job.sh; pliant submit part/job.sh --name $1 --retries 1 --env EDITED",
        "part",
    ),
    "ignored-program": Case(
        f"{_SCRIPT}{_GIT}cp job.sh run.bin; chmod +x run.bin; EDITED=$PWD/run.bin; {_COMMIT}"
        "pliant submit --name $1 --retries 1 --env EDITED ./run.bin",
        "run.bin",
    ),
    "settings": Case(
        f"{_SCRIPT}{_GIT}{_COMMIT}echo > own.yaml; EDITED=$PWD/own.yaml; {_SUBMIT} -- --config own.yaml",
        "own.yaml",
    ),
    "results-beside": Case(
        f"{_SCRIPT}{_GIT}{_COMMIT}EDITED=$PWD/metrics.txt; touch metrics.txt; {_SUBMIT} --output out.log",
        None,
    ),
    "from-outside": Case(
        f"{_SCRIPT}cd ..; {_SUBMIT.replace('job.sh', 'code/job.sh')}", "code/job.sh", has_commit=False
    ),
    "spaces": Case(
        f"{_SCRIPT}mv job.sh 'my Ü.sh'; EDITED=$PWD/'my Ü.sh'; {_GIT}{_COMMIT}"
        "pliant submit 'my Ü.sh' --name $1 --retries 1 --env EDITED",
        "my Ü.sh",
    ),
    "snapshot": Case(f"{_SCRIPT}{_GIT}{_COMMIT}{_SUBMIT} --snapshot", None),
    "at-once": Case(f"{_SCRIPT}{_GIT}{_COMMIT}pliant submit --name $1 true", None),
    "many": Case(f"{_SCRIPT}{_GIT}{_COMMIT}pliant submit --name $1 --array 0-19 true", None),
}


def figures(names: Collection[str] = tuple(CASES)) -> list[Figure]:
    """How many attempts leave no record of their code, or do not say what was edited before them."""
    ids = {name: f"case-{number}" for number, name in enumerate(names)}
    with tempfile.TemporaryDirectory(prefix="pliant-code-") as folder:
        cluster = SmallCluster(Path(folder).resolve())
        refused = {}
        for name, job in ids.items():
            done = cluster.shell(job, CASES[name].typed)
            if done.returncode:
                refused[name] = done.stderr
        cluster.run()
        problems = {
            name: [refused[name]] if name in refused else _problems(cluster, job, CASES[name])
            for name, job in ids.items()
        }
    for name, texts in problems.items():
        for text in texts:
            print(f"{name}: {text.strip()}", file=sys.stderr)
    return [Figure("attempts_with_unrecorded_code", sum(map(len, problems.values())), "attempts", 0.0)]


def _problems(cluster: SmallCluster, job: str, case: Case) -> list[str]:
    """One for each attempt of a job, or of the jobs of an array, that is not recorded as it should be."""
    jobs = StateDir(cluster.state).jobs
    folders = [*sorted(jobs.glob(f"{job}/attempts/*")), *sorted(jobs.glob(f"{job}-*/attempts/*"))]
    return (
        [text for folder in folders if (text := _problem(cluster, folder, case))]
        if folders
        else ["never ran"]
    )


def _problem(cluster: SmallCluster, attempt: Path, case: Case) -> str:
    """What is wrong with the record of an attempt; empty if nothing."""
    records = recorded_code(StateDir(cluster.state), attempt.parent.parent.name)
    record = next((each for each in records if str(each.attempt) == attempt.name), None)
    if record is None or record.folder is None or not record.python or bool(record.commit) != case.has_commit:
        return f"{attempt}: {record}"
    differs = [name for each, _, what in differing(records) if each is record for name in what]
    expected = [] if case.edited is None or record.attempt == 1 else [case.edited]
    return "" if differs[:1] == expected else f"{attempt}: differs by {differs}, expected {expected}"
