"""Containers: the command lines of all runtimes, checked by hand by their manuals, and podman's, run."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.parts.jobs import container_image
from benchmarks.parts.jobs.container_image import IMAGE
from benchmarks.parts.jobs.containers import ContainedRun, resizes
from pliant.schemas.container import Container
from pliant.tools.profile.torchrun.start import kill
from pliant.tools.run.backends import supervisor
from pliant.tools.run.backends.contain import (
    ContainerError,
    Host,
    Launch,
    Spec,
    find_program,
    of_client,
    write_hook,
)
from pliant.tools.run.service import containers as service

HOST = Host(1000, 100, (100, 27), (("nofile", 1024, 4096),), "/run/hooks", "12:node3")
ENV = {"PATH": "/bin", "HOME": "/home/a", "RANK": "0", "TOKEN": "hush", "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}


def launch(tmp_path: Path, runtime: str, image: str = "img", host: Host = HOST) -> Launch:
    folders = [tmp_path / name for name in ("jobs/a", "work", "tmp")]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    job, work, scratch = map(str, folders)
    spec = Spec(runtime, image, ["../tmp:/data:ro"], ["--option"], ["MODE"], [job], "note", "pliant-a-1")
    return Launch.of(spec, {**ENV, "TMPDIR": scratch, "MODE": "x"}, work, host)


def test_command_lines(tmp_path: Path, golden_text: Callable[..., None]) -> None:
    """Variables by name, all folders under their own paths; nobody's value is to be seen."""
    lines = {}
    for runtime in ("podman", "docker", "apptainer", "pyxis"):
        made = launch(tmp_path, runtime)
        lines[runtime] = "\n    ".join(made.words(["python3", "-u", "train.py"])).replace(str(tmp_path), "")
        assert "hush" not in lines[runtime]
        assert "hush" in made.client_environment().values()
    golden_text("\n\n".join(lines.values()))
    root = launch(tmp_path, "podman", host=HOST._replace(uid=0)).words([])
    assert "--userns=keep-id" not in root
    environment = launch(tmp_path, "apptainer").client_environment()
    assert (environment["APPTAINERENV_TOKEN"], environment.get("TOKEN")) == ("hush", None)
    assert (environment["PATH"], environment.get("APPTAINERENV_PATH")) == ("/bin", None)


def test_what_a_runtime_cannot_do_is_said(tmp_path: Path) -> None:
    made = launch(tmp_path, "pyxis", host=HOST._replace(step=""))
    with pytest.raises(ContainerError, match="no step of Slurm"):
        made.words([])
    spec = made.spec._replace(mounts=["nowhere:/data"])
    with pytest.raises(ContainerError, match=f"no such file or folder to mount: {tmp_path}/work/nowhere"):
        Launch.of(spec, ENV, str(tmp_path / "work"), HOST)
    (tmp_path / "a:b").mkdir()
    with pytest.raises(ContainerError, match="there is no no-such-runtime on "):
        find_program("no-such-runtime", {})
    with pytest.raises(ContainerError, match="has a colon"):
        Launch.of(spec._replace(mounts=[]), ENV, str(tmp_path / "a:b"), HOST)


def test_options_that_all_commands_of_podman_need() -> None:
    options = ["--root=/scratch/c", "--shm-size", "8g", "--runtime", "runc", "--cgroups=no-conmon"]
    assert of_client(options) == ["--root=/scratch/c", "--runtime", "runc"]


def test_a_hook_puts_a_container_into_the_groups_of_its_unit(tmp_path: Path) -> None:
    groups = [tmp_path / "memory", tmp_path / "pids"]
    for group in groups:
        group.mkdir()
    (tmp_path / "hooks").symlink_to(groups[0])  # as others prepare it
    (hook,) = Path(write_hook(str(tmp_path), [str(group) for group in groups])).iterdir()
    assert (hook.parent.parent, stat.S_IMODE(hook.parent.stat().st_mode)) == (tmp_path, 0o700)
    asked = json.loads(hook.read_text())["hook"]
    assert asked["path"] == asked["args"][0] == sys.executable
    subprocess.run(asked["args"], input=json.dumps({"pid": 4711}), text=True, check=True)
    assert [(group / "cgroup.procs").read_text() for group in groups] == ["4711", "4711"]


