"""A real PostgreSQL server for tests, in a temporary folder, with a database per test.

    with Postgres() as postgres:
        url = postgres.new_database()  # with muster's schema, owned by a role that may do nothing else
        postgres.restart()

Every write is synced as in production. PostgreSQL refuses to run as root; in that case it runs as the user
`postgres`, which its package creates.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from muster.coordinator.storage.store import LEASE_COUNTS_DEFAULT, LeaseKind
from tests.support.certificates import Pem
from tests.support.ports import free_ports

USER: Final = "muster"
PASSWORD: Final = "open sesame/7"
_QUOTED_PASSWORD: Final = "open%20sesame%2F7"

_READY_SECONDS_MAX: Final = 90
_STOP_SECONDS_MAX: Final = 60
_COMMAND_SECONDS_MAX: Final = 60
_SETTINGS: Final[Mapping[str, str]] = {
    "max_connections": "200",
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %a ",
}


class Postgres:
    """A server; start it with `with`, or `start` and `stop`.

    `host` is the address it listens on and must belong to its network; `under` precedes its command and must
    not fork (`nsenter --net=...`). Leaving the block ends it and removes its folder.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        under: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        tls: Pem | None = None,
        clients_of: Path | None = None,
    ) -> None:
        """`tls` is its certificate, if it has TLS. `clients_of` is a CA: clients must present a certificate
        it signed for the role, in addition to the password."""
        self.host = host
        self.port = free_ports(1) if port is None else port
        self._under = tuple(under)
        self._tls = tls
        self._clients_of = clients_of
        self._settings = {**_SETTINGS, **({} if tls is None else {"ssl": "on"}), **(settings or {})}
        if clients_of is not None:
            self._settings["ssl_ca_file"] = "clients.crt"
        self._binaries = binaries()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped: list[int] = []
        self._names = (f"muster_{number}" for number in itertools.count(1))
        self._templates: dict[tuple[tuple[str, int], ...], str] = {}

    def __repr__(self) -> str:
        return f"<Postgres {self.host}:{self.port} pid={self.pid}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.kill()  # nothing in it will be needed again
        finally:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    # --- databases ----------------------------------------------------------------------------------------

    def url(self, database: str) -> str:
        """The URL of an existing database, for the role that owns it."""
        return f"postgresql://{USER}:{_QUOTED_PASSWORD}@{self.host}:{self.port}/{database}"

    def new_database(self, lease_counts: Mapping[LeaseKind, int] | None = None) -> str:
        """The URL of a new database with muster's schema and the given number of leases of each kind."""
        counts = {**LEASE_COUNTS_DEFAULT, **(lease_counts or {})}
        key = tuple(sorted((kind.value, count) for kind, count in counts.items()))
        if key not in self._templates:
            self._templates[key] = self._migrated(counts)
        return self.url(self._create(f"TEMPLATE {self._templates[key]}"))

    def empty_database(self) -> str:
        """The URL of a new database without a schema."""
        return self.url(self._create(""))

    def with_own_role(self, url: str) -> tuple[str, str]:
        """The URL for a new role that may do what the owner may, and the role's name."""
        role = f"{USER}_of_{url.rpartition('/')[2]}"
        self.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}' IN ROLE {USER}")
        return url.replace(f"//{USER}:", f"//{role}:"), role

    def _migrated(self, counts: Mapping[LeaseKind, int]) -> str:
        from muster.coordinator.storage.postgres import migrate

        name = self._create("")
        _run(lambda: migrate(self.url(name), lease_counts=counts))
        return name

    def _create(self, options: str) -> str:
        name = next(self._names)
        self.execute(f"CREATE DATABASE {name} OWNER {USER} {options}")
        return name

    def execute(self, statement: str, *, database: str = "postgres") -> str:
        """What psql prints for `statement`, run as superuser: fields separated by |, a line per row."""
        to_server = ("-h", str(self._data.parent), "-p", str(self.port), "-U", "postgres", "-d", database)
        completed = subprocess.run(
            [self._binary("psql"), "-XAtq", *to_server, "-v", "ON_ERROR_STOP=1", "-c", statement],
            capture_output=True,
            timeout=_COMMAND_SECONDS_MAX,
            text=True,
        )
        assert completed.returncode == 0, f"{statement}: {completed.stderr}"
        return completed.stdout.strip()

    # --- life ---------------------------------------------------------------------------------------------

    @property
    def socket_folder(self) -> Path:
        """The folder of its Unix socket: a client on this machine names it as its host."""
        return self._data.parent

    @property
    def pid(self) -> int:
        """The pid of the postmaster, the parent of the others; -1 while it does not run."""
        return -1 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, or start it again on its existing data; returns when it accepts connections."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="muster-postgres-"))
            self._initialize()
        options = self._settings | {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": str(self._folder),
        }
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._under, *_as_postgres(), self._binary("postgres"), "-D", str(self._data)]
                + [argument for name, value in options.items() for argument in ("-c", f"{name}={value}")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Shut it down cleanly, cutting off all clients. Harmless if it does not run."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop all its processes (SIGSTOP): connections stay open, nothing answers, until `resume`."""
        assert self._process is not None, "it does not run"
        self._stopped = [self._process.pid]
        self._process.send_signal(signal.SIGSTOP)  # before its children, so that it starts no more
        for child in _children(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGSTOP)
                self._stopped.append(child)

    def resume(self) -> None:
        stopped, self._stopped = self._stopped, []
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it as if the machine died: nothing is finished, connections are cut. `start` recovers it."""
        if self._process is None:
            return
        self.pause()  # or it would start others meanwhile, and its orphaned children could no longer be found
        for pid in reversed(self._stopped):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(_STOP_SECONDS_MAX)
        self._process = None
        # Their shared memory disappears with the last of them, and `start` needs it gone.
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        while any(_is_running(pid) for pid in self._stopped):
            assert time.monotonic() < deadline, "killed processes did not end"
            time.sleep(0.01)
        self._stopped = []

    # ------------------------------------------------------------------------------------------------------

    @property
    def _data(self) -> Path:
        assert self._folder is not None, "it has not been started"
        return self._folder / "data"

    def _binary(self, name: str) -> str:
        return str(self._binaries / name)

    def _initialize(self) -> None:
        assert self._folder is not None
        if os.getuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        self._folder.chmod(0o755)  # the socket is in it, and psql may run as another user
        # Not synced: a template lost with the machine is no loss. The server itself syncs.
        options = ("--username=postgres", "--auth-local=trust", "--auth-host=scram-sha-256", "--no-sync")
        completed = subprocess.run(
            [
                *_as_postgres(),
                self._binary("initdb"),
                "-D",
                str(self._data),
                "-E",
                "UTF8",
                "--locale=C",
                *options,
            ],
            capture_output=True,
            timeout=_COMMAND_SECONDS_MAX,
            text=True,
        )
        assert completed.returncode == 0, completed.stderr
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all all scram-sha-256\n")
        if self._clients_of is not None:
            rule = "hostssl all all all scram-sha-256 clientcert=verify-full\n"
            (self._data / "pg_hba.conf").write_text(f"local all all trust\n{rule}")
        for name, source in self._pem_files():
            shutil.copyfile(source, self._data / name)
            (self._data / name).chmod(0o600)
            if os.getuid() == 0:
                os.chown(self._data / name, account.pw_uid, account.pw_gid)

    def _pem_files(self) -> Iterator[tuple[str, Path]]:
        if self._tls is not None:
            yield "server.crt", self._tls.certificate
            yield "server.key", self._tls.key
        if self._clients_of is not None:
            yield "clients.crt", self._clients_of

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while True:
            answer = subprocess.run(
                [self._binary("pg_isready"), "-q", "-h", str(self._data.parent), "-p", str(self.port)],
                timeout=_COMMAND_SECONDS_MAX,
            )
            if answer.returncode == 0:
                break
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self._data.parent / "log").read_text(errors="replace")
                raise AssertionError(f"PostgreSQL did not start:\n{log[-3000:]}")
            time.sleep(0.02)
        if self.execute(f"SELECT count(*) FROM pg_roles WHERE rolname = '{USER}'") == "0":
            self.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")


def binaries() -> Path:
    """The bin folder of the newest PostgreSQL on this machine: Debian's, or the one on the PATH."""
    debian = Path("/usr/lib/postgresql")
    versions = sorted(
        (path for path in debian.glob("*/bin") if (path / "postgres").exists()),
        key=lambda path: int(path.parent.name),
    )
    if versions:
        return versions[-1]
    found = shutil.which("postgres")
    assert found is not None, "these tests need a PostgreSQL server: make postgres-tools installs Debian's"
    return Path(found).resolve().parent


def _as_postgres() -> list[str]:
    if os.getuid() != 0:
        return []
    account = pwd.getpwnam("postgres")
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--"]


def _children(parent: int) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(folder.name))
        if fields and int(fields[1]) == parent:
            yield int(folder.name)


def _is_running(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def _stat(pid: int) -> list[str]:
    """State, parent and the fields after them; empty if there is no such process."""
    with suppress(OSError):
        # pid (name) state ppid ...; the name may contain spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _run(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run on a separate event loop: the caller's may be running."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="migrate")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
