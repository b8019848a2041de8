from pathlib import Path

import pytest

from pliant.tools.profile.torchrun.start import LONGEST, is_usage_error, last_words, printable


def test_a_line_is_cut_and_printable_and_only_end_is_looked_at(tmp_path: Path) -> None:
    assert printable("no \x1b[31mroom\x07") == "no \\x1b[31mroom\\x07"
    assert len(printable("x" * 1000)) == LONGEST
    # Only the end of a long file is looked at.
    path = tmp_path / "stderr.log"
    path.write_text("ValueError: of long ago\n" + "warning\n" * 100_000 + "the last line\n\n")
    assert last_words([path]) == "the last line"
    # Files that are not there say nothing.
    assert last_words([tmp_path / "0" / "stderr.log"], tmp_path / "other") == ""


KILLED = "  traceback : Signal 9 (SIGKILL) received by PID 4711\n=====\n"
WARNED = (
    "/site/torch/distributed/checkpoint/api.py:182: UserWarning: storage_writer is deprecated\n"
    "  local_plan = storage_writer.prepare_local_plan(local_plan)\n"
    "[W1123 01:02:03.456 ProcessGroup.cpp:1250] destroy_process_group() was not called\n"
)


TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3\nKeyError: 7\n'
HANDLED = f"{TRACE}went on\n"
IGNORED = f"Exception ignored in: <function Pool.__del__>\n{TRACE.replace('KeyError: 7', 'OSError: closed')}"
NAMED = TRACE.replace(
    "KeyError: 7", "BackendFailed: no trace\n\nfrom user code:\n   File x\n\nSet V=1 for more."
)
IN_A_GROUP = "".join(
    f"{line}\n"
    for line in (
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "train.py", line 1, in <module>',
        "  | ExceptionGroup: two readers failed (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "train.py", line 1, in <module>',
        "    | ValueError: shard 3 is empty",
        "    | of the second kind",
        "    +---------------- 2 ----------------",
        "    | OSError: shard 4 is gone",
        "    +------------------------------------",
    )
)
OF_THE_GROUP = (
    "ExceptionGroup: two readers failed (2 sub-exceptions): ValueError: shard 3 is empty; "
    "OSError: shard 4 is gone"
)
SYNTAX = '  File "/home/ada/train.py", line 7\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'


@pytest.mark.parametrize(
    ("workers", "launcher", "words"),
    [
        (["a warning\n", f"{TRACE}[W] process group was not destroyed\n"], "", "KeyError: 7"),
        (["[rank1]: ValueError: bad shard\n[W] not destroyed\n"], "", "[rank1]: ValueError: bad shard"),
        ([f"{HANDLED}{NAMED}{IGNORED}"], "", "BackendFailed: no trace"),
        ([IN_A_GROUP], "", OF_THE_GROUP),
        (["╭── Traceback (most recent call last) ──╮\n│ x.py:3 │\n╰────╯\nBad: no\nmore\n"], "", "Bad: no"),
        (
            ["12:30:01 step 3\n12:30:02 step 4\ndiverged\nlast save: step 4\n"],
            "",
            "diverged; last save: step 4",
        ),
        (["step 1\nstep 2\nstep 3\ndiverged\n"], "", "diverged"),
        (["usage: t.py [-h] --x X\nt.py: error: --x is missing\n"], "", "t.py: error: --x is missing"),
        (
            ["[rank1]: Traceback (most recent call last):\n[rank1]:   File x\n[rank1]: Bad: 1\n"],
            "",
            "[rank1]: Bad: 1",
        ),
        ([SYNTAX], "", "SyntaxError: invalid syntax (train.py, line 7)"),
        (["cannot open display\n\n"], "worker failed\n", "cannot open display"),
        (["out of cheese\n" + WARNED], "", "out of cheese"),
        (["ValueError: bad shard\n" + WARNED], "", "ValueError: bad shard"),
        ([WARNED], "", "only warnings on stderr"),
        ([""], "train.py FAILED\n==========\n", ""),
        ([], "no such file: train.py\n", "no such file: train.py"),
        (["Epoch 3:  50%|#####     |\n" + WARNED], KILLED, "killed by SIGKILL"),
        (["ValueError: bad shard\n"], KILLED, "ValueError: bad shard"),
        ([], "", ""),
    ],
)
def test_the_worker_that_failed_first_has_word_and_else_launcher(tmp_path, workers, launcher, words):
    logs = [tmp_path / str(rank) / "stderr.log" for rank in range(len(workers))]
    for path, text in zip(logs, workers, strict=True):
        path.parent.mkdir()
        path.write_text(text)
    (tmp_path / "launcher.log").write_text(launcher)
    assert last_words(logs, tmp_path / "launcher.log") == words


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        ("t.py: error: the following arguments are required: --x", True),
        ("Error: Missing option '--x'.", True),
        ("/venv/bin/python3.12: can't open file '/gone.py': [Errno 2] No such file or directory", True),
        ("/venv/bin/python: No module named nothing", True),
        ("/venv/bin/python: cannot be started: No such file or directory", True),
        ("ModuleNotFoundError: No module named 'nothing'", False),
        ("RuntimeError: CUDA error: out of memory", False),
    ],
)
def test_a_complaint_about_the_call_is_told_from_other_errors(words: str, is_one: bool) -> None:
    assert is_usage_error(words) is is_one
