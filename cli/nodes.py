"""``pliant reload``, ``reserve`` and ``nodes``: change the cluster of a run that goes on, and look at it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pliant.cli.config import FILE, configuration, state_directory
from pliant.cli.console import note, out_text, page_width
from pliant.cli.option_types import DURATION_SHOWN, duration
from pliant.cli.orders import STATE
from pliant.cli.submit_options import moment_ahead
from pliant.schemas.errors import InfeasibleError, UsageError
from pliant.schemas.text import did_you_mean

if TYPE_CHECKING:
    from pliant.schemas.cluster import NodeReservation
    from pliant.tools.run.gateway.client import Client
    from pliant.tools.run.statedir.log.fold import RunLog

APPLIED_S: Final = 15.0
"""Seconds to wait for the run to take a new cluster."""
POLL_S: Final = 0.2


def reload(
    cluster: Annotated[
        str | None,
        typer.Argument(metavar="CLUSTER", help="The changed file (JSON).", show_default=f"cluster in {FILE}"),
    ] = None,
    *,
    state: STATE = None,
    now: Annotated[
        bool,
        typer.Option("--now", help="Jobs leave nodes that are not in the file at the next decision."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")
    ] = False,
) -> None:
    """Let a run go on with a changed cluster file: all of it, or nothing if one thing is wrong.

    Prints a line for each change, and for what it does to nodes and jobs. A
    node that is removed, or becomes another one, gets no work and stays until
    the jobs that run there have ended; with --now they leave it, as with pliant drain
    --now. Jobs for which the new cluster has no place wait, held, until one
    has. Limits, teams and rules count at once; no running job stops for them.
    The run takes the file on SIGHUP, too, and when it is started again.

    Example: pliant reload cluster.json --state live --dry-run

    Example: pliant reload --now
    """
    from pliant.schemas.file_io.files import read_bytes, source_name
    from pliant.tools.run.gateway.connect import client_for

    named = cluster or configuration().cluster
    if named is None:
        raise UsageError(f"name the cluster file, or in {FILE}")
    client = client_for(state_directory(state))
    lines = client.reload(read_bytes(named), source_name(named), now=now, dry_run=dry_run)
    out_text("".join(f"{line}\n" for line in lines))
    if not lines:
        note(f"nothing changes: the run has the cluster of {named}")
    elif dry_run:
        note("nothing was changed")
    elif _is_applied(client):
        note("the run goes on with it; pliant nodes shows the nodes")


def _is_applied(client: Client) -> bool:
    """Wait for the run to take the cluster that was ordered.

    :raises InfeasibleError: it refused it.
    """
    if not client.is_served:
        note(f"no run uses {client.state}: it takes effect with the next pliant run --follow")
        return False
    until_s, status = time.monotonic() + APPLIED_S, client.status()
    while any(order.changes_cluster for order in status.ordered.values()):
        if time.monotonic() > until_s:
            note("the run has not taken it yet; pliant status says when")
            return False
        time.sleep(POLL_S)
        status = client.status()
    if status.log.reload_error:
        raise InfeasibleError(f"the cluster stays as it is: {status.log.reload_error}")
    return True


def reserve(
    nodes: Annotated[
        list[str] | None, typer.Argument(metavar="NODE…", help="Nodes, as n1 or n[1-4].", show_default=False)
    ] = None,
    *,
    state: STATE = None,
    begin: Annotated[
        str, typer.Option("--from", metavar="WHEN", help="Begin: a date, a time of day, or +2h.")
    ] = "+0s",
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="WHEN", help="End; +4h counts from the begin.", show_default=False),
    ] = None,
    whom: Annotated[
        list[str] | None,
        typer.Option("--for", metavar="TEAM|USER", help="Whose jobs may run there.", show_default=False),
    ] = None,
    maintenance: Annotated[bool, typer.Option("--maintenance", help="No job may run there.")] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="Its name.", show_default="made from what it is for")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Shown by --list.", show_default=False)] = "",
    notice: Annotated[
        float,
        typer.Option(
            "--notice",
            parser=duration(),
            metavar=DURATION_SHOWN,
            help="How long before it begins jobs that can save leave.",
        ),
    ] = 120.0,
    cancel: Annotated[
        str | None, typer.Option("--cancel", metavar="NAME", help="End this one.", show_default=False)
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="Show all.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")
    ] = False,
) -> None:
    """Reserve nodes for a time: for maintenance, or for the jobs of a team or user.

    Jobs that can save leave the nodes a notice before that, and elastic ones
    shrink or move. Others may end there until it begins, and lose what they have
    done then; no such job starts there unless it will have ended, by its limit
    or its work. Predicted starts and what-ifs reckon with it.

    Example: pliant reserve n1 n2 --from 22:00 --until +4h --maintenance

    Example: pliant reserve 'n[1-4]' --until +1d --for vision

    Example: pliant reserve --cancel maintenance-1
    """
    from pliant.tools.run.gateway.connect import client_for

    if bool(nodes) + (cancel is not None) + show != 1:
        raise UsageError("name nodes to reserve, or --cancel NAME, or --list")
    client = client_for(state_directory(state))
    if show:
        out_text(_listed(client.status().log, time.time()))
        return
    change: NodeReservation | str = cancel or ""
    if nodes and not (until and bool(whom) != maintenance):
        raise UsageError("name its end, --until, and whom it is for: --for TEAM or USER, or --maintenance")
    if nodes and until is not None:
        change = _reservation(
            nodes, (begin, until), whom or [], client, name=name, reason=reason, notice_seconds=notice
        )
    lines = client.reserve(change, dry_run=dry_run)
    out_text("".join(f"{line}\n" for line in lines))
    if dry_run:
        note("nothing was changed")
    elif _is_applied(client):
        note("the run goes on with it; pliant reserve --list shows all")


def _reservation(
    nodes: list[str], span: tuple[str, str], whom: list[str], client: Client, *, name: str | None, **more: Any
) -> NodeReservation:
    """:raises UsageError: a time, a node or a name is not one."""
    from pydantic import ValidationError

    from pliant.schemas.cluster import NodeReservation
    from pliant.schemas.file_io.record import problems_of
    from pliant.schemas.node_labels import names_in
    from pliant.tools.run.service.reload import NEW

    info = client.status().log.info
    shares = None if info is None else info.cluster.shares
    named = [each for text in whom for each in text.split(",") if each]
    teams = tuple(each for each in named if shares is not None and each in shares.teams)
    try:
        listed = tuple(dict.fromkeys(each for text in nodes for each in names_in(text)))
    except ValueError as error:
        raise UsageError(f"{' '.join(nodes)}: {error}") from error
    begin_s = moment_ahead("--from", span[0], time.time())
    try:
        return NodeReservation(
            name=name or NEW,
            nodes=listed,
            begin=begin_s,
            end=moment_ahead("--until", span[1], begin_s),
            teams=teams,
            users=tuple(each for each in named if each not in teams),
            **more,
        )
    except ValidationError as error:
        raise UsageError(str(problems_of(error, "the reservation")[0])) from error


def _listed(log: RunLog, now_s: float) -> str:
    """All reservations, a line for each."""
    from pliant.tools.run.service.reload import reservation_line

    lines = []
    for each in () if log.info is None else (log.next_cluster or log.info.cluster).reservations:
        why, by = f": {each.reason}" if each.reason else "", f", by {each.made_by}" if each.made_by else ""
        begun = "over" if each.end <= now_s else "begun" if each.begin <= now_s else "to come"
        lines.append(f"{reservation_line(each, now_s)}{by} ({begun}){why}\n")
    return "".join(lines) or "no reservations\n"


def nodes(
    node: Annotated[
        str | None, typer.Argument(metavar="NODE", help="Say all about this node.", show_default=False)
    ] = None,
    *,
    state: STATE = None,
    free: Annotated[bool, typer.Option("--free", help="Say what could start now.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show the nodes of a run: type, GPUs held and free, by which jobs, how busy, and why one gets no work.

    A drained node says by whom and since when; slots on which workers of
    several jobs died are out of service, and NODE says why and until when.

    Example: pliant nodes --state live

    Example: pliant nodes --free --state live
    """
    from pliant.tools.run.gateway.connect import client_for
    from pliant.tools.run.watch.nodes import free_lines, node_page, node_uses, nodes_document, nodes_text

    client, now_s = client_for(state_directory(state)), time.time()
    log, uses = client.usage()
    found = node_uses(log, uses, now_s)
    if not found:
        raise UsageError(f"{client.state} holds no run yet: pliant run --follow --cluster FILE begins one")
    if node is not None:
        named = [each for each in found if each.node.name == node]
        if not named:
            near = did_you_mean(node, [each.node.name for each in found])
            raise UsageError(f"{client.state} has no node {node}; {near or 'pliant nodes lists them'}")
        found = named
    if as_json:
        out_text(nodes_document(found, log, now_s))
    elif free:
        out_text("".join(f"{line}\n" for line in free_lines(found, log)))
    elif node is not None:
        out_text("".join(f"{line}\n" for line in node_page(found[0], now_s)))
    else:
        out_text(nodes_text(found, now_s, page_width(sys.stdout)))
