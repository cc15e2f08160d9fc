"""The listeners of one broker by their security protocols: how connections come in, and how clients prove
who they are."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.endpoints import Listening
from muster.coordinator.base.step import ANONYMOUS
from muster.coordinator.config import Settings
from muster.coordinator.security.exchange import Mechanism, SecurityError
from muster.coordinator.server.authentication import Door
from muster.coordinator.server.certificates import Certificates
from muster.coordinator.server.connections import Connections
from muster.coordinator.server.guessing import Guessing
from muster.coordinator.server.listener import Listener
from muster.coordinator.server.tls import Handshakes
from muster.coordinator.server.turned_away import no_principal
from muster.coordinator.server.unserved import CloseConnection, Unserved
from muster.coordinator.server.wire import GREETING_BYTES_MAX

if TYPE_CHECKING:
    from muster.coordinator.security.principals import PrincipalRules

Listen = Callable[[str, int, Callable[[], asyncio.BaseProtocol]], Listener]

_TLS: Final = frozenset({"SSL", "SASL_SSL"})
_SASL: Final = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})


class Doors:
    """How clients come in, listener by listener."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        unserved: Unserved,
        mechanisms: Callable[[], Mapping[str, Mechanism]],
    ) -> None:
        """`mechanisms` makes those that are enabled; it is called where a listener has SASL. Raises
        SecurityError."""
        self._settings = settings
        self._clock = clock
        self._unserved = unserved
        protocols = set(settings.protocols)
        self._certificates = Certificates(settings, clock) if protocols & _TLS else None
        self._rules = (
            _rules_of(settings) if "SSL" in protocols and settings.ssl_client_auth != "none" else None
        )
        self._handshakes: list[Handshakes] = []
        self.sasl = (
            Door(
                mechanisms(),
                clock,
                unserved,
                Guessing(clock, settings.connection_failed_authentication_delay_ms),
                reauth_ms=settings.connections_max_reauth_ms,
            )
            if protocols & _SASL
            else None
        )

    def __repr__(self) -> str:
        return f"<Doors {self._settings.protocols}>"

    def has_sasl(self, listener: str) -> bool:
        """Whether clients of that listener have to authenticate."""
        return self._settings.protocol_of(listener) in _SASL

    def listener(self, listening: Listening, connections: Connections, listen: Listen) -> Listener:
        """What accepts the connections of one listener, made by `listen`."""
        bound = listening.bound
        protocol = self._settings.protocol_of(bound.listener)
        greeting = self._settings.sasl_server_max_receive_size if protocol in _SASL else GREETING_BYTES_MAX
        identify = self._identify if protocol == "SSL" else None
        connect = partial(connections.connect, bound.listener, identify, greeting)
        if protocol not in _TLS:
            return listen(bound.host, bound.port, connect)
        assert self._certificates is not None
        handshakes = Handshakes(
            self._certificates, self._clock, connect, self._unserved, of_clients=protocol == "SSL"
        )
        self._handshakes.append(handshakes)
        return listen(bound.host, bound.port, handshakes.accept)

    def _identify(self, transport: asyncio.Transport) -> str:
        tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True)
        if certificate is None or self._rules is None:
            return ANONYMOUS
        from muster.coordinator.security.principals import subject_of

        subject = subject_of(certificate)
        user = self._rules.user_of(subject)
        if user is None:
            raise CloseConnection(no_principal(subject))
        return f"User:{user}"

    @property
    def shaking_hands(self) -> int:
        """TLS handshakes that are under way."""
        return sum(map(len, self._handshakes))

    def read_certificates(self) -> None:
        """Read keys and certificates again, for connections to come."""
        if self._certificates is not None:
            self._certificates.read_again()

    def close(self) -> None:
        """End handshakes that are under way."""
        for each in self._handshakes:
            each.close()


def _rules_of(settings: Settings) -> PrincipalRules:
    try:
        import cryptography  # noqa: F401  reads subjects

        from muster.coordinator.security.principals import PrincipalRules
    except ImportError:
        raise SecurityError(
            "--ssl-client-auth needs more packages: pip install 'muster-kafka[security]'"
        ) from None
    try:
        return PrincipalRules.read(settings.ssl_principal_mapping_rules)
    except ValueError as error:
        raise SecurityError(f"--ssl-principal-mapping-rules: {error}") from None
