"""COVERAGE.md names stories and tests that exist."""

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


def test_everything_that_the_coverage_names_exists() -> None:
    stories = {path.stem for path in (HERE / "scenarios").glob("*.txt")}
    tests = "\n".join(path.read_text(encoding="utf-8") for path in HERE.glob("*.py"))
    names = named()
    missing = [name for name in names if re.fullmatch(r"[a-z0-9-]+", name) and name not in stories]
    for function in re.findall(r"\b(?:test_(?!\w+\.py)|check_)\w+", " ".join(names)):
        if f"def {function}(" not in tests:
            missing.append(function)
    assert len(names) > 200
    assert missing == []


def test_every_story_is_in_the_table() -> None:
    text = (HERE / "COVERAGE.md").read_text(encoding="utf-8")
    stories = [path.stem for path in (HERE / "scenarios").glob("*.txt")]
    assert [name for name in stories if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)] == []
