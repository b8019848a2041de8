"""Published figures as a benchmark, replayed small."""

from __future__ import annotations

from benchmarks.__main__ import benchmarks
from benchmarks.parts.published import published


def test_every_number_of_a_table_comes_with_the_published_one_and_their_ratio() -> None:
    found = {
        row.name: row
        for row in published("elastic-scaling", ["mixed-40.toml", "queue-40.toml"], ["Table III"], smoke=True)
    }
    ours, theirs, ratio = (
        found[f"table3_elastic_drop_sjs_{kind}"] for kind in ("ours", "published", "ratio")
    )
    assert (theirs.value, theirs.unit) == (80.46, "%")
    assert ours.value is not None
    assert ratio.value == ours.value / theirs.value
    assert {name.rsplit("_", 1)[1] for name in found} == {"ours", "published", "ratio"}


def test_what_benchmarks_share_is_no_benchmark() -> None:
    assert "published" not in benchmarks()
