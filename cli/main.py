"""The ``pliant`` command: one thin module per command, and nothing else."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from pliant import __version__
from pliant.cli.common import BROKEN_PIPE, DISK_FULL, command, mistake_line, run_command
from pliant.cli.console import LINES, UNKNOWN_WIDTH, entry, out_text, print_line, width_for, write_plainly
from pliant.cli.option_types import epilog
from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.schemas.file_io.files import abandon
from pliant.schemas.file_io.limits import garbage_collection_paused
from pliant.schemas.text import harmless, without_long_words

TOOLS: Final = "The tools"
START: Final = "First steps"
LIVE: Final = "Live state"
FILES: Final = "Files"

COMMANDS: Final = (
    ("profile", TOOLS, "Measure real training steps of the jobs' scripts and write a profile."),
    ("schedule", TOOLS, "Decide which job gets which GPUs now, and with which batch size."),
    (
        "run",
        TOOLS,
        "Execute a schedule: start, stop, resize and resume real jobs.",
    ),
    (
        "replay",
        TOOLS,
        "Simulate a trace under one or more policies; equal inputs give equal files.",
    ),
    (
        "report",
        TOOLS,
        "Compare runs: metrics, tables and figures from their event files.",
    ),
    (
        "demo",
        START,
        "Profile, schedule, run and report real training on two CPU slots, then replay the same jobs.",
    ),
    (
        "examples",
        START,
        "Copy the examples into DIR/examples: training scripts, jobs, clusters, and the demos.",
    ),
    ("verify", START, "Check that a script trains the same on any number of workers."),
    (
        "serve",
        LIVE,
        "Run the jobs of all accounts of a machine, each as its own user; only root can.",
    ),
    ("submit", LIVE, "Submit jobs, all of them or none, and print their ids."),
    ("shell", LIVE, "Open a terminal on a node, with GPUs of its own."),
    ("cancel", LIVE, "Cancel running or waiting jobs: all that are named, or none."),
    (
        "hold",
        LIVE,
        "Keep jobs from running until pliant release: all that are named, or none.",
    ),
    (
        "release",
        LIVE,
        "Let held jobs run again: all that are named, or none.",
    ),
    ("priority", LIVE, "Change the priority of running or waiting jobs."),
    (
        "update",
        LIVE,
        "Change the GPUs, nodes and limits of jobs: of all that are named, or of none.",
    ),
    (
        "requeue",
        LIVE,
        "Start jobs again, also ended ones: all that are named, or none.",
    ),
    (
        "drain",
        LIVE,
        "Start no more jobs on nodes until pliant resume: on all that are named, or none.",
    ),
    (
        "resume",
        LIVE,
        "Return drained nodes to service: all that are named, or none.",
    ),
    (
        "reload",
        LIVE,
        "Let a run go on with a changed cluster file: all of it, or nothing if one thing is wrong.",
    ),
    (
        "reserve",
        LIVE,
        "Reserve nodes for a time: for maintenance, or for the jobs of a team or user.",
    ),
    (
        "nodes",
        LIVE,
        (
            "Show the nodes of a run: type, GPUs held and free, by which jobs, how busy, and why one gets no "
            "work."
        ),
    ),
    (
        "status",
        LIVE,
        "Show the jobs of a state directory and whether a run is in progress, or describe one job.",
    ),
    ("why", LIVE, "Show why a job waits, or what it has cost."),
    (
        "top",
        LIVE,
        "Show what each running job uses: GPUs, speed, step time, batch, loss, last report.",
    ),
    (
        "usage",
        LIVE,
        "Say what jobs used: GPU hours by type, share, the part that trained, and money.",
    ),
    ("log", LIVE, "Print the output of the newest attempt of each job, file by file."),
    (
        "stack",
        LIVE,
        "Show the Python stacks of all workers of a running job, equal ones once, the newest call first.",
    ),
    ("wait", LIVE, "Wait until jobs have ended; print a line for each as it ends."),
    (
        "whatif",
        LIVE,
        "Predict a run with other nodes, jobs or another policy. Nothing is changed.",
    ),
    ("doctor", LIVE, "Check what runs need, and say how to fix what is missing."),
    ("init", FILES, "Write a cluster file, settings and a first job for this machine or Slurm."),
    (
        "validate",
        FILES,
        "Check files against their schemas: a line for each good file, every problem of the bad ones.",
    ),
    ("schema", FILES, "Print the schema of a kind of file: a JSON Schema, or for a table its columns."),
    ("policies", FILES, "List the policies, or describe one: what it does, its parameters, what it needs."),
    ("man", FILES, "Write manual pages: pliant(1), and one for each command."),
    ("profile merge", FILES, "Merge several profiles into one."),
    ("profile diff", FILES, "Show which rows differ between two profiles."),
    ("profile prune", FILES, "Remove rows from a profile: those that match all options."),
)
"""Name, panel and first sentence of each command: the help of all says no more, so it makes none of them."""
MODULES: Final = {
    **dict.fromkeys(
        ("cancel", "hold", "release", "priority", "update", "requeue", "drain", "resume"), "orders"
    ),
    **dict.fromkeys(("demo", "examples", "new"), "init"),
    **dict.fromkeys(("log", "wait", "stack", "why"), "job"),
    **dict.fromkeys(("policies", "schema", "validate", "man"), "reference"),
    **dict.fromkeys(("profile merge", "profile diff", "profile prune"), "profile"),
    **dict.fromkeys(("reload", "reserve", "nodes"), "nodes"),
    "predictor": "predictions",
    "top": "status",
}
"""Modules of commands that share one; others are named like their command."""
GROUPS: Final = (
    ("new", FILES, "Make the package of a policy of your own."),
    ("trace", FILES, "Make job traces: import published ones, or generate."),
    ("cluster", FILES, "Make cluster files, and give back leased nodes."),
    ("predictor", FILES, "Fit predictors for jobs that do not state their work."),
)
CALCULATING: Final = {"schedule", "replay", "report", "status", "why", "top", "whatif", "trace", "predictor"}
"""Commands that start no training, which would inherit what is set for them."""
COMPLETION_VARIABLE: Final = "_PLIANT_COMPLETE"
"""The variable by which a shell asks what completes a word."""
NEXT: Final = """\
Next:
  pliant demo --replay    three policies on a simulated cluster, compared
  pliant demo             real training on two CPU slots, measured and simulated
  pliant --help           all commands; each has --help with an example
