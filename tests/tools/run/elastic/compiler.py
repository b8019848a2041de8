"""Loads PyTorch's compiler, which takes seconds: for a fork server, whose children have it then.

No gradient is computed: builds of PyTorch for GPUs start threads for that, which no child would have.
"""

import torch

torch.compile(torch.nn.functional.gelu, backend="aot_eager")(torch.ones(1))
