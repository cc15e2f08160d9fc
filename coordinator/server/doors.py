"""The listeners of one broker by their security protocols: how connections come in, and how clients prove
who they are."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.endpoints import Listening
from muster.coordinator.base.step import ANONYMOUS
from muster.coordinator.config import OnListener, Settings
from muster.coordinator.security.exchange import Mechanism, SecurityError
from muster.coordinator.server.admission import Admission
from muster.coordinator.server.authentication import Door
from muster.coordinator.server.certificates import Certificates, Pem
from muster.coordinator.server.connection import Identify
from muster.coordinator.server.connections import Connections
from muster.coordinator.server.guessing import Guessing
from muster.coordinator.server.listener import Listener
from muster.coordinator.server.tls import Handshakes
from muster.coordinator.server.turned_away import no_principal
from muster.coordinator.server.unserved import CloseConnection, Unserved

if TYPE_CHECKING:
    from muster.coordinator.security.principals import PrincipalRules

T = TypeVar("T")

Listen = Callable[[str, int, Callable[[], asyncio.BaseProtocol]], Listener]

_TLS: Final = frozenset({"SSL", "SASL_SSL"})
_SASL: Final = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})


class Entrance(NamedTuple):
    """How clients come in through one listener."""

    on: OnListener
    greeting_bytes_max: int | None
    """Largest request before a client is let in; None: it need not log in."""
    certificates: Certificates | None
    rules: PrincipalRules | None
    door: Door | None

    @property
    def identify(self) -> Identify | None:
        """Says who a client is before its first request; None if its transport does not show that."""
        return self._of_certificate if self.on.protocol == "SSL" else None

    def _of_certificate(self, transport: asyncio.Transport) -> str:
        """The principal of a client, by its certificate. Raises CloseConnection."""
        tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True)
        if certificate is None or self.rules is None:
            return ANONYMOUS
        from muster.coordinator.security.principals import subject_of

        subject = subject_of(certificate)
        user = self.rules.user_of(subject)
        if user is None:
            raise CloseConnection(no_principal(subject))
        return f"User:{user}"


class Doors:
    """How clients come in, listener by listener."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        unserved: Unserved,
        mechanisms: Callable[[OnListener], Mapping[str, Mechanism]],
    ) -> None:
        """`mechanisms` makes the mechanisms enabled on a listener with SASL. Raises SecurityError."""
        self._settings = settings
        self._clock = clock
        self._unserved = unserved
        self._handshakes: list[Handshakes] = []
        self._guessing = Guessing(clock, settings.connection_failed_authentication_delay_ms)
        make_certificates = _once_for_alike(lambda on: Certificates(Pem.on_listener(on), clock))
        make_door = _once_for_alike(lambda on: self._door(on, mechanisms(on)))
        self._entrances: dict[str, Entrance] = {}
        for each in settings.listening(0):
            on = settings.on(each.bound.listener)
            has_sasl = on.protocol in _SASL
            self._entrances[on.listener] = Entrance(
                on,
                on.settings.sasl_server_max_receive_size if has_sasl else None,
                make_certificates(on) if on.protocol in _TLS else None,
                _rules_of(on) if on.protocol == "SSL" and on.settings.ssl_client_auth != "none" else None,
                make_door(on) if has_sasl else None,
            )
        self.sasl: Mapping[str, Door] = {
            name: each.door for name, each in self._entrances.items() if each.door is not None
        }
        """Doors of the listeners whose clients have to authenticate, by listener name."""

    def __repr__(self) -> str:
        return f"<Doors {self._settings.protocols}>"

    def _door(self, on: OnListener, mechanisms: Mapping[str, Mechanism]) -> Door:
        return Door(
            mechanisms,
            self._clock,
            self._unserved,
            self._guessing,
            reauth_ms=on.settings.connections_max_reauth_ms,
        )

    def listener(
        self, listening: Listening, connections: Connections, admission: Admission, listen: Listen
    ) -> Listener:
        """What accepts the connections of one listener, made by `listen`."""
        bound = listening.bound
        entrance = self._entrances[bound.listener]
        connect = partial(connections.connect, bound.listener, entrance.identify, entrance.greeting_bytes_max)
        if entrance.certificates is None:
            return listen(bound.host, bound.port, partial(connect, admission))
        handshakes = Handshakes(
            entrance.certificates, self._clock, connect, self._unserved, admission=admission
        )
        self._handshakes.append(handshakes)
        return listen(bound.host, bound.port, handshakes.accept)

    @property
    def shaking_hands(self) -> int:
        """Number of TLS handshakes under way."""
        return sum(map(len, self._handshakes))

    def read_certificates(self) -> None:
        """Read keys and certificates again, for new connections."""
        for each in {each.certificates for each in self._entrances.values()} - {None}:
            assert each is not None
            each.read_again()

    def close(self) -> None:
        """End the handshakes under way."""
        for each in self._handshakes:
            each.close()


def _once_for_alike(make: Callable[[OnListener], T]) -> Callable[[OnListener], T]:
    """Listeners with the same settings share what is made of them: files and keys are read once."""
    made: dict[object, T] = {}

    def of(on: OnListener) -> T:
        if on.alike not in made:
            made[on.alike] = make(on)
        return made[on.alike]

    return of


def _rules_of(on: OnListener) -> PrincipalRules:
    try:
        import cryptography  # noqa: F401  reads subjects

        from muster.coordinator.security.principals import PrincipalRules
    except ImportError:
        raise SecurityError(
            f"{on.option('ssl_client_auth')} needs more packages: pip install 'muster-kafka[security]'"
        ) from None
    try:
        return PrincipalRules.read(on.settings.ssl_principal_mapping_rules)
    except ValueError as error:
        raise SecurityError(f"{on.option('ssl_principal_mapping_rules')}: {error}") from None