"""


_MORE: Final = "More options"
_FIRST: Final = {
    "profile": "cluster model gpus batches iterations costs append imported predict output",
    "schedule": "policy profile cluster state param now seed demand explain output",
    "run": "state follow until_done policy param cluster profile backend retries dry_run",
    "serve": "state roles policy param cluster profile backend munge retries detach dry_run",
    "replay": "cluster policy profile param interval rescale_cost demand preemptible recipe output",
    "report": "baseline format output figures all explain jobs each_run expect verbose",
    "submit": "state gpus gpu_type batch name array after priority relaunch dry_run",
    "status": "state watch explain user team only pattern sort format output",
    "trace import": "output lenient cluster_out begin end user vc sample mapping workload",
}
"""Main options of commands with more than a dozen, in the order of the help."""


class _OnDemand(TyperGroup):
    """Makes each command when it is asked for."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands: dict[str, Any] = dict.fromkeys(name for name, *_ in (*COMMANDS, *GROUPS))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _made(cmd_name)
            if COMPLETION_VARIABLE in os.environ:
                from pliant.cli.completion import complete

                complete(self.commands[cmd_name])
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        made, self.commands = self.commands, {name: _summary(name) for name in self.commands}
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = made

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Commands of two words, too."""
        if args[0] in CALCULATING:  # idle threads of numpy would cost more than a short command
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
            os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's own takes 40 MB more
        words = " ".join(args[:2])
        if len(args) > 1 and words in self.commands:
            return words, self.get_command(ctx, words), args[2:]
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _harmless_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _harmless_errors():
            return super().invoke(ctx)


@contextmanager
def _harmless_errors() -> Iterator[None]:
    """A mistake is said in one line, which quotes the command line and must not act on the terminal."""
    try:
        yield
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # it is help, not a mistake
            error.message = harmless(error.message, keeps=LINES)
            raise
        print_line(harmless(without_long_words(mistake_line(error))))
        raise typer.Exit(getattr(error, "exit_code", UsageError.exit_code)) from None


app = typer.Typer(
    name="pliant",
    help="Elastic deep-learning scheduling as Unix tools: profile | schedule | run, replay, report.",
    cls=_OnDemand,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pliant {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Elastic deep-learning scheduling as Unix tools: profile | schedule | run, replay, report."""
    if context.invoked_subcommand is None and run_command(lambda: out_text(first_page())):
        raise typer.Exit(1)


