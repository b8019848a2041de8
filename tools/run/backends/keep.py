"""Former name of ``supervisor.py``: a loop of the version before, still running, starts units by it."""

import os
import runpy

if __name__ == "__main__":
    runpy.run_path(
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervisor.py"), run_name="__main__"
    )
