"""Prometheus itself on the alerts, and on the queries of the dashboard."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.parts.dashboard import FOLDER, queries_without_data

pytestmark = pytest.mark.services

FIRES = """
rule_files: [ALERTS]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'pliant_last_turn_timestamp_seconds{instance="a"}', values: "0+60x3 180x9"}
      - {series: 'pliant_run_info{instance="a"}', values: "1x12"}
      - {series: 'pliant_failures_total{instance="a"}', values: "0+2x12"}
      - {series: 'pliant_job_starts_total{instance="a"}', values: "0+3x12"}
    alert_rule_test:
      - {alertname: PliantStopped, eval_time: 5m, exp_alerts: []}
      - alertname: PliantStopped
        eval_time: 9m
        exp_alerts: [{exp_labels: {severity: critical, instance: a}, exp_annotations: SAYS}]
      - {alertname: PliantMetricsMissing, eval_time: 12m, exp_alerts: []}
"""
SAYS = """{summary: "The run of a has not looked at its jobs for 6m 0s.",
          description: "Jobs train on, but none starts. Is pliant running? Its state says why it ended."}"""


def test_promtool_accepts_the_alerts_and_a_stop_fires(tmp_path: Path) -> None:
    alerts = FOLDER / "alerts.yml"
    (tmp_path / "test.yml").write_text(FIRES.replace("ALERTS", str(alerts)).replace("SAYS", SAYS))
    for words in (["check", "rules", str(alerts)], ["test", "rules", "test.yml"]):
        done = subprocess.run(["promtool", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_query_of_the_dashboard_has_data(tmp_path: Path) -> None:
    assert queries_without_data(tmp_path) == []
