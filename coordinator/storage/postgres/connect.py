"""Connections to PostgreSQL, with a bound on every wait, and what its errors mean for the store."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from muster.coordinator.storage.store import StoreBusy, StoreError, StoreFull

if TYPE_CHECKING:
    from asyncpg import Connection

    from muster.coordinator.storage.postgres.eras import Eras

T = TypeVar("T")
Accept = Callable[["Connection"], Awaitable[object]]
"""Looks at a new connection, and raises if its server is not the right one."""

CONNECT_TIMEOUT_MS_DEFAULT: Final = 3_000
STATEMENT_TIMEOUT_MS_DEFAULT: Final = 5_000

_DEFAULT_PORT: Final = "5432"
_PORT_MAX: Final = 65_535
_PORT_DIGITS: Final = 5
_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
"""Options of a URL that name a file."""
_CLOSE_TIMEOUT_S: Final = 2.0
_IDLE_IN_TRANSACTION_MS: Final = 1_000
"""A broker's transaction never waits for the broker between two statements, unless the broker has stalled:
then its locks must be released before its leases expire, or nobody could claim them."""

# Makes the server end silently cut connections within about ten seconds. Not every server that speaks
# PostgreSQL's protocol knows these settings.
_KEEPALIVE: Final = (
    "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; "
    "SET tcp_user_timeout = 10000"
)

_RETRIED: Final = frozenset({"40001", "40P01"})
"""Serialization failure, deadlock: the transaction was rolled back, and the same one may succeed now."""
_RETRIES_MAX: Final = 8
_RETRY_DELAY_S: Final = 0.004  # doubled at each further retry

_OTHER_NAME: Final = frozenset({62, 64})
"""OpenSSL's codes for a certificate for another host, or another address."""
_DISK_FULL: Final = "53100"
_STALLED: Final = "25P03"
# Errors after which a transaction was certainly rolled back and may succeed later: cancelled by a timeout
# (57014, 25P03), no lock (55P03), no memory or connections (53...), a read-only server (25006), and what is
# retried.
_BUSY: Final = _RETRIED | {"57014", "55P03", "53000", "53200", "53300", "53400", "25006", _STALLED}
_COMPLETION_UNKNOWN: Final = "40003"
_HAD_ENDED: Final = "cannot switch to state"
"""How asyncpg refuses to send on a connection whose end the server has announced but not yet carried out."""
_NOT_PREPARED: Final = frozenset({"26000", "42P05"})
"""A prepared statement is missing, or exists already: the server side is not always the same connection."""
# Errors while connecting: nothing was sent yet. The server is starting or stopping (57P0.), or is full
# (53300).
_NOT_NOW: Final = frozenset({"57P01", "57P02", "57P03", "53300", "53000", "53200"})


class Unreachable(StoreBusy):
    """No connection could be made: nothing was sent."""


class _Silent(StoreBusy):
    """The host did not answer in time."""


class _Ended(StoreBusy):
    """The server had ended the connection while it was idle: nothing was sent."""


class Host(NamedTuple):
    """One of the hosts that a url names."""

    name: str
    """`host:port/database`"""
    address: Mapping[str, Any]
    """Arguments for asyncpg that stand in for the url's hosts; none if the url names no host."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where the database is and how it is reached. `repr` and `name` are fit for logs: they omit user and
    password."""

    url: str
    name: str
    """`host:port/database`, with all hosts if there are several."""
    hosts: list[Host]
    """In the order in which they are tried: the one that worked last comes first. If none did, those that did
    not answer in time come last, and get the time that the others leave."""

    def __repr__(self) -> str:
        return f"<Server {self.name}>"


def server_of(url: str) -> str:
    """`host:port/database` of a store's url. Raises StoreError, which does not quote the url."""
    return parse(url).name


