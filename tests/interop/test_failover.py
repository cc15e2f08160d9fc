"""Stock clients whose coordinator is stopped and restarted: no client that looks for it rejoins, and nothing
is lost or read twice. (Killing it is a part of the story, `story/`.)

The members are the programs of the story, the brokers those of `tests/failover`; the test counts the broker's
generations and the clients' callbacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.failover.brokers import Fault, ThreeBrokers
from tests.interop.story import checker
from tests.interop.story.checker import Part
from tests.interop.story.clients import CLIENTS, by_name
from tests.interop.story.clients.java import CONSOLE
from tests.interop.story.lines import Assigned, Revoked
from tests.interop.story.processes import Members, run_to_the_end

pytestmark = pytest.mark.interop

PARTITIONS: Final = 6
RECORDS: Final = 300
SESSION_TIMEOUT_MS: Final = 45_000
"""At least every client's default."""
GROUP: Final = "orders"
TOPIC: Final = "t"
_PROGRAM_SECONDS_MAX: Final = 120.0


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    members = Members(tmp_path)
    yield members
    members.close()


# A client that looks for its coordinator only when it joins has to rejoin.
_FOLLOWING: Final = [
    client.name for client in CLIENTS if client is not CONSOLE and not client.looks_only_when_joining
]


@pytest.mark.parametrize("client", _FOLLOWING)
def test_a_group_keeps_its_generation(client: str, members: Members, tmp_path: Path) -> None:
    stock, produced = by_name(client), []
    stock.prepare()
    with ThreeBrokers(group_initial_rebalance_delay_ms=500) as cluster:

        def all_is_handled(number: int) -> None:
            part = Part("none", number * RECORDS, RECORDS)
            command = stock.produce(cluster.bootstrap, TOPIC, part.codec, part.first, part.count)
            run_to_the_end(f"producer-{number}", command, tmp_path, _PROGRAM_SECONDS_MAX)
            produced.append(part)
            wanted = {value for each in produced for value in each.values()}
            members.wait_until_delivered(wanted, f"part {number} to be delivered")
            members.wait_until(
                lambda: members.committed == members.delivered_to_offset, f"part {number} to be committed"
            )

        def rebalances() -> list[object]:
            return [each for each in members.heard if isinstance(each.event, Assigned | Revoked)]

        cluster.create_topic(TOPIC, PARTITIONS)
        for name in ("first", "second"):
            members.start(name, stock.member(cluster.bootstrap, GROUP, TOPIC, SESSION_TIMEOUT_MS))
        members.wait_until_shared("first", "second", partitions=PARTITIONS)
        all_is_handled(0)
        told, generation_id = rebalances(), cluster.asked(lambda: cluster.generation_id(GROUP))

        index = cluster.goes(Fault.STOP, GROUP)
        all_is_handled(1)
        cluster.again(Fault.STOP, index, GROUP)
        all_is_handled(2)
        cluster.wait_until(lambda: cluster.all_heard(GROUP), "every member to be heard of")

        rejoined = cluster.asked(lambda: cluster.generation_id(GROUP)) - generation_id
        assert not rejoined
        assert rebalances() == told
        for name in ("first", "second"):
            members.ask_to_leave(name)
        for name in ("first", "second"):
            members.wait_until(lambda name=name: members.has_left(name), f"{name} to leave")
    assert checker.check(members.heard, produced, SESSION_TIMEOUT_MS / 1_000) == []
