"""What happens to groups: the life of one that speaks the consumer protocol, and a rolling upgrade and
downgrade."""

from __future__ import annotations

import re
import shutil
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.interop.protocols.clients import CANNOT_LEAVE_FOR_A_WHILE
from tests.interop.protocols.playing import CONSUMER_SESSION_TIMEOUT_MS, Playing, epochs, unchanged
from tests.interop.story.clients.base import StockClient
from tests.interop.story.clients.built import FRANZ_GO
from tests.interop.story.clients.java import JAVA
from tests.interop.story.clients.python import CONFLUENT, MUSTER
from tests.interop.story.processes import StoryFailed
from tests.interop.story.targets import Target

_CRASHED_SESSION_TIMEOUT_MS: Final = 6_000


@dataclass
class Outcome:
    """The outcome of a life. It passed if there are no problems."""

    problems: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    took_s: dict[str, float] = field(default_factory=dict)
    details: str = ""

    @property
    def figures(self) -> str:
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.took_s.items())


def consumer_life(playing: Playing) -> list[str]:
    """Every change that a group of the consumer protocol can go through, while records arrive."""
    oracle, topic = playing.oracle, playing.topic
    another = topic.removesuffix("0") + "1"
    pattern = f"^{re.escape(playing.group)}\\.[0-9]$"
    oracle.create_topic(topic, 4)
    playing.set_session_timeout(CONSUMER_SESSION_TIMEOUT_MS)

    def start(name: str, *configs: str) -> None:
        playing.start(name, "consumer", *configs, pattern=pattern)

    start("first")
    playing.until_shared(range(4), "first")
    load = playing.begin_load()
    playing.until_read("first")
    static = () if playing.client.name in CANNOT_LEAVE_FOR_A_WHILE else ("group.instance.id=two",)
    start("second", *static)
    playing.until_shared(range(4), "first", "second", figure="second has half after")
    if len(playing.members.owned["first"]) != 2:
        raise StoryFailed(f"first owns {playing.members.owned['first']}, not half of four")

    oracle.grow_topic(topic, 6)
    playing.until_shared(range(6), "first", "second", figure="two more partitions after")
    everything = [*range(6), 1_000, 1_001]
    oracle.create_topic(another, 2)
    load.topics.append(another)
    playing.until_shared(everything, "first", "second", figure="a topic of the pattern after")
    playing.until_read("first", "second")

    if playing.target.nodes:
        _the_coordinator_dies(playing, "first", "second")
    if static:
        _the_static_member_restarts(playing, "second", lambda: start("second", *static))

    # Members get it with the first heartbeat after their coordinator has learned of it.
    playing.set_session_timeout(_CRASHED_SESSION_TIMEOUT_MS)
    start("third")
    playing.until_shared(everything, "first", "second", "third", figure="third has its part after")
    playing.leave("first")
    playing.until_shared(everything, "second", "third", figure="the others have it all after a leave in")
    playing.until_read("second", "third")
    playing.members.kill("second")
    playing.step("second is killed")
    playing.until_shared(everything, "third", figure="the last has it all after a crash in")
    playing.leave("third")
    start("fresh")
    playing.until_shared(everything, "fresh")
    return playing.finish("fresh", partitions={topic: 6, another: 2})


def _the_coordinator_dies(playing: Playing, *names: str, may_rejoin: bool = False) -> None:
    """Kill the coordinator with kill -9. No member is fenced or joins again: ids, epochs and partitions stay.
    With `may_rejoin`, members of the classic protocol may rejoin of their own accord."""
    oracle = playing.oracle
    node_id = oracle.wait_for_coordinator(playing.group, lambda _: True)
    before = epochs(playing.described(len(names), "consumer"))
    told = playing.rebalances(*names)
    playing.target.nodes[node_id].kill()
    playing.step(f"the coordinator, node {node_id}, is killed")
    oracle.wait_for_coordinator(playing.group, lambda found: found != node_id)
    playing.step("it has a successor")
    if not may_rejoin:
        _same_epochs(playing, before, "the coordinator died")
    playing.until_read(*names)
    _until_committed(playing)
    playing.target.nodes[node_id].start()
    oracle.wait_for_coordinator(playing.group, lambda found: found == node_id)
    playing.step(f"node {node_id} coordinates it again")
    playing.until_read(*names)
    _until_committed(playing)
    if not may_rejoin:
        _same_epochs(playing, before, "the coordinator came back")
        unchanged(told, playing.rebalances(*names), "the coordinator died and came back")


def _same_epochs(playing: Playing, before: dict[str, int | None], what: str) -> None:
    after = epochs(playing.described(len(before), "consumer"))
    if after != before:
        raise StoryFailed(f"{what}, and members' epochs went from {before} to {after}")


