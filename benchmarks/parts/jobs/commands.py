"""Commands that people submit, typed as they type them, and what their jobs have to print."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.parts.figure import Figure
from benchmarks.parts.jobs.cluster import SmallCluster


class Command(NamedTuple):
    """What somebody types, where ``$1`` is the job's name, and what the job then prints."""

    typed: str
    expected: str
    """Printed once, as a line."""


_PLAIN: Final = "import sys\\nprint(*sys.argv[1:])\\n"
_OWN_PYTHON: Final = """
python -m venv --without-pip env
site=$(env/bin/python -c 'import site; print(site.getsitepackages()[0])')
mkdir $site/torch; echo '__version__ = "9.9"' > $site/torch/__init__.py
printf 'import torch\\nprint("torch", torch.__version__)\\n' > train.py
"""
"""An environment of the job's own, with another torch than the run has."""
_STAND_IN: Final = """
mkdir bin; printf '#!/bin/sh\\nexec cat "$1"\\n' > bin/{0}; chmod +x bin/{0}; PATH=$PWD/bin:$PATH
"""

COMMANDS: Final = {
    "bash-script": Command(
        """printf '#!/bin/bash\\necho "from bash: $1"\\n' > job.sh; chmod +x job.sh
        pliant submit job.sh --name $1 -- hello""",
        "from bash: hello",
    ),
    "pipes": Command("""pliant submit bash --name $1 -- -c 'echo one | tr o 0'""", "0ne"),
    "options-on-stdin": Command(
        """printf '#!/bin/bash\\n#PLIANT --gpus=2 --name %s # mine\\necho both\\n' $1 | pliant submit -""",
        "both",
    ),
    "heredoc": Command(
        """pliant submit --gpus 1 <<'END'
#!/bin/bash
#PLIANT --name heredoc

for word in from a heredoc; do printf '%s ' $word; done; echo
END""",
        "from a heredoc ",
    ),
    "heredoc-with-arguments": Command(
        """pliant submit - --name $1 -- 'a b' c <<'END'
#!/bin/sh
echo "$#: $1"
END""",
        "2: a b",
    ),
    "python-on-stdin": Command(
        """printf '#!/usr/bin/env python3\\nprint(6 * 7)\\n' | pliant submit --name $1""", "42"
    ),
    "conda": Command(
        f"""{_OWN_PYTHON}
        CONDA_PREFIX=$PWD/env pliant submit train.py --name $1""",
        "torch 9.9",
    ),
    "activated": Command(
        f"""{_OWN_PYTHON}
        . env/bin/activate; pliant submit train.py --name $1""",
        "torch 9.9",
    ),
    "python-on-path": Command(
        f"""{_OWN_PYTHON}
        PATH=$PWD/env/bin:$PATH pliant submit python --name $1 -- train.py""",
        "torch 9.9",
    ),
    "environment-on-path": Command(
        f"""{_OWN_PYTHON}
        PATH=$PWD/env/bin:$PATH pliant submit train.py --name $1""",
        "torch 9.9",
    ),
    "path-of-python": Command(
        f"""{_OWN_PYTHON}
        pliant submit env/bin/python --name $1 -- -u train.py""",
        "torch 9.9",
    ),
    "shebang-of-environment": Command(
        f"""{_OWN_PYTHON}
        {{ echo "#!$PWD/env/bin/python"; cat train.py; }} > tool; chmod +x tool
        pliant submit ./tool --name $1""",
        "torch 9.9",
    ),
    "activated-in-script": Command(
        f"""{_OWN_PYTHON}
        printf '#!/bin/bash\\nsource env/bin/activate\\nexec python train.py\\n' > job.sh
        pliant submit job.sh --name $1""",
        "torch 9.9",
    ),
    "binary": Command("""cp /bin/echo sim; pliant submit ./sim --name $1 -- 'step 1'""", "step 1"),
    "module": Command(
        f"""mkdir -p pkg; touch pkg/__init__.py; printf '{_PLAIN}' > pkg/train.py
        pliant submit python --name $1 -- -m pkg.train --lr 0.1""",
        "--lr 0.1",
    ),
    "torchrun": Command(
        """cat > ddp.py <<'END'
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    print("rank 1 of", dist.get_world_size())
END
        pliant submit torchrun --gpus 2 --name $1 -- ddp.py""",
        "rank 1 of 2",
    ),
    "accelerate": Command(
        f"""{_STAND_IN.format("accelerate")} echo launched > launch
        pliant submit accelerate --name $1 -- launch --num_processes 2 train.py""",
        "launched",
    ),
    "papermill": Command(
        f"""{_STAND_IN.format("papermill")} echo cells > in.ipynb
        pliant submit papermill --name $1 -- in.ipynb out.ipynb -p lr 0.1""",
        "cells",
    ),
    "other-language": Command(
        f"""{_STAND_IN.format("Rscript")} printf '#!/usr/bin/env Rscript\\n' > fit.R
        echo 'cat(1)' >> fit.R; pliant submit fit.R --name $1""",
        "cat(1)",
    ),
    "perl": Command(
        """printf '#!/usr/bin/perl -w\\nprint "sum ", 1 + 2, "\\\\n";' > sum.pl; chmod +x sum.pl
        pliant submit sum.pl --name $1""",
        "sum 3",
    ),
    "not-executable": Command(
        """printf '#!/bin/bash -e\\necho "runs as $0"\\n' > job; pliant submit job --name $1""",
        "runs as ./job",
    ),
    "blanks-and-quotes": Command(
        """mkdir "it's here"; printf '#!/bin/bash\\necho "$@"\\n' > "it's here/my \\"job\\".sh"
        pliant submit "it's here/my \\"job\\".sh" --name $1 -- "a  b" '*' '"q"' '$HOME'""",
        """a  b * "q" $HOME""",
    ),
    "variables-before": Command(
        """printf '#!/bin/bash\\necho "$LR $SEED"\\n' > job.sh; chmod +x job.sh
        pliant submit env --name $1 --env SEED=3 -- LR=0.1 ./job.sh""",
        "0.1 3",
    ),
    "cd": Command(
        """mkdir data; echo rows > data/rows; printf 'cd data\\ncat rows\\n' > job.sh
        pliant submit job.sh --name $1""",
        "rows",
    ),
    "reads-stdin": Command(
        """printf '#!/bin/bash\\nread line || echo "nothing to read"\\n' > job.sh
        pliant submit job.sh --name $1""",
        "nothing to read",
    ),
    "children": Command(
        """printf '#!/bin/bash\\n(sleep 0.2; echo part) &\\nwait; echo all\\nsleep 600 &\\n' > job.sh
        pliant submit job.sh --name $1""",
        "part",
    ),
    "other-folder": Command(
        """mkdir sub; printf '#!/bin/bash\\nbasename "$PWD"\\n' > job.sh
        cd sub; pliant submit ../job.sh --name $1""",
        "sub",
    ),
    "symlink": Command(
        """mkdir kept; printf '#!/bin/bash\\necho linked\\n' > kept/v2.sh; ln -s kept/v2.sh current
        pliant submit current --name $1""",
        "linked",
    ),
    "make": Command(
        """printf 'train:\\n\\t@echo made\\n' > Makefile; pliant submit make --name $1 -- train""", "made"
    ),
    "home-and-user": Command(
        """printf '#!/bin/bash\\necho "$USER ${HOME##*/} $LANG"\\n' > job.sh
        pliant submit job.sh --name $1""",
        "home-and-user home-and-user C.UTF-8",
    ),
    "plain-script-on-two": Command(
        f"""printf '{_PLAIN}' > plain.py; pliant submit plain.py --gpus 2 --name $1 -- once""", "once"
    ),
    "array": Command(
        """printf '#!/bin/bash\\necho "number $PLIANT_ARRAY_INDEX"\\n' > job.sh
        pliant submit job.sh --array 3,4 --name ${1}""",
        "number 3",
    ),
}
"""By the name of the job."""


def figures(names: Collection[str] = tuple(COMMANDS)) -> list[Figure]:
    """The share of commands whose jobs end well and print what is expected, once."""
    with tempfile.TemporaryDirectory(prefix="pliant-commands-") as folder:
        cluster = SmallCluster(Path(folder).resolve())
        refused = {}
        for name in names:
            done = cluster.shell(name, COMMANDS[name].typed)
            if done.returncode:
                refused[name] = done.stderr
        cluster.run()
        problems = {name: refused.get(name) or _problem(cluster, name) for name in names}
    for name, problem in problems.items():
        if problem:
            print(f"{name}: {problem.strip()}", file=sys.stderr)
    ran = sum(not problem for problem in problems.values())
    return [Figure("commands_that_run", ran / len(problems), "of commands", 1.0, at_least=True)]


def _problem(cluster: SmallCluster, name: str) -> str:
    """What is wrong with a job that has ended; empty if nothing."""
    job = f"{name}-3" if name == "array" else name
    state, output = cluster.job(job).get("state"), cluster.output(job)
    if state == "finished" and output.splitlines().count(COMMANDS[name].expected) == 1:
        return ""
    return f"is {state}, printed {output[-500:]!r}"
