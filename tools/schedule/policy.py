"""The policy protocol: a policy is a function of a snapshot, plus state that can be dumped and loaded."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import takewhile
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, get_args

from pliant.schemas.errors import PliantError
from pliant.schemas.job import Elasticity
from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.schemas.cluster import Cluster
    from pliant.schemas.job import Job
    from pliant.schemas.runinfo import PromisedBounds
    from pliant.tools.schedule.rates import Speeds


Need = Literal["demand", "profile"]
Knows = Literal["nothing", "service", "work", "profile"]
PRIORITY_FIRST: Final = "jobs of higher priority come first"


class Target(NamedTuple):
    """What one job shall hold from now on; ``gpus`` 0 takes all of them away."""

    gpus: int
    gpu_type: str | None = None
    """None: any type with enough free GPUs, the one on which the job runs fastest first."""
    global_batch: int | None = None
    """None: unchanged (the reference batch at the start)."""
    placement: NodeGpus | None = None
    """Exact nodes in the order in which they are linked, for a policy that places jobs itself; None: the
    placement step chooses."""
    servers: NodeGpus | None = None
    """Exact nodes of its parameter servers; None: the placement step chooses."""
    beside: str | None = None
    """The job whose GPUs it shares, all of them, for a policy that packs; None: it has its GPUs alone."""


@dataclass(slots=True)
class Decision:
    """What changes. A job that is not named keeps what it has.

    The order of ``targets`` is the order in which starts and growths are placed: first come, best place.
    """

    targets: dict[str, Target] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    """Jobs turned away for good, with the reason."""
    ask_again_s: float | None = None
    """Ask again at this time at the latest, even if nothing happens."""
    quiet_until_s: float | None = None
    """Time until which rounds without a change would change nothing: they may be skipped."""
    outlasts_ends: bool = False
    """Whether it stands, once carried out, when jobs end: a replay need not ask again until something else
    happens, and shows the ends to the policy then. So for one that keeps what jobs have, while none waits."""
    admissions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Statements on jobs that it admitted or rejected, as JSON values for event files.
    Reports read ``admitted``, ``payoff``, ``worth``, ``cost``, ``end_s``, ``least_value`` and
    ``least_target_s``."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one active job holds what it holds, in one clause; or what it waits for."""

    reason: str
    needs_gpus: int | None = None


class Reserved(NamedTuple):
    """What a job is to hold in a span of time to come."""

    from_s: float
    until_s: float
    placement: NodeGpus
    servers: NodeGpus = ()