def parse(url: str) -> Server:
    """Raises StoreError if `url` is not the url of a PostgreSQL database."""
    usage = "the store URL must be postgresql://user:password@host:port/database"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise StoreError(usage) from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise StoreError(usage)
    # An unquoted character in the password has cut the url short: what looks like the host is the password.
    if "@" in parts.path + parts.query + parts.fragment or parts.netloc.count("@") > 1:
        raise StoreError(
            f"{usage}; in user and password, percent-encode these: / as %2F, @ as %40, # as %23, ? as %3F"
        )
    options = parse_qs(parts.query)
    given = parts.netloc.rpartition("@")[2] or options.get("host", [""])[0]
    hosts = (given or "localhost").split(",")
    ports = options.get("port", [os.environ.get("PGPORT") or _DEFAULT_PORT])[0].split(",")
    database = unquote(parts.path.lstrip("/"))
    if not database:
        raise StoreError(f"{usage}; the database name is missing")
    for port in (*ports, *(host.rpartition(":")[2] for host in hosts if _has_port(host))):
        if port and not (port.isdecimal() and len(port) <= _PORT_DIGITS and 0 < int(port) <= _PORT_MAX):
            raise StoreError(f"{usage}; a port is a number from 1 to {_PORT_MAX}")
    named: list[str] = []
    addresses: list[Mapping[str, Any]] = []
    for place, host in enumerate(hosts):
        port = ports[min(place, len(ports) - 1)]
        if _has_port(host):
            host, _, port = host.rpartition(":")
        host, port = unquote(host), port or _DEFAULT_PORT
        named.append(f"{host}:{port}")
        addresses.append({"host": host.strip("[]"), "port": int(port)} if given else {})
    return Server(
        url,
        f"{','.join(named)}/{database}",
        [Host(f"{name}/{database}", address) for name, address in zip(named, addresses, strict=True)],
    )


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]


