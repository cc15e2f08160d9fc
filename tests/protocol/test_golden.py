"""Frames that stock clients and Apache Kafka exchanged decode, and encode to the same bytes again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from _pytest.mark import ParameterSet

from muster.coordinator.server.apis import APIS
from muster.protocol import codec, header
from muster.protocol.api import ApiKey, load_messages
from muster.protocol.embedded import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from muster.protocol.message import REQUESTS, RESPONSES
from muster.protocol.messages.classic_group import JoinGroupRequest, SyncGroupRequest
from tests.protocol.golden_frames import GOLDEN, GoldenFrame, read_frames
from tests.support.each import each

load_messages()

API_KEYS = {
    cls.__name__: key
    for key, cls in (*REQUESTS.items(), *RESPONSES.items())
    if cls.__module__.startswith("muster.")
}

CLIENTS = [
    "confluent_kafka",
    "confluent_transactions",
    "java",
    "java_security",
    "java_transactions",
    "kafka_python",
]
GROUPED = ["confluent_kafka", "java", "kafka_python"]
"""Clients whose scenario has a group."""


def golden() -> Iterator[ParameterSet]:
    for client in CLIENTS:
        for number, frame in enumerate(read_frames(GOLDEN / f"{client}.txt")):
            yield pytest.param(frame, id=f"{client}-{number}-{frame.message}-v{frame.version}")


@each("golden_frame", [*golden()])
def test_frame_decodes_and_encodes_to_the_same_bytes(golden_frame: GoldenFrame) -> None:
    name, version, frame = golden_frame
    api_key = API_KEYS[name]
    if name.endswith("Request"):
        request_header, offset = header.decode_request_header(frame)
        assert (request_header.api_key, request_header.api_version) == (api_key, version)
        request = codec.decode(REQUESTS[api_key], version, frame, offset)
        encoded = header.encode_request(*request_header, request)
    else:
        correlation_id, offset = header.decode_response_header(api_key, version, frame)
        response = codec.decode(RESPONSES[api_key], version, frame, offset)
        encoded = header.encode_response(api_key, version, correlation_id, response)
    assert encoded == len(frame).to_bytes(4, "big") + frame


@each("client", GROUPED)
def test_blobs_of_real_members_decode_and_encode_to_the_same_bytes(client: str) -> None:
    subscriptions, assignments = [], []
    for name, version, frame in read_frames(GOLDEN / f"{client}.txt"):
        if name == "JoinGroupRequest":
            joined = codec.decode(JoinGroupRequest, version, frame, _body(frame))
            subscriptions += [protocol.metadata for protocol in joined.protocols]
        elif name == "SyncGroupRequest":
            synced = codec.decode(SyncGroupRequest, version, frame, _body(frame))
            assignments += [member.assignment for member in synced.assignments]
    assert subscriptions
    assert assignments
    for blob in subscriptions:
        assert decode_subscription(blob).topics == ["golden"]
        assert encode_subscription(decode_subscription(blob), blob[1]) == blob
    for blob in assignments:
        assert encode_assignment(decode_assignment(blob), blob[1]) == blob


def _body(frame: bytes) -> int:
    return header.decode_request_header(frame)[1]


NOT_CAPTURED = {"SaslAuthenticateRequest", "SaslAuthenticateResponse"}
"""No client gets that far with a broker that refuses its SaslHandshake."""


def test_every_message_was_captured() -> None:
    captured = {frame.message for client in CLIENTS for frame in read_frames(GOLDEN / f"{client}.txt")}
    assert captured == API_KEYS.keys() - NOT_CAPTURED, (
        "run tests/protocol/capture.py, and let its scenarios use the new API"
    )


def test_what_is_served_was_captured() -> None:
    keys = APIS.keys() - {ApiKey.SASL_AUTHENTICATE}
    served = {cls.__name__ for key in keys for cls in (REQUESTS[key], RESPONSES[key])}
    assert not served & NOT_CAPTURED
