"""The HTML page in a headless Chromium: it renders without an error, fits three widths, and answers."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib.image import imread

from benchmarks.parts.chromium import Tab, browser, chromium
from pliant.tools.report.rendering.page import page
from pliant.tools.report.report import make_report
from tests.builders import cluster, job
from tests.tools.report.runs import ran, story, submit

JOBS = 400
EVIL = "</script><script>window.hurt=1</script><img src=x onerror='window.hurt=1'>"
LABEL_AFTER_SCROLLING = """(() => {
    const box = document.querySelector(".scroll");
    box.scrollLeft = 200;
    return box.querySelector("tbody th").getBoundingClientRect().left - box.getBoundingClientRect().left;
})()"""
TO_THE_END = """new Promise((done) => {
    const box = document.getElementById("window");
    box.addEventListener("scroll", () => setTimeout(done));
    box.scrollTop = 1e6;
})"""
LOW_IN_THE_CHART = """(() => {
    const chart = document.getElementById("canvas");
    chart.scrollIntoView({ block: "center" });
    const box = chart.getBoundingClientRect();
    return [box.left + box.width / 2, box.bottom - 30];
})()"""
pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(chromium() is None, reason="needs Chromium (Debian's package chromium)"),
]


def run(policy, length):
    events = []
    for at in range(JOBS):
        spec = job(f"job-{at:03}", at=float(at), user=f"user-{at % 5}", model="bert" if at % 2 else EVIL)
        events += [submit(spec, 4.0), *ran(spec.id, at, at + length)]
    return story(*sorted(events, key=lambda event: event.time), policy=policy, nodes=cluster(64))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(make_report([run("fifo", 30.0), run(EVIL, 20.0)], baseline="fifo")))
    return path


@pytest.fixture
def opened():
    with browser() as found:
        yield found


def filtered_by(text):
    return f"""(() => {{
        const field = document.getElementById("filter");
        field.value = "{text}";
        field.dispatchEvent(new Event("input"));
    }})()"""


def same_pixels(first, second, width):
    """Whether two screenshots of this width show the same, and not an empty page.

    Chromium draws the edges of a few glyphs differently from one load to the next: 0.02 % of the pixels of a
    page, at times. One pixel in a thousand is less than a word.
    """
    left, right = (imread(BytesIO(data)) for data in (first, second))
    assert left.shape[1] == width
    colours = np.rint(left * 255) @ (1 << 8 * np.arange(left.shape[2]))
    assert len(np.unique(colours)) > 20
    return left.shape == right.shape and (left != right).any(axis=2).mean() < 0.001


def test_it_renders_fits_three_widths_and_says_no_error(opened, file):
    for width in (412, 800, 1280):
        tab = Tab(opened, width).open(file)
        assert tab.errors() == []
        assert tab.value("document.documentElement.scrollWidth") == width
        assert same_pixels(tab.screenshot(), Tab(opened, width).open(file).screenshot(), width)
        assert tab.value("document.querySelectorAll('figure svg').length") == 4
        wide = "[...document.querySelectorAll('.scroll')].map(each => each.getBoundingClientRect().right)"
        assert max(tab.value(wide)) <= width
        # what is scrolled to the right still has its labels
        assert abs(tab.value(LABEL_AFTER_SCROLLING)) < 3
        # what a file says does no harm
        assert tab.value("window.hurt === undefined")
        assert tab.value("document.querySelectorAll('img').length") == 0
        assert EVIL in tab.value("document.querySelector('#job-table tbody').textContent")


def test_the_table_of_jobs_filters_sorts_and_scrolls(opened, file):
    tab = Tab(opened, 1280).open(file)
    rows = "[...document.querySelectorAll('#job-table tbody th')].map(each => each.textContent)"
    assert 10 < len(tab.value(rows)) < 80
    tab.value(filtered_by("USER-3"))
    assert tab.value("document.getElementById('count').textContent") == f"{JOBS // 5} of {JOBS} jobs"
    assert tab.value(rows)[0] == "job-003"
    header = "[...document.querySelectorAll('#job-table thead th')].find(each => each.textContent === 'job')"
    tab.value(f"{header}.querySelector('button').click()")
    tab.value(f"{header}.querySelector('button').click()")
    assert tab.value(rows)[0] == "job-398"
    assert tab.value(f"{header}.getAttribute('aria-sort')") == "descending"
    tab.value(filtered_by(""))
    tab.value(TO_THE_END)
    assert tab.value(rows)[-1] == "job-000"


def test_the_chart_answers_to_keys_and_to_the_pointer(opened, file):
    tab = Tab(opened, 1280).open(file)
    seen = "document.getElementById('seen').textContent"
    tab.value("document.getElementById('canvas').focus()")
    tab.press("ArrowRight")
    assert tab.value(seen).startswith("job-000 (")
    tab.press("ArrowDown")
    assert "job-001 (bert, user-1): 1 GPU, no stall; from 1 s to 31 s" in tab.value(seen)
    tab.press("+")
    x, y = tab.value(LOW_IN_THE_CHART)
    tab.move_to(x, y)
    assert "job-" in tab.value(seen)
    assert "job-001" not in tab.value(seen)


def test_a_dark_page_is_dark_and_jobs_lead_to_the_chart(opened, file):
    tab = Tab(opened, 800, dark=True).open(file)
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    tab.value("document.querySelector('#job-table tbody button').click()")
    assert tab.value("document.activeElement.id") == "canvas"
    assert tab.value("document.getElementById('seen').textContent").startswith("job-000")
