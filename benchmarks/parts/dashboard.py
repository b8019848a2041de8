"""Prometheus and its node exporter on the file of a real run: which queries of the examples have data."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.parts.figure import ROOT, NotMeasurableError
from pliant.tools.run.backends.protocol import free_port

FOLDER: Final = ROOT / "examples" / "monitoring"
_PATIENCE_S: Final = 60.0
_TEAMS: Final = {"red": {"users": ["ada"], "weight": 2}, "blue": {"users": ["bob"]}}
_CLUSTER: Final = {"slots": "cpu", "nodes": [{"name": "here", "gpus": 2}], "shares": {"teams": _TEAMS}}
_USERS: Final = ("ada", "bob", "ada", "ada", "bob")
"""Users of jobs of one worker, on two slots: some wait, and start while Prometheus looks."""


def dashboard_queries() -> list[str]:
    """All expressions of the dashboard, with Grafana's variables replaced."""
    panels = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    texts = [target["expr"] for panel in panels for target in panel["targets"]]
    return [text.replace("$instance", ".*").replace("$__rate_interval", "1m") for text in texts]


def queries_without_data(folder: Path) -> list[str]:
    """Expressions of the dashboard, and metrics of the alerts, of which Prometheus has no number.

    :raises NotMeasurableError: its programs are not installed.
    """
    for program in ("prometheus", "prometheus-node-exporter"):
        if shutil.which(program) is None:
            raise NotMeasurableError(f"{program} is not installed")
    (folder / "textfiles").mkdir()
    alerts = (FOLDER / "alerts.yml").read_text()
    with _prometheus(folder) as address, _run(folder):
        missing = [*dashboard_queries(), *sorted(set(re.findall(r"\b(?:pliant|node)_\w+", alerts)))]
        until_s = time.monotonic() + _PATIENCE_S
        while missing and time.monotonic() < until_s:
            missing = [query for query in missing if not _has_number(address, query)]
            time.sleep(0.2)
        rules = [rule for group in _get(address, "rules").get("groups", ()) for rule in group["rules"]]
        return missing + [rule["name"] for rule in rules if rule["health"] == "err"]


@contextmanager
def _prometheus(folder: Path) -> Iterator[str]:
    """Both programs, with the alerts of the examples. Yields the address of the interface."""
    exporter, prometheus = (f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2))
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(FOLDER / "alerts.yml")],
        "scrape_configs": [{"job_name": "node", "static_configs": [{"targets": [exporter]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    collector = ["--collector.disable-defaults", "--collector.textfile"]
    collector.append(f"--collector.textfile.directory={folder / 'textfiles'}")
    storage = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    programs = {
        exporter: ["prometheus-node-exporter", *collector],
        prometheus: ["prometheus", *storage],
    }
    with ExitStack() as stack:
        for listens, words in programs.items():
            stack.enter_context(_process([*words, f"--web.listen-address={listens}"], folder))
        yield f"http://{prometheus}"


@contextmanager
def _run(folder: Path) -> Iterator[None]:
    """Live jobs: ``pliant run --until-done`` with ``--metrics`` into the folder of the collector."""
    spec = {"submit_time": 0, "model": "m", "gpus": {"requested": 1}, "command": ["sleep", "2"]}
    jobs = [{**spec, "id": f"j{number}", "user": user} for number, user in enumerate(_USERS)]
    (folder / "cluster.json").write_text(json.dumps({"schema": "pliant.cluster/1", **_CLUSTER}))
    lines = [{"schema": "pliant.job/1"}, *jobs]
    (folder / "jobs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    pliant = [sys.executable, "-m", "pliant"]
    schedule = ["schedule", "jobs.jsonl", "--cluster", "cluster.json", "--policy", "fifo", "-o", "s.json"]
    subprocess.run([*pliant, *schedule], cwd=folder, check=True, capture_output=True)
    words = ["run", "s.json", "--state", "state", "--until-done", "--metrics", "textfiles/pliant.prom"]
    with _process([*pliant, *words], folder):
        yield


@contextmanager
def _process(words: Sequence[str], folder: Path) -> Iterator[None]:
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(words, cwd=folder, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(_PATIENCE_S)


def _has_number(address: str, query: str) -> bool:
    samples = _get(address, f"query?{urllib.parse.urlencode({'query': query})}")
    return any(math.isfinite(float(sample["value"][1])) for sample in samples.get("result", ()))


def _get(address: str, what: str) -> Any:
    """What its interface answers; nothing until it is there.

    :raises RuntimeError: it refuses the query.
    """
    try:
        url = f"{address}/api/v1/{what}"
        with urllib.request.urlopen(url, timeout=_PATIENCE_S) as answer:  # noqa: S310 - http
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return {}
        raise RuntimeError(f"{what}: {error.read().decode()}") from error
    except OSError:
        return {}
