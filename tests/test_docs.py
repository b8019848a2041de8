"""Pages that come from the code are as the code says, and links between pages lead somewhere."""

import json
import re
from pathlib import Path

from docs import performance
from docs.generate import stale

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DECISIONS = ROOT / "docs" / "decisions.md"
HOOD = ROOT / "docs" / "under-the-hood.md"
README = ROOT / "README.md"
FIRST_HOUR = ROOT / "docs" / "first-hour.md"
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
DECISIONS_ABOUT = (
    *("General", "Files", "Profile", "Schedule", "Policies", "Replay", "Report", "Run"),
    *("Elastic library", "Slurm", "Tests and experiments"),
)


def _place(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def links_of(text: str) -> list[str]:
    """Relative links, but for those in code blocks."""
    result = re.findall(r"\]\(([^)\s]+)\)", without_code(text))
    return [link for link in result if "://" not in link]


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target.read_text()))


def anchors(text: str) -> set[str]:
    result: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", without_code(text), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", each) is not None for each in result)
        result.add(f"{slug}-{again}" if again else slug)
    return result


def missing_modules(text: str, *, files: bool) -> list[str]:
    """Modules in backticks that are not there; with ``files`` names without a folder count, too."""
    names = re.findall(r"`([\w/.]+)`", text)
    return [
        name
        for name in names
        if "NAME" not in name and name != "pliant.toml" and not _is_there(name, files=files)
    ]


def _is_there(name: str, *, files: bool) -> bool:
    if name.startswith("pliant.") and "/" not in name:
        path = ROOT.joinpath(*name.split(".")[1:])
        return path.is_dir() or path.with_suffix(".py").exists() or _defines(path.parent, path.name)
    if re.match(r"(cli|schemas|tools|docs|tests|benchmarks|experiments|examples)/", name):
        return (ROOT / name).exists()
    if files and re.fullmatch(r"\w+\.py", name):
        return any(any((ROOT / part).rglob(name)) for part in ("cli", "schemas", "tools"))
    return True


def _defines(module: Path, name: str) -> bool:
    source = module.with_suffix(".py") if module.with_suffix(".py").exists() else module / "__init__.py"
    return source.exists() and re.search(rf"\b{name}\b", source.read_text()) is not None


def test_generated_pages_are_current() -> None:
    assert stale() == [], "run `make docs`"


def test_links_modules_and_the_path_through_the_code_are_right() -> None:
    links = [(page, link) for page in PAGES for link in links_of(page.read_text())]
    assert [(_place(page), link) for page, link in links if not leads_somewhere(page, link)] == []
    # Modules that a page names exist.
    missing = {
        _place(page): missing_modules(page.read_text(), files=page in (DECISIONS, HOOD)) for page in PAGES
    }
    assert not any(missing.values()), missing
    # The path through the code has ten steps for each life.
    lives = re.split(r"^## The life of .*$", HOOD.read_text(), flags=re.MULTILINE)[1:]
    assert [len(re.findall(r"^\d+\. ", life, re.MULTILINE)) for life in lives] == [10, 10, 10]


def test_pages_are_short_and_wrap_and_decisions_have_their_tool() -> None:
    long = [
        f"{_place(page)}: {line}"
        for page in PAGES
        for line in without_code(page.read_text()).splitlines()
        if len(line) > 100 and not line.startswith(("|", "    ", "<!--"))
    ]
    assert long == []
    # Pages for newcomers stay short.
    running = dict.fromkeys(ROOT.glob("docs/running*.md"), 1500)
    limits = {**running, **dict.fromkeys(TUTORIALS, 800), FIRST_HOUR: 900, README: 900, DECISIONS: 3000}
    words = {_place(page): len(page.read_text().split()) for page, most in limits.items()}
    assert {place: count for place, count in words.items() if count > limits[ROOT / place]} == {}
    # A tutorial has commands and says what to do next.
    for page in TUTORIALS:
        text = page.read_text()
        assert "```sh\n" in text, page
        assert links_of(text.partition("\n## Next\n")[2]), page
    # Decisions stand under their tool and are short.
    headings = re.findall(r"^#+ (.*)$", DECISIONS.read_text(), re.MULTILINE)
    assert headings == ["Decisions", *DECISIONS_ABOUT]
    # Each decision is bold and at most five lines.
    _, *sections = re.split(r"^## .*\n", DECISIONS.read_text(), flags=re.MULTILINE)
    entries = [entry for section in sections for entry in section.strip().split("\n\n")]
    shapeless = [e for e in entries if not e.startswith("**") or len(e.splitlines()) > 5 or "\n**" in e]
    assert shapeless == []


def test_the_page_of_figures_shows_limits_growths_and_gaps() -> None:
    """A growth below the clock's resolution is a bound; what was not measured is a dash."""
    limits = {
        (1.2, 0.95, True): "at least 0.95",
        (0.4, 0.2, False): "at most 0.2 (missed)",
        (3.0, 3.0, True): "3",
        (None, 3.0, None): "-",
    }
    for (value, limit, holds), message in limits.items():
        assert performance._limit({"value": value, "limit": limit, "holds": holds}) == message
    growths = {(0.02, 0.5): "25", (0.004, 0.5): "> 50", (0.02, 0.008): "< 0.5", (0.004, 0.008): "-"}
    assert {each: performance._growth(*each, 0.01) for each in growths} == growths
    values = {"scale": {"fifo_growth": "0.95"}}
    assert performance._filled("{scale[fifo_growth]}", values) == "0.95"
    assert performance._filled("{scale[fifo_mb_growth]} for ten times the jobs", values) == "-"


def test_figures_are_shown_with_the_machine_of_each_record(tmp_path, monkeypatch) -> None:
    usual = {"cpu": "A", "cores": 2, "memory_gib": 8.0, "python": "3.11.7", "system": "Linux-6.1-x86_64-gnu"}
    for name, machine in {"scale": usual, "cli": usual, "ares": usual | {"python": "3.12.1"}}.items():
        (tmp_path / f"{name}.machine.json").write_text(json.dumps(machine))
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    assert performance._machines() == (
        "2 cores of A with 8 GiB, Python 3.11.7, Linux 6.1; `ares`: Python 3.12.1"
    )


def test_the_page_of_figures_has_every_policy_at_every_size() -> None:
    from benchmarks.parts.decisions_at_scale import GPUS, JOBS, LEFT_OUT
    from pliant.tools.schedule.registry import policy_names

    page = (ROOT / "docs" / "performance.md").read_text().partition("\n## Decisions\n")[2]
    sizes = " | ".join(f"{gpus:,} / {jobs:,}" for gpus in GPUS for jobs in JOBS)
    assert f"| policy | {sizes} | growth |" in page
    assert [name for name in policy_names() if name not in LEFT_OUT and f"\n| {name} |" not in page] == []
    assert all(name in page for name in LEFT_OUT)
