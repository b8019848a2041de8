"""``pliant reload`` and ``pliant nodes``: change the cluster of a run that goes on, and look at it."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Final

import typer

from pliant.cli.config import FILE, configuration, state_directory
from pliant.cli.console import note, out_text, page_width
from pliant.cli.orders import STATE
from pliant.schemas.errors import InfeasibleError, UsageError
from pliant.schemas.text import did_you_mean

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
    elif not client.is_served:
        note(f"no run uses {client.state}: it takes effect with the next pliant run --follow")
    else:
        until_s, status = time.monotonic() + APPLIED_S, client.status()
        while any(order.cluster for order in status.ordered.values()):
            if time.monotonic() > until_s:
                note("the run has not taken it yet; pliant status says when")
                return
            time.sleep(POLL_S)
            status = client.status()
        if status.log.reload_error:
            raise InfeasibleError(f"the cluster stays as it is: {status.log.reload_error}")
        note("the run goes on with it; pliant nodes shows the nodes")


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
