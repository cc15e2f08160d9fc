"""The registry of APIs, and how a version is agreed on."""

from __future__ import annotations

import pytest

from muster.protocol import api, codec
from muster.protocol.api import ApiKey
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.message import Versions
from muster.protocol.messages.classic_group import JoinGroupRequest, JoinGroupResponse
from muster.protocol.messages.connection import ApiVersionsRequest, ApiVersionsResponse
from tests.support.each import each


def test_keys_are_kafkas() -> None:
    assert [key.value for key in ApiKey] == list(range(95))
    assert (ApiKey.OFFSET_DELETE, ApiKey.DESCRIBE_CLUSTER, ApiKey.SHARE_FETCH) == (47, 60, 78)


def test_requests_and_responses_come_in_pairs() -> None:
    declared = api.declared_apis()
    assert {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.API_VERSIONS} <= set(declared)
    for key in declared:
        request, response = api.request_class(key), api.response_class(key)
        assert request.__name__.removesuffix("Request") == response.__name__.removesuffix("Response")
        assert request.__schema__[2:] == response.__schema__[2:]
        assert key.name == _upper_snake(request.__name__.removesuffix("Request"))


def _upper_snake(name: str) -> str:
    return "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in name).lstrip("_")


def test_lookup() -> None:
    assert api.request_class(11) is JoinGroupRequest
    assert api.response_class(ApiKey.JOIN_GROUP) is JoinGroupResponse
    assert api.versions(ApiKey.JOIN_GROUP) == (0, 9)
    for lookup in (api.request_class, api.response_class, api.versions, api.advertised_versions):
        with pytest.raises(KeyError):
            lookup(ApiKey.VOTE)


def test_produce_is_advertised_from_0_but_served_from_3() -> None:
    assert api.versions(ApiKey.PRODUCE) == (3, 13)
    assert api.advertised_versions(ApiKey.PRODUCE) == (0, 13)
    assert api.advertised_versions(ApiKey.FETCH) == api.versions(ApiKey.FETCH)


@each(
    "key, version, request_header, response_header",
    [
        (ApiKey.JOIN_GROUP, 5, 1, 0),
        (ApiKey.JOIN_GROUP, 6, 2, 1),
        (ApiKey.JOIN_GROUP, 99, 2, 1),
        (ApiKey.API_VERSIONS, 2, 1, 0),
        (ApiKey.API_VERSIONS, 3, 2, 0),
        (ApiKey.API_VERSIONS, 99, 2, 0),
        (ApiKey.OFFSET_DELETE, 0, 1, 0),
        (ApiKey.OFFSET_DELETE, 99, 1, 0),  # never flexible
        (ApiKey.DESCRIBE_CLUSTER, 0, 2, 1),  # always flexible
    ],
)
def test_header_versions(key: ApiKey, version: int, request_header: int, response_header: int) -> None:
    assert api.request_header_version(key, version) == request_header
    assert api.response_header_version(key, version) == response_header


def test_the_broker_answers_what_it_handles() -> None:
    response, version = api.answer_api_versions(3, [ApiKey.PRODUCE, ApiKey.API_VERSIONS])
    assert version == 3
    assert response.error_code == 0
    assert [(entry.api_key, entry.min_version) for entry in response.api_keys] == [(0, 0), (18, 0)]


@each("asked", [6, 99, 32767, -1])
def test_an_unsupported_api_versions_request_is_answered_in_version_0(asked: int) -> None:
    response, version = api.answer_api_versions(asked, api.declared_apis())
    assert version == 0
    last = api.versions(ApiKey.API_VERSIONS).last
    assert codec.encode(response, version) == bytes.fromhex("0023 00000001 0012 0000") + last.to_bytes(
        2, "big"
    )


def test_the_client_reads_the_refusal_and_asks_again() -> None:
    broker_last = 2
    refusal = bytes.fromhex("0023 00000001 0012 0000") + broker_last.to_bytes(2, "big")
    response = api.decode_api_versions(4, refusal)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert api.retry_version(response) == broker_last


def test_the_client_falls_back_to_0_when_the_broker_names_no_version() -> None:
    assert api.retry_version(api.decode_api_versions(4, bytes.fromhex("0023 00000000"))) == 0


def test_an_accepted_request_is_answered_in_its_own_version() -> None:
    response, version = api.answer_api_versions(4, [ApiKey.FETCH])
    data = codec.encode(response, version)
    assert api.decode_api_versions(4, data) == response
    assert api.decode_api_versions(4, memoryview(data)) == response
    with pytest.raises(DecodeError):
        api.decode_api_versions(4, b"\x00")


def test_agreement_is_the_highest_version_both_know() -> None:
    ours = api.versions(ApiKey.JOIN_GROUP)
    assert api.agree(ApiKey.JOIN_GROUP, {11: Versions(2, 7)}) == 7
    assert api.agree(ApiKey.JOIN_GROUP, {11: Versions(2, 99)}) == ours.last
    assert api.agree(ApiKey.JOIN_GROUP, {11: Versions(2, 99)}, last=5) == 5
    with pytest.raises(KafkaError, match="the broker has no JOIN_GROUP"):
        api.agree(ApiKey.JOIN_GROUP, {})
    with pytest.raises(KafkaError, match="JOIN_GROUP: we speak versions 0-9, the broker 50-60") as raised:
        api.agree(ApiKey.JOIN_GROUP, {11: Versions(50, 60)})
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION
    refusal = ApiVersionsResponse(
        error_code=35, api_keys=[ApiVersionsResponse.ApiVersion(api_key=18, min_version=50, max_version=60)]
    )
    with pytest.raises(KafkaError, match="we speak versions"):
        api.retry_version(refusal)


def test_every_declared_version_can_be_asked_for() -> None:
    first, last = api.versions(ApiKey.API_VERSIONS)
    for version in range(first, last + 1):
        assert codec.decode(ApiVersionsRequest, version, codec.encode(ApiVersionsRequest(), version))
