"""Parameters that mean nothing are refused in one line that names them."""

from __future__ import annotations

from typing import Any

import pytest

from pliant.schemas.errors import UsageError
from pliant.tools.schedule.registry import make_policy

REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "ares": [
        ({"alpha": "0"}, "alpha 0 is not above 0 and at most 1"),
        ({"alpha": "1.5"}, "alpha 1.5 is not above 0"),
        ({"pool": "0"}, "pool 0 is neither a number of GPUs nor a fraction below 1"),
        ({"pool": "2.5"}, "pool 2.5 is neither"),
        ({"compact_s": "-1"}, "compact_s -1 is not a number of seconds"),
    ],
    "drl": [({"settled_s": 0.0}, "settled_s: expected more than 0")],
    "elastic-dp": [
        ({"interval_s": -1}, "interval_s -1 is below 0"),
        ({"ended_part": 0}, "ended_part 0.0 is not above 0 and at most 1"),
        ({"ended_part": 1.5}, "ended_part 1.5 is not above 0 and at most 1"),
        ({"priority_base": 0.5}, "priority_base 0.5 is not from 1 to 10"),
        ({"priority_base": 11}, "priority_base 11 is not from 1 to 10"),
        ({"quota": 0}, "quota 0 is below 1"),
        ({"rescale_s": -1}, "rescale_s -1.0 is below 0"),
        ({"rescale_s": "measured", "interval_s": 0}, "rescale_s is spread over interval_s, which is 0"),
        ({"rescale_s": 5, "interval_s": 0}, "rescale_s is spread over interval_s, which is 0"),
    ],
    "elasticflow": [({"rescale_s": -1.0}, "rescale_s: expected a number of seconds, 0 or more")],
    "lucid": [({"least_speed": "0"}, "least_speed: 0 is not above 0 and at most 1")],
    "oasis": [
        (wrong, "expected")
        for wrong in ({"slot_seconds": "0"}, {"horizon_slots": "0"}, {"quantile": "2"}, {"percent": "0"})
    ],
    "ones": [
        ({"population": 0}, "population 0 is below 1"),
        ({"generations": 0}, "generations 0 is below 1"),
        ({"theta": 1.5}, "theta 1.5 is above 1"),
        ({"time_budget_s": -1.0}, "time_budget_s -1 is below 0"),
        ({"unknown_epoch_s": 0.0}, "unknown_epoch_s 0 is below 0.001"),
    ],
    "pollux": [
        (wrong, next(iter(wrong))) for wrong in ({"restart_s": -1.0}, {"population": 0}, {"generations": -1})
    ],
    "shadow-price": [
        ({name: value}, name)
        for name, value in (
            *(("rescale_s", -1.0), ("dwell_s", 0.0), ("future", -0.5), ("ahead_s", 0.0), ("grace", -1.0)),
            *(("grace_s", -1.0), ("unstated_grace_s", -1.0), ("deal_s", 0.0), ("lost_s", -1.0)),
            *(("lost_s", 600.0), ("deal_s", 90.0)),
        )
    ],
    "shockwave": [
        ({name: value}, f"parameter {name}: expected")
        for name, value in (("round_s", 0.0), ("rounds", 0), ("power", -1.0), ("restraint", -0.1))
    ],
    "sia": [
        (wrong, next(iter(wrong)))
        for wrong in ({"p": 0.0}, {"penalty": 1.0}, {"penalty": 0.0, "p": 1.0}, {"restart_s": -1.0})
    ],
    "slurm": [
        ({"shares": "a"}, "parameter shares: expected NAME=NUMBER"),
        ({"qos": "a=-1"}, "parameter qos: expected NAME=NUMBER"),
        ({"preempts": "high"}, "parameter preempts: expected HIGH>LOW"),
        ({"bf_resolution_s": 0.0}, "parameter bf_resolution_s: expected a number above 0"),
        ({"overestimate": -1.0}, "parameter overestimate: expected 0 or more"),
        ({"bf_max_job_test": 0}, "parameter bf_max_job_test: expected 1 or more"),
    ],
    "themis": [
        ({name: value}, name) for name, value in (("fairness", "1"), ("fairness", "-0.1"), ("lease_s", "0"))
    ],
    "tiresias": [
        *(({"queue_gpu_hours": wrong}, "queue_gpu_hours") for wrong in ("", "x", "2,1", "1,1", "0", "1,inf")),
        ({"promote_after": -1}, "promote_after"),
    ],
    "tiresias-gittins": [
        ({"history_gpu_hours": "1,x"}, "history_gpu_hours"),
        ({"history_gpu_hours": "0"}, "history_gpu_hours"),
        ({"quantum_gpu_hours": 0}, "quantum_gpu_hours"),
    ],
}


@pytest.mark.parametrize(
    ("policy", "parameters", "message"),
    [(policy, *each) for policy, cases in REFUSED.items() for each in cases],
)
def test_parameters_that_mean_nothing_are_refused(policy: str, parameters: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message) as refused:
        make_policy(policy, parameters)
    assert "\n" not in str(refused.value)
