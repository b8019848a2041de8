"""``python -m docs.generate [--check]``: write the pages that come from code; --check only compares."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from pliant.tools.schedule.registry import Description

HERE = Path(__file__).parent
HEADER = "<!-- Written by `make docs` from the code and its results; edit those instead. -->\n\n"


_GRAMMAR = """# Command line

Every command, its arguments and its options, as `--help` prints them:

{commands}

The main file of a command has no option before it, and `-` is stdin or stdout. On every command `-o FILE`
says where the product goes, and `-f FORMAT` in which form it is written; only `log -f` means follow, as
with `tail`. What DURATION, TIME and SIZE stand for, here and in parameters of policies (`--param dwell_s=5m`)
and recipes of sweeps (`interval = "2m"`):

- DURATION: {duration}. `1h30m` works, too. Where the help says that plain numbers are hours, they are.
- TIME: {time}, local time unless it ends with `Z` or an offset.
- SIZE: {size}. GB counts in thousands, GiB in 1024s.

Options that many commands share; a section below names those that its command has, but for the last three:

{shared}

`pliant` alone also takes `--version`, `--install-completion` and `--show-completion`.

Exit codes of all commands:

{codes}
"""
_MANY = 5
"""Commands that share an option, with the same help: then it stands once, above all of them."""


def cli_page() -> str:
    """Reference of all commands, from the command line's own help."""
    from collections import Counter
    from itertools import groupby

    import typer

    from pliant.cli.main import COMMANDS, GROUPS, app
    from pliant.cli.reference import EXIT_STATUS
    from pliant.schemas.quantities import SIZE, TIME, duration_words

    found = list(_commands(typer.Context(typer.main.get_command(app), info_name="pliant")))
    counts = Counter(record for context in found for record in _records(context, "option"))
    many = sorted(
        (record for record, count in counts.items() if count >= _MANY), key=lambda each: -counts[each]
    )
    panels = groupby((*COMMANDS, *GROUPS), key=lambda each: each[1])
    commands = "\n".join(
        f"- **{panel}**: " + ", ".join(f"[{name}](#pliant-{name.replace(' ', '-')})" for name, *_ in each)
        for panel, each in panels
    )
    head = _GRAMMAR.format(
        commands=commands,
        duration=duration_words(),
        time=TIME,
        size=SIZE,
        shared=_list(reversed(many)),
        codes=_table(("code", "meaning"), [(f"`{code}`", text) for code, text in EXIT_STATUS.items()]).rstrip(
            "\n"
        ),
    )
    return "\n".join([head, *(_command(context, many) for context in found)]).rstrip() + "\n"


def _commands(context: Any) -> Iterator[Any]:
    """The contexts of all commands below one, a group before its own."""
    for name in context.command.list_commands(context) if hasattr(context.command, "list_commands") else ():
        within = type(context)(context.command.get_command(context, name), info_name=name, parent=context)
        yield within
        yield from _commands(within)


def _command(context: Any, many: Sequence[tuple[str, str]]) -> str:
    """The section of a command: how it is typed, what it does, its arguments and options."""
    command, path = context.command, context.command_path
    # Without what keeps lines apart, and brackets from being taken for markup, on a terminal.
    text = (command.help or "").replace("\b\n", "").replace("\\[", "[").strip()
    title = f"{'##' if context.parent.parent is None else '###'} `{path}`"
    if hasattr(command, "list_commands"):
        return f"{title}\n\n{text}\n"
    options = _records(context, "option")
    own = [*_records(context, "argument"), *(each for each in options if each not in many)]
    also = [f"`{name.partition(' <')[0]}`" for name, text in many if (name, text) in options]
    also = [each for each in also if each not in _EVERYWHERE]
    usage = f"`{path} {' '.join(command.collect_usage_pieces(context))}`"
    last = f"Also {', '.join(also)}." if also else ""
    return "\n\n".join(part for part in (title, _examples(text), usage, _list(own), last) if part) + "\n"


_EVERYWHERE = ("`--debug`", "`-q, --quiet`", "`--help`")


def _records(context: Any, kind: str) -> list[tuple[str, str]]:
    """What the help says of each argument, or of each option."""
    found = (
        each.get_help_record(context)
        for each in context.command.get_params(context)
        if each.param_type_name == kind
    )
    return [(name, text.replace("\\[", "[")) for name, text in filter(None, found)]


