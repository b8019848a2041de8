"""Results as data, and the page made from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.harness.published import NEAR, Compared, read_numbers
from experiments.harness.replays import OF_JOBS, Outcome
from experiments.harness.significance import PairedTest, paired_tests
from experiments.harness.spec import Experiment, Replays, Subject
from pliant import __version__
from pliant.schemas.file_io.files import read_bytes
from pliant.tools.report.rendering.text import markdown_table, wrapped_prose

HEADER: Final = (
    "<!-- Written by `make experiment NAME={}` from its results; edit the template instead. -->\n\n"
)
_KEPT: Final = (
    "jobs_submitted",
    "jobs_finished",
    "jobs_rejected",
    "mean_jct_s",
    "p99_jct_s",
    "unfair_fraction",
    "worst_ftf",
    "worst_ftf_gps",
    "worst_ftf_isolated",
    "gps_bound_s",
    "worst_gps_delay_s",
    "jobs_past_gps_bound",
    "preemptions_per_job",
    "sjs_efficiency",
    "drop_ratio",
    "makespan_s",
    "rescales_per_job",
    "rescales_per_hour",
    "bound_jct_s",
    *OF_JOBS,
)


def results_bytes(
    experiment: Experiment, compared: Iterable[Compared], outcomes: Mapping[str, Outcome]
) -> bytes:
    """What is committed: every comparison, and the main figures, seed and trace hash of every replay."""
    document = {
        "experiment": experiment.name,
        "command": f"make experiment NAME={experiment.name}",
        "pliant": __version__,
        "compared": [
            {**asdict(each), "ratio": each.ratio, "reproduces": each.reproduces} for each in compared
        ],
        **_tested(experiment, outcomes),
        "replays": {name: _replay(outcomes[name]) for name in sorted(outcomes)},
    }
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def _tested(experiment: Experiment, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    found = [asdict(each) for each in paired_tests(experiment, outcomes)]
    return {"tested": found} if found else {}


@dataclass(frozen=True, slots=True)
class Results:
    """What is committed of an experiment."""

    compared: tuple[Compared, ...]
    replays: Replays
    tested: tuple[PairedTest, ...] = ()

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The results in a file."""
        document = json.loads(read_bytes(path))
        known = [field.name for field in fields(Compared)]
        rows = [Compared(**{name: row[name] for name in known}) for row in document["compared"]]
        tested = tuple(PairedTest(**row) for row in document.get("tested", ()))
        return cls(tuple(rows), document["replays"], tested)


def page_text(experiment: Experiment, results: Results) -> str:
    """The page: ``page.md.j2`` of the experiment, its tables filled.

    The template has ``table(NAME)``, ``figure(NAME)``, ``ratios``, those ``missed``, ``near`` and the facts.
    """
    compared = results.compared
    notes = {number.name: number.note for number in read_numbers(experiment.numbers)}
    return rendered(
        experiment,
        results=results,
        table=lambda name: table_text([each for each in compared if each.table == name]),
        missed=[(each, notes[each.name]) for each in compared if each.is_ratio and not each.reproduces],
        ratios=[each for each in compared if each.is_ratio],
        near=NEAR,
        **experiment.facts(results.replays),
    )


def rendered(subject: Subject, **facts: object) -> str:
    """``page.md.j2`` in the subject's folder, filled; it has ``experiment`` and ``figure(NAME)``, too."""
    environment = Environment(
        loader=FileSystemLoader(subject.folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Markdown
    )
    text = environment.get_template("page.md.j2").render(
        experiment=subject,
        figure=lambda name: f"![{name}]({subject.name}/{name}.svg)",
        **facts,
    )
    return HEADER.format(subject.name) + wrapped_prose(text)


def table_text(rows: Sequence[Compared]) -> str:
    """Ours beside theirs in Markdown."""
    head = ("", "published", "ours (smallest to largest)", "reproduced")
    body = [
        (
            each.what,
            _number(each.published, each.unit),
            f"{_number(each.ours, each.unit)} ({_spread(each)})",
            ("yes" if each.reproduces else "no") if each.is_ratio else "",
        )
        for each in rows
    ]
    return markdown_table(head, body)


def _spread(each: Compared) -> str:
    return f"{_number(each.low)} to {_number(each.high)}" if each.seeds > 1 else "one seed"


def _number(value: float, unit: str = "") -> str:
    text = f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{text} {unit}" if unit else text


def _replay(outcome: Outcome) -> dict[str, Any]:
    kept = {key: outcome.metrics[key] for key in (*_KEPT, *sorted(outcome.extra)) if key in outcome.metrics}
    return {"trace_hash": outcome.trace_hash, "seed": outcome.seed, **kept}
