"""The table in docs/compatibility.md, written by `make interop-table` from stories that all passed.

Its versions are those of the run that wrote it. `make interop` judges the stories and only checks that the
table lists the same clients: a client's new release neither fails a run nor changes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.interop.story.clients.base import StockClient
from tests.interop.story.story import Outcome
from tests.interop.story.targets import TARGETS

PAGE: Final = Path(__file__).parents[3] / "docs" / "compatibility.md"
_BEGIN: Final = "<!-- stock clients: written by `make interop-table` -->\n"
_END: Final = "<!-- stock clients: end -->\n"


def render(clients: Sequence[StockClient], outcomes: Sequence[Outcome]) -> str:
    """One row per client. Raises ValueError unless every client has a passed story against every target."""
    by_pair = {(outcome.client, outcome.target): outcome for outcome in outcomes}
    lacking = [
        f"{client.name} against {target}"
        for client in clients
        for target in TARGETS
        if (client.name, target) not in by_pair or by_pair[client.name, target].problems
    ]
    if lacking:
        raise ValueError(f"no passed story of {', '.join(lacking)}")
    head = ["client", "version", "codecs", *TARGETS.values(), "admin calls", "over TLS"]
    lines = [_line(head), _line(["---"] * len(head))]
    for client in clients:
        codecs = ", ".join(client.codecs)
        passed = ["passed"] * len(TARGETS)
        calls = _calls([by_pair[client.name, target] for target in TARGETS])
        doors = ", ".join(client.doors)
        lines.append(_line([client.name, client.version(), codecs, *passed, calls, doors]))
    return "".join(lines)


def _calls(outcomes: Sequence[Outcome]) -> str:
    """How many of the client's admin calls have Apache Kafka's outcome, on the worst target."""
    verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
    if not verdicts:
        return "none"
    worst = min(verdicts, key=lambda verdict: verdict.as_kafka)
    return f"{worst.as_kafka} of {worst.tried}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def written(page: str) -> str:
    """The table in the page. Raises ValueError if its markers are missing."""
    begin, end = page.index(_BEGIN) + len(_BEGIN), page.index(_END)
    return page[begin:end]


def write(table: str, page: Path = PAGE) -> None:
    text = page.read_text()
    page.write_text(text.replace(f"{_BEGIN}{written(text)}{_END}", f"{_BEGIN}{table}{_END}"))


def clients_of(table: str) -> list[tuple[str, str, str]]:
    """Name, codecs and doors of each row."""
    rows = [[cell.strip() for cell in line.strip("| \n").split(" | ")] for line in table.splitlines()[2:]]
    return [(row[0], row[2], row[-1]) for row in rows]
