"""Topics, their partitions and their records as JSON."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from muster.coordinator.web import topic_facts, topics_api
from muster.coordinator.web.records import shown as shown_json
from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.record_batch import Record, build
from tests.http.conftest import Show, Shown
from tests.http.member import Member
from tests.support.each import each
from tests.support.wire import Wire


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for disk and store, however slow the machine is."""
    monkeypatch.setattr(topic_facts, "_MEASURE_S", 60.0)
    monkeypatch.setattr(topics_api, "_LOOK_S", 60.0)


async def produce(
    port: int, records: list[Record], *, topic: str = "orders", partition: int = 0, codec: Codec = Codec.NONE
) -> None:
    """Append one batch."""
    part = ProduceRequest.PartitionProduceData(index=partition, records=build(records, codec=codec))
    parts = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    wire = await Wire.connect(port)
    try:
        answer = await wire.call(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[parts]), 9)
    finally:
        await wire.close()
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def values(*contents: bytes | None) -> list[Record]:
    return [Record(each, 1_000 + each, b"k", content) for each, content in enumerate(contents)]


async def test_topics_say_how_much_they_have_and_who_reads_them(shown: Shown, member: Member) -> None:
    await member.produce(0, 12)
    await member.produce(1, 3)
    assert await member.commit({0: 5}) is ErrorCode.NONE
    status, body = await shown.get("/api/topics?find=ORD")
    assert status == 200
    (orders,) = body["topics"]
    assert orders["topic"] == "orders"
    assert (orders["partitions"], orders["records"], orders["end"]) == (3, 15, 15)
    assert orders["size_bytes"] > 0
    assert orders["groups"] == ["billing"]
    assert not orders["internal"]
    _, everything = await shown.get("/api/topics")
    internal = [each for each in everything["topics"] if each["internal"]]
    assert {each["topic"] for each in internal} >= {"__group_events", "__consumer_offsets"}


async def test_topics_come_in_pages(shown: Shown) -> None:
    for number in range(5):
        await shown.create_topic(f"paged-{number}", partitions=1)
    _, first = await shown.get("/api/topics?find=paged&limit=2")
    assert [each["topic"] for each in first["topics"]] == ["paged-0", "paged-1"]
    assert first["more"] == 3
    _, rest = await shown.get("/api/topics?find=paged&limit=3&after=paged-1")
    assert [each["topic"] for each in rest["topics"]] == ["paged-2", "paged-3", "paged-4"]
    assert rest["more"] == 0


async def test_a_topic_has_its_partitions_with_leader_bounds_and_readers(
    shown: Shown, member: Member
) -> None:
    await member.produce(0, 12)
    assert await member.commit({0: 5}) is ErrorCode.NONE
    _, body = await shown.get("/api/topics/orders")
    first = body["partitions"][0]
    assert (first["leader"], first["start"], first["end"]) == (1, 0, 12)
    assert first["size_bytes"] > 0
    assert first["readers"] == [{"group": "billing", "offset": 5, "member": member.id, "lag": 7}]
    assert body["partitions"][1]["readers"][0]["offset"] is None
    _, page = await shown.get("/api/topics/orders?skip=1&limit=1")
    assert [each["partition"] for each in page["partitions"]] == [1]
    assert page["more_partitions"] == 1
    assert (page["records"], page["end"], page["size_bytes"]) == (12, 12, body["size_bytes"])
    status, refused = await shown.get("/api/topics/no%20such")
    assert (status, refused) == (404, {"error": "there is no topic 'no such'"})


async def test_records_are_text_or_hex_and_whatever_is_in_them_is_json(shown: Shown) -> None:
    page = b'<script>alert("1")</script>'
    await produce(shown.port, values(b'{"a": 1}', page, bytes(range(40)), None, b""))
    _, body = await shown.get("/api/topics/orders/partitions/0/records")
    assert [each["offset"] for each in body["records"]] == [0, 1, 2, 3, 4]
    found = [each["value"] for each in body["records"]]
    assert found[0] == {"size": 8, "cut": False, "text": '{"a": 1}'}
    assert found[1]["text"] == page.decode()
    assert found[2] == {"size": 40, "cut": False, "hex": bytes(range(40)).hex()}
    assert found[3] is None
    assert found[4] == {"size": 0, "cut": False, "text": ""}
    assert body["records"][0]["key"]["text"] == "k"
    assert (body["start"], body["end"], body["cut"], body["left_out"]) == (0, 5, False, [])


