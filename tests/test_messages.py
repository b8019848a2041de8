"""Every message of the product is in one golden file, tests/golden/messages.txt: read it as a user does."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.messages import GOLDEN, WRITES

ROOT = Path(__file__).parents[1]
LISTED = GOLDEN.with_suffix(".txt")
FOLDERS = ("cli", "integrations", "schemas", "tools")
PRINTS = {"note", "say", "print", "warn", "warning", "info", "error", "echo"}


def text_of(node: ast.expr) -> str:
    """The text of an argument, with {} for each value; empty if it has none."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def messages(module: str) -> Iterator[str]:
    """Texts that calls print or raise."""
    for node in ast.walk(ast.parse(module)):
        if isinstance(node, ast.Call):
            names = ast.unparse(node.func).split(".")
            if names[-1] in PRINTS or any(name.endswith("Error") for name in names):
                yield from (text for text in map(text_of, node.args) if " " in text)


def test_every_message_is_in_the_golden_file() -> None:
    """``PLIANT_WRITE_GOLDEN=1`` writes it."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    listed = {
        f"{'/'.join(path.relative_to(ROOT).parts[:2])}: {text}".replace("\n", "\\n")
        for path in paths
        for text in messages(path.read_text())
    }
    lines = sorted(listed)
    if WRITES:
        LISTED.write_text("".join(f"{line}\n" for line in lines))
    assert LISTED.read_text().splitlines() == lines, "PLIANT_WRITE_GOLDEN=1 writes it; read the changes"
