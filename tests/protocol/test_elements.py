"""Elements already encoded, which a message holds in place of a list."""

from __future__ import annotations

import pytest

from muster.protocol import codec
from muster.protocol.elements import EncodedElements, encode_element, form_in
from muster.protocol.errors import EncodeError
from muster.protocol.messages.data import LISTED_PARTITION, ListOffsetsResponse, encode_listed_partition
from muster.protocol.messages.group_admin import DESCRIBED_MEMBER, DescribeGroupsResponse
from muster.protocol.messages.metadata import MetadataResponse
from muster.protocol.messages.offsets import (
    COMMITTED_PARTITION,
    FETCHED_PARTITION,
    OffsetCommitResponse,
    OffsetFetchResponse,
    encode_committed_partition,
    encode_fetched_partition,
)

Partitions = OffsetFetchResponse.Partitions
ListedPartition = ListOffsetsResponse.ListOffsetsPartitionResponse
DescribedMember = DescribeGroupsResponse.DescribedGroupMember


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


def test_an_element_is_encoded_as_within_its_message() -> None:
    topics = [
        MetadataResponse.Topic(name=name, partitions=[partition(number) for number in range(count)])
        for name, count in (("a", 0), ("orders", 3))
    ]
    for version in range(14):
        form = form_in(MetadataResponse, MetadataResponse.Topic, version)
        content = b"".join(encode_element(form, each) for each in topics)
        whole = MetadataResponse(brokers=[], topics=topics)
        joined = MetadataResponse(brokers=[], topics=EncodedElements(form, 2, content))
        assert codec.encode(joined, version) == codec.encode(whole, version)
        assert list(joined.topics) == list(
            codec.decode(MetadataResponse, version, codec.encode(whole, version)).topics
        )


def partition(number: int) -> MetadataResponse.Partition:
    return MetadataResponse.Partition(
        partition_index=number, leader_id=1, leader_epoch=number, replica_nodes=[1, 2], isr_nodes=[1]
    )


def test_what_is_encoded_by_hand_is_what_is_declared() -> None:
    numbers = [(0, 0), (7, 3), (2**31 - 1, -1)]
    committed = [OffsetCommitResponse.Partition(partition_index=i, error_code=code) for i, code in numbers]
    assert [encode_committed_partition(*each) for each in numbers] == [
        encode_element(COMMITTED_PARTITION, each) for each in committed
    ]
    places = [(0, 0, -1, 0, -1), (7, 3, 2**62, 2**63 - 1, 2**31 - 1), (1, 87, -(2**63), -1, 0)]
    listed = [
        ListedPartition(partition_index=i, error_code=code, timestamp=at, offset=offset, leader_epoch=epoch)
        for i, code, at, offset, epoch in places
    ]
    assert [encode_listed_partition(*each) for each in places] == [
        encode_element(LISTED_PARTITION, each) for each in listed
    ]


def test_elements_look_alike_in_all_versions_of_their_form() -> None:
    partition = OffsetCommitResponse.Partition(partition_index=7, error_code=3)
    for version in range(COMMITTED_PARTITION.versions.first, 11):
        form = form_in(OffsetCommitResponse, OffsetCommitResponse.Partition, version)
        assert encode_element(form, partition) == encode_element(COMMITTED_PARTITION, partition)
    listed = ListedPartition(partition_index=7, timestamp=5, offset=6, leader_epoch=2)
    for version in range(LISTED_PARTITION.versions.first, 12):
        form = form_in(ListOffsetsResponse, ListedPartition, version)
        assert encode_element(form, listed) == encode_element(LISTED_PARTITION, listed)
    member = DescribedMember(
        member_id="a-1", client_id="a", client_host="/10.0.0.1", member_metadata=b"m", member_assignment=b""
    )
    for version in range(DESCRIBED_MEMBER.versions.first, 7):
        form = form_in(DescribeGroupsResponse, DescribedMember, version)
        assert encode_element(form, member) == encode_element(DESCRIBED_MEMBER, member)
