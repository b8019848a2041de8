"""The network that prefers one action to another, and the file that keeps what it has learnt."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.documents import document_bytes, parse_document
from pliant.schemas.file_io.files import atomic_write, read_bytes
from pliant.schemas.file_io.record import NonNegativeInt, Record, broken_rule
from pliant.tools.schedule.policies.drl.actions import FEATURES

Floats = npt.NDArray[np.float64]
KIND: Final = "network"
SHIPPED: Final = Path(__file__).with_name("trained.json")
"""The weights that come with pliant."""
_DIGITS: Final = 6
"""Of a weight in its file."""

_Row = Annotated[tuple[float, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Weights:
    """One hidden layer, tanh, and a preference: a score for each row of features."""

    hidden: Floats
    """[feature, unit]."""
    offsets: Floats
    """[unit]."""
    out: Floats
    """[unit]."""

    @classmethod
    def drawn(cls, units: int, rng: np.random.Generator) -> Self:
        """Where training begins: all actions are about equally good."""
        scale = 1 / np.sqrt(len(FEATURES))
        hidden = rng.normal(0, scale, (len(FEATURES), units))
        return cls(hidden, np.zeros(units), rng.normal(0, 0.01, units))

    def preferences(self, features: Floats) -> Floats:
        """A score for each action; higher is better, differences are logarithms of odds."""
        return np.asarray(self.activities(features) @ self.out)

    def activities(self, features: Floats) -> Floats:
        """[action, unit] what the hidden units say."""
        return np.asarray(np.tanh(features @ self.hidden + self.offsets))

    @property
    def digest(self) -> str:
        """SHA-256 of the weights as their file states them; it depends on nothing else."""
        text = repr([_rounded(self.hidden), _rounded(self.offsets), _rounded(self.out)])
        return hashlib.sha256(text.encode()).hexdigest()


class TrainedNetwork(Record):
    """A file of weights, and where they come from."""

    schema_: Literal["pliant.network/1"] = Field(default="pliant.network/1", alias="schema")
    policy: Literal["drl"] = "drl"
    command: str
    """What trains the same weights."""
    recipe: dict[str, Any]
    """Everything that the training read."""
    seed: NonNegativeInt
    digest: str
    """SHA-256 of the weights."""
    features: tuple[str, ...]
    """What a row of features holds, in order."""
    hidden: Annotated[tuple[_Row, ...], Field(min_length=1)]
    offsets: _Row
    out: _Row

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        units = len(self.out)
        if self.features != FEATURES:
            raise broken_rule("is not what this pliant shows the network", "/features")
        if len(self.hidden) != len(FEATURES) or {units, *map(len, self.hidden)} != {len(self.offsets)}:
            raise broken_rule("does not have a row of weights for each feature", "/hidden")
        if self.weights.digest != self.digest:
            raise broken_rule("is not that of these weights", "/digest")
        return self

    @property
    def weights(self) -> Weights:
        """The weights as arrays."""
        return Weights(np.array(self.hidden), np.array(self.offsets), np.array(self.out))


def write_network(path: Path, weights: Weights, command: str, recipe: dict[str, Any], seed: int) -> None:
    """Keep weights and where they come from; equal ones give equal bytes."""
    record = TrainedNetwork(
        command=command,
        recipe=recipe,
        seed=seed,
        digest=weights.digest,
        features=FEATURES,
        hidden=tuple(tuple(row) for row in _rounded(weights.hidden)),
        offsets=tuple(_rounded(weights.offsets)),
        out=tuple(_rounded(weights.out)),
    )
    atomic_write(path, document_bytes(record, KIND, with_defaults=True))


def read_network(path: Path) -> TrainedNetwork:
    """The network of a file.

    :raises BadInputError: with every problem of the file.
    """
    if not path.is_file():
        raise BadInputError.one(str(path), "no such file")
    return parse_document(read_bytes(path), str(path), KIND, TrainedNetwork)


def _rounded(values: Floats) -> Any:
    """As lists of numbers of :data:`_DIGITS` digits, negative zeros positive."""
    return (np.round(values, _DIGITS) + 0.0).tolist()
