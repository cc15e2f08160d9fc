"""SCRAM credentials of users: describe, upsert, delete (KIP-554).

The client salts and hashes passwords: they never leave it.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterable
from typing import Final

from muster.client.admin.answers import Outcomes, controller, failure_of, of_nodes, refused
from muster.client.errors import ClientError, refusal
from muster.client.network.cluster import ANY, Cluster
from muster.client.security.mechanism import SCRAM_HASHES
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

MECHANISMS: Final = tuple(SCRAM_HASHES)
ITERATIONS_DEFAULT: Final = 16_384
"""The most that Kafka accepts; the least is 4,096."""

_NAMES: Final = dict(enumerate(MECHANISMS, start=1))
_NUMBERS: Final = {name: number for number, name in _NAMES.items()}
_SALT_BYTES: Final = 18

_Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion

Credentials = dict[str, int]
"""A user's SCRAM credentials, as far as brokers reveal them: iterations by mechanism."""


async def describe_user_scram_credentials(
    cluster: Cluster, users: Iterable[str] | None, until: float
) -> Outcomes[str, Credentials]:
    """The credentials of these users (None: all), by name. A user without any gets RESOURCE_NOT_FOUND."""
    if users is None:
        everyone = await cluster.retrying(lambda: _asked(cluster, None, until, ANY), until)
        return Outcomes(sorted(everyone.items()))

    async def ask(node: int, wanted: list[str]) -> dict[str, Credentials | KafkaError]:
        return await _asked(cluster, wanted, until, node)

    async def find(wanted: list[str]) -> dict[str, int | KafkaError]:
        return dict.fromkeys(wanted, ANY)

    return await of_nodes(cluster, users, find, ask, until, api="DescribeUserScramCredentials")


async def _asked(
    cluster: Cluster, users: list[str] | None, until: float, node: int
) -> dict[str, Credentials | KafkaError]:
    named = DescribeUserScramCredentialsRequest.UserName
    request = DescribeUserScramCredentialsRequest(
        users=None if users is None else [named(name=each) for each in users]
    )
    response: DescribeUserScramCredentialsResponse = await cluster.call(request, until, node=node)
    if response.error_code:
        raise refusal(response.error_code, response.error_message)
    return {
        each.user: refusal(each.error_code, each.error_message, about=f"user {each.user}")
        if each.error_code
        else {
            _NAMES.get(info.mechanism, f"mechanism {info.mechanism}"): info.iterations
            for info in sorted(each.credential_infos, key=lambda info: info.mechanism)
        }
        for each in response.results
    }


async def upsert_user_scram_credentials(
    cluster: Cluster,
    user: str,
    password: str,
    until: float,
    *,
    mechanisms: Iterable[str] = MECHANISMS,
    iterations: int = ITERATIONS_DEFAULT,
) -> None:
    """Set a user's password for these mechanisms; a user that does not exist is created.

    Raises KafkaError, which names the mechanisms already set, if any. Raises ValueError for a mechanism that
    is not SCRAM, for a password that is empty or no Unicode text, and for `iterations` below 1.
    """
    wanted = _known(mechanisms)
    if not password:
        raise ValueError("password: it must not be empty")
    try:
        secret = password.encode()
    except UnicodeEncodeError:
        raise ValueError("password: it is no Unicode text (it has a lone surrogate)") from None
    if iterations < 1:
        raise ValueError(f"iterations: it takes a number above 0, not {iterations}")
    done: list[str] = []
    for mechanism in wanted:  # a request takes each user once
        salt = secrets.token_bytes(_SALT_BYTES)
        salted = await asyncio.to_thread(
            hashlib.pbkdf2_hmac, SCRAM_HASHES[mechanism], secret, salt, iterations
        )
        upsertion = _Upsertion(
            name=user,
            mechanism=_NUMBERS[mechanism],
            iterations=iterations,
            salt=salt,
            salted_password=salted,
        )
        outcome = await _alter(cluster, upsertion, until, repeatable=True, done=done)
        _raise_for_failure(outcome, mechanism, done, "set")
        done.append(mechanism)


async def delete_user_scram_credentials(
    cluster: Cluster, user: str, until: float, *, mechanisms: Iterable[str] | None = None
) -> None:
    """Delete a user's credentials for these mechanisms (None: all). A user without credentials no longer
    exists; connections that have logged in stay open.

    Raises KafkaError, which names the mechanisms already deleted, if any; it is RESOURCE_NOT_FOUND if there
    is no such credential. Raises ValueError for a mechanism that is not SCRAM.
    """
    wanted = MECHANISMS if mechanisms is None else _known(mechanisms)
    done: list[str] = []
    for mechanism in wanted:
        deletion = _Deletion(name=user, mechanism=_NUMBERS[mechanism])
        outcome = await _alter(cluster, deletion, until, repeatable=False, done=done)
        missing = outcome is not None and outcome.code == ErrorCode.RESOURCE_NOT_FOUND
        if mechanisms is None and missing:
            continue  # a description could be older than the credentials
        _raise_for_failure(outcome, mechanism, done, "deleted")
        done.append(mechanism)
    if not done:
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {user} with a SCRAM credential")


def _raise_for_failure(outcome: KafkaError | None, mechanism: str, done: list[str], what: str) -> None:
    if outcome is None:
        return
    before = f"; {', '.join(done)} {'was' if len(done) == 1 else 'were'} {what} before" if done else ""
    raise KafkaError(outcome.code, f"{mechanism}: {outcome.why}{before}")


async def _alter(
    cluster: Cluster, change: _Deletion | _Upsertion, until: float, *, repeatable: bool, done: list[str]
) -> KafkaError | None:
    """The failure of a change, if any. Raises ClientError only if no mechanism is `done`: the caller must
    learn of those that are."""
    user = change.name

    async def ask(node: int, _: list[str]) -> dict[str, KafkaError | None]:
        request = AlterUserScramCredentialsRequest(
            deletions=[change] if isinstance(change, _Deletion) else [],
            upsertions=[change] if isinstance(change, _Upsertion) else [],
        )
        response: AlterUserScramCredentialsResponse = await cluster.call(request, until, node=node)
        return {
            each.user: refused(each.error_code, each.error_message, about=f"user {each.user}")
            for each in response.results
        }

    async def find(wanted: list[str]) -> dict[str, int | KafkaError]:
        return dict.fromkeys(wanted, await controller(cluster, until))

    try:
        outcomes = await of_nodes(
            cluster, [user], find, ask, until, api="AlterUserScramCredentials", repeatable=repeatable
        )
    except (KafkaError, ClientError) as error:
        if not done:
            raise
        return failure_of(error)
    return outcomes[user]


def _known(mechanisms: Iterable[str]) -> list[str]:
    wanted = list(dict.fromkeys(mechanisms))
    for each in wanted:
        if each not in _NUMBERS:
            raise ValueError(f"mechanisms: it takes {', '.join(MECHANISMS)}, not {each!r}")
    if not wanted:
        raise ValueError(f"mechanisms: it takes at least one of {', '.join(MECHANISMS)}")
    return wanted
