"""The site: `make site` builds it from docs/ without a network, and fails where a page or a link is lost."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from benchmarks.parts.chromium import Tab, browser, chromium

ROOT = Path(__file__).resolve().parents[1]
needs_mkdocs = pytest.mark.skipif(
    find_spec("material") is None, reason="needs mkdocs-material: pip install 'pliant[site]'"
)
FOUND = """new Promise((done) => {
    const list = document.querySelector(".md-search-result__list");
    const look = () => {
        const links = [...list.querySelectorAll("a[href]")];
        if (links.length) done(links.map((link) => link.getAttribute("href")));
    };
    new MutationObserver(look).observe(list, { childList: true, subtree: true });
    look();
})"""
MARKUP = ("h1", "h2", "h3", "li", "pre", "tr")


def build(repository: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=repository,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def pages() -> dict[str, Path]:
    result = {str(page.relative_to(ROOT / "docs")): page for page in (ROOT / "docs").rglob("*.md")}
    outside = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
    result |= {name: ROOT / name for name in outside}
    return {re.sub(r"README\.md$", "index.md", name)[:-3]: page for name, page in result.items()}


def markup(html: str) -> dict[str, int]:
    return {tag: len(re.findall(f"<{tag}[ >]", html)) for tag in MARKUP}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    copy = tmp_path / "repository"
    nothing_made = shutil.ignore_patterns("__pycache__")
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=nothing_made)
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@needs_mkdocs
def test_every_page_is_there_and_can_be_searched(site: Path) -> None:
    read = MarkdownIt("commonmark").enable("table").render
    differ = {}
    for name, page in pages().items():
        html = (site / f"{name}.html").read_text()
        article = html.partition("<article")[2].partition("</article>")[0]
        if (here := markup(read(page.read_text()))) != (there := markup(article)):
            differ[name] = here, there
    assert differ == {}
    result = json.loads((site / "search" / "search_index.json").read_bytes())["docs"]
    assert {f"{name}.html" for name in pages()} <= {entry["location"] for entry in result}


@needs_mkdocs
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe)\b[^>]*\bsrc=.?(?:https?:)?//|<link\b[^>]*\bhref=.?(?:https?:)?//"
    )
    sheet = re.compile(r"url\(.?(?:https?:)?//")
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text())] == []
    assert [style.name for style in site.rglob("*.css") if sheet.search(style.read_text())] == []


@needs_mkdocs
@pytest.mark.services
@pytest.mark.skipif(chromium() is None, reason="needs Chromium (Debian's package chromium)")
def test_a_newcomer_s_question_is_found(site: Path) -> None:
    with served(site) as address, browser() as opened:
        tab = Tab(opened, 1280)
        tab.value(f"void (location.href = '{address}/index.html?q=pending')")
        opened.wait_for("Page.loadEventFired")
        result = tab.value(FOUND)
        assert tab.errors() == []
    assert any(link.endswith("#why-is-my-job-pending") for link in result)


@needs_mkdocs
def test_a_dead_link_or_a_page_without_a_place_fails(repository: Path) -> None:
    with (repository / "docs" / "faq.md").open("a") as faq:
        faq.write("\n[a](nowhere.md) [b](cli.md#no-heading) [c](../examples/none.py)\n")
    (repository / "docs" / "new.md").write_text("# New\n")
    done = build(repository, repository / "site")
    assert done.returncode == 1
    for lost in ("'nowhere.md'", "no-heading", "'examples/none.py'", "- new.md"):
        assert lost in done.stderr
