"""The differences between the answers of two coordinators, and the list of allowed ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.kafka.recording import Replies

LISTED: Final = Path(__file__).with_name("DIFFERENCES.md")
_COLUMNS: Final = ("Scenario", "Step", "Reply", "Field", "Apache Kafka", "muster", "Why")
NO_REPLY: Final = "no reply"
_REPLY: Final = "a reply"


class Difference(NamedTuple):
    """A row of DIFFERENCES.md without its last column."""

    scenario: str
    step: str
    reply: str
    field: str
    theirs: str
    ours: str

    @property
    def is_other_leader(self) -> bool:
        """Whether both name a member as leader, but different ones."""
        return self.field == "leader" and self.theirs.startswith("$") and self.ours.startswith("$")

    def __str__(self) -> str:
        return "| " + " | ".join(f"`{word}`" for word in self) + " | ? |"


def differences(scenario: str, theirs: Sequence[Replies], ours: Sequence[Replies]) -> list[Difference]:
    """Compare two plays of the same steps field by field."""
    found: list[Difference] = []
    for their, our in zip(theirs, ours, strict=True):
        for reply in sorted(their.fields.keys() | our.fields.keys()):
            if reply not in their.fields or reply not in our.fields:
                there = (_REPLY if reply in side.fields else NO_REPLY for side in (their, our))
                found.append(Difference(scenario, their.step.text, reply, "reply", *there))
                continue
            one, other = their.fields[reply], our.fields[reply]
            found += [
                Difference(scenario, their.step.text, reply, field, said, our_words)
                for field in sorted(one.keys() | other.keys())
                if (said := one.get(field, "absent")) != (our_words := other.get(field, "absent"))
            ]
    return found


def listed() -> dict[Difference, str]:
    """The differences listed in DIFFERENCES.md, each with its reason."""
    found: dict[Difference, str] = {}
    for line in LISTED.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) != len(_COLUMNS) or tuple(cells) == _COLUMNS or set(cells[0]) <= set("-"):
            continue
        *words, reason = cells
        found[Difference(*(word.strip("`") for word in words))] = reason
    return found


def assert_as_listed(scenario: str, found: Sequence[Difference]) -> None:
    """Fail for a difference that DIFFERENCES.md does not list, and for a listed one that is gone."""
    expected = {difference for difference in listed() if difference.scenario == scenario}
    unlisted = [difference for difference in found if difference not in expected]
    assert not unlisted, "not listed in DIFFERENCES.md:\n" + "\n".join(map(str, unlisted))
    gone = expected - set(found)
    assert not gone, "listed in DIFFERENCES.md, and no longer so:\n" + "\n".join(map(str, sorted(gone)))
