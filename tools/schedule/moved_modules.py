"""Where an author of a policy finds what earlier versions of pliant had elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_HERE: Final = "pliant.tools.schedule"
MODULES: Final[Mapping[str, str]] = {
    "protocol": "policy",
    "state": "from_log",
    "placement": "free_gpus",
    "audit": "testing.harness",
    "conformance": "testing.conformance",
    "policies.toolbox": "policies.common",
    "policies.room": "free_gpus",
    "policies.backfill": "policies.fifo",
    "policies.fixed_batch": "policies.elastic_dp.fixed_batch",
    "policies.tiresias_gittins": "policies.tiresias.gittins",
}
NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "snapshot": dict.fromkeys(("NodeGpus", "Observation", "Phase", "gpus_of", "node_states"), "jobs"),
    "session": {"Session": "session.session", "PolicyError": "policy_error"},
    "policies.ares": {"Ares": "policies.ares.policy"},
    "policies.elastic_dp": {"ElasticDp": "policies.elastic_dp.policy"},
    "policies.pollux": {"Pollux": "policies.pollux.policy"},
    "policies.tiresias": {"Tiresias": "policies.tiresias.policy"},
}
"""By module: what has left it, and the module where it is."""


def new_place(error: BaseException) -> str | None:
    """What to import instead of what an import did not find, in words; None: nothing is known of it."""
    if not isinstance(error, ImportError) or not (error.name or "").startswith(f"{_HERE}."):
        return None
    module = (error.name or "").removeprefix(f"{_HERE}.")
    if module in MODULES:
        return f"{error.name} is {_HERE}.{MODULES[module]} now"
    missing = re.match(r"cannot import name '(\w+)'", str(error))
    place = NAMES.get(module, {}).get(missing[1]) if missing else None
    return f"{missing[1]} of {error.name} is in {_HERE}.{place} now" if missing and place else None
