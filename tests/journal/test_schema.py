"""The schema, the published file and the entries actually written agree."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

import pytest

from muster.coordinator.group import events
from muster.coordinator.group.events import Event, MemberIdentity, Trigger
from muster.coordinator.journal.entries import CUT, Entry, Member
from muster.coordinator.journal.schema import TYPES, json_schema, page, text
from muster.coordinator.runtime.recorder import Recorder
from muster.coordinator.runtime.ring import Journal
from tests.group.core_driver import CoreDriver
from tests.group.play import play
from tests.group.scenario import parse
from tests.group.test_scenarios import SCENARIOS
from tests.support.journal import SCHEMA, check_entry, check_value, validator

FROM_ELSEWHERE = {
    *("lag_at_commit", "fault_fired", "shard_loaded", "shard_unloaded", "clock_moved"),
    *("transaction_aborted", "transaction_ended_by_client"),
}
"""Types of entries that are not events of the core."""
OF_THE_HOST = {"rebalance_completed": {"lag", "lag_before", "lag_partitions"}}
"""Fields that the core's event does not have."""


def classes(of: type[Event] = Event) -> Iterator[type[Event]]:
    for each in of.__subclasses__():
        yield each
        yield from classes(each)


def own_fields(event: type[Event]) -> set[str]:
    return {each.name for each in fields(event)} - {each.name for each in fields(Event)}


def recorder(broker: int = 1) -> Recorder:
    return Recorder(broker, Journal())


def event(name: str, **given: object) -> Event:
    """An event of the named class, with None for every field not given."""
    kind = getattr(events, name)
    filled = dict.fromkeys(own_fields(kind)) | given
    made: Event = kind(5, "orders", 3, Trigger.REQUESTED, None, None, **filled)
    return made


def test_what_is_published_is_the_schema() -> None:
    """To update the files: python -m muster.coordinator.journal.schema docs"""
    assert SCHEMA.read_text(encoding="utf-8") == text()
    assert json.loads(text()) == json_schema()
    published = SCHEMA.with_name("journal.md").read_text(encoding="utf-8")
    assert published == page(published)
    assert all(f"| `{each.name}` |" in published for each in TYPES)


def test_every_event_of_the_core_has_a_type_with_its_fields() -> None:
    told = {}
    for each in classes():
        [entry] = recorder().of_events(0, [event(each.__name__)])
        told[entry.type] = own_fields(each)
        assert set(entry.data) == own_fields(each)
    described = {
        each.name: {field.name for field in each.fields} - OF_THE_HOST.get(each.name, set())
        for each in TYPES
        if each.name not in FROM_ELSEWHERE
    }
    assert told == described


def test_every_story_of_the_core_is_told_in_valid_entries() -> None:
    seen: Counter[str] = Counter()
    for path in SCENARIOS:
        scenario = parse(path)
        driver = CoreDriver(scenario)
        play(scenario, driver, topic_id=driver.topic_id)
        told = driver.harness.take_events()
        taker = recorder()
        entries = taker.of_events(0, told)
        assert (len(entries), taker.dropped) == (len(told), 0)
        for entry in entries:
            check_entry(entry)
            if entry.type not in seen:
                validator().validate(json.loads(entry.to_json()))
        seen.update(entry.type for entry in entries)
    # Types missing from the stories are covered by tests of their own.
    assert {each.name for each in TYPES} - seen.keys() - FROM_ELSEWHERE <= {
        "heartbeat_late",
        "metadata_changed",
        "topics_grown",
        "assigned",
    }


# --- how events become entries ------------------------------------------------------------------------------


def member(number: int) -> MemberIdentity:
    return MemberIdentity(f"m-{number}", f"client-{number}", "/10.0.0.7", None)