def first_page() -> str:
    """What ``pliant`` alone prints: the five tools, and what to type next."""
    tools = [name for name, panel, _ in COMMANDS if panel == TOOLS]
    width = width_for(sys.stdout) or UNKNOWN_WIDTH
    entries = [(name, _summary(name).get_short_help_str(limit=200)) for name in tools]
    longest = max(map(len, tools))
    lines = [line for name, text in entries for line in entry(name, text, longest, width - 2)]
    return "\n".join(
        [
            "pliant: elastic deep-learning scheduling as Unix tools",
            "",
            *(f"  {line}" for line in lines),
            "",
            NEXT,
        ]
    )


def _summary(name: str) -> TyperCommand:
    """A command of which nothing is known but what a list of commands says."""
    panel, text = next((panel, text) for each, panel, text in (*COMMANDS, *GROUPS) if each == name)
    return TyperCommand(name, help=text, rich_help_panel=panel)


def _made(name: str) -> Any:
    module = importlib.import_module(f"pliant.cli.{MODULES.get(name, name)}")
    made = typer.Typer(name=name, no_args_is_help=True, add_completion=False)
    for each, panel, _ in COMMANDS:
        if each == name:
            made.command(name, rich_help_panel=panel)(command(getattr(module, name.replace(" ", "_"))))
            return _explained(get_command(made), name)
    made.callback()(lambda: None)  # a group also where it has a single command
    for sub in module.SUBCOMMANDS:
        made.command(sub.__name__.removeprefix(f"{name}_"))(command(sub))
    built: Any = get_command(made)
    for sub_name, sub in built.commands.items():
        _explained(sub, f"{name} {sub_name}")
    built.rich_help_panel, built.help = next((panel, text) for each, panel, text in GROUPS if each == name)
    return built


def _explained(made: Any, name: str) -> Any:
    """The command; its help begins with the options that most people need, ends with what DURATION and the
    like stand for, and shows every bracket.
    """
    if first := _FIRST.get(name):
        options = {each.name: each for each in made.params if each.param_type_name == "option"}
        ranked = [options.pop(each) for each in first.split()]
        for each in ranked:
            each.rich_help_panel = None
        for each in options.values():
            each.rich_help_panel = each.rich_help_panel or _MORE
        arguments = [each for each in made.params if each.param_type_name != "option"]
        made.params = [*arguments, *ranked, *options.values()]
    made.help = re.sub(r"\[(?=[a-z])", r"\\[", made.help or "")  # else taken for markup
    made.epilog = epilog(made.params)
    return made


def _import_help_pages() -> None:
    """Import what draws help, without the renderers of Markdown and of tracebacks, which help does not use:
    they take a third of its time.
    """
    unused = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
    for module, name in unused.items():
        sys.modules[module] = ModuleType(module)
        setattr(sys.modules[module], name, type(name, (), {}))
    try:
        with suppress(ImportError):  # help is plain without Rich
            importlib.import_module("typer.rich_utils")
    finally:
        for module in unused:
            del sys.modules[module]


@garbage_collection_paused(to_the_end=True)  # what is imported stays; a command that runs has it again
def main() -> None:
    """Entry point of the ``pliant`` command."""
    if sys.stderr is None:  # closed: what is meant for it must not end up in another file
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open until the end
    write_plainly(sys.stdout, sys.stderr)
    if {"-h", "--help"} & {*sys.argv} and "typer.rich_utils" not in sys.modules:
        _import_help_pages()
    try:
        app()
    except SystemExit as leaving:
        raise SystemExit(_exit_code(leaving)) from None
    except OSError as unsaid:  # stderr is full
        code = getattr(unsaid.__context__, "exit_code", None)
        if code is None and unsaid.errno not in DISK_FULL:
            raise
        if code is None:  # it is stdout that is full, of help
            abandon(sys.stdout)
            print_line("stdout: the disk is full")
        raise SystemExit(ServiceMissingError.exit_code if code is None else code) from None
    finally:
        _flush_stderr()


def _exit_code(leaving: SystemExit) -> str | int | None:
    """A reader that leaves before help or a usage error ends does not change the exit code."""
    broken = leaving.__context__
    if not isinstance(broken, BrokenPipeError):
        return leaving.code
    if sys.stdout is not None:
        abandon(sys.stdout)
    code: int = getattr(broken.__context__, "exit_code", BROKEN_PIPE)
    return code


def _flush_stderr() -> None:
    try:
        sys.stderr.flush()
    except OSError:
        abandon(sys.stderr)
