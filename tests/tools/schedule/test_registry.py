import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.schedule import registry
from pliant.tools.schedule.policies.drl import SHIPPED
from pliant.tools.schedule.policy import Decision, Policy, PolicyError, Target
from pliant.tools.schedule.registry import describe, make_policy, parse_pairs, policy_class, policy_names
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job, opened, session
from tests.tools.schedule.foreign import Foreign


class Tunable(Policy):
    """Takes one parameter of every kind.

    More about it.
    """

    name = "tunable"
    elasticity = "size"
    needs = frozenset({"profile"})
    default_interval_s = 30.0

    def __init__(
        self,
        steps: int = 1,
        alpha: float = 0.5,
        on: bool = False,
        word: str = "x",
        mode: Literal["a", "b"] = "a",
        limit: float | None = None,
    ) -> None:
        if steps < 0:
            raise ValueError("steps: -1 is below 0")
        self.steps, self.alpha, self.on, self.word = steps, alpha, on, word
        self.mode, self.limit = mode, limit

    def decide(self, snapshot, rng):
        return Decision()


@pytest.fixture
def tunable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "tunable", "tunable_module:Tunable")
    module = type(sys)("tunable_module")
    module.Tunable = Tunable  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tunable_module", module)


def test_built_in_policies_are_described_and_imported_on_demand() -> None:
    assert list(registry.BUILT_IN) == sorted(registry.BUILT_IN)
    assert set(registry.BUILT_IN) <= set(policy_names())
    for name in registry.BUILT_IN:
        assert make_policy(name).name == name
        assert describe(name).summary
    # Every built in policy says what it knows.
    for name in registry.BUILT_IN:
        found = policy_class(name)
        assert found.traits is not Policy.traits, f"{name} does not say what it knows"
        needs = found.traits.needs & {"demand", "profile"}
        assert not needs or found.traits.knows in ("work", "profile"), name

    # Neither policies nor, by a session that draws nothing, NumPy.
    code = (
        "import sys, pliant.tools.schedule.registry as _\n"
        "from pliant.tools.schedule.session import policy_host\n"
        "policy_host.lazy_rng(1); print([m for m in sys.modules if '.policies.' in m or m == 'numpy'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("tunable")
@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("steps=3", 3),
        ("alpha=0.75", 0.75),
        ("alpha=1", 1.0),
        ("on=true", True),
        ("on=no", False),
        ("word=3", "3"),
        ("word=a=b", "a=b"),
        ("mode=b", "b"),
        ("limit=none", None),
        ("limit=2.5", 2.5),
    ],
)
def test_text_is_read_as_the_parameter_says(typed: str, read: object):
    key = typed.split("=", maxsplit=1)[0]
    policy = make_policy("tunable", parse_pairs([typed]))
    assert policy.parameters[key] == read
    assert type(policy.parameters[key]) is type(read)
    assert make_policy("tunable", policy.parameters).parameters == policy.parameters, "as JSON values"


@pytest.mark.usefixtures("tunable")
@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"steps": "2.5"}, "parameter steps: '2.5' is not a whole number"),
        ({"steps": 2.5}, "parameter steps: 2.5 is not a whole number"),
        ({"steps": True}, "parameter steps: True is not a whole number"),
        ({"alpha": "nan"}, "parameter alpha: 'nan' is not a number"),
        ({"alpha": "inf"}, "parameter alpha: 'inf' is not a number"),
        ({"on": "maybe"}, "parameter on: 'maybe' is not true or false"),
        ({"word": 3}, "parameter word: 3 is not text"),
        ({"mode": "c"}, "parameter mode: 'c' is not one of a, b"),
        ({"limit": "x"}, "parameter limit: 'x' is not a number or none"),
        ({"stps": "1"}, 'has no parameter "stps"; did you mean "steps"?'),
        ({"speed": "1"}, 'has no parameter "speed"; its parameters: steps, alpha, on, word, mode, limit'),
        ({"steps": "-1"}, "steps: -1 is below 0"),
    ],
)
def test_a_wrong_parameter_is_a_usage_error_with_what_is_right(values, complaint):
    with pytest.raises(UsageError) as caught:
        make_policy("tunable", values)
    assert complaint in str(caught.value)