WRONG = {
    "mounts": {
        "data:data": "/mounts/0: data:data is no mount",
        "/a:/b:rx": "/mounts/0: /a:/b:rx ends in rx, expected ro or rw",
    },
    "options": {
        "--detach": "/options/0: --detach is for pliant to say",
        "--env=TOKEN=hush": "/options/0: --env shows a value on the command line",
    },
}


@pytest.mark.parametrize(
    ("field", "value", "said"), [(field, *each) for field, cases in WRONG.items() for each in cases.items()]
)
def test_containers_that_could_not_be_as_without(field: str, value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.partition(": ")[2]):
        Container.model_validate({"image": "img", field: (value,)})


FAKE = """#!/bin/sh
case $1 in
inspect) echo "{started}";;
run) echo "Error: img: image not known" >&2; while [ "$1" != img ]; do shift; done; shift; exec "$@";;
esac
"""


@pytest.mark.parametrize("started", ["0001-01-01 00:00:00 +0000 UTC", "2026-01-01 00:00:00 +0000 UTC"])
@pytest.mark.parametrize("code", [3, 125, 127, 137])
def test_exit_codes_of_the_runtime_and_of_the_command(tmp_path: Path, code: int, started: str) -> None:
    """A code of 125 to 127 is the runtime's if the container never was."""
    fake = tmp_path / "podman"
    fake.write_text(FAKE.format(started=started))
    fake.chmod(0o755)
    note = tmp_path / "unit-0.container"
    argv = (*service.words(Container(image="img"), note), "bash", "-c", f"exit {code}")
    errors = tmp_path / "errors"
    with errors.open("w") as file:
        done = subprocess.run(argv, env={**os.environ, "PATH": f"{tmp_path}:/bin"}, stderr=file, check=False)
    assert done.returncode == (-signal.SIGKILL if code == 137 else code)
    own = started.startswith("0001") and code in (125, 127)
    said = "ContainerError: podman did not start img: img: image not known"
    assert (said in errors.read_text().splitlines()) == own
    assert not note.exists()


LEAVES = """#!/bin/sh
cd "{folder}"
echo "$@" >> asked
case $1 in
run) echo '{{"name": "x", "argv": ["touch", "{folder}/forged"]}}' > unit-0.container; kill -9 $PPID;;
rm) setsid sleep 600 > /dev/null 2>&1 & echo $! > left;;
esac
"""


def test_a_supervisor_ends_its_container_and_what_that_starts(tmp_path: Path) -> None:
    """Whatever stands in the job's folder."""
    fake = tmp_path / "podman"
    fake.write_text(LEAVES.format(folder=tmp_path))
    fake.chmod(0o755)
    inside = service.words(Container(image="img"), tmp_path / "unit-0.container")
    command = (sys.executable, "-I", "-S", supervisor.__file__, str(tmp_path / "exit-0"), str(tmp_path))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    subprocess.run((*command, *inside, "true"), env=env, check=True)
    name = json.loads(inside[-1])["name"]
    assert (tmp_path / "asked").read_text().splitlines()[1:] == [f"rm --force --ignore --time=0 {name}"]
    assert not psutil.pid_exists(int((tmp_path / "left").read_text()))
    (tmp_path / "unit-0.container").write_text(json.dumps({"name": "x", "argv": ["touch", "forged"]}))
    subprocess.run((*command, "true"), env=env, check=True)
    assert not (tmp_path / "forged").exists()


SRUN = """#!/bin/sh
while [ "$1" != env ]; do shift; done
setsid -w "$@"
"""
SAVES = """trap 'echo saved $CUDA_VISIBLE_DEVICES; exit 9' TERM; echo begins; while :; do sleep 0.1; done"""


def test_pyxis_is_asked_to_end_by_the_signal_to_its_command(tmp_path: Path) -> None:
    """srun itself would end the step without leaving it time to save."""
    fake = tmp_path / "srun"
    fake.write_text(SRUN)
    fake.chmod(0o755)
    words = service.words(Container(image="img", runtime="pyxis"), tmp_path / "unit-0.container")
    env = {"PATH": f"{tmp_path}:/bin", "PLIANT_SLURM_STEP": "12:node3", "CUDA_VISIBLE_DEVICES": "1"}
    with subprocess.Popen(
        (*words, "bash", "-c", SAVES), env=env, stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "begins\n"
        supervisor.terminate()
        assert supervisor.communicate()[0] == "saved 1\n"
    assert supervisor.returncode == 9
    assert not (tmp_path / "unit-0.container").exists()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ContainedRun]:
    if why := container_image.prepare(tmp_path / "image"):
        pytest.skip(why)
    found = ContainedRun(tmp_path)
    yield found
    found.end()