def _list(records: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"* `{name}`: {text}" if text else f"* `{name}`" for name, text in records)


def _examples(text: str) -> str:
    """The help with its examples as code."""
    parts = []
    for part in text.split("\n\n"):
        first, *rest = [line.strip() for line in part.splitlines()]
        if first == "Examples:":
            parts += [first, "\n".join(f"    {line}" for line in rest)]
        elif first.startswith("Example: pliant") and ", or " not in first:
            parts += ["Example:", "    " + " ".join([first.removeprefix("Example: "), *rest])]
        else:
            parts.append(part)
    return "\n\n".join(parts)


def schemas_page() -> str:
    """Tables of all file kinds, from the records and the column tables."""
    from pliant.schemas.cluster import Cluster, IdleRule, Node, SlurmOptions
    from pliant.schemas.event import EVENT
    from pliant.schemas.job import Batch, Gpus, Job, ResourceDemand, Utility
    from pliant.schemas.profile import CONVERGENCE, PROFILE
    from pliant.schemas.schedule import Allocation, BatchPlan, Schedule, Verdict

    records: tuple[tuple[str, str, tuple[type[BaseModel], ...]], ...] = (
        (
            "job",
            "JSON Lines; or Parquet with columns as ``gpus.requested`` and ``labels.vc``, lists as JSON",
            (Job, Gpus, Batch, Utility, ResourceDemand),
        ),
        ("cluster", "JSON", (Cluster, Node, SlurmOptions, IdleRule)),
        ("schedule", "JSON", (Schedule, Allocation, BatchPlan, Verdict)),
        (
            "metrics",
            "JSON ([metrics.md](metrics.md)); `pliant schema metrics` has the fields",
            (),
        ),
        (
            "predictor",
            "JSON, as `pliant predictor fit` writes it; `pliant schema predictor` has the fields",
            (),
        ),
    )
    tables = (
        ("profile", "Parquet, one row per measured configuration", PROFILE),
        ("convergence", "Parquet, one row per model, batch and epoch", CONVERGENCE),
        ("event", "JSON Lines while live, Parquet when finished", EVENT),
    )
    parts = [
        "# File kinds\n",
        "The fields of the files that pliant reads and writes. Times are seconds, memory is bytes,",
        "throughput is samples per second, unless a name says otherwise. A field with a default may be left",
        "out; one whose default is `null` may be null. `pliant schema KIND` prints the machine-readable",
        "form, `pliant validate FILE` checks a file.\n",
        _limits_text(),
    ]
    for kind, form, models in records:
        parts.append(f"## {kind}\n\n{form}. Schema identifier `pliant.{kind}/1`.\n")
        parts += [_record_table(model) for model in models]
        if kind == "job":
            parts.append(_work_text())
    for kind, form, table in tables:
        parts.append(f"## {kind}\n\n{form}. Schema identifier `pliant.{kind}/1`.\n")
        rows = [
            (f"`{c.name}`", f"{c.type}{' or null' * c.nullable}", c.about.doc + _words(c.words))
            for c in table.columns
        ]
        parts.append(_table(("column", "type", "meaning"), rows))
    parts.append(_progress_text())
    return "\n".join(parts)


def _work_text() -> str:
    from pliant.schemas.job import EpochWork, GpuTimeWork, IterationWork, SampleWork

    kinds = (SampleWork, EpochWork, IterationWork, GpuTimeWork)
    lines = [
        f"- {', '.join(f'`{name}`' for name in kind.model_fields)}: {(kind.__doc__ or '').splitlines()[0]}"
        for kind in kinds
    ]
    return "\n".join(["### Work\n\nThe field `work` has one of these:\n", *lines, ""])