def test_a_file_of_the_working_directory_stays_same_elsewhere(tmp_path, monkeypatch):
    """A state directory repeats the parameters to a process that runs elsewhere."""
    shutil.copy(SHIPPED, tmp_path / "mine.json")
    monkeypatch.chdir(tmp_path)
    made = make_policy("drl", {"network": "mine.json"})
    assert made.parameters["network"] == str(tmp_path / "mine.json")
    monkeypatch.chdir("/")
    assert make_policy("drl", made.parameters).parameters == made.parameters
    with pytest.raises(BadInputError, match=r"/mine.json: no such file"):
        make_policy("drl", {"network": "mine.json"})
    assert make_policy("drl").parameters["network"] == ""


@pytest.mark.parametrize(("name", "meant"), [("fiffo", "fifo"), ("ARES", "ares")])
def test_an_unknown_policy_is_one_short_line_that_names_similar(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=rf'unknown policy "{name}"; did you mean "{meant}"') as caught:
        policy_class(name)
    assert str(caught.value).count('"') <= 2 * 4, "three names at most, not all of them"
    # An unknown policy with a long name is one short line.
    with pytest.raises(UsageError) as caught:
        make_policy("9" * 5000, {})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        *((["alpha"], "KEY=VALUE"), (["=1"], "KEY=VALUE"), ([""], "KEY=VALUE")),
        (["a=1", "a=2"], '"a" is given twice'),
    ],
)
def test_a_pair_without_a_value_or_given_twice_is_a_usage_error(pairs: list[str], complaint: str):
    with pytest.raises(UsageError, match=complaint):
        parse_pairs(pairs)


@pytest.mark.usefixtures("tunable")
def test_a_description_holds_what_a_class_declares() -> None:
    found = describe("tunable")
    said = found.summary, found.elasticity, found.needs, found.interval_s
    assert said == ("Takes one parameter of every kind.", "size", ("profile",), 30.0)
    parameters = {each.name: (each.expected, each.default) for each in found.parameters}
    assert parameters["mode"] == ("a, b", '"a"')
    assert parameters["limit"] == ("a number or none", "null")


def test_a_description_says_when_a_policy_decides_and_its_traits():
    assert describe("elastic-dp").decides == "every 600 s (parameter interval_s)"
    assert describe("las").decides == "every 60 s"
    assert describe("fifo").decides == "at every change"
    # What classes say beside their docstrings is said.
    assert "Packs: two jobs may train on one set of GPUs." in describe("lucid").traits
    assert any("oracle" in trait for trait in describe("optimus").traits)
    assert "Reads a file: `network`, in a recipe of a sweep relative to the recipe." in describe("drl").traits
    assert any("bound" in trait for trait in describe("ares").traits)
    assert describe("fifo").traits == ()


DECIDE = "def decide(self, snapshot, rng):\n    "


def test_policies_may_state_and_read_traits_as_class_variables() -> None:
    class Often:
        elasticity = "size"
        default_interval_s = 30.0

    class Mine(Often, policy_class("las")):  # type: ignore[misc]
        name = "mine"
        heeds_deadlines = True

    before = policy_class("las").traits
    wanted = replace(before, elasticity="size", default_interval_s=30.0, uses_deadlines=True)
    assert Mine.traits == wanted
    assert (Mine().knows, Mine.elasticity, Mine().hears_epochs) == (before.knows, "size", False)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Foreign:
    monkeypatch.chdir(tmp_path)
    found = Foreign(tmp_path, monkeypatch)
    found.is_written(f"{DECIDE}return Decision()", "")
    return found


