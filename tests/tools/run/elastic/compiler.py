"""Loads PyTorch's compiler, which takes seconds: for a fork server, whose children have it then."""

import torch

torch.compile(torch.nn.functional.gelu, backend="aot_eager")(torch.ones(1, requires_grad=True))
