from pathlib import Path

import pytest

from pliant.tools.profile.torchrun.start import LONGEST, last_words, printable


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
SYNTAX = '  File "/home/ada/train.py", line 7\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'


@pytest.mark.parametrize(
    ("workers", "launcher", "words"),
    [
        (["a warning\n", f"{TRACE}[W] process group was not destroyed\n"], "", "KeyError: 7"),
        (["[rank1]: ValueError: bad shard\n[W] not destroyed\n"], "", "[rank1]: ValueError: bad shard"),
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
