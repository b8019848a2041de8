"""``make test`` needs Python alone; ``make test-services`` runs the tests that need more.

A test with the marker ``services`` needs Slurm, podman, several hosts, another account, a browser, a package
index or published data. Tests that use one of the fixtures below get the marker. In ``make test-services`` a
skip is a failure, unless its reason is in :data:`ACCEPTED_SKIPS`.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

FIXTURES: Final = frozenset({"slurm", "reference_data", "shared_folder", "one_run", "door", "munge"})
"""Fixtures that start or find a service."""
NO_DATA: Final = "no published data: set PLIANT_DATA to their folder"
ACCEPTED_SKIPS: Final = {
    NO_DATA: "they belong to third parties, and not everyone has them",
    "needs root": "an ordinary user cannot become another account",
    "too large to ship": "whole traces of Philly, Helios and Alibaba are read where somebody has them",
    "needs a GPU": "make gpu-check runs on machines that have one",
    "systemd-analyze cannot": "in some containers it does not check units",
}
"""Beginnings of reasons for which a test of a service may be skipped, and why."""
MINUTES: Final = {False: 6, True: 4}
"""Wall time of both commands on two quiet cores, without and with services."""
OPTIONAL: Final = {
    "groff": "manual pages are not formatted",
}
"""Commands that a few tests of ``make test`` use if they are installed, and what is skipped otherwise."""
PACKAGES: Final = {
    "slurmctld": "slurm-wlm",
    "munged": "munge",
    "iptables": "iptables",
    "ip": "iproute2",
    "chromium": "chromium",
    "hostname": "hostname",
    "podman": "podman",
    "runc": "runc",
    "systemd-analyze": "systemd",
    "prometheus": "prometheus",
    "prometheus-node-exporter": "prometheus-node-exporter",
}
"""Commands that services need, and the packages of Debian that bring them."""
LIBRARIES: Final = ("wandb", "mlflow-skinny", "tensorboard", "sqlalchemy", "alembic")
"""Experiment trackers, and what MLflow needs for SQLite."""
SYSTEM_FOLDERS: Final = ("/usr/sbin", "/sbin")
SHOWN: Final = 10
"""Failed tests whose command is printed."""


def wants_services(config: pytest.Config) -> bool:
    expression = config.getoption("markexpr", "") or ""
    return "services" in expression and "not services" not in expression


def pytest_configure(config: pytest.Config) -> None:
    """Without services, nothing depends on what lies beside the clone."""
    if not wants_services(config):
        os.environ["PLIANT_DATA"] = str(Path(__file__).with_name("no published data"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark tests by what their fixtures need; pytest's own ``-m`` then selects."""
    for item in items:
        if FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.services)


def pytest_report_header(config: pytest.Config) -> list[str]:
    if hasattr(config, "workerinput") or config.args_source is not config.ArgsSource.TESTPATHS:
        return []
    services = wants_services(config)
    lines = [f"about {MINUTES[services]} minutes on two quiet cores"]
    if services:
        return lines
    lines.append("left out: what needs Slurm, several hosts, accounts or a browser (make test-services)")
    missing = [f"{name} ({lost})" for name, lost in OPTIONAL.items() if shutil.which(name) is None]
    missing += [] if find_spec("lightning") else ["the extra integrations (its callbacks are not tested)"]
    return [*lines, f"not installed here: {', '.join(missing)}"] if missing else lines


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure where services are meant to be there."""
    report = yield
    if wants_services(item.config) and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(call.excinfo.value) if call.excinfo else ""
        if not reason.startswith(tuple(ACCEPTED_SKIPS)):
            report.outcome = "failed"
            report.longrepr = f"skipped, which counts as a failure in make test-services: {reason}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After a failure, print the command that runs that test alone."""
    failed = [
        report.nodeid
        for outcome in ("failed", "error")
        for report in terminalreporter.stats.get(outcome, ())
        if hasattr(report, "nodeid")
    ]
    if not failed:
        return
    terminalreporter.section("to run a failed test alone")
    every = "" if not wants_services(terminalreporter.config) else " -m services"
    for nodeid in dict.fromkeys(failed[:SHOWN]):
        terminalreporter.line(f"{_python()} -m pytest -n 0{every} {shlex.quote(nodeid)}")


def _python() -> str:
    """As short as the shell that ran make can use it."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def install_services() -> int:
    """Install Debian's packages where this user is root, and print what is missing otherwise."""
    missing = [package for command, package in PACKAGES.items() if _path(command) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdout": subprocess.DEVNULL, "env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"}}
        subprocess.run(["apt-get", "update", "-qq"], check=False, **quiet)
        words = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing]
        subprocess.run(words, check=False, **quiet)
        missing = [package for command, package in PACKAGES.items() if _path(command) is None]
    if any(find_spec(name.removesuffix("-skinny")) is None for name in LIBRARIES):
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", "constraints.txt", *LIBRARIES], check=False)
    if missing:
        print(f"missing, so tests will fail: apt-get install {' '.join(missing)}", file=sys.stderr)
    if os.geteuid() != 0:
        print("tests with several accounts and hosts need root, and are left out", file=sys.stderr)
    return 0


def _path(command: str) -> str | None:
    return shutil.which(command, path=os.pathsep.join((os.environ.get("PATH", ""), *SYSTEM_FOLDERS)))


if __name__ == "__main__":
    sys.exit(install_services())
