"""COVERAGE.md names only existing stories and tests."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def named() -> list[str]:
    names: list[str] = []
    for line in (HERE / "COVERAGE.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("## Stories beyond"):
            break
        if line.startswith("| ") and len(cells) == 2 and not cells[1].startswith(("left out", "here")):
            names += [name.strip() for name in re.split(r"[,;]", cells[1])]
    return names


def stories() -> set[str]:
    """The names of all stories, with their folder for those in one."""
    root = HERE / "scenarios"
    return {path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.txt")}


def text_of(path: str) -> str:
    """The text of a file in this folder or, with `tests/`, anywhere; "" if there is none."""
    file = HERE.parents[1] / path if path.startswith("tests/") else HERE / path
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def test_everything_that_the_coverage_names_exists() -> None:
    names, there, code = named(), stories(), ""
    missing = [name for name in names if re.fullmatch(r"[a-z0-9/-]+", name) and name not in there]
    for name in names:
        # A test without a file belongs to the last file named.
        for path, function in re.findall(r"([\w/]+\.py)|\b((?:test|check)_\w+)", name):
            if path:
                code = text_of(path)
            if not code or (function and f"def {function}(" not in code):
                missing.append(name)
    assert len(names) > 200
    assert missing == []


def test_every_story_is_in_the_table() -> None:
    text = (HERE / "COVERAGE.md").read_text(encoding="utf-8")
    stories = [path.stem for path in (HERE / "scenarios").glob("*.txt")]
    assert [name for name in stories if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)] == []
