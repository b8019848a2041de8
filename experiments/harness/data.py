"""Published data of third parties that experiments and benchmarks replay. They are no part of the project.

They are looked for in the folder that the environment variable PLIANT_DATA names, else in ``shared/data``
beside the repository.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_cluster
from pliant.tools.replay.importers.run import CONVERGENCE, JOBS, PROFILE, import_trace
from pliant.tools.replay.inputs import Inputs, Sources

_BESIDE: Final = Path(__file__).resolve().parents[3] / "shared" / "data"


def data_folder() -> Path:
    """The folder of the data, whether it is there or not."""
    return Path(os.environ.get("PLIANT_DATA", _BESIDE))


def missing(names: Iterable[str]) -> list[Path]:
    """Which of these folders below it are not there."""
    return [path for name in names if not (path := data_folder() / name).is_dir()]


def imported(
    importer: str,
    source: Path,
    workload: Path,
    cluster: Cluster,
    jobs_limit: int | None = None,
    *,
    converges: bool = False,
) -> Inputs:
    """A published workload with the measurements published beside it, as a replay reads them.

    :param source: folder of the measurements.
    :param cluster: on which they are replayed.
    :param jobs_limit: at most this many, the first to arrive.
    :param converges: read the curves of statistical efficiency, too.
    :raises PliantError: the files are not there, or not readable.
    """
    read = _imported(importer, source, workload)
    with tempfile.TemporaryDirectory() as name:
        nodes = Path(name, "cluster.json")
        write_cluster(cluster, nodes)
        jobs, profile, tables = (str(read / file) for file in (JOBS, PROFILE, CONVERGENCE))
        return Sources(jobs, str(nodes), profile, jobs_limit, tables if converges else None).read()


@cache
def _imported(importer: str, source: Path, workload: Path) -> Path:
    """A folder of what the importer makes of them, which is there until the process ends."""
    folder = tempfile.mkdtemp()
    Finalize(None, shutil.rmtree, (folder,), exitpriority=0)  # also in the workers of a pool
    import_trace(importer, [str(source)], folder, workload=str(workload))
    return Path(folder)
