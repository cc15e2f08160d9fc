"""What Kafka serves although it is switched off (ACLs, SASL, delegation tokens, features): muster answers
like Kafka without an authorizer and without SASL. And which APIs are served at all."""

from __future__ import annotations

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.api import ApiKey, versions
from muster.protocol.message import Message
from muster.protocol.messages.acls import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from muster.protocol.messages.features import UpdateFeaturesRequest
from muster.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from muster.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS, Side, Story, assert_told_alike
from tests.support.wire_topics import until

pytestmark = pytest.mark.kafka

_ANY = 1
_UNTIL_TYPED = 0
"""Up to this version UpdateFeatures has no upgrade types, only a flag for downgrades."""
_ANY_DOWNGRADE = 3
_KINDS_IN_WORDS = (1, _ANY_DOWNGRADE)


def _ask_in_every_version(side: Side, title: str, request: Message) -> None:
    first, last = versions(request.__schema__.api_key or 0)
    for version in range(first, last + 1):
        side.ask(f"{title}, v{version}", request, version)


def acls(side: Side) -> None:
    everything = {
        "resource_type_filter": _ANY,
        "resource_name_filter": None,
        "principal_filter": None,
        "host_filter": None,
        "operation": _ANY,
        "permission_type": _ANY,
    }
    _ask_in_every_version(side, "describe", DescribeAclsRequest(**everything))
    made = CreateAclsRequest.AclCreation(
        resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
    )
    for count in (0, 1, 2):
        _ask_in_every_version(side, f"create {count}", CreateAclsRequest(creations=[made] * count))
        filters = [DeleteAclsRequest.DeleteAclsFilter(**everything)] * count
        _ask_in_every_version(side, f"delete {count}", DeleteAclsRequest(filters=filters))


def delegation_tokens(side: Side) -> None:
    renewer = CreateDelegationTokenRequest.CreatableRenewers(principal_type="User", principal_name="r")
    _ask_in_every_version(
        side, "create", CreateDelegationTokenRequest(renewers=[renewer], max_lifetime_ms=-1)
    )
    _ask_in_every_version(side, "renew", RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1))
    _ask_in_every_version(side, "expire", ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1))
    _ask_in_every_version(side, "describe", DescribeDelegationTokenRequest(owners=None))


def sasl(side: Side) -> None:
    _ask_in_every_version(side, "handshake", SaslHandshakeRequest(mechanism="PLAIN"))
    _ask_in_every_version(side, "authenticate", SaslAuthenticateRequest(auth_bytes=b"x"))


def scram_users(side: Side) -> None:
    User = DescribeUserScramCredentialsRequest.UserName
    _ask_in_every_version(side, "all", DescribeUserScramCredentialsRequest(users=None))
    _ask_in_every_version(side, "none named", DescribeUserScramCredentialsRequest(users=[]))
    for names in (["u"], ["u", "u"], [""]):
        users = [User(name=name) for name in names]
        _ask_in_every_version(side, f"describe {names}", DescribeUserScramCredentialsRequest(users=users))
    Asked = AlterUserScramCredentialsRequest
    for name, mechanism in (("u", 1), ("u", 9), ("", 1)):
        deleted = [Asked.ScramCredentialDeletion(name=name, mechanism=mechanism)]
        _ask_in_every_version(side, f"delete {name!r} {mechanism}", Asked(deletions=deleted, upsertions=[]))
    twice = [Asked.ScramCredentialDeletion(name="u", mechanism=each) for each in (1, 2)]
    _ask_in_every_version(side, "delete two of a user", Asked(deletions=twice, upsertions=[]))
    _ask_in_every_version(side, "alter nobody", Asked(deletions=[], upsertions=[]))
    for name, mechanism, iterations in (
        ("u", 9, 4096),
        ("u", 1, 1),
        ("u", 2, 20_000),
        ("", 1, 4096),
        ("u", 1, 4096),
    ):
        made = Asked.ScramCredentialUpsertion(
            name=name, mechanism=mechanism, iterations=iterations, salt=b"s", salted_password=b"p"
        )
        title = f"make {name!r} {mechanism} {iterations}"
        _ask_in_every_version(side, title, Asked(deletions=[], upsertions=[made]))
    good, worse, other = (
        Asked.ScramCredentialUpsertion(
            name=name, mechanism=mechanism, iterations=iterations, salt=b"s", salted_password=b"p"
        )
        for name, mechanism, iterations in (("v", 1, 8192), ("v", 2, 4096), ("w", 2, 16_384))
    )
    _ask_in_every_version(side, "make two of a user", Asked(deletions=[], upsertions=[good, worse, other]))
    gone = Asked.ScramCredentialDeletion(name="v", mechanism=1)
    _ask_in_every_version(side, "delete and make", Asked(deletions=[gone], upsertions=[good, other]))
    _ask_in_every_version(side, "make one", Asked(deletions=[], upsertions=[good]))

    def has_heard() -> bool:
        """Kafka's controller creates users, and its brokers learn of them a moment later."""
        told = side.quietly(DescribeUserScramCredentialsRequest(users=None), 0)
        return {each.user for each in told.results} == {"u", "v", "w"}

    until(has_heard, "the users that were made")
    _ask_in_every_version(side, "all that there are", DescribeUserScramCredentialsRequest(users=None))
    for names in (["v"], ["w", "w"], ["nobody"]):  # one by one, since Kafka's order is that of a hash table
        users = [User(name=name) for name in names]
        _ask_in_every_version(side, f"made, {names}", DescribeUserScramCredentialsRequest(users=users))
    weak = Asked.ScramCredentialUpsertion(
        name="v", mechanism=2, iterations=1, salt=b"s", salted_password=b"p"
    )
    absent = Asked.ScramCredentialDeletion(name="v", mechanism=2)
    strange = Asked.ScramCredentialDeletion(name="v", mechanism=9)
    for title, deletions, upsertions in (
        ("delete one, make a weak one", [gone], [weak]),
        ("delete one, make a weak and a good one", [gone], [weak, worse]),
        ("make a good and a weak one", [], [worse, weak]),
        ("make a weak and a good one", [], [weak, worse]),
        ("delete one, and one that there is not", [gone, absent], []),
        ("delete one that there is not, and one", [absent, gone], []),
        ("delete one that there is not, and make it", [absent], [worse]),
        ("delete one, and one of an unknown mechanism", [gone, strange], []),
        ("delete one of an unknown mechanism, and make one", [strange], [worse]),
        ("delete and make one, and another user's", [gone], [good, other]),
    ):
        _ask_in_every_version(side, title, Asked(deletions=deletions, upsertions=upsertions))
    kept = DescribeUserScramCredentialsRequest(users=[User(name="v")])
    _ask_in_every_version(side, "nothing of a user that is refused was changed", kept)
    # After the requests that describe them: Kafka's order of two mechanisms changes with each start.
    _ask_in_every_version(side, "make another", Asked(deletions=[], upsertions=[worse]))
    for number, (name, mechanism) in enumerate((("v", 1), ("v", 1), ("v", 2), ("w", 2))):
        deleted = [Asked.ScramCredentialDeletion(name=name, mechanism=mechanism)]
        title = f"delete {name} {mechanism} that was made ({number})"
        _ask_in_every_version(side, title, Asked(deletions=deleted, upsertions=[]))
    # Removed again, for the stories after this one.
    removed = Asked.ScramCredentialDeletion(name="u", mechanism=1)
    side.quietly(Asked(deletions=[removed], upsertions=[]), 0)


