"""Former name of ``supervisor_setuid.py``: a running loop of the version before starts units by it."""

import os
import runpy

if __name__ == "__main__":
    runpy.run_path(
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervisor_setuid.py"), run_name="__main__"
    )