def contained(name: str) -> list[str]:
    """Names of podman's containers of a job, in whatever state."""
    argv = ("podman", "ps", "--all", f"--filter=name=pliant-{name}-", "--format={{.Names}}")
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


PROGRAM = """#!/bin/bash
echo "$PLIANT_JOB_ID in $container, secret $TOKEN, path $PATH, HOME is ${HOME:-unset}, in $PWD"
trap 'echo saved > saved.txt; exit 9' TERM
sleep 1000 & wait
"""


@pytest.mark.services
@pytest.mark.torch
def test_an_elastic_job_and_a_program_in_podman(run: ContainedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 → 2 → 1, a killed loop that finds its containers again, a stop, a resume; nothing is left behind."""
    monkeypatch.setenv("TOKEN", "hush")
    script = run.folder / "job.sh"
    script.write_text(PROGRAM)
    script.chmod(0o755)
    run.submit("long", "--gpus", "1-2", "--batch", 8)
    loop = run.begin()
    run.until(lambda: run.events("long", "progress"))
    run.submit("program", "--secret", "TOKEN", "--retries", 0, script="job.sh")
    output = run.state / "jobs/program/attempts/1/logs/0/worker/attempt_0/0/stdout.log"
    run.until(lambda: output.exists() and output.read_text())
    assert output.read_text().startswith("program in podman, secret hush, path /usr/local/sbin:")
    commands = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    assert not any("hush" in command for command in commands)
    loop.kill()
    loop.wait()
    run.begin()
    run.pliant("cancel", "program")
    run.until(lambda: run.job("program")["state"] == "cancelled")
    assert (run.folder / "saved.txt").read_text() == "saved\n"
    run.until(lambda: resizes(run, "long")[-1:] == [2])
    assert resizes(run, "long") == [1, 2], "it began with 2"
    assert not (run.state / "jobs/long/attempts/2").exists()
    run.pliant("requeue", "long")
    run.until(lambda: resumed(run))
    supervisors = [each for each in psutil.process_iter(["cmdline"]) if _keeps(each, run.state / "jobs/long")]
    kill(supervisors)  # their containers go on, until the loop looks again
    run.until(lambda: len(resumed(run)) == 2)
    assert min(resumed(run)) > 0
    (run.folder / "enough").touch()
    run.until(lambda: run.job("long")["state"] == "finished")
    run.until(lambda: not contained("long") and not contained("program"))


def resumed(run: ContainedRun) -> list[float]:
    """What an elastic job had trained at each resume, by its workers."""
    reports = run.events("long", "progress")
    return [each.samples_done or 0.0 for each in reports if (each.detail or {}).get("after") == "resume"]


def _keeps(process: psutil.Process, job: Path) -> bool:
    words = process.info["cmdline"] or []
    return any(word.endswith("supervisor.py") for word in words) and any(str(job) in word for word in words)


@pytest.mark.services
def test_what_an_image_lacks_is_said_at_submission(run: ContainedRun) -> None:
    """Before a GPU is taken; and it is for the job's own Python."""
    own = {"options": container_image.OPTIONS}
    said = {}
    for name, about in {
        "image": {"image": "localhost/no-such-image"},
        "file": {"image": "./nowhere.sif", "runtime": "apptainer"},
        "python": {"image": IMAGE},
        "mount": {"image": IMAGE, "mounts": ["nowhere"]},
    }.items():
        fields = {"id": name, "submit_time": 0, "command": ["train.py"], "container": {**own, **about}}
        (run.folder / "jobs.jsonl").write_text(json.dumps(fields) + "\n")
        argv = [sys.executable, "-m", "pliant", "submit", "jobs.jsonl", "--state", str(run.state)]
        done = subprocess.run(argv, cwd=run.folder, capture_output=True, text=True, check=False)
        said[name] = done.stderr.partition(f'job "{name}": ')[2].partition(" (--no-check")[0]
    assert said["image"] == "", "it may still be fetched"
    assert said["file"] == f"no such image: {run.folder}/nowhere.sif"
    assert said["python"] == f"{IMAGE} has no python3: install it there, or name another image"
    assert said["mount"].endswith(f"no such file or folder to mount: {run.folder}/nowhere")