def test_members_are_objects_and_hosts_have_no_slash() -> None:
    told = event(
        "MemberReplaced",
        old_member_id="m-0",
        old_client_host="/10.0.0.6",
        old_silent_ms=5,
        old_connected=True,
    )
    [entry] = recorder(7).of_events(4, [told])
    assert (entry.broker, entry.shard, entry.at_ms, entry.trigger) == (7, 4, 5, "requested")
    assert entry.data["old_client_host"] == "10.0.0.6"
    waiting = event(
        "StateChanged",
        from_state="Stable",
        to_state="PreparingRebalance",
        phase_ms=1,
        waiting_for=(member(1), member(2)),
        pending_member_ids=("m-3",),
    )
    [entry] = recorder().of_events(0, [waiting])
    check_entry(entry)
    assert entry.members("waiting_for") == [
        Member("m-1", "client-1", "10.0.0.7"),
        Member("m-2", "client-2", "10.0.0.7"),
    ]


@pytest.mark.parametrize(
    ("name", "field", "elements", "kept"),
    [
        ("StateChanged", "waiting_for", tuple(map(member, range(5_000))), 100),
        ("RebalanceCompleted", "dropped", tuple(map(member, range(101))), 100),
        ("OffsetsRemoved", "partitions", tuple(("t", number) for number in range(5_000)), 1_000),
        ("ProtocolChosen", "votes", {f"p{number}": 1 for number in range(1_001)}, 1_000),
    ],
)
def test_long_lists_are_cut_and_it_is_said(
    name: str, field: str, elements: tuple[object, ...], kept: int
) -> None:
    [entry] = recorder().of_events(0, [event(name, **{field: elements})])
    assert len(entry.data[field]) == kept
    assert entry.data[CUT] == {field: len(elements)}
    [short] = recorder().of_events(0, [event(name, **{field: type(elements)(list(elements)[:0])})])
    assert CUT not in short.data


def test_long_texts_are_cut_but_ids_stay_apart() -> None:
    ids = [f"{'x' * 30_000}-{number}" for number in range(2)]
    told = [event("MemberFenced", old_member_id=each, old_client_host="/" + "h" * 5_000) for each in ids]
    first, second = recorder().of_events(0, told)
    assert first.data["old_member_id"] != second.data["old_member_id"]
    assert len(first.to_json()) < 5_000


def test_what_is_known_of_the_lag_stands_in_the_end_of_a_rebalance() -> None:
    taker = Recorder(1, Journal(), lag=lambda group_id: {"lag_before": 2, "lag": len(group_id)})
    completed = event("RebalanceCompleted", started_ms=1, join_ms=1, assignment_ms=1, restarts=0, members=0)
    [entry] = taker.of_events(0, [completed])
    assert (entry.data["lag_before"], entry.data["lag"]) == (2, 6)


# --- what the schema is good for ----------------------------------------------------------------------------


def written(**fields: object) -> bytes:
    entry = Entry("member_disconnected", 1, 1, 0, "g", 0, data={"silent_ms": 5, "after_removal_ms": None})
    return json.dumps(json.loads(entry.to_json()) | fields).encode()


def test_readers_may_validate_what_later_versions_write() -> None:
    check_value(written())
    for later in (written(v=2), written(type="group_painted"), written(colour="red")):
        validator().validate(json.loads(later))


def test_entries_that_earlier_versions_stored_are_valid() -> None:
    given = {"from_state": "Stable", "to_state": "Empty", "phase_ms": 1, "waiting_for": ()}
    [entry] = recorder().of_events(0, [event("StateChanged", **given, pending_member_ids=())])
    stored = json.loads(entry.to_json())
    assert stored.pop("leader", "missing") is None
    check_value(json.dumps(stored).encode())


@pytest.mark.parametrize(
    "fault",
    [
        {"v": 0},
        {"at_ms": "now"},
        {"group": None},
        {"silent_ms": None},
        {"silent_ms": -1},
        {"member": {"id": "m"}},
        {"type": "shard_loaded"},
        {"colour": "red"},
    ],
)
def test_what_is_not_as_it_should_be_is_found(fault: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        check_value(written(**fault))