async def test_header_names_that_are_not_utf8_are_shown_with_replacements(shown: Shown) -> None:
    await produce(shown.port, [Record(0, 1_000, b"k", b"v", (("a\udcff", b"x"),))])
    _, body = await shown.get("/api/topics/orders/partitions/0/records")
    assert body["records"][0]["headers"] == [["a\ufffd", {"size": 1, "cut": False, "text": "x"}]]


async def test_the_newest_come_first_and_older_ones_page_by_page(shown: Shown) -> None:
    for number in range(30):
        await produce(shown.port, values(f"v{number}".encode()))
    where = "/api/topics/orders/partitions/0/records"

    async def offsets(query: str) -> list[int]:
        status, body = await shown.get(f"{where}?{query}")
        assert status == 200, body
        return [each["offset"] for each in body["records"]]

    assert await offsets("limit=4") == [26, 27, 28, 29]
    assert await offsets("limit=4&before=26") == [22, 23, 24, 25]
    assert await offsets("limit=4&before=2") == [0, 1]
    assert await offsets("limit=4&offset=3") == [3, 4, 5, 6]
    assert await offsets("limit=4&offset=28") == [28, 29]
    assert await offsets("limit=4&offset=1000") == []
    assert await offsets("limit=4&before=0") == []
    assert await offsets("") == list(range(10, 30))


async def test_a_look_shows_what_is_within_large_batches_and_below_the_bounds(shown: Shown) -> None:
    await produce(shown.port, values(*(b"x" * 10 for _ in range(1_000))), codec=Codec.GZIP)
    _, body = await shown.get("/api/topics/orders/partitions/0/records?limit=2&before=500")
    assert [each["offset"] for each in body["records"]] == [498, 499]
    await produce(shown.port, values(b"y" * 100_000), partition=1)
    _, body = await shown.get("/api/topics/orders/partitions/1/records")
    (value,) = [each["value"] for each in body["records"]]
    assert (value["size"], value["cut"], len(value["text"])) == (100_000, True, 4_096)


async def test_a_batch_that_unpacks_to_too_much_is_told_of_and_not_shown(shown: Shown) -> None:
    await produce(shown.port, values(b"first"))
    await produce(shown.port, values(b"z" * (3 * 1024 * 1024)), codec=Codec.GZIP)
    await produce(shown.port, values(b"last"))
    _, body = await shown.get("/api/topics/orders/partitions/0/records")
    assert [each["value"]["text"] for each in body["records"]] == ["first", "last"]
    assert body["left_out"] == [
        {"offset": 1, "last_offset": 1, "records": 1, "why": "it is larger than 2 MiB"}
    ]
    _, body = await shown.get("/api/topics/orders/partitions/0/records?offset=0&limit=1")
    assert [each["offset"] for each in body["records"]] == [0]
    assert body["left_out"] == [], "the next look tells of it"


async def test_one_look_reads_a_bounded_number_of_bytes(shown: Shown) -> None:
    for number in range(8):
        await produce(shown.port, values(bytes([65 + number]) * 900_000))
    _, body = await shown.get("/api/topics/orders/partitions/0/records?limit=100")
    found = [each["offset"] for each in body["records"]]
    assert body["cut"] is True
    assert found
    assert found == list(range(found[0], 8)), "the newest, without a hole"
    assert len(json.dumps(body)) < 100_000
    _, since = await shown.get("/api/topics/orders/partitions/0/records?limit=100&offset=0")
    assert since["cut"] is True
    assert [each["offset"] for each in since["records"]] == list(range(len(since["records"])))


