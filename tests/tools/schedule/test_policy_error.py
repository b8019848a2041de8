"""An error of somebody else's policy names the policy, its file and its line."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.errors import UsageError
from pliant.tools.schedule.policy import Decision, PolicyError, Target
from pliant.tools.schedule.registry import describe, make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job, opened, session
from tests.tools.schedule.foreign import Foreign

DECIDE = "def decide(self, snapshot, rng):\n    "
BODY = f"def __init__(self, floor: float = 0.0):\n    self.floor = floor\n{DECIDE}return Decision()\n"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Foreign:
    monkeypatch.chdir(tmp_path)
    return Foreign(tmp_path, monkeypatch)


def in_use() -> Session:
    return opened(make_policy("mine"), cluster(4), job("a"))


def carried() -> None:
    held = in_use()
    held.carry(held.policy_state().model_copy(update={"state": {}}))


ASKS: dict[str, Callable[[], object]] = {
    "decide": lambda: in_use().decide(0.0),
    "explain": lambda: in_use().explain(0.0),
    "dump_state": lambda: in_use().policy_state(),
    "load_state": carried,
    "make": lambda: make_policy("mine"),
}
HELPS = "return self.help()\ndef help(self):\n    return 1 / 0  # !"


@pytest.mark.parametrize(
    ("ask", "body", "error"),
    [
        ("decide", DECIDE + "return snapshot.jobs['x']  # !", "KeyError: 'x'"),
        ("decide", DECIDE + "import json; return json.loads('?')  # !", "JSONDecodeError: Expecting value"),
        ("decide", DECIDE + HELPS, "ZeroDivisionError: division by zero"),
        ("explain", BODY + "def explain(self, _):\n    return _.nothing  # !", "AttributeError: .*'nothing'"),
        ("dump_state", BODY + "def dump_state(self):\n    raise OSError('broken')  # !", "OSError: broken"),
        ("load_state", BODY + "def load_state(self, state, _):\n    return state['x']  # !", "KeyError: 'x'"),
        ("make", "def __init__(self):\n    self.x = {}['y']  # !", "KeyError: 'y'"),
    ],
)
def test_an_exception_names_policy_file_and_line(mine: Foreign, ask: str, body: str, error: str):
    """The line is the policy's own, also where a library or a helper of its package raises."""
    line = mine.is_written(body, "# !")
    with pytest.raises(PolicyError, match=rf'^policy "mine" \(mine.py:{line}\): {error}') as caught:
        ASKS[ask]()
    assert type(caught.value.__cause__).__name__ == error.partition(":")[0]


def test_wrong_parameters_and_annotations_name_the_policy(mine: Foreign) -> None:
    mine.is_written("def __init__(self, floor: int = 1):\n    self.floor = {floor}", "")
    with pytest.raises(PolicyError, match="TypeError: Object of type set is not JSON serializable"):
        make_policy("mine")
    # An annotation that names nothing is the policys error.
    mine.is_written("def __init__(self, floor: 'Nothing' = 1):\n    self.floor = floor", "")
    for ask in (make_policy, describe):
        with pytest.raises(PolicyError, match=r"mine.py:\d+\): annotations of __init__: NameError.*Nothing"):
            ask("mine")
    # A parameter that the policy does not keep names its class.
    line = mine.is_written("def __init__(self, floor: int = 1):\n    pass", "class Mine")
    with pytest.raises(PolicyError, match=rf"\(mine.py:{line}\): AttributeError: .*'floor'"):
        make_policy("mine")
    # A type error in the constructor is not taken for a missing parameter.
    line = mine.is_written("def __init__(self, floor: int):\n    self.floor = floor + ''", "floor + ''")
    with pytest.raises(PolicyError, match=rf"\(mine.py:{line}\): TypeError"):
        make_policy("mine", {"floor": 1})
    with pytest.raises(UsageError, match='policy "mine" needs --param floor=VALUE'):
        make_policy("mine")


def test_a_package_that_cannot_be_loaded_names_its_line(mine: Foreign):
    line = mine.is_written(BODY, "", after="1 / 0")
    with pytest.raises(UsageError, match=rf"cannot be loaded: mine.py:{line}: ZeroDivisionError"):
        make_policy("mine")


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (None, "returned None from decide, expected a Decision"),
        ({"a": 1}, r"returned \{'a': 1\} from decide"),
        (Decision({"a": 2}), 'gives "a" 2, expected a Target'),  # type: ignore[dict-item]
        (Decision({"a": Target(1.5)}), r'gives "a" Target\(gpus=1.5'),  # type: ignore[arg-type]
        (Decision(ask_again_s="soon"), "asks to be asked again at 'soon'"),  # type: ignore[arg-type]
        (Decision(rejected={"a": None}), 'rejects "a" with None'),  # type: ignore[dict-item]
    ],
)
def test_what_is_not_a_decision_breaks_a_rule(mine: Foreign, answer: Any, complaint: str):
    mine.is_written(f"answer = None\n{DECIDE}return self.answer", "")
    held = in_use()
    held.policy.answer = answer  # type: ignore[attr-defined]
    with pytest.raises(PolicyError, match=f'policy "mine" {complaint}.*this is a bug in the policy'):
        held.decide(0.0)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [(None, "returned None from explain"), ({"a": "it runs"}, "explains \"a\" by 'it runs'")],
)
def test_what_is_not_an_explanation_breaks_a_rule(mine: Foreign, answer: Any, complaint: str):
    mine.is_written(BODY + "def explain(self, snapshot):\n    return self.answer", "")
    held = in_use()
    held.policy.answer = answer  # type: ignore[attr-defined]
    with pytest.raises(PolicyError, match=complaint):
        held.explain(0.0)


def test_an_error_of_pliants_own_policies_stays_a_bug_of_pliant(monkeypatch: pytest.MonkeyPatch):
    held = session(make_policy("fifo"), cluster(4))
    monkeypatch.setattr(type(held.policy), "decide", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        held.decide(0.0)


def test_the_error_comes_back_from_another_process():
    error = PolicyError.broke_rule("mine", "gives away too much")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes
