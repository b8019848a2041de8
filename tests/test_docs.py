"""Pages that come from the code are as the code says, and links between pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate import stale, with_table

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DECISIONS = ROOT / "docs" / "decisions.md"
DECISIONS_ABOUT = (
    "General",
    "Files",
    "Profile",
    "Schedule",
    "Policies",
    "Replay",
    "Report",
    "Run",
    "Elastic library",
    "Slurm",
    "Tests and experiments",
)


def test_generated_pages_are_current() -> None:
    assert stale() == [], "run `make docs`"


def test_a_table_that_comes_from_results_is_replaced_in_a_page_written_by_hand() -> None:
    mark = "<!-- Table of results.json, written by `make docs` -->\n"
    page = f"Words.\n\n{mark}| a |\n| --- |\n| old |\n\nMore.\n"
    assert with_table(page, "| a |\n| --- |\n| new |") == page.replace("old", "new")
    with pytest.raises(ValueError, match="make docs"):
        with_table(page.replace(mark, ""), "| a |")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []


def test_prose_wraps_at_100_columns() -> None:
    long = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in PAGES
        for line in re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE).splitlines()
        if len(line) > 100 and not line.startswith(("|", "    ", "<!--"))
    ]
    assert long == []


def test_decisions_stand_under_the_heading_of_their_tool() -> None:
    headings = re.findall(r"^#+ (.*)$", DECISIONS.read_text(), re.MULTILINE)
    assert headings == ["Decisions", *DECISIONS_ABOUT]


def test_each_decision_is_bold_with_its_reason_in_at_most_five_lines() -> None:
    _, *sections = re.split(r"^## .*\n", DECISIONS.read_text(), flags=re.MULTILINE)
    entries = [entry for section in sections for entry in section.strip().split("\n\n")]
    shapeless = [e for e in entries if not e.startswith("**") or len(e.splitlines()) > 5 or "\n**" in e]
    assert shapeless == []


def test_the_page_of_file_kinds_has_each_field_of_a_job_s_progress_file() -> None:
    from pliant.tools.run.statedir.contract.plan import Progress

    section = (ROOT / "docs" / "schemas.md").read_text().partition("## progress\n")[2]
    names = [field.alias or name for name, field in Progress.model_fields.items()]
    assert [name for name in names if f"| `{name}` |" not in section] == []


def test_every_command_is_in_the_reference() -> None:
    from pliant.cli.main import COMMANDS, GROUPS

    text = (ROOT / "docs" / "cli.md").read_text()
    names = [name for name, _ in COMMANDS] + [name for name, _, _ in GROUPS]
    assert [name for name in names if f"`pliant {name}`" not in text] == []
