"""What a client's connections need to authenticate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from muster.client.security.mechanism import Mechanism


@dataclass(frozen=True, slots=True)
class Security:
    """TLS, SASL, or both."""

    context: ssl.SSLContext | None = None
    """None: no TLS."""
    mechanism: Mechanism | None = None
    """None: no SASL."""

    @property
    def protocol(self) -> str:
        """The protocol's name, as in security_protocol."""
        transport = "PLAINTEXT" if self.context is None else "SSL"
        return transport if self.mechanism is None else f"SASL_{transport}"