def parameter_names(policy: type[Policy]) -> tuple[str, ...]:
    if policy.__init__ is object.__init__:
        return ()
    return tuple(inspect.signature(policy).parameters)


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a policy declares about itself: sessions hold it to this, messages and its page repeat it."""

    elasticity: Elasticity = "none"
    """The most that it changes about a job; a job that allows less keeps to its own ``elastic``.

    With "none", jobs get the GPUs that they requested or nothing.
    """
    knows: Knows = "nothing"
    """The most that its decisions rest on, in this order: "nothing" but requests, priorities and arrivals;
    "service" that jobs received, and what those took that ended; the "work" of jobs, stated or expected; the
    "profile", for speeds at other sizes, at other batches or on other GPU types. Pages group policies by it.
    """
    accumulates: bool = True
    """Whether a job may train a step in several micro-steps where its GPUs do not hold the batch. A session
    leaves out GPUs that slow a job down; under a policy that does not accumulate, as many stay as hold it."""
    packs: bool = False
    """Whether it lets two jobs train on the same GPUs (``Target.beside``). Jobs that share GPUs when another
    policy takes over are separated: the later one loses its GPUs before the policy is asked."""
    needs: frozenset[Need] = frozenset()
    """Inputs without which it cannot decide: the work of each job, a profile. Jobs without are refused."""
    priority_means: str | None = None
    """Meaning of the priority of a job (``job.priority``), as a clause; empty: none. None: it is not said, so
    no user is warned that priorities do not count."""
    weight_means: str = ""
    """Meaning of the weight of a job (``job.spec.weight``), as a clause; empty: none, and it says so."""
    uses_deadlines: bool = False
    """Whether it looks at what finishing by a time is worth to a job (``job.spec.utility``), at least on some
    clusters: see :meth:`Policy.overlooks_deadline`."""
    when_rigid: str = ""
    """Clause on what it does where no job is elastic, if that is less than its name says."""
    uses_guessed_speeds: bool = False
    """Whether it counts with the speeds that are guessed where there is no profile. Other policies take jobs
    whose work is not stated in GPU-seconds in order of submission (``JobState.is_speed_guessed``)."""
    unknown_work: str = "goes by submission"
    """Clause on what it does with jobs of which no profile says how long they take."""
    default_interval_s: float | None = None
    """Seconds between decisions; None: at once at every change.

    While nothing runs and nothing can arrive, up to ``idle_limit.IDLE_ROUNDS`` (1000) further rounds are
    held. Then every job that still waits is given up.
    """
    interval_parameter: str | None = None
    """Parameter that holds the seconds between decisions of a policy that keeps an interval of its own.

    Such a policy is asked at every change, and answers before its interval has passed only where it says so.
    """
    decides_at_epochs: bool = False
    """Whether a run of real jobs asks it also when one reports the end of an epoch. A replay never does:
    there every epoch ends when the rates say, so such a policy names the time in ``ask_again_s``."""
    clock_parameters: frozenset[str] = frozenset()
    """Parameters by which a decision depends on how fast the machine is; the checks leave them alone."""
    file_parameters: frozenset[str] = frozenset()
    """Parameters that name files which it reads when it is made. In a recipe of a sweep they are relative to
    the recipe, elsewhere to the working directory; what is in force is absolute."""
    follows_recording: bool = False
    """Whether jobs hold in a replay what the trace recorded, and nothing is decided."""
    uses_oracle: bool = False
    """Whether it uses ``snapshot.oracle`` where there is one; its output is then labelled so."""
    needs_future: bool = False
    """Whether it reads ``snapshot.future``, the jobs of a replay that have not arrived: an oracle, to hold
    schedulers against. Its output is labelled so, and ``pliant run`` refuses it."""
    uses_forecast: bool = False
    """Whether it asks ``snapshot.forecast``, which then learns as with ``--demand predicted``."""
    rebuilds_state: bool = True
    """Whether a fresh object that sees the whole history decides as one that was there all along.

    False where a history lacks what is carried, as the moment of the last look, or the candidates that
    a random search goes on from: only repeating the search would find them. Such a policy dumps it, and
    every schedule and state directory keeps the dump. Where it is lost, the policy begins from what the jobs
    hold; it keeps every rule and decides alike however often it is rebuilt.
    """

    def __post_init__(self) -> None:
        allowed = {"elasticity": get_args(Elasticity), "knows": get_args(Knows)}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"trait {name} is {getattr(self, name)!r}, expected {' or '.join(values)}")


_RENAMED: Final = {
    "heeds_deadlines": "uses_deadlines",
    "trusts_guesses": "uses_guessed_speeds",
    "of_unknown_work": "unknown_work",
    "hears_epochs": "decides_at_epochs",
    "depends_on_clock": "clock_parameters",
    "files": "file_parameters",
    "asks_oracle": "uses_oracle",
    "knows_future": "needs_future",
    "asks_forecast": "uses_forecast",
}
_FORMER_TRAITS: Final = _RENAMED | {
    field.name: field.name for field in fields(Traits) if field.name not in _RENAMED.values()
}
"""Traits by the class variables that said them until version 0.1; policies may still set these."""


class Policy:
    """Base of all policies; subclasses override ``decide`` and what their state needs.

    Parameters of a policy are the keyword arguments of its ``__init__``, each kept in an attribute of its own
    name: schedules, event files and reports repeat them. Their annotations say how ``--param`` is read:
    ``bool``, ``int``, ``float``, ``str``, a ``Literal``, or one of these ``| None``.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits] = Traits()
    state_version: ClassVar[int] = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not isinstance(cls.traits, Traits):
            raise TypeError(f"traits of policy {cls.__name__} are {cls.traits!r}, expected Traits(…)")
        mixins = takewhile(lambda kind: not issubclass(kind, Policy), cls.__mro__[1:])
        stated = {name: value for kind in reversed([cls, *mixins]) for name, value in vars(kind).items()}
        former = {new: stated[old] for old, new in _FORMER_TRAITS.items() if old in stated}
        if former:
            cls.traits = replace(cls.traits, **former)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Names and values of the parameters in force (JSON values), in the order of ``__init__``."""
        return {name: getattr(self, name) for name in parameter_names(type(self))}

    @property
    def bounds(self) -> PromisedBounds | None:
        """What its authors prove of every run: event files state it, and reports hold runs against it."""
        return None

    def bounds_on(self, cluster: Cluster) -> PromisedBounds | None:
        """The same on this cluster: it says if nothing is promised there."""
        del cluster
        return self.bounds

    @classmethod
    def overlooks_deadline(cls, job: Job, cluster: Cluster) -> str | None:
        """Which deadlines it does not look at, as a clause; None if it looks at that of the job there."""
        del job, cluster
        return None if cls.traits.uses_deadlines else "deadlines"

    def counts_on_work(self, jobs: Iterable[Job]) -> bool:
        """Whether decisions about such jobs rest on how long the work takes that they state."""
        del jobs
        return self.traits.knows in ("work", "profile")

    def promised_rates(self, job: JobState, speeds: Speeds) -> Sequence[tuple[int, float]]:
        """(GPUs, samples per second) of the sizes with which ``bounds`` count, ascending, for reports."""
        del job, speeds
        return ()

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """Say what changes now. Called with every change since the last call in ``snapshot.changes``."""
        raise TypeError(f"policy {type(self).__name__} does not implement decide")

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        """Why each active job holds what it holds after the last decision was applied.

        Asked only when it is to be read. Jobs that are left out get a plain sentence.
        """
        del snapshot
        return {}

    def reserved(self, snapshot: Snapshot) -> Mapping[str, Sequence[Reserved]]:
        """What jobs are to hold later, in order of time, for a policy that plans; asked as ``explain``."""
        del snapshot
        return {}

    def chooses_nodes(self) -> bool:
        """Whether it names nodes without a look at the levels of the network, which is then said."""
        return False

    def look_ahead(self) -> None:
        """Called on a copy that is asked what will be decided: it may decide with less effort."""

    def dump_state(self) -> Any:
        """State as JSON values, jobs named by id.

        None: there is nothing to carry. A policy that keeps anything between calls either dumps it here or
        builds it in the first call after its making, from ``snapshot.jobs`` or from ``snapshot.changes``,
        which then hold the whole history.
        """
        return None

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        """Take up what ``dump_state`` gave; ``jobs`` are all jobs known, ended ones included."""
        del state, jobs


class _FormerTrait:
    """A trait as policies read it until version 0.1: a class variable."""

    def __init__(self, trait: str) -> None:
        self._trait = trait

    def __get__(self, policy: object, kind: type[Policy]) -> Any:
        return getattr(kind.traits, self._trait)


for _former, _trait in _FORMER_TRAITS.items():
    setattr(Policy, _former, _FormerTrait(_trait))


OURS = Policy.__module__.partition(".")[0]


class PolicyError(PliantError):
    """A bug of a policy, not of its input: it broke a rule, or its code raised an exception.

    The message names the policy; where code raised, also file and line, and ``__cause__`` is the exception.
    """

    @classmethod
    def broke_rule(cls, policy: str, what: str) -> PolicyError:
        return cls(f'policy "{policy}" {what}: this is a bug in the policy')


class blaming:  # noqa: N801 - reads as a word of the with statement; a class costs less than a generator
    """In this block, an exception from the code of another package becomes an error that names the policy.

    Exceptions of pliant's own policies, and expected errors, stay as they are.

    :param doing: what is under way, if the name of the method does not say it.
    :raises PolicyError: from the exception.
    """

    __slots__ = ("_doing", "_policy")

    def __init__(self, policy: type[Policy], *, doing: str = "") -> None:
        self._policy = policy
        self._doing = doing

    def __enter__(self) -> None:
        """Nothing is set up."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception | SystemExit):
            blame(self._policy, error, self._doing)


