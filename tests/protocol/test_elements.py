"""Elements that are encoded already, as a message has them in place of a list."""

from __future__ import annotations

import pytest

from muster.protocol import codec
from muster.protocol.elements import EncodedElements
from muster.protocol.errors import EncodeError
from muster.protocol.messages.offsets import (
    FETCHED_PARTITION,
    OffsetFetchResponse,
    encode_fetched_partition,
)

Partitions = OffsetFetchResponse.Partitions


def made() -> EncodedElements[Partitions]:
    content = encode_fetched_partition(3, 42, 7, "here", 0) + encode_fetched_partition(4, 43, -1, "", 3)
    return EncodedElements(FETCHED_PARTITION, 2, content)


def objects() -> list[Partitions]:
    return [
        Partitions(partition_index=3, committed_offset=42, committed_leader_epoch=7, metadata="here"),
        Partitions(partition_index=4, committed_offset=43, metadata="", error_code=3),
    ]


def response(partitions: object) -> OffsetFetchResponse:
    topic = OffsetFetchResponse.Topics(name="orders", partitions=partitions)  # type: ignore[arg-type]
    return OffsetFetchResponse(groups=[OffsetFetchResponse.Group(group_id="g", topics=[topic])])


def test_they_are_a_sequence_of_what_is_encoded() -> None:
    assert made() == objects()
    assert objects() == made()
    assert made() == made()
    assert made() != objects()[:1]
    assert (len(made()), made()[1], made()[:1]) == (2, objects()[1], objects()[:1])
    assert repr(made()) == repr(objects())


def test_what_is_changed_is_what_is_encoded() -> None:
    partitions, changed = made(), objects()
    assert partitions.encoded(8) is not None
    for each in (partitions[0], changed[0]):
        each.committed_offset, each.metadata = -1, ""
    assert partitions.encoded(8) is None
    assert codec.encode(response(partitions), 8) == codec.encode(response(changed), 8)


def test_an_older_version_does_not_get_the_bytes() -> None:
    assert made().encoded(5) is None
    assert made().encoded(6) is not None


def test_a_field_that_is_not_declared_so_takes_a_list_alone() -> None:
    message = response([])
    message.groups[0].topics = made()  # type: ignore[assignment]
    with pytest.raises(EncodeError, match="no list"):
        codec.encode(message, 8)
