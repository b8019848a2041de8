"""Tables in Markdown, for reports, the generated docs and the pages of experiments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """A table, without a last line end; the first columns are words, the others numbers."""
    rule = ["---" if index < text_columns else "---:" for index in range(len(headers))]
    return "\n".join(map(_row, (headers, rule, *rows)))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
