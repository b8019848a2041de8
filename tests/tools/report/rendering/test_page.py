"""The HTML page as text: what it holds, that nothing in a file breaks it, and that it stays small."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from pliant.schemas.event import Event
from pliant.tools.report.read_run import fold
from pliant.tools.report.rendering.output import Extras, render
from pliant.tools.report.rendering.page import page, page_data, stretches
from pliant.tools.report.rendering.sections import GivenProfile, ProfiledStep
from pliant.tools.report.report import make_report
from tests.builders import cluster, job
from tests.tools.report.runs import begin, first_come, ran, shared, story, submit

EVIL = "</script><script>document.title='x'</script><!--"


class Page(HTMLParser):
    """Elements of a page: which are open at the end, what they load, ids, and text by element."""

    def __init__(self, text):
        super().__init__()
        self.open, self.loaded, self.ids, self.tags, self.texts = [], [], [], [], {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        self.ids += [found["id"]] if "id" in found else []
        self.loaded += [found[name] for name in ("src", "href") if not found.get(name, "#").startswith("#")]
        if tag not in ("meta", "link", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def data_of(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


@pytest.fixture(scope="module")
def report():
    runs = [fold(first_come(), "out/fifo.parquet"), fold(shared(), "out/ares.parquet")]
    return make_report(runs, baseline="fifo")


def test_the_page_is_whole_and_loads_nothing(report):
    text = render(report, "html", Extras())
    found = Page(text)
    assert (found.open, found.loaded) == ([], [])
    assert len(set(found.ids)) == len(found.ids)
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|url\(|@import|fetch\(", text)


def test_equal_reports_give_equal_pages_and_no_date_of_today(report):
    made = [render(make_report([fold(shared())]), "html", Extras(command="pliant report x")) for _ in "12"]
    assert made[0] == made[1]
    assert "pliant report x" in made[0]


def test_the_best_value_of_a_row_is_marked_for_eyes_and_for_screen_readers(report):
    text = render(report, "html", Extras())
    (row,) = re.findall(r'<tr><th scope="row">jobs finished</th>.*?</tr>', text)[:1]
    assert row.count('class="best"') == 1
    assert row.index("2 of 3") < row.index("★") < row.index("3 of 3")
    assert '<span class="unseen"> best</span>' in row
    assert "↑ higher" in row


def test_seeds_of_a_policy_are_one_column_with_the_interval_of_their_mean():
    seeds = [fold(shared(seed=seed)) for seed in (0, 1)]
    last = [event for event in shared(seed=2) if event.time < 214]
    later = [*last, Event(260, "finish", "a", 0, samples_done=480.0)]
    text = page(make_report([*seeds, fold(later)]))
    assert re.search(r'<tr><th scope="row">JCT, mean</th><td>[^<]* ± [^<]*</td>', text)
    assert "means over 3 seeds" in text.lower()


def test_every_table_has_a_caption_and_headers_with_a_scope(report):
    found = Page(render(report, "html", Extras()))
    count = {name: sum(tag == name for tag, _ in found.tags) for name in ("table", "caption")}
    assert count["table"] == count["caption"]
    scopes = [attrs.get("scope") for tag, attrs in found.tags if tag == "th"]
    assert {"row", "col"} == set(scopes)
    boxes = [attrs for _, attrs in found.tags if "scroll" in attrs.get("class", "")]
    assert boxes
    assert all(attrs.get("tabindex") == "0" and attrs.get("aria-label") for attrs in boxes)


@pytest.mark.parametrize("field", ["id", "model", "user"])
def test_what_a_file_says_cannot_break_the_page(field):
    names = {"job_id": "a", "model": "m", "user": "u"} | {"job_id" if field == "id" else field: EVIL}
    if field == "id":
        names["job_id"] = "a"
    spec = job(gpus=1, **names)
    run = fold([begin(policy=EVIL), submit(spec, 4.0), *ran(spec.id, 0, 4)], EVIL)
    if field == "id":  # a file cannot hold it; a page must not care
        run.jobs[0].id = EVIL
    found = Page(page(make_report([run])))
    assert found.open == []
    assert sum(tag == "script" for tag, _ in found.tags) == 2
    assert EVIL in json.dumps(data_of(page(make_report([run]))))


def test_the_data_hold_what_each_job_had_with_batch_and_stall():
    run = story(
        submit(job("a", gpus=2, low=1, elastic="size+batch"), 100.0),
        Event(0, "start", "a", 2, global_batch=64, overhead_seconds=3.0),
        Event(10, "grow", "a", 4, global_batch=128),
        Event(20, "finish", "a", 0),
    )
    found = json.loads(page_data(make_report([run])))
    (drawn,) = found["runs"]
    tick = drawn["tick"]
    count, *flat = drawn["held"]
    blocks = [flat[at : at + 5] for at in range(0, len(flat), 5)]
    shown = [
        (gap * tick, length * tick, gpus, found["words"][batch], stall * tick)
        for gap, length, gpus, batch, stall in blocks
    ]
    assert count == 2
    assert shown == [pytest.approx((0, 10, 2, "64", 3)), pytest.approx((0, 10, 4, "128", 0))]


def test_runs_of_one_trace_share_what_their_jobs_are(report):
    found = json.loads(page_data(report))
    assert [each["trace"] for each in found["runs"]] == [0, 0]
    assert [each["id"] for each in found["traces"]] == [["a", "b", "c"]]


def test_too_many_changes_are_joined_and_keep_their_gpu_time():
    changes = [Event(at, "grow" if at % 2 else "shrink", "a", 2 if at % 2 else 1) for at in range(1, 1000)]
    run = story(
        submit(job("a", low=1, high=4), 5000.0),
        Event(0, "start", "a", 1),
        *changes,
        Event(1000, "finish", "a", 0),
    )
    (every,), grain_s = stretches(run.jobs, 1000.0, most=2000)
    (joined,), coarse_s = stretches(run.jobs, 1000.0, most=50)
    assert (len(every), grain_s) == (1000, 0.0)
    assert len(joined) <= 50
    assert coarse_s >= 1000 / 50
    work = [sum(each.gpus * (each.end_s - each.start_s) for each in own) for own in (every, joined)]
    assert work[0] == pytest.approx(work[1])
    assert all(left.end_s <= right.start_s for left, right in pairwise(joined))
    data = json.loads(page_data(make_report([run]), most=50))
    assert data["runs"][0]["grain"] > 0


def test_users_and_teams_have_tables_where_jobs_state_them(report):
    specs = [job(name, user=user, labels={"team": "vision"}) for name, user in (("a", "eva"), ("b", ""))]
    events = [event for spec in specs for event in (submit(spec, 4.0), *ran(spec.id, 0, 4))]
    text = page(make_report([story(*sorted(events, key=lambda event: event.time), nodes=cluster(4))]))
    assert "<h2>Users</h2>" in text
    assert '<th scope="row">eva</th>' in text
    assert '<th scope="row">not stated</th>' in text
    assert "Teams (label team)" in text
    assert "<h2>Users</h2>" not in page(report)


def test_a_log_with_dates_states_them_and_a_simulation_has_none(report):
    start = 1_700_000_000.0
    run = fold([begin(at=start), submit(job("a", at=start), 4.0), *ran("a", start, start + 4)])
    assert "2023-11-14 22:13:20 UTC" in page(make_report([run]))
    assert " UTC" not in page(report)


def test_hashes_of_trace_and_event_file_are_stated(report):
    run = replace(report.runs[0].run, sha256="ef" * 32)
    text = page(make_report([run]))
    assert "ab" * 32 in text
    assert "ef" * 32 in text


def test_a_profile_is_shown_with_its_residuals_and_a_run_of_another_is_named(report):
    step = ProfiledStep("bert", "t4", "2", 8, 1, 0.5, 0.01, 0.0, 0.6)
    text = render(report, "html", Extras(profile=GivenProfile("p.parquet", "12" * 32, (step,))))
    assert "+20.0" in text
    assert "p.parquet is not the profile of 2 runs of 2" in text
    assert "20.0" in render(report, "md", Extras(profile=GivenProfile("p.parquet", "12" * 32, (step,))))


def test_a_report_in_which_nothing_finished_is_a_page_too():
    text = page(make_report([story(submit(job("a"), 4.0))]))
    assert Page(text).open == []
    assert "none of 1 job finished" in text
