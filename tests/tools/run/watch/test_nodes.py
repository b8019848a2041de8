"""What ``pliant nodes`` says of nodes in use, shared, drained, down and with slots in quarantine."""

import json
from pathlib import Path

from benchmarks.parts.chaos.world import World
from pliant.tools.run.service.submit import order_nodes
from pliant.tools.run.statedir.state import read_log
from pliant.tools.run.watch.nodes import free_lines, node_page, node_uses, nodes_document, nodes_text
from pliant.tools.run.watch.top import Use
from tests.builders import cluster


def test_nodes_say_who_holds_them_and_why_they_get_no_work(tmp_path: Path) -> None:
    world = World(tmp_path, 1, nodes=cluster(2, 4, 2, 2, slots="cpu"))
    world.turn()
    world.ask("a", 3, user="ada")
    world.turn_until(world.nodes.training)
    order_nodes(world.dirs.path, "drain", ["n0"], reason="fans")
    world.nodes.lost.add("n3")
    world.turn_until(lambda: read_log(world.dirs.path).down)
    log, now_s = read_log(world.dirs.path), world.clock.wall()
    world.close()
    found = node_uses(log, [Use(log.jobs["a"], 0.3, None, None, busy=0.5)], now_s)
    table = [line.split()[:8] for line in nodes_text(found, now_s).splitlines()[1:]]
    assert table == [
        ["n0", "gpu", "2", "0", "0", "-", "-", "drained"],
        ["n1", "gpu", "4", "3", "1", "50", "%", "a"],
        ["n2", "gpu", "2", "0", "2", "-", "-", "up"],
        ["n3", "gpu", "2", "0", "0", "-", "-", "down:"],
    ]
    assert list(free_lines(found, log)) == [
        "gpu: 3 GPUs free on 2 nodes, up to 2 on one: pliant submit --gpus 2"
    ]
    page = list(node_page(found[1], now_s))
    assert page[:3] == [
        "node n1: up",
        "4 GPUs of type gpu: 3 held, 1 free",
        "jobs use 50 % of what they hold",
    ]
    assert page[3].startswith("job a of ada: 3 GPUs since ")
    document = json.loads(nodes_document(found, log, now_s))
    assert document["free"] == {"gpu": {"gpus": 3, "nodes": 2, "most_on_a_node": 2}}
    assert [each["state"] for each in document["nodes"]] == ["drained", "up", "up", "down"]
    assert (document["nodes"][0]["reason"], document["nodes"][3]["reason"]) == ("fans", "down")
