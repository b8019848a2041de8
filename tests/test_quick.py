"""What the Python processes of tests begin with: stand-ins for parts of PyTorch, until these are needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.effort import THOROUGH

SCRIPT = """
import inspect, json, sys
import torch

def kinds():
    return [type(sys.modules[f"torch.{name}"]).__name__ for name in ("_dynamo", "_meta_registrations")]

def marked():
    return Optimizer.add_param_group.__wrapped__.__dynamo_disable.__module__

def counts(graph, inputs):
    graphs.append(graph)
    return graph

from torch.optim import Optimizer
graphs = []
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inspect.getmodule(inspect.currentframe())  # looks at every module
found = [[*kinds(), marked()]]
torch.compile(model, backend=counts)(torch.ones(3, 2)).sum().backward()
optimizer.step()
torch.optim.Adam(model.parameters())
print(json.dumps([*found, [*kinds(), marked()], [len(graphs), "torch._dynamo.config" in sys.modules]]))
"""


@pytest.mark.torch
@pytest.mark.skipif(THOROUGH, reason="then processes begin with PyTorch as it is")
def test_the_compiler_is_left_out_until_something_is_compiled_and_then_all_is_as_it_is_without() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, after, compiled = json.loads(done.stdout)
    assert before == ["_Compiler", "_StandIn", "torch.optim.optimizer"]
    assert after == ["module", "module", "torch._dynamo.eval_frame"]
    assert compiled == [1, True]


REGISTERED = """
import json, sys
import torch
found = [type(sys.modules["torch._meta_registrations"]).__name__]
torch.Generator()
exec(sys.argv[1])
import torch._decomp
assert isinstance(torch.Generator(), torch.Generator)
tables = {name: len(table) for name, table in torch._decomp.global_decomposition_table.items()}
a, b = torch.empty(3, 2, device="meta"), torch.empty(4, 2, device="meta")
assert torch.cdist(a, b).shape == (3, 4)
print(json.dumps([*found, type(sys.modules["torch._meta_registrations"]).__name__, tables]))
"""


@pytest.mark.torch
@pytest.mark.skipif(THOROUGH, reason="then processes begin with PyTorch as it is")
def test_who_asks_for_what_operations_do_without_data_finds_all_of_it() -> None:
    def found(line: str, **more: str) -> list[object]:
        argv = [sys.executable, "-c", REGISTERED, line]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env={**os.environ, **more})
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    _, _, tables = found("", PYTHONPATH="")
    assert found("import torch._refs") == ["_StandIn", "module", tables]
