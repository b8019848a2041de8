"""How much memory a worker holds."""

from __future__ import annotations

import psutil
import torch


def memory_held() -> int:
    """Bytes: the most that this process has reserved of its GPU; where it uses none, its resident memory."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_reserved())
    return int(psutil.Process().memory_info().rss)