def blame(policy: type[Policy], error: BaseException, doing: str = "") -> None:
    """What :class:`blaming` does with an exception, where a block would cost too much: decisions are many.

    :raises PolicyError: from the exception, unless it stays as it is.
    """
    if isinstance(error, PliantError | MemoryError) or _package(policy.__module__) == OURS:
        return
    if isinstance(error, SystemExit) and _raised_in(error) == OURS:
        return
    name = getattr(policy, "name", policy.__qualname__)
    raise PolicyError(f'policy "{name}" ({_place(policy, error)}): {doing}{in_words(error)}') from error


def in_words(error: BaseException) -> str:
    """``KeyError: 'x'``, on one line; the type alone if the exception has no text."""
    said = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def raised_at(error: BaseException, package: str) -> str | None:
    """``FILE:LINE`` of a package's innermost frame in a traceback, or of its syntax error; None: neither."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{_short(error.filename)}:{error.lineno}"
    place = None
    for frame, line in walk_tb(error.__traceback__):
        in_file = not frame.f_code.co_filename.startswith("<")  # as that of an annotation that is text
        if in_file and _package_of(frame) == package:
            place = f"{_short(frame.f_code.co_filename)}:{line}"
    return place


def _raised_in(error: BaseException) -> str:
    """The package of the innermost frame of a traceback."""
    packages = [_package_of(frame) for frame, _ in walk_tb(error.__traceback__)]
    return packages[-1] if packages else ""


def _package_of(frame: FrameType) -> str:
    return _package(frame.f_globals.get("__name__") or "")


def _place(policy: type[Policy], error: BaseException) -> str:
    """Where the policy's own code raised, else its class."""
    return raised_at(error, _package(policy.__module__)) or _defined_at(policy)


def _defined_at(policy: type[Policy]) -> str:
    try:
        file, (_, line) = inspect.getfile(policy), inspect.getsourcelines(policy)
    except (OSError, TypeError):
        return f"{policy.__module__}:{policy.__qualname__}"
    return f"{_short(file)}:{line}"


def _short(file: str) -> str:
    """A path relative to the working directory, if it lies below it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (OSError, ValueError):
        return file


def _package(module: str) -> str:
    return module.partition(".")[0]
