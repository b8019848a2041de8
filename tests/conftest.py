"""Settings that all tests share."""

import gc
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks.parts.slurm_cluster import NoSlurmError, SlurmCluster, slurm_cluster
from tests.effort import THOROUGH, set_profile
from tests.leftovers import Surroundings

pytest_plugins = ("tests.messages", "tests.services")

FOREIGN = ("PYTHON", "PLIANT_", "SLURM_", "TORCHELASTIC_")
PYTEST_S_OWN = "PYTEST_CURRENT_TEST"
TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
OURS = (
    *("PYTHONPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"),
    *("PLIANT_DATA", "PLIANT_THOROUGH", "PLIANT_WRITE_GOLDEN"),
)

# Tests expect what commands do without such variables; some modules read the environment when imported.
for name in [name for name in os.environ if name.startswith(FOREIGN) or name in TERMINAL]:
    if name not in OURS:
        del os.environ[name]
os.environ["TERM"] = "xterm"  # where a test opens a terminal; editors and job runners say "dumb"
# Before numpy is imported: beside other processes its threads spend more time on waiting than on computing.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
QUICK = str(Path(__file__).with_name("quick"))
if not THOROUGH:
    # Python processes that tests start begin sooner: see quick/sitecustomize.py
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", QUICK)]
    os.environ["PYTHONPATH"] = os.pathsep.join([QUICK, *paths])

set_profile()
# To look through all modules and tests for garbage takes long, and there is hardly any.
gc.set_threshold(50_000, 20, 20)


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def heard_signals() -> Iterator[None]:
    """Let tests and the processes that they start hear SIGINT and SIGTERM.

    A shell ignores SIGINT for commands in the background of a script, and so do their children. A
    handler that is installed becomes the usual disposition in a process that is started.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ignored = [number for number in usual if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, usual[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Give the next test the logger, the handler of SIGTERM and the environment as they were.

    Code that a test calls in its own process changes all three; a fixture of a module may have done so
    before. A variable left behind would reach processes of later tests.
    """
    environment = dict(os.environ)
    logger = logging.getLogger("pliant")
    handlers, level, propagate = logger.handlers, logger.level, logger.propagate
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _set_environment(environment)


def _set_environment(wanted: Mapping[str, str]) -> None:
    """pytest keeps the name and phase of the test in a variable of its own."""
    for name in os.environ.keys() - wanted.keys() - {PYTEST_S_OWN}:
        del os.environ[name]
    for name in wanted.keys() - {PYTEST_S_OWN}:
        if os.environ.get(name) != wanted[name]:
            os.environ[name] = wanted[name]


@pytest.fixture
def own_notices() -> Iterator[None]:
    """A training in the process of the test takes the signals of a launcher; afterwards all is as before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def nothing_outlives_it() -> Iterator[None]:
    """A process, thread, handler or folder that a test leaves behind fails it, not a later test."""
    before = Surroundings.now()
    yield
    left = before.left_behind()
    assert left == [], "left behind by this test"


@pytest.fixture(scope="session")
def reference_data() -> Path:
    from tests.services import NO_DATA

    beside = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not beside.is_dir() and "PLIANT_DATA" not in os.environ:
        pytest.skip(NO_DATA)
    return Path(os.environ.get("PLIANT_DATA", beside))


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A real Slurm with four nodes of four GPUs; without one, its tests skip."""
    try:
        with slurm_cluster() as found:
            yield found
    except NoSlurmError as error:
        pytest.skip(f"needs Slurm: {error}")
