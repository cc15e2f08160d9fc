"""Sides for stories about ACLs: clients with names, and ACLs for them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from muster.protocol.messages.acls import (
    CLUSTER_NAME,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from muster.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from muster.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from tests.kafka.stories import KAFKA_CONFIGS, Side
from tests.support.apache_kafka import ApacheKafka
from tests.support.wire_blocking import WireConnection
from tests.support.wire_topics import until

SUPERUSERS: Final = "User:ANONYMOUS"
"""Stories are prepared by a client that has not authenticated."""
USERS: Final = ("alice", "bob")
_PASSWORD: Final = "secret"
_LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def kafka_with_acls(**configs: str) -> ApacheKafka:
    """Apache Kafka with a SASL PLAIN listener for users; `configs` are Kafka's config names, underscored."""
    users = " ".join(f'user_{name}="{_PASSWORD}"' for name in USERS)
    protocols = {name: name for name in ("PLAINTEXT", "SASL_PLAINTEXT")} | {"CONTROLLER": "PLAINTEXT"}
    return ApacheKafka(
        {
            **KAFKA_CONFIGS,
            **{name.replace("_", "."): value for name, value in configs.items()},
            "auto.create.topics.enable": "true",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": SUPERUSERS,
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{_LOGIN} {users};",
        },
        listeners=("SASL_PLAINTEXT",),
    )


class Allowed(NamedTuple):
    """What an ACL grants a user or denies them."""

    operation: Operation
    type: ResourceType
    name: str = CLUSTER_NAME
    permission: Permission = Permission.ALLOW
    pattern: PatternType = PatternType.LITERAL
    host: str = "*"

    def __str__(self) -> str:
        word = "" if self.permission is Permission.ALLOW else "no "
        return f"{word}{self.operation.name} {self.type.name} {self.name}"


class AclSide(Side):
    """A broker with an authorizer. Stories run as a super user, or inside `as_user`."""

    def __init__(
        self,
        address: tuple[str, int],
        users_at: tuple[str, int],
        *,
        shared: bool,
        root: str = "",
        password: str = "",
    ) -> None:
        """`users_at` is where users authenticate with PLAIN. `root` is the super user; without a name, it is
        the unauthenticated client that connects at `address`."""
        self._user = self._root = root
        self._root_password = password
        self._users_at = users_at
        super().__init__(address[1], host=address[0], shared=shared)

    def make_users(self) -> None:
        """Create the users where there are none yet."""
        for name in USERS:
            salt = secrets.token_bytes(16)
            made = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                name=name,
                mechanism=1,
                iterations=4096,
                salt=salt,
                salted_password=hashlib.pbkdf2_hmac("sha256", _PASSWORD.encode(), salt, 4096),
            )
            request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[made])
            answer = self._connection.call(request, 0, AlterUserScramCredentialsResponse)
            assert [each.error_code for each in answer.results] == [0]

    def acl_name(self, allowed: Allowed) -> str:
        """The name of its resource on this broker."""
        is_one = allowed.type is not ResourceType.CLUSTER and allowed.name != "*"
        return self.name(allowed.name) if is_one and allowed.pattern is PatternType.LITERAL else allowed.name

    def bare(self, value: object) -> object:
        """The value without the suffix that makes a name unique to this broker."""
        return value.removesuffix(self._suffix) if isinstance(value, str) and self._suffix else value

    @contextmanager
    def as_user(self, name: str, *acls: Allowed) -> Iterator[None]:
        """Requests inside the block are made by a user with these ACLs and no others."""
        self.allow(name, *acls)
        root = self._connection
        self._user = name
        self._connection = self._connect()
        try:
            yield
        finally:
            self._connection.close()
            self._user, self._connection = self._root, root
            self.take_all(name)

    def _connect(self) -> WireConnection:
        user = self._user
        if not user:
            return super()._connect()
        connection = WireConnection(*self._users_at, "story")
        connection.call(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
        password = self._root_password if user == self._root else _PASSWORD
        token = f"\0{user}\0{password}".encode()
        answer = connection.call(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)
        assert answer.error_code == 0, answer.error_message
        return connection

    def allow(self, user: str, *acls: Allowed) -> None:
        """Create the ACLs; returns when they are in force."""
        if not acls:
            return
        request = CreateAclsRequest(
            creations=[
                CreateAclsRequest.AclCreation(
                    resource_type=each.type,
                    resource_name=self.acl_name(each),
                    resource_pattern_type=each.pattern,
                    principal=f"User:{user}",
                    host=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in acls
            ]
        )
        answer = self._connection.call(request, 3, CreateAclsResponse)
        assert [each.error_code for each in answer.results] == [0] * len(acls)
        until(lambda: self._count(user) == len(set(acls)), f"ACLs of {user}")

    def take_all(self, user: str) -> None:
        """Delete all ACLs of the user; returns when they are no longer in force."""
        everything = DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=f"User:{user}",
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        self._connection.call(DeleteAclsRequest(filters=[everything]), 3, DeleteAclsResponse)
        until(lambda: self._count(user) == 0, f"no ACLs of {user}")

    def _count(self, user: str) -> int:
        everything = DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=f"User:{user}",
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        told = self._connection.call(everything, 3, DescribeAclsResponse)
        return sum(len(each.acls) for each in told.resources)


def subsets(acls: Sequence[Allowed]) -> list[tuple[Allowed, ...]]:
    """None of the ACLs, each alone, and all."""
    found: list[tuple[Allowed, ...]] = [(), *((each,) for each in acls)]
    return found if len(acls) <= 1 else [*found, tuple(acls)]
