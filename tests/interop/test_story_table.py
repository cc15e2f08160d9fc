"""The table of stock clients in docs/compatibility.md."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.interop.story import table
from tests.interop.story.admin_calls import Verdict
from tests.interop.story.clients import CLIENTS
from tests.interop.story.clients.base import StockClient
from tests.interop.story.story import Outcome
from tests.interop.story.targets import TARGETS

pytestmark = pytest.mark.interop


@dataclass(frozen=True)
class MadeUp(StockClient):
    def version(self) -> str:
        return "1.2.3"

    def produce(self, bootstrap: str, topic: str, codec: str, first: int, count: int) -> list[str]:
        return []

    def member(self, bootstrap: str, group: str, topic: str, session_timeout_ms: int) -> list[str]:
        return []


CLIENT = MadeUp("made-up", ("none", "zstd"), doors=("mTLS", "PLAIN"))
PASSED = [Outcome("made-up", target) for target in TARGETS]


def test_the_page_lists_the_clients_of_the_story() -> None:
    """If they differ, run `make interop-table`."""
    listed = table.clients_of(table.written(table.PAGE.read_text()))
    assert listed == [(client.name, ", ".join(client.codecs), ", ".join(client.doors)) for client in CLIENTS]


def test_a_row_a_client() -> None:
    rows = table.render([CLIENT], PASSED).splitlines()
    assert rows[0].startswith("| client | version | codecs | Apache Kafka ")
    passed = " | ".join(["passed"] * len(TARGETS))
    assert rows[2:] == [f"| made-up | 1.2.3 | none, zstd | {passed} | none | mTLS, PLAIN |"]
    assert table.clients_of(table.render([CLIENT], PASSED)) == [("made-up", "none, zstd", "mTLS, PLAIN")]


def test_admin_calls_are_those_of_the_worst_target() -> None:
    first, second, *others = PASSED
    judged = [replace(first, verdict=Verdict(9, 8, ())), replace(second, verdict=Verdict(9, 7, ())), *others]
    assert table.render([CLIENT], judged).endswith("| 7 of 9 | mTLS, PLAIN |\n")


def test_there_is_no_table_of_what_did_not_pass() -> None:
    with pytest.raises(ValueError, match="no passed story of made-up against kafka"):
        table.render([CLIENT], PASSED[1:])
    with pytest.raises(ValueError, match="no passed story of made-up against kafka"):
        table.render([CLIENT], [Outcome("made-up", "kafka", problems=["hm"]), *PASSED[1:]])


def test_the_table_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "compatibility.md"
    page.write_text(table.PAGE.read_text())
    before = page.read_text()
    old = table.written(before)
    table.write("| new |\n", page)
    assert table.written(page.read_text()) == "| new |\n"
    table.write(old, page)
    assert page.read_text() == before
