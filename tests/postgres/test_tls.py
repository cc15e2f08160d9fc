"""PostgreSQL over TLS, by the options of the store's URL; and the errors when the server, or this client, is
not accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlencode

import pytest

from muster.coordinator.storage.postgres import PostgresStore, server_of
from muster.coordinator.storage.store import StoreError
from tests.support.certificates import Authority
from tests.support.postgres import USER, Postgres
from tests.support.served import Served

_ENCRYPTED: Final = (
    "SELECT count(*) > 0 AND bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
    f"WHERE usename = '{USER}'"
)


class Secured(NamedTuple):
    """A server with a certificate for 127.0.0.1, and the authority that signed it."""

    postgres: Postgres
    authority: Authority
    stranger: Authority
    """An authority that signed nothing here."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    authority, stranger = Authority(folder), Authority(folder, "stranger")
    with Postgres(tls=authority.issue("127.0.0.1", common_name="postgres")) as postgres:
        yield Secured(postgres, authority, stranger)


def with_options(url: str, **options: object) -> str:
    return f"{url}?{urlencode(options)}"


async def refused(url: str) -> str:
    store = PostgresStore(url)
    with pytest.raises(StoreError) as raised:
        await store.open()
    assert "sesame" not in str(raised.value)
    return str(raised.value)


def test_a_broker_keeps_its_records_behind_a_verified_certificate(secured: Secured) -> None:
    url = with_options(
        secured.postgres.new_database(), sslmode="verify-full", sslrootcert=secured.authority.certificate
    )
    with Served(None, "--store", url) as served:
        assert "ready" in served.ready_line
        assert secured.postgres.execute(_ENCRYPTED) == "t"


async def test_a_certificate_of_another_authority(secured: Secured) -> None:
    for mode in ("verify-ca", "verify-full"):
        url = with_options(
            secured.postgres.new_database(), sslmode=mode, sslrootcert=secured.stranger.certificate
        )
        assert await refused(url) == (
            f"connecting to {server_of(url)}: its certificate is not accepted: unable to get local issuer "
            "certificate; sslrootcert in the store's URL is the file of the CAs that are trusted"
        )


def test_a_broker_that_does_not_trust_it_says_so_in_a_line(secured: Secured) -> None:
    url = with_options(
        secured.postgres.new_database(), sslmode="verify-full", sslrootcert=secured.stranger.certificate
    )
    with pytest.raises(RuntimeError) as raised:
        Served(None, "--store", url).start()
    said = f"muster serve: connecting to {server_of(url)}: its certificate is not accepted: "
    assert said in str(raised.value)
    assert str(raised.value).endswith("is the file of the CAs that are trusted\n")
    assert "Traceback" not in str(raised.value)


async def test_without_sslmode_it_is_encrypted_and_not_verified(secured: Secured) -> None:
    store = PostgresStore(secured.postgres.new_database())
    await store.open()
    assert secured.postgres.execute(_ENCRYPTED) == "t"
    await store.close()


async def test_a_certificate_for_another_host(secured: Secured) -> None:
    url = secured.postgres.new_database().replace("127.0.0.1", "localhost")
    options = {"sslrootcert": secured.authority.certificate}
    assert await refused(with_options(url, sslmode="verify-full", **options)) == (
        f"connecting to {server_of(url)}: its certificate is not accepted: Hostname mismatch, certificate is "
        "not valid for 'localhost'; name it as its certificate does"
    )
    store = PostgresStore(with_options(url, sslmode="verify-ca", **options))  # the name is not checked
    await store.open()
    await store.close()


async def test_a_server_without_tls(postgres: Postgres, secured: Secured) -> None:
    url = with_options(
        postgres.new_database(), sslmode="verify-full", sslrootcert=secured.authority.certificate
    )
    assert (await refused(url)).endswith("rejected SSL upgrade")


async def test_a_server_that_wants_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ours, other = authority.issue("x", common_name=USER), authority.issue("x", common_name="somebody")
    with Postgres(tls=authority.issue("127.0.0.1"), clients_of=authority.certificate) as postgres:
        url = postgres.empty_database()
        trusted = {"sslmode": "verify-full", "sslrootcert": authority.certificate}
        assert "certificate" in await refused(with_options(url, **trusted))
        theirs = with_options(url, **trusted, sslcert=other.certificate, sslkey=other.key)
        assert "authentication failed" in await refused(theirs)
        shown = with_options(url, **trusted, sslcert=ours.certificate, sslkey=ours.key)
        assert "muster store migrate" in await refused(shown)  # let in: only the tables are missing
