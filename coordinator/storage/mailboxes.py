"""The mailboxes of nodes that live in one process: letters are handed over directly, and wait for no disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from uuid import UUID

from muster.coordinator.storage.store import (
    LETTERS_KEPT_BYTES_MAX,
    LETTERS_KEPT_MAX,
    Deliver,
    Lease,
    Letter,
    Posted,
)


class Pile:
    """The payloads of letters to one node that have not been delivered yet."""

    __slots__ = ("_payloads", "_size_bytes")

    def __init__(self) -> None:
        self._payloads: list[bytes] = []
        self._size_bytes = 0

    def __repr__(self) -> str:
        return f"<Pile {len(self)} letters, {self._size_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._payloads)

    def add(self, payload: bytes) -> bool:
        """Add a payload. Returns False, without adding it, if the pile is full."""
        if len(self._payloads) >= LETTERS_KEPT_MAX or self._size_bytes >= LETTERS_KEPT_BYTES_MAX:
            return False
        self._payloads.append(payload)
        self._size_bytes += len(payload)
        return True

    def take(self) -> list[bytes]:
        """Remove and return all of them, in order."""
        payloads, self._payloads = self._payloads, []
        self._size_bytes = 0
        return payloads


class _Mailbox:
    def __init__(self, incarnation: UUID, deliver: Deliver) -> None:
        self.incarnation = incarnation
        self.deliver = deliver
        self.loop = asyncio.get_running_loop()
        self.pile = Pile()


class Mailboxes:
    """The open mailboxes, by node id. The store objects that share them may be on several threads; each
    mailbox is delivered to on the loop it was opened on."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._open: dict[int, _Mailbox] = {}

    def __repr__(self) -> str:
        return f"<Mailboxes of {sorted(self._open)}>"

    def open(self, node_id: int, incarnation: UUID, deliver: Deliver) -> None:
        """As `Store.open_mailbox`."""
        with self._guard:
            self._open[node_id] = _Mailbox(incarnation, deliver)

    def close(self, node_id: int, incarnation: UUID) -> None:
        """As `Store.close_mailbox`."""
        with self._guard:
            mailbox = self._open.get(node_id)
            if mailbox is not None and mailbox.incarnation == incarnation:
                del self._open[node_id]

    def close_all(self) -> None:
        """Deliver nothing more to anyone."""
        with self._guard:
            self._open.clear()

    def post(
        self,
        letters: Sequence[Letter],
        *,
        in_force: Callable[[Lease, int], bool],
        registered: Callable[[int], UUID | None],
    ) -> list[Posted]:
        """As `Store.post`. `in_force` says whether an epoch is a lease's current one, `registered` which
        incarnation of a node is registered."""
        with self._guard:
            return [self._post(letter, in_force, registered) for letter in letters]

    def _post(
        self,
        letter: Letter,
        in_force: Callable[[Lease, int], bool],
        registered: Callable[[int], UUID | None],
    ) -> Posted:
        if letter.under is not None and not in_force(*letter.under):
            return Posted.FENCED
        incarnation = registered(letter.node_id)
        if incarnation is None or letter.incarnation not in (None, incarnation):
            return Posted.UNDELIVERABLE
        mailbox = self._open.get(letter.node_id)
        if mailbox is None or mailbox.incarnation != incarnation:
            return Posted.SENT  # the node is there, but not looking
        if not mailbox.pile.add(letter.payload):
            return Posted.UNDELIVERABLE
        if len(mailbox.pile) == 1:
            with suppress(RuntimeError):  # its loop is closed, and nobody has closed the mailbox
                mailbox.loop.call_soon_threadsafe(self._deliver, letter.node_id, mailbox)
        return Posted.SENT

    def _deliver(self, node_id: int, mailbox: _Mailbox) -> None:
        with self._guard:
            payloads = mailbox.pile.take() if self._open.get(node_id) is mailbox else []
        if payloads:
            mailbox.deliver(payloads)
