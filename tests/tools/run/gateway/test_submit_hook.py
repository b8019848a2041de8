"""A program that sees each submission: what it changes is said, what it refuses is not submitted."""

import json
import os
import pwd
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.tools.run.gateway.caller import Caller
from pliant.tools.run.gateway.permissions import SubmitHook
from pliant.tools.run.gateway.submit_hook import LABEL, through_hook
from tests.builders import job
from tests.tools.run.gateway import people

WHO = Caller(1000, "ada", 1000, frozenset())
JOBS = [job("a", gpus=8), job("b", gpus=1)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """One that any account may read."""
    with people.all_may_enter() if os.geteuid() == 0 else nullcontext(tmp_path) as found:
        yield Path(found)


def hook(folder: Path, body: str, seconds: float = 10.0) -> SubmitHook:
    """One that answers each line by an expression of ``job`` and ``user``."""
    script = folder / "hook.py"
    lines = ("import json, os, sys, time", "for line in sys.stdin:", "    asked = json.loads(line)")
    more = ("    job, user = asked['job'], asked['user']", f"    print(json.dumps({body}), flush=True)")
    script.write_text("\n".join((*lines, *more)) + "\n")
    script.chmod(0o644)
    name = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    python = "/usr/bin/python3" if os.geteuid() == 0 else sys.executable
    return SubmitHook(command=(python, str(script)), user=name, timeout_seconds=seconds)


def test_a_hook_changes_jobs_and_its_word_stays_with_them(folder: Path) -> None:
    body = (
        "{} if job['id'] == 'b' else {'job': {**job, 'gpus': {'requested': 4}}, 'note': f'{user}: 4 at most'}"
    )
    changed, same = through_hook(JOBS, hook(folder, body), WHO)
    assert (changed.gpus.requested, changed.labels) == (4, {LABEL: "ada: 4 at most"})
    assert same == JOBS[1]
    (changed, _) = through_hook(JOBS, hook(folder, "{'job': {**job, 'priority': 1.0}}"), WHO)
    assert changed.labels == {LABEL: "changed priority"}
    assert through_hook(JOBS, None, WHO) == JOBS


def test_a_hook_runs_as_its_own_account(folder: Path) -> None:
    (one,) = through_hook(
        JOBS[:1], hook(folder, "{'job': {**job, 'labels': {'uid': str(os.getuid())}}}"), WHO
    )
    assert one.labels["uid"] == str(pwd.getpwnam(hook(folder, "").user).pw_uid)


@pytest.mark.parametrize(
    ("body", "seconds", "line"),
    [
        ("{'refuse': 'no budget'} if job['id'] == 'b' else {}", 10.0, "job b is refused: no budget"),
        ("time.sleep(60)", 0.5, "the submit hook of this run failed, and nothing was submitted"),
        ("sys.exit(3)", 10.0, "the submit hook of this run failed"),
        ("[]", 10.0, "the submit hook of this run failed"),
        ("{'job': {**job, 'user': 'bob'}}", 10.0, "the submit hook of this run failed"),
        ("{'job': {**job, 'gpus': 'many'}}", 10.0, "the submit hook of this run failed"),
    ],
)
def test_nothing_is_submitted_unless_it_answers_well(
    folder: Path, body: str, seconds: float, line: str
) -> None:
    with pytest.raises((UsageError, ServiceMissingError), match=line):
        through_hook(JOBS, hook(folder, body, seconds), WHO)


def test_root_is_no_account_of_a_hook(caplog: pytest.LogCaptureFixture) -> None:
    root = SubmitHook.model_validate_json(json.dumps({"command": ["/bin/true"], "user": "root"}))
    with pytest.raises(ServiceMissingError):
        through_hook(JOBS, root, WHO)
    assert "not as root" in caplog.text