def _limits_text() -> str:
    from pliant.schemas.file_io.files import WRITER_S
    from pliant.schemas.file_io.limits import (
        DOCUMENT_BYTES,
        EXPANSION,
        FACTOR,
        FREE_BYTES,
        LONGEST_TEXT,
        ROW_BYTES,
        ROWS_BYTES,
        STREAM_BYTES,
    )

    times, row = EXPANSION, ROW_BYTES
    least, longest = FREE_BYTES >> 20, LONGEST_TEXT >> 20
    document, rows, stream = DOCUMENT_BYTES >> 20, ROWS_BYTES >> 30, STREAM_BYTES >> 30
    return f"""\
Files beyond these limits are refused (exit 3): {document} MiB for a JSON or TOML document, {rows} GiB for
rows (jobs, events, Parquet), {stream} GiB for a pipe or a device; {times} times its size in memory ({least}
MiB at least; a row counts as {row} bytes beside its strings), gzipped traces included; {longest} MiB for a
string. So is a named pipe that no process opens for writing within {WRITER_S:g} s. `{FACTOR}=10` in the
environment makes all limits ten times as large.
"""


def _progress_text() -> str:
    from pliant.tools.run.statedir.contract.plan import LastCheckpoint, Progress

    schema = Progress.model_fields["schema_"].default
    intro = f"""\
## progress

JSON, `jobs/ID/progress.json` in a state directory. Schema identifier `{schema}`. Rank 0
replaces the file as a whole about once a second while it trains. Fields that are null are left out.
`pliant schema` and `pliant validate` do not take this kind.
"""
    return "\n".join([intro, _record_table(Progress), _record_table(LastCheckpoint)])


def _words(words: tuple[str, ...]) -> str:
    return f" (one of: {', '.join(words)})" if words else ""


def _record_table(model: type[BaseModel]) -> str:
    schema = model.model_json_schema(by_alias=True)
    required = set(schema.get("required", ()))
    rows: list[tuple[str, str, str]] = []
    for name, rule in schema["properties"].items():
        default = "required" if name in required else _default(rule)
        type_text = _type(rule).removesuffix(" or null" if default == "`null`" else "\0")
        meaning = str(rule.get("description", "")).replace("\n", " ")
        row = (f"`{name}`", f"{type_text}, {default}", meaning)
        if rows and not meaning and rows[-1][1:] == row[1:]:  # alike, and told by their names alone
            row = (f"{rows.pop()[0]}, {row[0]}", *row[1:])
        rows.append(row)
    title = f"### {model.__name__}\n\n{(model.__doc__ or '').splitlines()[0]}\n\n"
    return title + _table(("field", "type, default", "meaning"), rows)


def _default(rule: dict[str, Any]) -> str:
    """An object has an empty one; another field without one is filled in as its meaning says."""
    of_object = "$ref" in rule or rule.get("type") == "object"
    return f"`{_compact(rule.get('default', {}))}`" if "default" in rule or of_object else "filled in"


