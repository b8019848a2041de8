"""What the site needs beyond docs/: mkdocs calls these functions, as mkdocs.yml says.

Pages link to each other as files of the repository. On the site docs/ is the root, README.md is the
first page, and what else is linked (examples, CONTRIBUTING.md) stands under its own path.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs/"
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
_CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=(?:#[^)\s]*)?\))")
_COMMENT = re.compile(r"\A<!--.*?-->\n+", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files outside docs/ that pages link to."""
    from mkdocs.structure.files import File

    own = [DOCS + file.src_uri for file in files.documentation_pages()]
    linked = {there for page in (*own, *PAGES) for there in _linked(page)}
    for name in sorted({*PAGES, *(there for there in linked if not there.startswith(DOCS))}):
        path = ROOT / name
        if path.is_file() and (path.suffix != ".md" or name in PAGES):
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links as the site needs them, and a title in the first line, where mkdocs looks for it."""
    uri = page.file.src_uri
    here = uri if uri in PAGES else DOCS + uri
    return _with_links(_COMMENT.sub("", markdown), here)


def _with_links(text: str, page: str) -> str:
    parts = _CODE.split(text)
    parts[::2] = [_LINK.sub(lambda link: _on_site(page, link[1]), part) for part in parts[::2]]
    return "".join(parts)


def _on_site(page: str, link: str) -> str:
    """The link on a page, both named as in the repository, between their places on the site."""
    if "://" in link:
        return link
    return posixpath.relpath(_place(_target(page, link)), posixpath.dirname(_place(page)) or ".")


def _place(path: str) -> str:
    return path.removeprefix(DOCS)


def _target(page: str, link: str) -> str:
    """The path from the repository's root that a link leads to; for a folder, that of the README about it."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if not (ROOT / path).is_dir():
        return path
    own = f"{path}/README.md"
    return own if (ROOT / own).exists() else f"{posixpath.dirname(path)}/README.md"


def _linked(page: str) -> list[str]:
    prose = "".join(_CODE.split((ROOT / page).read_text())[::2])
    return [_target(page, link) for link in _LINK.findall(prose) if "://" not in link]
