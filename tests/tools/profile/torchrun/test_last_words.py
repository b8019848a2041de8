from __future__ import annotations

from pathlib import Path

from pliant.tools.profile.torchrun.start import LONGEST, last_words, printable


def test_a_line_is_cut_and_has_nothing_that_acts_on_a_terminal() -> None:
    assert printable("no \x1b[31mroom\x07") == "no \\x1b[31mroom\\x07"
    assert len(printable("x" * 1000)) == LONGEST


def test_only_the_end_of_a_long_file_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_text("ValueError: of long ago\n" + "warning\n" * 100_000 + "the last line\n\n")
    assert last_words([path]) == "the last line"


def test_files_that_are_not_there_say_nothing(tmp_path: Path) -> None:
    assert last_words([tmp_path / "0" / "stderr.log"], tmp_path / "other") == ""


def test_a_syntax_error_says_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_text(
        '  File "/home/ada/train.py", line 7\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'
    )
    assert last_words([path]) == "SyntaxError: invalid syntax (train.py, line 7)"


def test_an_error_that_torch_puts_a_rank_before_is_found_among_later_lines(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_text("[rank1]: ValueError: bad shard\n[W] destroy_process_group() was not called\n")
    assert last_words([path]) == "[rank1]: ValueError: bad shard"


def test_what_the_launcher_says_of_a_worker_that_said_nothing_is_left_out(tmp_path: Path) -> None:
    worker, launcher = tmp_path / "stderr.log", tmp_path / "launcher.log"
    worker.touch()
    launcher.write_text("train.py FAILED\n==========\n")
    assert last_words([worker], launcher) == ""
    assert last_words([], launcher) == "=========="


WARNED = (
    "/site/torch/distributed/checkpoint/api.py:182: UserWarning: storage_writer is deprecated\n"
    "  local_plan = storage_writer.prepare_local_plan(local_plan)\n"
    "[W1123 01:02:03.456 ProcessGroup.cpp:1250] destroy_process_group() was not called\n"
)


def test_a_warning_is_never_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_text("out of cheese\n" + WARNED)
    assert last_words([path]) == "out of cheese"
    path.write_text("ValueError: bad shard\n" + WARNED)
    assert last_words([path]) == "ValueError: bad shard"
    path.write_text(WARNED)
    assert last_words([path]) == "only warnings on stderr"


def test_the_signal_that_killed_a_worker_is_named_by_the_launcher(tmp_path: Path) -> None:
    worker, launcher = tmp_path / "stderr.log", tmp_path / "launcher.log"
    worker.write_text("Epoch 3:  50%|#####     |\n" + WARNED)
    launcher.write_text("  traceback : Signal 9 (SIGKILL) received by PID 4711\n=====\n")
    assert last_words([worker], launcher) == "killed by SIGKILL"
    worker.write_text("ValueError: bad shard\n")
    assert last_words([worker], launcher) == "ValueError: bad shard"