async def test_deleted_records_are_not_shown(shown: Shown) -> None:
    await produce(shown.port, values(b"a", b"b", b"c", b"d"))
    topic = shown.broker.catalogue.named("orders")
    await shown.broker.partitions.delete_records(topic, 0, 3)
    _, body = await shown.get("/api/topics/orders/partitions/0/records")
    assert [each["offset"] for each in body["records"]] == [3]
    assert (body["start"], body["end"]) == (3, 4)
    _, body = await shown.get("/api/topics/orders/partitions/0/records?offset=0")
    assert [each["offset"] for each in body["records"]] == [3]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("limit=0", "limit: '0' is not a whole number from 1 to 100"),
        ("limit=101", "limit: '101' is not a whole number from 1 to 100"),
        ("before=-1", "before: '-1' is not a whole number from 0 to 9223372036854775807"),
        (
            "offset=99999999999999999999",
            "offset: '99999999999999999999' is not a whole number from 0 to 9223372036854775807",
        ),
        ("offset=1&before=2", "before and offset: one of them at most"),
    ],
)
async def test_a_parameter_that_is_none_is_named(shown: Shown, query: str, why: str) -> None:
    status, body = await shown.get(f"/api/topics/orders/partitions/0/records?{query}")
    assert (status, body) == (400, {"error": why})


@pytest.mark.parametrize("partition", ["3", "x", "-1", "99999999999"])
async def test_a_partition_that_is_not_there_is_said(shown: Shown, partition: str) -> None:
    status, body = await shown.get(f"/api/topics/orders/partitions/{quote(partition)}/records")
    assert status == 404
    assert body == {"error": f"orders has no partition '{partition}': its partitions are 0 to 2"}


async def test_records_of_another_process_name_its_broker(show: Show) -> None:
    shown = await show(brokers=2, advertised_http="pages.example:8080")
    await shown.create_topic(partitions=20)
    topic = shown.broker.catalogue.named("orders")
    other = shown.brokers.brokers[1]
    theirs = next(each for each in range(20) if other.partitions.leader_epoch(topic, each) is not None)
    shown.brokers._running.discard(1)  # as if it ran in another process
    try:
        status, body = await shown.get(f"/api/topics/orders/partitions/{theirs}/records")
        assert status == 421
        assert body["broker"]["page"] == "http://pages.example:8080"
        assert body["error"] == f"orders-{theirs} is led by broker 2, at http://pages.example:8080"
        _, listed = await shown.get("/api/topics/orders")
        assert [each["node_id"] for each in listed["elsewhere"]] == [2]
    finally:
        shown.brokers._running.add(1)


async def test_the_events_of_groups_can_be_looked_at(shown: Shown, member: Member) -> None:
    shard = shown.broker.topology.group_lease("billing").number
    await shown.journalled("all_synced")
    _, body = await shown.get(f"/api/topics/__group_events/partitions/{shard}/records")
    assert any('"billing"' in each["value"]["text"] for each in body["records"])


async def test_only_reading_is_served(shown: Shown) -> None:
    for path in ("/api/topics", "/api/topics/orders", "/api/topics/orders/partitions/0/records"):
        async with shown.http.post(shown.page.url + path) as answer:
            assert answer.status == 405
        async with shown.http.get(shown.page.url + path, headers={"Host": "evil.example"}) as answer:
            assert answer.status == 421
        async with shown.http.get(shown.page.url + path) as answer:
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "Access-Control-Allow-Origin" not in answer.headers


@each(
    "data, room, said",
    [
        (b"abc", 10, {"size": 3, "cut": False, "text": "abc"}),
        ("äöü".encode(), 3, {"size": 6, "cut": True, "text": "ä"}),
        ("a\U0001f422".encode(), 4, {"size": 5, "cut": True, "text": "a"}),
        (b"tab\tand\nline\r\n", 100, {"size": 14, "cut": False, "text": "tab\tand\nline\r\n"}),
        (b"\x1b[31mred", 100, {"size": 8, "cut": False, "hex": b"\x1b[31mred".hex()}),
        (b"\xff\xfe", 100, {"size": 2, "cut": False, "hex": "fffe"}),
        (
            "left\u202eright".encode(),
            100,
            {"size": 12, "cut": False, "hex": "left\u202eright".encode().hex()},
        ),
        (bytes(100), 80, {"size": 100, "cut": True, "hex": "00" * 20}),
    ],
)
def test_bytes_are_shown_as_what_they_are(data: bytes, room: int, said: dict[str, object]) -> None:
    assert shown_json(data, room) == said