def _compact(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _type(rule: dict[str, Any]) -> str:
    if "$ref" in rule:
        return str(rule["$ref"]).rsplit("/", 1)[-1]
    for key in ("anyOf", "oneOf"):
        if key in rule:
            return " or ".join(_type(option) for option in rule[key])
    if "const" in rule:
        return f'"{rule["const"]}"'
    if "enum" in rule:
        return " or ".join(f'"{word}"' for word in rule["enum"])
    return str(rule.get("type", "any"))


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    from pliant.tools.report.rendering.text import markdown_table

    return markdown_table(head, rows, len(head)) + "\n"


_POLICIES = """# Policies

What each built-in policy does, what it must know, and its parameters. Which one to take is in
[choosing-a-policy.md](choosing-a-policy.md): without a reason for another, [shadow-price](#shadow-price) with
a profile of the jobs and [fair-share](#fair-share) without one. `pliant policies NAME` prints the same text.

A policy can only be as good as what it knows, and what it knows can be wrong, so policies are grouped by the
most that their decisions rest on. A job's own limits (`elastic`, `gpus`, `batch`) hold for each of them.
Parameters are shown as `--param` takes them, with their defaults; those that end in `_s` or `_seconds` also
take `5m` or `2h`.

Without a profile, `schedule` and `run` do not know how long iterations, samples or epochs take. Policies that
go by work then take jobs whose work is not stated in GPU-seconds in order of submission, and `schedule` says
so; `ares` gives such jobs equal shares of a pool; `oasis` counts one second for a sample.

"""
_GROUPS: dict[str, str] = {
    "nothing": """## Policies that know nothing of jobs

They look at requests, priorities and arrivals alone, so nothing that is stated or measured can be wrong.
""",
    "service": """## Policies that know the service of jobs

They learn from what happens: the GPU-time that jobs received, and what those took that ended. Jobs state
nothing but their size.
""",
    "work": """## Policies that know the work of jobs

They need to know how much is left to do: stated by the job, or expected (`--demand predicted`). Jobs keep the
size that they request, whose speed turns work into time. Each policy says what it does with a job of unknown
work.
""",
    "profile": """## Policies that know the profile

They ask how fast a job would be at another size, at another batch or on another GPU type: measured by
`pliant profile`, or in proportion to the GPUs without one. Most of them also look at the work.
""",
}
_ORACLE = """## What an oracle knows

No policy needs an oracle. In a replay, `--demand oracle` shows every policy when each job will really end. A
replay that compares with a published simulator (`--compat pollux`) tells more to those that ask: {asking}.
Reports label such runs; they show what better predictions could gain.
"""


def policies_page() -> str:
    """All built-in policies, by what they know, with their rules and parameters."""
    from pliant.tools.schedule.registry import BUILT_IN, describe

    found = [describe(name) for name in sorted(BUILT_IN)]
    rows = [
        (f"[{each.name}](#{each.name})", each.knows, each.elasticity, _rounds(each.decides))
        for knows in _GROUPS
        for each in found
        if each.knows == knows
    ]
    groups = [
        "\n".join([text, *(_policy(each, found) for each in found if each.knows == knows)])
        for knows, text in _GROUPS.items()
    ]
    asking = ", ".join(each.name for each in found if any("oracle" in trait for trait in each.traits))
    table = _table(("policy", "knows", "changes of a job", "decides (else at every change)"), rows)
    shared = [f"- {text.rstrip('.')}: {', '.join(names)}." for text, names in _shared(found).items()]
    some = "\n".join([*shared, "- Others look at priorities as their sections say, or not at all.\n"])
    return "\n".join([_POLICIES + table, some, *groups, _ORACLE.format(asking=asking)])


def _rounds(decides: str) -> str:
    """How often a policy decides; empty if at every change."""
    return "" if decides.startswith("at every change") else decides.partition(" (")[0]


_SHARED = 3
"""Policies of which something is said once, above all of them."""


def _said(found: Description) -> tuple[str, ...]:
    """What is said of a policy beside its docstring and parameters."""
    priority = (f"Priorities: {found.priority}.",) if found.priority else ()
    needs = (f"Needs: {', '.join(found.needs)}.",) if found.needs else ()
    return (*priority, *needs, *found.traits)


def _shared(found: Sequence[Description]) -> dict[str, list[str]]:
    """What is so of several policies, which their sections do not repeat, with their names."""
    texts = dict.fromkeys(text for each in found for text in _said(each))
    names = {text: [each.name for each in found if text in _said(each)] for text in texts}
    return {text: those for text, those in names.items() if len(those) >= _SHARED}


def _policy(found: Description, all_found: Sequence[Description]) -> str:
    """The section of a policy: its docstring, with the kind and the default of each parameter."""
    text, meanings = _without_parameters(found.text, {each.name for each in found.parameters})
    told = [
        f"- {', '.join(_parameter(each) for each in found.parameters if each.name in names)}: {meaning}"
        for names, meaning in meanings.items()
    ]
    rest = [each for each in found.parameters if not any(each.name in names for names in meanings)]
    parent = next((other for other in all_found if rest and _has_all(other, found, rest)), None)
    if parent is not None:
        start = "- Also those" if told else "Parameters: those"
        told.append(f"{start} of [{parent.name}](#{parent.name}), with its defaults.")
    elif rest:
        told.append(f"{'- Also' if told else 'Parameters:'} {', '.join(map(_parameter, rest))}.")
    shared = _shared(all_found)
    said = " ".join(each for each in _said(found) if each not in shared)
    parts = [f"### {found.name}", text, "\n".join(told), said]
    return "\n\n".join(part for part in parts if part) + "\n"


def _has_all(other: Description, found: Description, rest: Sequence[Any]) -> bool:
    """Whether a policy is made from another one and has these parameters of it, which that one explains."""
    from pliant.tools.schedule.registry import policy_class

    own = policy_class(found.name)
    base = policy_class(other.name)
    return other.name != found.name and issubclass(own, base) and set(rest) <= set(other.parameters)


def _parameter(parameter: Any) -> str:
    """As ``--param`` takes it, with its default; with its choices, where the default does not tell them."""
    default = "none" if parameter.default == "null" else parameter.default.strip('"') or '""'
    plain = parameter.expected.partition(" (")[0] in _PLAIN
    return f"`{parameter.name}={default}`" + ("" if plain else f" ({parameter.expected.replace(_TIMES, '')})")


_PLAIN = ("a number", "a whole number", "a time", "text", "true or false")
_TIMES = " (seconds, 5m, 2h)"
_PARAMETER_LINE = re.compile(r"(?:- )?((?:`*\w+`*(?:, )?)+): (.*)")


def _without_parameters(text: str, known: Set[str]) -> tuple[str, dict[tuple[str, ...], str]]:
    """A docstring without the lines that explain parameters, and these by the names of the parameters."""
    kept: list[str] = []
    meanings: dict[tuple[str, ...], str] = {}
    last: tuple[str, ...] = ()
    for line in text.splitlines():
        found = _PARAMETER_LINE.match(line)
        names = tuple(found[1].replace("`", "").split(", ")) if found else ()
        if found and known.issuperset(names):
            last = names
            meanings[last] = found[2]
        elif last and line.strip():
            meanings[last] += f" {line.strip()}"
        else:
            last = ()
            kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), meanings


