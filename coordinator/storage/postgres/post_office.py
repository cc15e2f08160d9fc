"""Letters through PostgreSQL: rows that their receiver removes again. It hears of them at once where the
server passes notifications on; elsewhere it polls for them.

Commits of letters do not wait until they are synced, and waiting letters are lost with the server: their
table is unlogged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID, uuid4

from muster.coordinator.base.log import Logger
from muster.coordinator.storage.postgres import statements
from muster.coordinator.storage.postgres.connect import Link, Server
from muster.coordinator.storage.postgres.eras import Eras
from muster.coordinator.storage.postgres.statements.letters import CHANNEL, Columns
from muster.coordinator.storage.store import (
    Deliver,
    Lease,
    Letter,
    Posted,
    StoreBusy,
    StoreClosed,
    StoreError,
)

if TYPE_CHECKING:
    from asyncpg import Connection

WAITING_MAX: Final = 10_000
"""Maximum number of letters that wait to be sent."""
WAITING_BYTES_MAX: Final = 33_554_432
"""While their payloads add up to this much, no more are accepted."""
_BATCH_LETTERS: Final = 1_000
"""When one statement has this many, the rest go into the next."""
_BATCH_BYTES: Final = 4_194_304
"""Likewise when their payloads add up to this much."""
_LOOK_MS: Final = 1_000
"""How often to poll for letters even where notifications announce them: one may have been lost with its
connection."""
SWEEP_S: Final = 10.0
"""How often letters that nobody takes are deleted."""
_NO_LEASE: Final = -1
"""No row of `leases` has this id."""


class _Waiting(NamedTuple):
    letters: Sequence[Letter]
    size_bytes: int
    posted: asyncio.Future[list[Posted]]


class _Mailbox(NamedTuple):
    incarnation: UUID
    deliver: Deliver


class PostOffice:
    """Sends on one connection, one statement at a time; whatever comes meanwhile goes into the next. Receives
    on another. Both connections are made when first needed.

    `listen` says whether to try notifications.
    """

    def __init__(
        self,
        server: Server,
        lease_ids: Mapping[Lease, int],
        *,
        name: str,
        connect_timeout_ms: int,
        statement_timeout_ms: int,
        poll_ms: int,
        listen: bool,
        now_ms: Callable[[], int | None],
        eras: Eras,
        outlived: Callable[[Lease, int, int], bool],
    ) -> None:
        """`outlived`: see `Writers.outlived`."""
        self._server = server
        self._lease_ids = lease_ids
        self._log = Logger(part="store", name=name)
        self._poll_ms = poll_ms
        self._notify = self._listen = listen
        self._quick = False  # until a connection has been asked
        self._now_ms = now_ms
        self._outlived = outlived
        self._sender = uuid4()
        self._numbers = count()
        link = partial(
            Link,
            server,
            name=name,
            connect_timeout_ms=connect_timeout_ms,
            statement_timeout_ms=statement_timeout_ms,
            eras=eras,
        )
        self._outgoing = link(prepare=self._prepare_outgoing)
        self._incoming = link(prepare=self._prepare_incoming)
        self._waiting: deque[_Waiting] = deque()
        self._waiting_letters = 0
        self._waiting_bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._mailboxes: dict[int, _Mailbox] = {}
        self._receiving: asyncio.Task[None] | None = None
        self._look = asyncio.Event()
        self._sweep_at_s = 0.0
        self._closing = False

    def __repr__(self) -> str:
        return f"<PostOffice of {sorted(self._mailboxes)} waiting={self._waiting_letters}>"

    async def close(self) -> None:
        """Send what is waiting, and deliver nothing more; within the statement timeout."""
        self._closing = True
        self._mailboxes.clear()
        self._look.set()
        for task in (self._sending, self._receiving):
            if task is not None:
                await task
        await self._outgoing.close()
        await self._incoming.close()

    # --- sending ----------------------------------------------------------------------------------

    async def post(self, letters: Sequence[Letter]) -> list[Posted]:
        """As `Store.post`."""
        if self._closing:
            raise StoreClosed(f"the store in {self._server.name} is closing")
        if not letters:
            return []
        if self._waiting_letters + len(letters) > WAITING_MAX or self._waiting_bytes >= WAITING_BYTES_MAX:
            raise StoreBusy(f"posting letters in {self._server.name}: {self._waiting_letters} wait already")
        loop = asyncio.get_running_loop()
        size_bytes = sum(len(letter.payload) for letter in letters)
        waiting = _Waiting(tuple(letters), size_bytes, loop.create_future())
        self._waiting.append(waiting)
        self._waiting_letters += len(letters)
        self._waiting_bytes += size_bytes
        if self._sending is None:
            # It begins in the next turn of the loop, and takes along what this turn brings.
            self._sending = loop.create_task(self._send(), name="post letters")
        return await waiting.posted

    async def _send(self) -> None:
        try:
            while self._waiting:
                await self._send_batch(self._next_batch())
        finally:
            self._sending = None

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        letters = size_bytes = 0
        while self._waiting and letters < _BATCH_LETTERS and size_bytes < _BATCH_BYTES:
            waiting = self._waiting.popleft()
            batch.append(waiting)
            letters += len(waiting.letters)
            size_bytes += waiting.size_bytes
        self._waiting_letters -= letters
        self._waiting_bytes -= size_bytes
        return batch

    async def _send_batch(self, batch: list[_Waiting]) -> None:
        async def post(connection: Connection) -> list[Posted]:
            columns = Columns(*([] for _ in Columns._fields))
            for waiting in batch:
                for letter in waiting.letters:
                    self._add(columns, letter)
            outcomes = await statements.letters.post(
                connection, self._now_ms(), self._sender, columns, notify=self._notify, quick=self._quick
            )
            return [outcomes[number] for number in columns.numbers]

        try:
            posted = iter(await self._outgoing.run("posting letters", post))
        except Exception as error:
            for waiting in batch:
                if not waiting.posted.done():
                    waiting.posted.set_exception(_again(error))
            return
        for waiting in batch:
            of_these = [next(posted) for _ in waiting.letters]
            if not waiting.posted.done():
                waiting.posted.set_result(of_these)

    def _add(self, columns: Columns, letter: Letter) -> None:
        lease_id, epoch = None, 0
        if letter.under is not None:
            lease, epoch = letter.under
            lease_id = self._lease_ids.get(lease, _NO_LEASE)
            if epoch < 1 or self._outlived(lease, epoch, self._outgoing.era):  # below 1: never claimed
                lease_id = _NO_LEASE
        columns.numbers.append(next(self._numbers))
        columns.node_ids.append(letter.node_id)
        columns.incarnations.append(letter.incarnation)
        columns.lease_ids.append(lease_id)
        columns.epochs.append(epoch)
        columns.payloads.append(letter.payload)

    async def _prepare_outgoing(self, connection: Connection) -> None:
        self._quick = await statements.letters.commits_quickly(connection)
        if self._notify:
            self._notify = await self._supported(
                "NOTIFY", connection.execute(f"SELECT pg_notify('{CHANNEL}', '')")
            )

    # --- receiving --------------------------------------------------------------------------------

    def open_mailbox(self, node_id: int, incarnation: UUID, deliver: Deliver) -> None:
        """As `Store.open_mailbox`."""
        self._mailboxes[node_id] = _Mailbox(incarnation, deliver)
        self._sweep_at_s = 0.0  # removes letters to the node's earlier incarnations
        self._look.set()
        if self._receiving is None:
            self._receiving = asyncio.get_running_loop().create_task(self._receive(), name="take letters")

    def close_mailbox(self, node_id: int, incarnation: UUID) -> None:
        """As `Store.close_mailbox`."""
        mailbox = self._mailboxes.get(node_id)
        if mailbox is not None and mailbox.incarnation == incarnation:
            del self._mailboxes[node_id]

    async def _receive(self) -> None:
        away = False
        while not self._closing:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s()):
                    await self._look.wait()
            self._look.clear()
            if not self._mailboxes:
                continue
            try:
                taken = await self._incoming.run("taking letters", self._take)
            except StoreError as error:
                if not away:
                    self._log.warning("failed to look for letters of other brokers, retrying", why=str(error))
                away = True
                self._look.clear()  # the end of the connection had set it
            except Exception as error:
                self._log.error("failed to look for letters of other brokers, retrying", exc_info=error)
            else:
                if away:
                    self._log.info("letters of other brokers arrive again")
                away = False
                self._deliver(taken)

    def _patience_s(self) -> float | None:
        if not self._mailboxes:
            return None
        return (max(self._poll_ms, _LOOK_MS) if self._listen else self._poll_ms) / 1000

    async def _take(self, connection: Connection) -> list[tuple[int, bytes]]:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._sweep_at_s:
            self._sweep_at_s = now_s + SWEEP_S
            await statements.letters.sweep(connection, self._now_ms(), quick=self._quick)
        incarnations = [mailbox.incarnation for mailbox in self._mailboxes.values()]
        return await statements.letters.take(
            connection, list(self._mailboxes), incarnations, quick=self._quick
        )

    def _deliver(self, taken: Sequence[tuple[int, bytes]]) -> None:
        by_node: dict[int, list[bytes]] = {}
        for node_id, payload in taken:
            by_node.setdefault(node_id, []).append(payload)
        for node_id, payloads in by_node.items():
            mailbox = self._mailboxes.get(node_id)  # closed meanwhile, perhaps
            if mailbox is not None:
                mailbox.deliver(payloads)

    async def _prepare_incoming(self, connection: Connection) -> None:
        self._quick = await statements.letters.commits_quickly(connection)
        if self._listen:
            self._listen = await self._supported("LISTEN", connection.add_listener(CHANNEL, self._hear))
            connection.add_termination_listener(lambda _: self._look.set())

    def _hear(self, _connection: Any, _pid: int, _channel: str, node_id: str) -> None:
        if node_id.isdigit() and int(node_id) in self._mailboxes:
            self._look.set()

    async def _supported(self, what: str, trying: Any) -> bool:
        try:
            await trying
        except Exception as error:
            # Not supported, or no such syntax or function. Any other failure may be gone next time.
            if not str(getattr(error, "sqlstate", None)).startswith(("0A", "42")):
                raise
            self._log.info(f"{what} is not supported; polling for letters", why=str(error))
            return False
        return True


def _again(error: Exception) -> Exception:
    """The same error for one more caller."""
    return type(error)(str(error)) if isinstance(error, StoreError) else error
