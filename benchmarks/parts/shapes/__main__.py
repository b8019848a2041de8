"""``python -m benchmarks.parts.shapes`` runs shapes; each process imports its parent's main module."""

import sys

from benchmarks.parts.shapes.driver import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
