"""Parameters that mean nothing are refused in one line that names them."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pliant.schemas.errors import UsageError
from pliant.tools.schedule.registry import BUILT_IN, make_policy
from tests.golden.scenario import FOLDER

REFUSED = {
    "ares": "alpha=0 alpha=1.5 pool=0 pool=2.5 compact_s=-1",
    "drl": "settled_s=0",
    "elastic-dp": (
        "interval_s=-1 ended_part=0 ended_part=1.5 priority_base=0.5 priority_base=11 quota=0 rescale_s=-1 "
        "rescale_s=measured,interval_s=0 rescale_s=5,interval_s=0"
    ),
    "elasticflow": "rescale_s=-1",
    "lucid": "least_speed=0",
    "oasis": "slot_seconds=0 horizon_slots=0 quantile=2 percent=0",
    "ones": "population=0 generations=0 theta=1.5 time_budget_s=-1 unknown_epoch_s=0",
    "pollux": "restart_s=-1 population=0 generations=-1",
    "shadow-price": (
        "rescale_s=-1 dwell_s=0 future=-0.5 ahead_s=0 grace=-1 grace_s=-1 unstated_grace_s=-1 deal_s=0 "
        "lost_s=-1 lost_s=600 deal_s=90"
    ),
    "shockwave": "round_s=0 rounds=0 power=-1 restraint=-0.1",
    "sia": "p=0 penalty=1 penalty=0,p=1 restart_s=-1",
    "slurm": "shares=a qos=a=-1 preempts=high bf_resolution_s=0 overestimate=-1 bf_max_job_test=0",
    "themis": "fairness=1 fairness=-0.1 lease_s=0",
    "tiresias": (
        "queue_gpu_hours= queue_gpu_hours=x queue_gpu_hours=2;1 queue_gpu_hours=1;1 queue_gpu_hours=0 "
        "queue_gpu_hours=1;inf promote_after=-1"
    ),
    "tiresias-gittins": "history_gpu_hours=1;x history_gpu_hours=0 quantum_gpu_hours=0",
}
"""Parameters, joined by commas where several are stated; a semicolon is a comma of a value."""


@pytest.mark.parametrize("policy", REFUSED)
def test_parameters_that_mean_nothing_are_refused(policy: str, golden_text: Callable[[str], None]):
    lines = []
    for case in REFUSED[policy].split(" "):
        stated = dict(each.replace(";", ",").split("=", 1) for each in case.split(","))
        with pytest.raises(UsageError) as refused:
            make_policy(policy, stated)
        assert any(name in str(refused.value) for name in stated)
        lines.append(f"{case}: {refused.value}")
    assert "\n" not in "".join(lines)
    golden_text("\n".join(lines))


ROOT = Path(__file__).resolve().parents[4]
POLICIES = "tools/schedule/policies/"
WORDS = BUILT_IN.keys() - {"fair-share", "slurm"}
"""The reports' reference is called fair-share, too, and backends and an importer are named after Slurm."""
MEAN_SOMETHING_ELSE = (
    "tools/schedule/registry.py",
    "schemas/file_io/foreign.py",  # files of traces that policies were published with
    "schemas/runinfo.py",  # what event files of earlier versions do not state
    "tools/replay/compat.py",  # simulators that policies come with
    "tools/replay/importers/",  # traces that policies were published with
    "tools/replay/synthetic",  # recipes of such traces
)


def modules() -> list[str]:
    result = (path for folder in ("cli", "schemas", "tools") for path in (ROOT / folder).rglob("*.py"))
    return sorted(str(path.relative_to(ROOT)) for path in result)


def names(module: str) -> Iterator[str]:
    """The policies that a module names, by a word or by an import."""
    text = (ROOT / module).read_text()
    if "schedule.policies" not in text and not any(word in text for word in WORDS):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and node.value in WORDS:
            yield str(node.value)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "pliant.tools.schedule.policies"
        ):
            yield str(node.module)


def test_a_policy_is_known_in_its_module_and_the_registry_alone() -> None:
    outside = [each for each in modules() if not each.startswith((POLICIES, *MEAN_SOMETHING_ELSE))]
    assert len(outside) > 100
    assert {module: result for module in outside if (result := [*names(module)])} == {}
    # Every policy is registered and has a golden file.
    classes = {
        node.name: f"pliant.{module[:-3].replace('/', '.')}:{node.name}"
        for module in modules()
        if module.startswith(POLICIES)
        for node in ast.parse((ROOT / module).read_text()).body
        if isinstance(node, ast.ClassDef) and any(has_name(each) for each in node.body)
    }
    assert set(classes.values()) == set(BUILT_IN.values())
    assert {path.stem for path in FOLDER.glob("*.json")} == set(BUILT_IN)


def has_name(statement: ast.stmt) -> bool:
    """Whether a statement of a class gives it the name of a policy."""
    target = statement.target if isinstance(statement, ast.AnnAssign) and statement.value else None
    return isinstance(target, ast.Name) and target.id == "name"