def rescaling_page() -> str:
    """What changes of a running job cost, from the benchmark's results."""
    from docs.rescaling import rescaling_page as made

    return made()


def performance_page() -> str:
    """What takes how long, from the records of the benchmarks."""
    from docs.performance import performance_page as made

    return made()


def choosing_page() -> str:
    """Which policy to choose, from what the comparison on Ares's workloads measured."""
    from docs.choosing import choosing_page as made

    return made()


def bound_table() -> str:
    """What the bound of shadow-price costs, from the benchmark's results."""
    from docs.delay_bound import bound_table as made

    return made()


README_COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SHOWN = re.compile(
    r"(?<=```\n\n)(<!-- Output of the block above, written by `make docs` -->\n```text\n).*?(?=```\n)",
    re.DOTALL,
)


def readme() -> str:
    """The README, with the output of the commands whose table it shows."""
    text = (HERE.parent / "README.md").read_text()
    found = _SHOWN.search(text)
    if found is None:
        raise ValueError("README.md has no output that `make docs` writes")
    commands = README_COMMANDS.findall(text[: found.start()])[-1]
    printed, _ = _called(commands)
    return text[: found.end(1)] + _first_table(printed) + text[found.end() :]


def first_replay_figure() -> bytes:
    """The figure below that output. Its bytes depend on the version of Matplotlib: no check compares it."""
    text = (HERE.parent / "README.md").read_text()
    commands = README_COMMANDS.findall(text.partition("first-replay.svg")[0])[-1]
    _, drawn = _called(f"{commands.rstrip()} --figures jct-cdf.svg\n", "jct-cdf.svg")
    return drawn


def _called(commands: str, file: str | None = None) -> tuple[str, bytes]:
    """What the last of these commands prints, and a file that they write.

    Each is called in an empty folder and this process.
    """
    import contextlib
    import shlex
    import tempfile

    from typer.testing import CliRunner

    from pliant.cli.main import app

    printed = ""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for line in commands.splitlines():
            done = CliRunner(env={"COLUMNS": "80"}).invoke(app, shlex.split(line)[1:])
            if done.exit_code:
                raise ValueError(f"{line}: {done.stderr}")
            printed = done.stdout
        return printed, b"" if file is None else Path(file).read_bytes()


def _first_table(printed: str) -> str:
    """As far as the end of the first table."""
    parts = printed.split("\n\n")
    last = next(number for number, part in enumerate(parts) if "──" in part)
    return "\n\n".join(parts[: last + 1]).strip("\n") + "\n"


def policy_job_page() -> str:
    """What a policy may read of a job."""
    return (
        "# What a policy may read of a job\n\nThe attributes of a `JobState`, the values of "
        "`snapshot.jobs`. [writing-a-policy.md](writing-a-policy.md) has the rest of the snapshot.\n\n"
        f"{job_state_table()}\n"
    )


