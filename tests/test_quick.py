"""What the Python processes of tests begin with: stand-ins for parts of PyTorch, until these are needed."""

from __future__ import annotations

import json
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
def test_the_compiler_is_loaded_when_something_is_compiled() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, after, compiled = json.loads(done.stdout)
    assert before == ["_Compiler", "_StandIn", "torch.optim.optimizer"]
    assert after == ["module", "module", "torch._dynamo.eval_frame"]
    assert compiled == [1, True]
