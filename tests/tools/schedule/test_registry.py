"""Policies by name, and parameters as people type them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.schedule import registry
from pliant.tools.schedule.policies.drl import SHIPPED
from pliant.tools.schedule.policy import Decision, Policy
from pliant.tools.schedule.registry import describe, make_policy, parse_pairs, policy_class, policy_names
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
    monkeypatch.setattr(registry, "BUILT_IN", {"tunable": "tunable_module:Tunable"})
    module = type(sys)("tunable_module")
    module.Tunable = Tunable  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tunable_module", module)


def test_every_built_in_policy_can_be_made_and_described() -> None:
    assert list(registry.BUILT_IN) == sorted(registry.BUILT_IN)
    assert set(registry.BUILT_IN) <= set(policy_names())
    for name in registry.BUILT_IN:
        assert make_policy(name).name == name
        assert describe(name).summary
    # Every built in policy says what it knows.
    for name in registry.BUILT_IN:
        found = policy_class(name)
        declares = [each for each in found.__mro__ if "knows" in vars(each) and each is not Policy]
        assert declares, f"{name} does not say what it knows"
        assert not (found.needs & {"demand", "profile"}) or found.knows in ("work", "profile"), name


def test_nothing_is_imported_before_it_is_asked_for():
    code = "import sys, pliant.tools.schedule.registry; print([m for m in sys.modules if '.policies.' in m])"
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
    assert (found.summary, found.elasticity, found.needs, found.interval_s) == (
        "Takes one parameter of every kind.",
        "size",
        ("profile",),
        30.0,
    )
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


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Foreign:
    found = Foreign(tmp_path, monkeypatch)
    found.is_written("def decide(self, snapshot, rng):\n    return Decision()", "")
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