async def connect(
    server: Server,
    *,
    name: str,
    timeout_ms: int = CONNECT_TIMEOUT_MS_DEFAULT,
    statement_timeout_ms: int = STATEMENT_TIMEOUT_MS_DEFAULT,
    writes: bool = True,
    accept: Accept | None = None,
) -> Connection:
    """A connection in autocommit mode to the first host that accepts writes, if it `writes` (a standby's data
    may be old), and that `accept` accepts. They are tried one after another, each with its part of
    `timeout_ms`. The server ends a statement that runs longer than `statement_timeout_ms`. Raises StoreError,
    or StoreBusy if it may succeed later."""
    try:
        import asyncpg  # noqa: F401
    except ImportError:
        raise StoreError(
            "a PostgreSQL store needs asyncpg: install it with pip install 'muster-kafka[postgres]'"
        ) from None
    loop = asyncio.get_running_loop()
    began = loop.time()
    hosts, refusals, silent = list(server.hosts), list[StoreError](), list[Host]()
    for place, host in enumerate(hosts):
        left_ms = timeout_ms - int((loop.time() - began) * 1000)
        part_ms = max(1, left_ms // (len(hosts) - place))
        try:
            connection = await _connect_to(
                host, server.url, name, part_ms, statement_timeout_ms, writes, accept
            )
        except StoreError as error:
            refusals.append(error)
            if isinstance(error, _Silent):
                silent.append(host)
        else:
            server.hosts.sort(key=lambda each: each is not host)
            return connection
    server.hosts.sort(key=lambda each: each in silent)
    raise _all_of(refusals)


def _all_of(refusals: Sequence[StoreError]) -> StoreError:
    """One error for what all hosts said. Its cause is that of a server which answered, if one did."""
    if len(refusals) == 1:
        return refusals[0]
    may_succeed = any(isinstance(refusal, StoreBusy) for refusal in refusals)
    error = (StoreBusy if may_succeed else StoreError)("; ".join(map(str, refusals)))
    causes = [refusal.__cause__ for refusal in refusals]
    error.__cause__ = next((cause for cause in causes if hasattr(cause, "sqlstate")), None)
    return error


async def _connect_to(
    host: Host,
    url: str,
    name: str,
    timeout_ms: int,
    statement_timeout_ms: int,
    writes: bool,
    accept: Accept | None,
) -> Connection:
    import asyncpg

    where = f"connecting to {host.name}"
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            connection = await asyncpg.connect(
                url, server_settings={"application_name": name}, **host.address
            )
            try:
                await _set_up(connection, statement_timeout_ms, writes)
                if accept is not None:
                    await accept(connection)
            except BaseException as error:
                connection.terminate()
                if isinstance(error, asyncpg.InterfaceError):  # it was closed meanwhile
                    raise StoreBusy(_said(error)) from error
                raise
    except StoreBusy as error:
        raise StoreBusy(f"{where}: {error}") from error
    except TimeoutError:
        raise _Silent(f"{where}: no answer within {timeout_ms} ms") from None
    except ssl.SSLCertVerificationError as error:
        raise StoreError(f"{where}: {_not_accepted(error)}") from None
    except (FileNotFoundError, PermissionError) as error:
        raise StoreBusy(f"{where}: {_unreadable(url)}{error.strerror or error}") from error
    except OSError as error:
        raise StoreBusy(f"{where}: {error.strerror or error}") from error
    except asyncpg.PostgresError as error:
        later = error.sqlstate in _NOT_NOW or error.sqlstate.startswith("08")
        said = f"{where}: {_said(error)}{_about_poolers(error)}"
        raise (StoreBusy if later else StoreError)(said) from error
    except asyncpg.TargetServerAttributeNotMatched as error:
        raise StoreBusy(f"{where}: it is not what target_session_attrs in the URL asks for") from error
    except (asyncpg.InterfaceError, ValueError) as error:
        said = _said(error)
        if " parameter must be one of: " in said:
            said = f"the URL has an invalid option: {said.replace('`', '')}"
        elif not any(word in said for word in ("certificate", "authentication")):
            said = "the URL has an invalid option"  # the message may repeat a part of the url
        raise StoreError(f"{where}: {said}") from None
    except Exception as error:  # what answers does not speak PostgreSQL's protocol
        raise StoreError(f"{where}: {type(error).__name__}: {_said(error)}") from error
    return connection


async def _set_up(connection: Connection, statement_timeout_ms: int, writes: bool) -> None:
    import asyncpg

    # Not passed when connecting: there, poolers refuse parameters that they do not know.
    await connection.execute(
        f"SET statement_timeout = {max(1, statement_timeout_ms)}; "
        f"SET idle_in_transaction_session_timeout = {_IDLE_IN_TRANSACTION_MS}"
    )
    read_only, synchronous = await connection.fetchrow(
        "SELECT current_setting('transaction_read_only'), current_setting('synchronous_commit')"
    )
    if writes and read_only == "on":
        raise StoreBusy("it does not accept writes; it may be a standby")
    if synchronous in ("off", "local"):
        # A server that crashes or is replaced would forget claims, and the next holder would have the same
        # epoch.
        await connection.execute("SET synchronous_commit = on")
    try:
        await connection.execute(_KEEPALIVE)
    except asyncpg.PostgresError:
        if connection.is_closed():
            raise


@asynccontextmanager
async def transaction(connection: Connection, **options: Any) -> AsyncIterator[None]:
    """asyncpg's transaction, except that an error in it is raised as it is. asyncpg's own raises another if
    the connection has ended, which does not say why."""
    block = connection.transaction(**options)
    await block.start()
    try:
        yield
    except BaseException:
        if not connection.is_closed():
            try:
                await block.rollback()
            except Exception:
                connection.terminate()
        raise
    await block.commit()


class Link:
    """One connection, made when it is needed and again when it was lost or its era is over; one caller at a
    time."""

    def __init__(
        self,
        server: Server,
        *,
        name: str,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS_DEFAULT,
        statement_timeout_ms: int = STATEMENT_TIMEOUT_MS_DEFAULT,
        prepare: Callable[[Connection], Awaitable[None]] | None = None,
        eras: Eras | None = None,
    ) -> None:
        """`prepare` is run on every new connection."""
        self._server = server
        self._name = name
        self._connect_timeout_ms = connect_timeout_ms
        self._statement_timeout_ms = statement_timeout_ms
        self._prepare = prepare
        self._eras = eras
        self.era = 0
        """The era of the connection that `run` uses."""
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Link {self._server.name} {'up' if self.is_up else 'down'}>"

    @property
    def is_up(self) -> bool:
        """Whether there is a connection, as far as is known here."""
        return self._connection is not None and not self._connection.is_closed()

    async def run(
        self, doing: str, use: Callable[[Connection], Awaitable[T]], *, timeout_ms: int | None = None
    ) -> T:
        """Return what `use` returns, within `timeout_ms` in all (default: the statement timeout). `doing`
        describes it in errors.

        Raises StoreBusy (Unreachable without a connection) or StoreFull if nothing was changed, any other
        StoreError if that is unknown. StoreErrors that `use` raises are passed on.
        """
        if timeout_ms is None:
            timeout_ms = self._statement_timeout_ms
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        where = f"{doing} in {self._server.name}"
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            raise StoreBusy(f"{where}: the connection was busy for {timeout_ms} ms") from None
        try:
            try:
                return await self._run(where, use, deadline, timeout_ms)
            except _Ended:
                return await self._run(where, use, deadline, timeout_ms)
        finally:
            self._turn.release()

    async def _run(
        self, where: str, use: Callable[[Connection], Awaitable[T]], deadline: float, timeout_ms: int
    ) -> T:
        loop = asyncio.get_running_loop()
        if self._connection is not None and self._eras is not None and self.era != self._eras.current:
            self._connection.terminate()
        try:
            connection = await self._connected(deadline)
        except StoreError as error:
            raise Unreachable(str(error)) from error
        # Ended from here rather than by cancelling, which would ask the server on a further connection.
        timer = loop.call_at(deadline, connection.terminate)
        try:
            return await _retried(lambda: use(connection), deadline)
        except StoreError:
            raise
        except Exception as error:
            if is_refusal(error):
                raise failure(where, error) from error
            connection.terminate()  # the server may have ended it, without our noticing yet
            if loop.time() >= deadline:
                raise StoreError(f"{where}: no answer within {timeout_ms} ms") from error
            if str(error).startswith(_HAD_ENDED):
                raise _Ended(f"{where}: the server closed the connection") from error
            raise failure(where, error) from error
        finally:
            timer.cancel()

    async def up(self) -> None:
        """Connect now. Raises StoreError."""
        await self.run("connecting", _nothing)

    async def _connected(self, deadline: float) -> Connection:
        if self._connection is None or self._connection.is_closed():
            left_ms = int((deadline - asyncio.get_running_loop().time()) * 1000)
            self._connection = await connect(
                self._server,
                name=self._name,
                timeout_ms=max(1, min(self._connect_timeout_ms, left_ms)),
                # The server ends a statement before we end the connection: then it is known that nothing was
                # changed.
                statement_timeout_ms=self._statement_timeout_ms * 4 // 5,
                accept=self._accept,
            )
        return self._connection

    async def _accept(self, connection: Connection) -> None:
        if self._prepare is not None:
            await self._prepare(connection)
        if self._eras is not None:
            self.era = await self._eras.check(connection)  # last: it was current just now

    async def close(self) -> None:
        """Close after the current caller; harmless when repeated."""
        async with self._turn:
            connection, self._connection = self._connection, None
            if connection is None or connection.is_closed():
                return
            try:
                await connection.close(timeout=_CLOSE_TIMEOUT_S)
            except Exception:
                connection.terminate()


async def _nothing(_: Connection) -> None:
    pass


async def _retried(use: Callable[[], Awaitable[T]], deadline: float) -> T:
    loop = asyncio.get_running_loop()
    delay_s = _RETRY_DELAY_S
    for _ in range(_RETRIES_MAX):
        try:
            return await use()
        except Exception as error:
            if getattr(error, "sqlstate", None) not in _RETRIED or loop.time() + delay_s >= deadline:
                raise
        await asyncio.sleep(delay_s)
        delay_s *= 2
    return await use()


def failure(where: str, error: Exception) -> StoreError:
    """The StoreError for an error of a statement that was sent: StoreBusy or StoreFull if nothing was
    changed."""
    state = getattr(error, "sqlstate", None)
    if getattr(error.__cause__, "sqlstate", None) == _STALLED:  # why the connection has ended
        state = _STALLED
    said = f"{where}: {_said(error)}{_about_poolers(error)}"
    if state == _DISK_FULL:
        return StoreFull(f"{said}; free some space there")
    return StoreBusy(said) if state in _BUSY else StoreError(said)


def _about_poolers(error: Exception) -> str:
    if getattr(error, "sqlstate", None) not in _NOT_PREPARED:
        return ""
    return "; a pooler in front of the database must use session pooling"


def _unreadable(url: str) -> str:
    """Names the first file in the URL that cannot be read: the system's error does not. "" if all can."""
    options = parse_qs(urlsplit(url).query)
    for name in _FILES:
        for path in options.get(name, ()):
            if not os.access(path, os.R_OK):
                return f"{name} {path}: "
    return ""


def _not_accepted(error: ssl.SSLCertVerificationError) -> str:
    """Why the server is not accepted as the one in the URL."""
    why = str(error.verify_message).rstrip(".")
    if error.verify_code in _OTHER_NAME:
        remedy = "name it as its certificate does"
    else:
        remedy = "sslrootcert in the store's URL is the file of the CAs that are trusted"
    return f"its certificate is not accepted: {why}; {remedy}"


def _said(error: Exception) -> str:
    """The error's first line: PostgreSQL's details and hints come after it."""
    return str(error).partition("\n")[0]


def is_refusal(error: BaseException) -> bool:
    """Whether asyncpg or the server refused what was sent: it changed nothing, and the connection is fine."""
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        if state == _COMPLETION_UNKNOWN or state.startswith(("08", "57P")):
            return False
        return getattr(error, "severity_en", None) not in ("FATAL", "PANIC")
    return isinstance(error, (ValueError, TypeError, OverflowError))