_LOOPS = (
    "Two hundred loops as people write them are compared with one process of PyTorch (`python -m "
    "benchmarks.parts.shapes`): on two workers, in micro-steps, through 1 → 2 → 1, with a worker "
    "that joins, and with a restart within an epoch. All are the same to rounding, except these. "
    "[elastic-library.md](elastic-library.md) has the rules."
)


def training_loops_page() -> str:
    """Loops that train otherwise on several workers, from the table that the benchmark runs."""
    from benchmarks.parts.shapes.table import page_rows

    return "\n".join(
        (
            "# Loops that differ on several workers",
            "",
            _LOOPS,
            "",
            "| loop | DistributedDataParallel | pliant |",
            "| --- | --- | --- |",
            *page_rows(),
            "",
        )
    )


PAGES: dict[str, Callable[[], str]] = {
    "choosing-a-policy.md": choosing_page,
    "cli.md": cli_page,
    "schemas.md": schemas_page,
    "policies.md": policies_page,
    "rescaling.md": rescaling_page,
    "performance.md": performance_page,
    "training-loops.md": training_loops_page,
    "policy-job.md": policy_job_page,
}


def job_state_table() -> str:
    """What a policy may read of a job: the attributes of JobState above the owner's own."""
    import ast

    lines = (HERE.parent / "tools/schedule/jobs.py").read_text().splitlines()
    owners = next(number for number, line in enumerate(lines, 1) if "is for the owner of the state" in line)
    classes = ast.parse("\n".join(lines)).body
    (state,) = (each for each in classes if isinstance(each, ast.ClassDef) and each.name == "JobState")
    rows = []
    for each, after in zip(state.body, [*state.body[1:], ast.Pass()], strict=True):
        if each.lineno > owners:
            break
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            name, kind, doc = each.target.id, ast.unparse(each.annotation), _text_of(after)
        elif isinstance(each, ast.FunctionDef):
            arguments = ", ".join(argument.arg for argument in each.args.args[1:])
            name = each.name if each.decorator_list else f"{each.name}({arguments})"
            kind, doc = ast.unparse(each.returns or ast.Constant(None)), ast.get_docstring(each) or ""
        else:
            continue
        if not name.startswith("_"):
            meaning = re.sub(r":\w+:", "", " ".join(doc.split())).replace("``", "`")
            rows.append((f"`{name}`", f"`{kind}`", meaning))
    return _table(("of a job", "type", "meaning"), rows).rstrip("\n")


def _text_of(node: Any) -> str:
    """The string that stands alone in a line, as below a field; else empty."""
    value = getattr(getattr(node, "value", None), "value", None)
    return value if isinstance(value, str) and not hasattr(node, "targets") else ""


TABLES: dict[str, Callable[[], str]] = {"delay-bound.md": bound_table}
"""Of pages that are written by hand; each stands below a comment that says so."""
_MARKED_TABLE = re.compile(r"(?<=written by `make docs` -->\n)(\|.*\n)+")


def stale() -> list[str]:
    """Pages that differ from what the code says now."""
    return [
        name
        for name, text in _pages().items()
        if not (HERE / name).exists() or (HERE / name).read_text() != text
    ]


def _pages() -> dict[str, str]:
    """Each page as it should be."""
    from pliant.tools.report.rendering.text import wrapped_prose

    whole = {name: HEADER + wrapped_prose(page()) for name, page in PAGES.items()}
    whole["../README.md"] = readme()
    return whole | {name: with_table((HERE / name).read_text(), table()) for name, table in TABLES.items()}


def with_table(text: str, table: str) -> str:
    """A page that is written by hand, with the table below its mark replaced.

    :raises ValueError: there is no such table.
    """
    made, count = _MARKED_TABLE.subn(lambda _: f"{table}\n", text)
    if not count:
        raise ValueError("no table stands below a comment that says that `make docs` writes it")
    return made


def main(arguments: list[str]) -> int:
    """Write or check; 1 if a checked page is stale."""
    if "--check" in arguments:
        old = stale()
        for name in old:
            print(f"docs/{name} is stale; run `make docs`", file=sys.stderr)
        return 1 if old else 0
    for name, text in _pages().items():
        (HERE / name).write_text(text)
    (HERE / "first-replay.svg").write_bytes(first_replay_figure())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
