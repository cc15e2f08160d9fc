"""Hand-written records of committed offsets, compared with those from the declarations: the same rows, and
the same resulting state."""

from __future__ import annotations

import uuid
from random import Random

from muster.coordinator.base.step import Step
from muster.coordinator.group import records
from muster.coordinator.group.committed_offset import CommittedOffset
from muster.coordinator.group.effects import Record
from muster.coordinator.group.hard_state import HardState
from muster.protocol.types import ZERO_UUID
from tests.group.test_group_offsets import METADATA, NUMBERS, TOPICS, A, B

GROUPS = ("orders", "archive", "größe")


def some_offset(random: Random) -> CommittedOffset:
    expires = random.random() < 0.1
    return CommittedOffset(
        random.choice((-1, 0, random.randrange(2**63), 2**63 - 1, -(2**63))),
        # The record version with an expiry has neither an epoch nor an id.
        -1 if expires else random.choice((-1, 0, random.randrange(2**31))),
        random.choice(METADATA),
        random.choice((-1, 0, random.randrange(2**40))),
        random.randrange(2**40) if expires else -1,
        ZERO_UUID if expires else random.choice((A, B, ZERO_UUID, uuid.UUID(int=0))),
    )


def test_both_write_the_same_rows_and_leave_the_same_state() -> None:
    random = Random(7)
    by_hand, declared, replayed = HardState(), HardState(), HardState()
    for _ in range(3_000):
        step, twin = Step(0), Step(0)
        group, topic, partition = random.choice(GROUPS), random.choice(TOPICS), random.choice(NUMBERS)
        if random.random() < 0.2:
            tombstone = records.offset_tombstone(group, topic, partition)
            by_hand.emit(tombstone, step)
            declared.emit(tombstone, twin)
        elif random.random() < 0.2:
            pending = records.pending_offset(
                random.randrange(3), group, (topic, partition), some_offset(random)
            )
            by_hand.emit(pending, step)
            declared.emit(pending, twin)
        else:
            first = some_offset(random)
            committing = [(partition, first)]
            for number in random.sample(NUMBERS, random.randrange(len(NUMBERS))):
                one = some_offset(random)
                if (one.expire_timestamp == -1) == (first.expire_timestamp == -1):
                    committing.append((number, one._replace(topic_id=first.topic_id)))
            by_hand.emit_offsets(group, topic, committing, step)
            for number, one in committing:
                declared.emit(records.offset_commit(group, topic, number, one), twin)
        assert step.rows == twin.rows
        for row in step.rows:
            record = Record.from_row(*row)
            assert record is not None
            replayed.apply(record)
        assert by_hand.durable() == declared.durable() == replayed.durable()
