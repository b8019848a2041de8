"""Values of ``--secret`` that turn up elsewhere than in a job's environment."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure
from benchmarks.parts.jobs.cluster import SmallCluster

_VALUE: Final = "b6e1f2-hush-49"
_JOBS: Final = """
cat > use.sh <<'END'
#!/bin/bash
#PLIANT --secret TOKEN
echo "of ${#TOKEN} characters"
cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' > "$HOME/processes-$PLIANT_JOB_ID"
exit ${1:-0}
END
pliant submit use.sh --name script
pliant submit use.sh --name failing --retries 1 -- 3
pliant submit use.sh --name all --env all
pliant submit use.sh --name both --env TOKEN
pliant submit use.sh --name array --array 1,2
pliant submit use.sh --name held --hold
pliant submit - --name stdin < use.sh
echo '{"id": "file", "gpus": {"requested": 1}, "command": ["bash", "use.sh"]}' > jobs.jsonl
pliant submit jobs.jsonl --secret TOKEN
pliant submit use.sh --name dry --env all --dry-run > dry
pliant cancel held
"""
_USED: Final = ("script", "all", "both", "array-1", "array-2", "stdin", "file")
_SHOWN: Final = """
pliant status; pliant status -f json; pliant log --tail 1000
for job in script failing all both array-1 stdin file held; do
    pliant status $job; pliant why $job; pliant why $job -f json; pliant log $job
done
"""


def figures() -> list[Figure]:
    """Files below the state directory, answers of commands and processes that hold a secret; and jobs that
    did not get theirs.
    """
    with tempfile.TemporaryDirectory(prefix="pliant-secrets-") as folder:
        cluster = SmallCluster(Path(folder).resolve())
        done = cluster.shell("ada", _JOBS, TOKEN=_VALUE)
        said = cluster.run()
        shown = cluster.shell("ada", f"set +e; {_SHOWN}")
        texts = {"submit": done.stdout + done.stderr, "run": said, "commands": shown.stdout + shown.stderr}
        texts |= {str(path): path.read_text(errors="replace") for path in _files(cluster)}
        found = [f"{name} holds it" for name, text in texts.items() if _VALUE in text]
        used = f"of {len(_VALUE)} characters"
        found += [f"{job} did not get it" for job in _USED if used not in cluster.output(job)]
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return [Figure("secrets_found_in_state", float(len(found)), "places", 0.0)]


def _files(cluster: SmallCluster) -> list[Path]:
    """All files but those that are for secrets, which only their owner may read."""
    places = (cluster.state, cluster.folder / "homes")
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    return [path for path in files if path.name != "secrets.json" or path.stat().st_mode & 0o077]
