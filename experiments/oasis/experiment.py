"""The reproduction of OASiS: total utility against four schedulers, targets, the optimum, wrong prices."""

from __future__ import annotations

from typing import Final

from experiments.harness.spec import Study
from experiments.oasis.facts import facts
from experiments.oasis.figures import figures
from experiments.oasis.measure import measure

EXPERIMENT: Final = Study(
    name="oasis",
    title="Online scheduling by prices",
    paper="Bao et al., Online Job Scheduling in Distributed Machine Learning Clusters, INFOCOM 2018",
    measure=measure,
    draw=figures,
    facts=facts,
)
