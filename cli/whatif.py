"""``pliant whatif``: what would become of the jobs of a live state if something were different."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.common import PARAM, policy_parameters
from pliant.cli.config import STATE_HELP, state_directory
from pliant.cli.console import note, out_text, page_width
from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.files import read_bytes


def whatif(
    *,
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP, readable=False)
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster", metavar="FILE", help="The cluster of this file, as reload --now.", show_default=False
        ),
    ] = None,
    add_nodes: Annotated[
        str | None,
        typer.Option(
            "--add-nodes",
            metavar="N[:TYPE]",
            help="Add N nodes like the last one (of that GPU type).",
            show_default=False,
        ),
    ] = None,
    remove_node: Annotated[
        list[str] | None,
        typer.Option("--remove-node", metavar="NODE", help="Remove this node.", show_default=False),
    ] = None,
    cancel: Annotated[
        list[str] | None,
        typer.Option("--cancel", metavar="ID", help="Cancel this job.", show_default=False),
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="Policy, or its file.", show_default=False)
    ] = None,
    param: PARAM = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show all jobs, also those that stay the same.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Predict a run with other nodes, jobs or another policy. Nothing is changed.

    The run is simulated from its present state, once as it is and once with
    the changes, at measured speeds and costs. Options may be combined and
    repeated. Jobs yet to be submitted are unknown: ranges come from the errors
    of earlier predictions of this run.

    Example: pliant whatif --add-nodes 2 --state live

    Example: pliant whatif --cluster larger.json --state live

    Example: pliant whatif --policy shadow-price --state live --json
    """
    from pliant.cli.whatif_answer import answer_whatif, document, remarks, table
    from pliant.tools.run.gateway.client import id_of
    from pliant.tools.run.gateway.connect import client_for
    from pliant.tools.run.gateway.protocol import WhatIfQuestion

    parameters = policy_parameters(param, None)
    if not (cluster or add_nodes or remove_node or cancel or policy):
        raise UsageError("name a change: --cluster, --add-nodes, --remove-node, --cancel or --policy")
    if parameters and policy is None:
        raise UsageError("--param needs --policy, whose parameters it names")
    client = client_for(state_directory(state))
    question = WhatIfQuestion(
        add_nodes=add_nodes,
        remove=tuple(remove_node or ()),
        cancel=tuple(id_of(client, name) for name in cancel or ()),
        cluster="" if cluster is None else read_bytes(cluster).decode(errors="replace"),
        source="jobs" if cluster is None else str(cluster),
        policy=policy,
        parameters=parameters,
    )
    answer = answer_whatif(client, question)
    if as_json:
        out_text(json.dumps(document(answer), indent=2) + "\n")
        return
    out_text(table(answer, page_width(sys.stdout), every=every))
    for line in remarks(answer):
        note(line)
