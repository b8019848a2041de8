"""``python -m experiments [NAME…]``: reproduce published tables and figures."""

from __future__ import annotations

import sys

from experiments.harness.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