def _until_committed(playing: Playing) -> None:
    """Wait until everything read so far is committed, according to the members."""
    members = playing.members
    read = dict(members.delivered_to_offset)
    playing.until(
        lambda: all(members.committed.get(each, 0) >= offset for each, offset in read.items()),
        "all that was read to be committed",
    )


def _the_static_member_restarts(playing: Playing, name: str, start: Callable[[], None]) -> None:
    """It gets its partitions back, and the other members do not notice."""
    others = [each for each in playing.members.programs if each != name]
    before, owned = playing.described(2, "consumer"), playing.members.owned[name]
    told = playing.rebalances(*others)
    playing.leave(name)
    start()
    playing.until(lambda: playing.members.owned[name] == owned, f"{name} to have {sorted(owned)} again")
    playing.step(f"{name} is back")
    playing.until_read(name, *others)
    after = playing.described(2, "consumer")
    unchanged(told, playing.rebalances(*others), f"{name} restarted")
    if after.epoch != before.epoch:
        raise StoryFailed(f"{name} restarted: the group's epoch went from {before.epoch} to {after.epoch}")


def rolling(playing: Playing) -> list[str]:
    """Member by member from the classic protocol to the consumer protocol and back, while records arrive.
    Where brokers can be killed, the coordinator dies while there are members of both."""
    partitions = range(6)
    playing.oracle.create_topic(playing.topic, len(partitions))
    playing.set_session_timeout(CONSUMER_SESSION_TIMEOUT_MS)
    now = [f"classic-{number}" for number in range(3)]
    for name in now:
        playing.start(name, "classic")
    playing.until_shared(partitions, *now)
    playing.begin_load()
    playing.until_read(*now)
    for protocol, group_types in (
        ("consumer", ("consumer", "consumer", "consumer")),
        ("classic", ("consumer", "consumer", "classic")),
    ):
        for number, group_type in enumerate(group_types):
            old = now.pop(0)
            playing.leave(old)
            new = f"{protocol}-{number}-again" if protocol == "classic" else f"{protocol}-{number}"
            playing.start(new, protocol)
            now.append(new)
            playing.until_shared(partitions, *now, figure=f"{new} after")
            playing.described(len(now), group_type)
            playing.until_read(*now)
            if playing.target.nodes and new == "consumer-0":
                _the_coordinator_dies(playing, *now, may_rejoin=playing.client.may_rejoin)
        playing.step(f"all members speak the {protocol} protocol")
    return playing.finish(*now, partitions={playing.topic: len(partitions)})


def together(playing: Playing) -> list[str]:
    """Members of several clients and both protocols. The first runs the client that the life is about, and is
    classic: it leads the group before others join, and after those of the consumer protocol have left."""
    partitions = range(6)
    playing.oracle.create_topic(playing.topic, len(partitions))
    playing.start("leader", "classic")
    playing.until_shared(partitions, "leader")
    playing.begin_load()
    playing.until_read("leader")
    now = ["leader"]
    for client, protocol in (
        (CONFLUENT, "consumer"),
        (FRANZ_GO, "classic"),
        (JAVA, "consumer"),
        (MUSTER, "consumer"),
    ):
        new = f"{client.name}-{protocol}"
        playing.start(new, protocol, client=client)
        now.append(new)
        playing.until_shared(partitions, *now, figure=f"{new} after")
        playing.described(len(now), "consumer")
        playing.until_read(*now)
    for gone in [name for name in now if name.endswith("consumer")]:
        now.remove(gone)
        playing.leave(gone)
        playing.until_shared(partitions, *now, figure=f"the others have it all after {gone} left in")
        playing.until_read(*now)
    playing.described(len(now), "classic")
    return playing.finish(*now, partitions={playing.topic: len(partitions)})


LIVES: Final[dict[str, Callable[[Playing], list[str]]]] = {
    "life": consumer_life,
    "rolling": rolling,
    "together": together,
}


def live(name: str, client: StockClient, target: Target) -> Outcome:
    """Live one of `LIVES`. Brokers and clients cannot make it raise; `client` is prepared."""
    folder = Path(tempfile.mkdtemp(prefix="protocols-"))
    playing = Playing(client, target, name, folder)
    outcome = Outcome(steps=playing.steps, took_s=playing.took_s)
    try:
        outcome.problems = LIVES[name](playing)
    except StoryFailed as failure:
        outcome.problems = [str(failure)]
    except Exception as error:
        outcome.problems = [f"{type(error).__name__}: {error}", traceback.format_exc()]
    finally:
        if outcome.problems:
            outcome.details = playing.said()
        playing.close()
        shutil.rmtree(folder)
    return outcome