def test_a_policy_of_another_package_is_found_by_its_entry_point(mine: Foreign) -> None:
    assert "mine" in policy_names()
    assert make_policy("mine").name == "mine"
    assert describe("mine").source == "mine:Mine"
    # A built in name cannot be taken over.
    mine.offers("fifo", "mine:Mine")
    assert policy_class("fifo").__module__ == "pliant.tools.schedule.policies.fifo"


@pytest.mark.parametrize(
    ("name", "value", "source", "complaint"),
    [
        ("mine", "mine:Other", None, "cannot be loaded"),
        ("mine", "mine:Mine", "Mine = 3", "is not a subclass of"),
        ("other", "mine:Mine", None, "calls itself 'mine'"),
        ("mine", "mine:Mine", "from pliant.schemas.job import Crystal", "cannot import name 'Crystal'"),
    ],
)
def test_a_broken_package_is_a_usage_error_that_names_it(mine: Foreign, name, value, source, complaint):
    mine.offers(name, value)
    if source:
        mine.file.write_text(source)
    with pytest.raises(UsageError, match=complaint) as caught:
        policy_class(name)
    assert f'policy "{name}" ({value})' in str(caught.value)


# An error of somebody else's policy names the policy, its file and its line.


BODY = f"def __init__(self, floor: float = 0.0):\n    self.floor = floor\n{DECIDE}return Decision()\n"


def in_use() -> Session:
    return opened(make_policy("mine"), cluster(4), job("a"))


def carried() -> None:
    held = in_use()
    held.restore_state(held.policy_host.policy_state().model_copy(update={"state": {}}))


ASKS: dict[str, Callable[[], object]] = {
    "decide": lambda: in_use().decide(0.0),
    "explain": lambda: in_use().explain(0.0),
    "dump_state": lambda: in_use().policy_host.policy_state(),  # noqa: PLW0108
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


def test_wrong_parameters_and_packages_name_the_policy(mine: Foreign) -> None:
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
    # A package that cannot be loaded names its line.
    errors = {"1 / 0": "ZeroDivisionError", "def f(:": "SyntaxError", "raise SystemExit(3)": "SystemExit"}
    for after, error in errors.items():
        line = mine.is_written(BODY, "", after=after)
        with pytest.raises(UsageError, match=rf"cannot be loaded: mine.py:{line}: {error}"):
            make_policy("mine")


@pytest.mark.parametrize(
    ("ask", "answer", "complaint"),
    [
        ("decide", None, "returned None from decide, expected a Decision.*this is a bug in the policy"),
        ("decide", {"a": 1}, r"returned \{'a': 1\} from decide"),
        ("decide", Decision({"a": 2}), 'gives "a" 2, expected a Target'),  # type: ignore[dict-item]
        ("decide", Decision({"a": Target(1.5)}), r'gives "a" Target\(gpus=1.5'),  # type: ignore[arg-type]
        ("decide", Decision(ask_again_s="soon"), "asks to be asked again at 'soon'"),  # type: ignore[arg-type]
        ("decide", Decision(rejected={"a": None}), 'rejects "a" with None'),  # type: ignore[dict-item]
        ("explain", None, "returned None from explain"),
        ("explain", {"a": "it runs"}, "explains \"a\" by 'it runs'"),
    ],
)
def test_what_is_no_decision_or_explanation_breaks_a_rule(mine: Foreign, ask, answer, complaint):
    line = "return self.answer\n"
    mine.is_written(f"answer = None\n{DECIDE}{line}def explain(self, snapshot):\n    {line}", "")
    held = in_use()
    held.policy.answer = answer  # type: ignore[attr-defined]
    with pytest.raises(PolicyError, match=f'policy "mine" {complaint}'):
        getattr(held, ask)(0.0)


def test_errors_of_own_policies_stay_bugs_and_cross_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    held = session(make_policy("fifo"), cluster(4))
    monkeypatch.setattr(type(held.policy), "decide", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        held.decide(0.0)
    # The error comes back from another process.
    error = PolicyError.broke_rule("mine", "gives away too much")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes
