"""Security and features, as far as they can be asked about while they are switched off;
tests/kafka/test_switched_off.py compares the answers with Apache Kafka's."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.security.scram import ScramCredential
from muster.coordinator.server.features import METADATA_VERSION
from muster.protocol.api import ApiKey, versions
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.features import UpdateFeaturesRequest
from muster.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.server.conftest import StartBrokers
from tests.server.test_api_versions import smallest_request
from tests.support.each import each
from tests.support.wire import Wire

_EVERYWHERE = {
    ApiKey.DESCRIBE_ACLS: ErrorCode.SECURITY_DISABLED,
    ApiKey.CREATE_ACLS: ErrorCode.SECURITY_DISABLED,
    ApiKey.DELETE_ACLS: ErrorCode.SECURITY_DISABLED,
    ApiKey.SASL_HANDSHAKE: ErrorCode.ILLEGAL_SASL_STATE,
    ApiKey.SASL_AUTHENTICATE: ErrorCode.ILLEGAL_SASL_STATE,
    ApiKey.CREATE_DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    ApiKey.RENEW_DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    ApiKey.EXPIRE_DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
}


def _codes(answer: Any) -> set[int]:
    """Error codes of the response and its parts, except successes."""
    entries = [answer]
    for name in ("results", "filter_results", "entries"):
        entries += getattr(answer, name, None) or []
    return {each.error_code for each in entries if getattr(each, "error_code", 0)}


@each("api", _EVERYWHERE, ids=lambda api: api.name)
async def test_what_is_switched_off_says_so_in_every_version(port: int, api: ApiKey) -> None:
    async with await Wire.connect(port) as wire:
        for version in range(versions(api).first, versions(api).last + 1):
            answer = await wire.call(smallest_request(api, version), version)
            assert _codes(answer) == {_EVERYWHERE[api]}


@each("api", [api for api in _EVERYWHERE if "TOKEN" in api.name], ids=lambda api: api.name)
async def test_who_has_logged_in_is_told_that_there_are_no_tokens(
    start_brokers: StartBrokers, api: ApiKey
) -> None:
    name = "SCRAM-SHA-256"
    listeners = "SASL_PLAINTEXT://127.0.0.1:0"
    (broker,) = (await start_brokers(listeners=listeners, sasl_enabled_mechanisms=("PLAIN",))).brokers
    await broker.users.alter("alice", {name: ScramCredential.of_password(name, "pw", 4096)})
    async with await Wire.connect(broker.port) as wire:
        await wire.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert not (await wire.call(SaslAuthenticateRequest(auth_bytes=b"\0alice\0pw"), 2)).error_code
        for version in range(versions(api).first, versions(api).last + 1):
            answer = await wire.call(smallest_request(api, version), version)
            assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
            assert getattr(answer, "expiry_timestamp_ms", 0) == 0
            if api == ApiKey.CREATE_DELEGATION_TOKEN:
                assert (answer.issue_timestamp_ms, answer.max_timestamp_ms) == (0, 0)
                assert (answer.principal_type, answer.principal_name) == ("User", "alice")
                asked_by = (answer.token_requester_principal_type, answer.token_requester_principal_name)
                assert asked_by == (("User", "alice") if version >= 3 else ("", ""))


@pytest.mark.parametrize("api", [ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS])
async def test_where_nothing_can_be_there_is_nothing(port: int, api: ApiKey) -> None:
    async with await Wire.connect(port) as wire:
        answer = await wire.call(smallest_request(api, 0), 0)
        assert (answer.error_code, getattr(answer, "entries", getattr(answer, "results", None))) == (0, [])


async def test_features_are_told_from_version_3_and_those_that_begin_at_0_from_4(port: int) -> None:
    asked = ApiVersionsRequest(client_software_name="wire", client_software_version="1.0")
    async with await Wire.connect(port) as wire:
        for version, named in ((2, []), (3, ["metadata.version"]), (4, None), (5, None)):
            answer = await wire.call(asked, version)
            supported = {each.name: each.max_version for each in answer.supported_features}
            if named is not None:
                assert list(supported) == named
            else:
                assert supported == {
                    "group.version": 1,
                    "metadata.version": METADATA_VERSION,
                    "transaction.version": 2,
                }
            finalized = {each.name: each.max_version_level for each in answer.finalized_features}
            in_force = {"group.version": 1, "metadata.version": METADATA_VERSION, "transaction.version": 2}
            assert finalized == (in_force if version >= 3 else {})
            assert (answer.finalized_features_epoch >= 0) == (version >= 3)


@pytest.mark.parametrize(
    ("name", "level", "code"),
    [
        ("metadata.version", METADATA_VERSION, 0),
        ("group.version", 1, 0),
        ("group.version", 0, ErrorCode.INVALID_UPDATE_VERSION),
        ("group.version", 2, ErrorCode.INVALID_UPDATE_VERSION),
        ("group.version", -1, ErrorCode.INVALID_UPDATE_VERSION),
        ("transaction.version", 2, 0),
        ("transaction.version", 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("transaction.version", 3, ErrorCode.INVALID_UPDATE_VERSION),
        ("no.such.feature", 1, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
async def test_features_stay_as_they_are(port: int, name: str, level: int, code: int) -> None:
    update = UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level)
    async with await Wire.connect(port) as wire:
        for version in (0, 1, 2):
            answer = await wire.call(UpdateFeaturesRequest(feature_updates=[update]), version)
            assert answer.error_code == code
            assert [each.feature for each in answer.results] == ([name] if version < 2 and not code else [])
