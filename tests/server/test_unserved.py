"""What the log says of clients that cannot be served: real bytes in, a line with a remedy out."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.base import log
from muster.coordinator.base.clock import ManualClock
from muster.coordinator.config import Settings
from muster.coordinator.server import unserved
from muster.coordinator.server.apis import APIS
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.unserved import Cause, Unserved, api_not_served
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest
from muster.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.protocol.test_foreign import client_hello
from tests.server.conftest import StartBrokers
from tests.server.test_data import batch
from tests.support.wire import Wire


class Lines:
    """Collects what is logged as a warning."""

    def __init__(self) -> None:
        self.fields: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: Any) -> None:
        assert event == "client cannot be served"
        self.fields.append(fields)

    @property
    def why(self) -> list[str]:
        return [each["why"] for each in self.fields]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    made = Lines()
    monkeypatch.setattr(unserved, "_log", made)
    return made


@pytest.fixture
async def broker(start_brokers: StartBrokers) -> Broker:
    return (await start_brokers(group_coordinator_rebalance_protocols=("classic",))).brokers[0]


def test_they_are_told_at_the_default_level() -> None:
    assert log.LEVELS[Settings().log_level] <= log.LEVELS["warning"]


# --- bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "why", "remedy"),
    [
        (b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP request on a Kafka listener", "--http"),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", "HTTP request on a Kafka listener", "--http"),
        (client_hello(), "TLS handshake on a plaintext listener", "security.protocol=PLAINTEXT"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 5000 9092\r\n", "PROXY protocol header on a Kafka", "load balancer"),
        (b"\r\n\r\n\x00\r\nQUIT\n!\x11\x00\x0c", "PROXY protocol header on a Kafka", "load balancer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH on a Kafka listener", "SSH server"),
        (b"*1\r\n$4\r\nPING\r\n", "Redis command on a Kafka listener", "Redis server"),
        (b"\x7f\xff\xff\xff", "not a Kafka request: a frame of 2147483647 bytes", "Kafka client"),
        (b"\xff\xff\xff\xff", "not a Kafka request: a frame of -1 bytes", "Kafka client"),
        (
            b"\x00\x00\x00\x04\x00\x03\x00\x0c",
            "not a Kafka request: a request of 4",
            "Kafka client",
        ),
        (
            b"\x00\x40\x00\x01\x00\x03",
            "request too large: METADATA: a request of 4194305 bytes; the limit is 4194304",
            "less per request",
        ),
    ],
)
async def test_bytes_that_are_no_request(
    broker: Broker, lines: Lines, sent: bytes, why: str, remedy: str
) -> None:
    async with await Wire.connect(broker.port) as wire:
        if why.startswith("request too large"):
            await wire.call(ApiVersionsRequest(), 0)  # after which frames may be larger
        await wire.send_bytes(sent)
        assert await wire.closed()
    (line,) = lines.fields
    assert line["host"] == "/127.0.0.1"
    assert line["why"].startswith(why)
    assert remedy in line["remedy"]
    assert "more" not in line


async def test_a_request_above_the_limit_for_all_is_told_as_such_once_its_client_is_known(
    broker: Broker, lines: Lines
) -> None:
    for known in (True, False):
        async with await Wire.connect(broker.port, client_id="billing") as wire:
            if known:
                await wire.call(ApiVersionsRequest(), 0)
            await wire.send_bytes((104_857_601).to_bytes(4, "big"))
            assert await wire.closed()
    told, stranger = lines.fields
    assert told["why"] == "request too large: a request of 104857601 bytes; the limit is 104857600"
    assert "socket.request.max.bytes" in told["remedy"]
    assert told["client"] == "billing"
    assert stranger["why"].startswith("not a Kafka request: a frame of 104857601 bytes")
    counts = broker.connections.counts
    assert (counts.too_large, counts.undecodable) == (1, 1)


async def test_a_postgresql_client_waits_for_an_answer_and_is_closed_in_time(
    start_brokers: StartBrokers, lines: Lines
) -> None:
    broker = (await start_brokers(request_receive_timeout_ms=100)).brokers[0]
    for sent, why in [
        (bytes.fromhex("0000000804d2162f"), "PostgreSQL client on a Kafka listener"),
        (
            bytes.fromhex("0000000c0003"),
            "request incomplete after request.receive.timeout.ms (100)",
        ),
    ]:
        async with await Wire.connect(broker.port) as wire:
            await wire.send_bytes(sent)
            assert await wire.closed()
        assert lines.why[-1] == why


# --- requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "version", "code", "why", "remedy"),
    [
        (
            SaslHandshakeRequest(mechanism="PLAIN"),
            1,
            ErrorCode.ILLEGAL_SASL_STATE,
            "SASL authentication on a listener without SASL: mechanism PLAIN",
            "without sasl.* settings",
        ),
        (
            SaslHandshakeRequest(mechanism="X" * 30_000),
            1,
            ErrorCode.ILLEGAL_SASL_STATE,
            "SASL authentication on a listener without SASL: mechanism " + "X" * 100,
            "without sasl.* settings",
        ),
        (
            SaslAuthenticateRequest(auth_bytes=b"\x00user\x00secret"),
            2,
            ErrorCode.ILLEGAL_SASL_STATE,
            "SASL authentication on a listener without SASL",
            "without sasl.* settings",
        ),
        (
            ConsumerGroupHeartbeatRequest(group_id="g", member_id="", member_epoch=0),
            1,
            ErrorCode.UNSUPPORTED_VERSION,
            "the consumer protocol (KIP-848) is switched off",
            "group.protocol=classic",
        ),
    ],
)
async def test_requests_for_what_is_not_there_are_refused_in_words(
    broker: Broker, lines: Lines, request_: Message, version: int, code: ErrorCode, why: str, remedy: str
) -> None:
    async with await Wire.connect(broker.port, client_id="billing") as wire:
        answer: Any = await wire.call(request_, version)
        assert answer.error_code == code
        await wire.call(ApiVersionsRequest(), 0)  # the connection stays open
    (line,) = lines.fields
    assert (line["why"], line["client"], line["host"]) == (why, "billing", "/127.0.0.1")
    assert remedy in line["remedy"]
    assert "secret" not in str(line)


@pytest.mark.parametrize(
    ("request_", "version", "why"),
    [
        (FindCoordinatorRequest(coordinator_keys=["g:t:0"], key_type=2), 6, "muster has no share groups yet"),
    ],
)
async def test_coordinators_of_what_is_not_there(
    broker: Broker, lines: Lines, request_: Message, version: int, why: str
) -> None:
    async with await Wire.connect(broker.port) as wire:
        await wire.call(request_, version)
    assert lines.why == [why]


@pytest.mark.parametrize("api_key", sorted(set(ApiKey) - APIS.keys()))
async def test_every_api_that_is_not_served_is_told_by_name_or_feature(
    broker: Broker, lines: Lines, api_key: ApiKey
) -> None:
    async with await Wire.connect(broker.port) as wire:
        await wire.send_bytes(
            b"\x00\x00\x00\x0b" + api_key.to_bytes(2, "big") + bytes(5) + b"\x01\xff\xff\x00"
        )
        assert await wire.closed()
    (line,) = lines.fields
    cause = api_not_served(api_key)
    assert (line["why"], line["remedy"]) == (cause.why, cause.remedy)


async def test_a_version_that_is_not_served(broker: Broker, lines: Lines) -> None:
    for host, version in (("127.0.0.1", 0), ("127.0.0.1", 1), ("127.0.0.1", 99), ("127.0.0.2", 98)):
        async with await Wire.connect(broker.port, from_host=host) as wire:
            frame = b"\x00\x00" + version.to_bytes(2, "big") + b"\x00\x00\x00\x01\xff\xff" + bytes(3)
            await wire.send_bytes(len(frame).to_bytes(4, "big") + frame)
            assert await wire.closed()
    old, new = lines.fields  # one cause for an address, whatever the version
    assert old["why"] == "PRODUCE is served only in versions 3-13: the client sent v0"
    assert "use a client of Kafka 2.1 or later" in old["remedy"]
    assert new["why"] == "PRODUCE is served only in versions 3-13: the client sent v98"
    assert "use a client that negotiates versions" in new["remedy"]


async def test_a_produce_with_acks_0_that_fails_is_told_by_its_first_partition(
    broker: Broker, lines: Lines
) -> None:
    of_topic = ProduceRequest.TopicProduceData
    part = of_topic.PartitionProduceData(index=3, records=batch(b"v"))
    await broker.catalogue.create("here", partitions=4)
    topics = [of_topic(name=name, partition_data=[part]) for name in ("here", "absent")]
    async with await Wire.connect(broker.port, client_id="billing") as wire:
        await wire.send(ProduceRequest(acks=0, timeout_ms=5_000, topic_data=topics), 9)
        assert await wire.closed()
    (line,) = lines.fields
    assert line["why"] == "a Produce with acks=0 failed: absent-3: UNKNOWN_TOPIC_OR_PARTITION"
    assert (line["client"], line["host"]) == ("billing", "/127.0.0.1")
    assert "acks=all" in line["remedy"]


# --- one line a minute --------------------------------------------------------------------------------------


def test_a_line_per_address_cause_and_minute(lines: Lines) -> None:
    clock = ManualClock()
    teller = Unserved(clock)
    first, second = Cause("first", "mend it"), Cause("second", "mend it")
    for _ in range(13):
        teller.tell("/10.0.0.1", first)
    teller.tell("/10.0.0.1", second)
    teller.tell("/10.0.0.2", first)
    assert [(each["host"], each["why"]) for each in lines.fields] == [
        ("/10.0.0.1", "first"),
        ("/10.0.0.1", "second"),
        ("/10.0.0.2", "first"),
    ]
    clock.advance(59_999)
    teller.tell("/10.0.0.1", first._replace(detail="differs each time"))
    assert len(lines.fields) == 3
    clock.advance(1)
    for _ in range(2):
        teller.tell("/10.0.0.1", first)
    assert len(lines.fields) == 4
    assert lines.fields[-1]["more"] == "and 13 more from this address since the last line"
    clock.advance(60_000)
    teller.tell("/10.0.0.2", first)
    assert "more" not in lines.fields[-1]


def test_memory_is_bounded_however_many_addresses_there_are(lines: Lines) -> None:
    clock = ManualClock()
    teller = Unserved(clock)
    for number in range(5_000):
        teller.tell(f"/10.0.{number // 256}.{number % 256}", Cause("why", "remedy"))
    assert len(lines.fields) == len(teller._limiter._told) == 1_000
    clock.advance(60_000)
    teller.tell("/10.1.0.0", Cause("why", "remedy"))
    assert len(lines.fields) == 1_001
    assert len(teller._limiter._told) == 1


async def test_a_client_that_comes_again_and_again_is_told_once(broker: Broker, lines: Lines) -> None:
    for _ in range(20):
        async with await Wire.connect(broker.port) as wire:
            await wire.send_bytes(client_hello())
            assert await wire.closed()
    assert lines.why == ["TLS handshake on a plaintext listener"]
