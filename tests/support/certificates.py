"""A CA for one test, and PEM files of the certificates it signs."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


class Pem(NamedTuple):
    """A certificate with its chain, and its private key in PKCS#8, the only form Kafka reads."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Puts its files into `folder`, each under its own name."""

    def __init__(self, folder: Path, name: str = "ca", *, above: Authority | None = None) -> None:
        """`above` certifies it; without one, it is a root."""
        self._folder = folder
        self._name = name
        self._ca = trustme.CA(above and above._ca, organization_name="muster tests")
        self.certificate = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.certificate))

    def issue(
        self,
        *hosts: str,
        common_name: str | None = None,
        password: str | None = None,
        not_before: datetime | None = None,
        not_after: datetime | None = None,
    ) -> Pem:
        """A certificate for these names; with `password`, its key is encrypted."""
        issued = self._ca.issue_cert(
            *hosts, common_name=common_name, not_before=not_before, not_after=not_after
        )
        encryption: KeySerializationEncryption = NoEncryption()
        if password is not None:
            encryption = BestAvailableEncryption(password.encode())
        key = load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, encryption
        )
        chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
        stem = f"{self._name}-{common_name or hosts[0]}{'-encrypted' * (password is not None)}"
        made = Pem(*(self._folder / f"{stem}{end}.pem" for end in ("", "-key", "-both")))
        made.certificate.write_bytes(chain)
        made.key.write_bytes(key)
        made.both.write_bytes(key + chain)
        return made