def feature_updates(side: Side) -> None:
    Update = UpdateFeaturesRequest.FeatureUpdateKey
    for version in range(versions(ApiKey.UPDATE_FEATURES).last + 1):
        for name, level, kind in (
            ("no.such.feature", 1, 1),
            ("metadata.version", 33, 1),
            ("metadata.version", 99, 1),
            ("metadata.version", 20, 2),
            ("transaction.version", 9, 1),
            ("transaction.version", -1, 1),
            ("group.version", 9, 3),
            ("group.version", 0, 7),
        ):
            if version == _UNTIL_TYPED and kind not in _KINDS_IN_WORDS:
                continue
            typed = (
                {"upgrade_type": kind}
                if version > _UNTIL_TYPED
                else {"allow_downgrade": kind == _ANY_DOWNGRADE}
            )
            options = {"validate_only": True} if version > _UNTIL_TYPED else {}
            update = Update(feature=name, max_version_level=level, **typed)
            request = UpdateFeaturesRequest(feature_updates=[update], **options)
            side.ask(f"{name} to {level} ({kind}), v{version}", request, version)
        side.ask(f"nothing, v{version}", UpdateFeaturesRequest(feature_updates=[]), version)


def served(side: Side) -> None:
    """Every API, and every feature in the ApiVersions versions that differ in them."""
    for version in (3, 4):
        request = ApiVersionsRequest(client_software_name="story", client_software_version="1")
        answer = side.quietly(request, version)
        supported = {
            each.name: f"{each.min_version}-{each.max_version}" for each in answer.supported_features
        }
        for name in _FEATURES:
            side.note(f"{name}, v{version}", supported.pop(name, "absent"))
        side.note(f"other features, v{version}", [*supported])
    told = {each.api_key: f"{each.min_version}-{each.max_version}" for each in answer.api_keys}
    for api in ApiKey:
        side.note(api.name, told.get(api, "absent"))
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    for name in _FEATURES:
        side.note(f"{name} in force", finalized.pop(name, "absent"))
    side.note("other features in force", [*finalized])
    side.note("features have an epoch", answer.finalized_features_epoch >= 0)


_FEATURES = (
    "eligible.leader.replicas.version",
    "group.version",
    "kraft.version",
    "metadata.version",
    "share.version",
    "streams.version",
    "transaction.version",
)


@pytest.mark.parametrize("story", [acls, delegation_tokens, sasl, scram_users, feature_updates, served])
def test_apache_kafka_answers_as_muster_does(story: Story, kafka_of_configs: KafkaOfConfigs) -> None:
    with Broker(auto_create_topics_enable=False) as broker:
        assert_told_alike(story, kafka_of_configs(KAFKA_CONFIGS), broker)
