"""Keys and certificates of a broker, of its clients, and of a stranger."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.certificates import Authority, Pem


class Keys(NamedTuple):
    authority: Authority
    server: Pem
    client: Pem
    stranger: Pem
    """Issued by another CA."""

    @property
    def settings(self) -> dict[str, Any]:
        """A broker's settings."""
        return {
            "ssl_keystore_location": str(self.server.both),
            "ssl_truststore_location": str(self.authority.certificate),
        }

    def context(self, pem: Pem | None = None) -> ssl.SSLContext:
        """A client's context, with a certificate if `pem` is given."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if pem is not None:
            context.load_cert_chain(pem.both)
        return context


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder: Path = tmp_path_factory.mktemp("keys")
    authority, other = Authority(folder), Authority(folder, "stranger")
    return Keys(
        authority,
        authority.issue("localhost", "127.0.0.1"),
        authority.issue("client", common_name="client"),
        other.issue("client", common_name="client"),
    )
