"""The pages on Spark match the code."""

from __future__ import annotations

import re
from pathlib import Path

from muster.pipeline import options, writer_options
from muster.pipeline.cli import COMMANDS
from tests.pipeline.tables_page import PAGE, page

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "spark.md").read_text()


def test_the_page_of_tables_is_made_from_them() -> None:
    assert PAGE.read_text() == page(), "python -m tests.pipeline.tables_page writes it anew"


def test_the_guide_has_every_option_of_the_source_and_no_other() -> None:
    section = GUIDE.split("\n## Read\n")[1].split("\n### ")[0]
    assert sorted(re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE)) == sorted(options.NAMES)


def test_the_guide_has_every_option_of_the_writer() -> None:
    section = GUIDE.split("\n## Write\n")[1].split("\n## ")[0]
    names = {writer_options.SERVERS, writer_options.TOPIC, writer_options.BATCH_HEADERS}
    names |= {f"kafka.{name}" for name in writer_options._PRODUCER}
    assert {name for name in names if f"`{name}`" not in section} == set()


def test_the_guide_has_every_command() -> None:
    assert {name for name in COMMANDS if f"muster-pipeline {name}" not in GUIDE} == set()
