"""The contract of letters: who gets them, under which epoch they are sent, and what happens to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from muster.coordinator.storage.lease_table import LeaseTable
from muster.coordinator.storage.store import (
    LETTER_BYTES_MAX,
    LETTERS_KEPT_MAX,
    Lease,
    LeaseKind,
    Letter,
    NodeRow,
    Posted,
    Store,
    StoreClosed,
)
from tests.storage.conftest import Backend, StoreClock
from tests.support.facts import DEADLINE_S, turns, until

TERM_MS = 10_000
ONE, TWO = (NodeRow(n, "127.0.0.1", 9092, None, TERM_MS, UUID(int=n)) for n in (1, 2))
A = Lease(LeaseKind.GROUP, 0)


class Mail:
    """The letters a node received."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.deliveries = 0

    def __call__(self, payloads: Sequence[bytes]) -> None:
        self.deliveries += 1
        self.got += payloads

    async def has(self, *payloads: bytes) -> bool:
        await until(lambda: len(self.got) >= len(payloads), f"letters beyond {self.got}")
        return self.got == list(payloads)


async def opened(store: Store, node: NodeRow) -> Mail:
    mail = Mail()
    await store.register_node(node)
    store.open_mailbox(node.node_id, node.incarnation, mail)
    return mail


async def test_letters_arrive_at_their_node_in_the_order_of_sending(store: Store) -> None:
    one, two = await opened(store, ONE), await opened(store, TWO)
    payloads = [b"%d" % n for n in range(30)]
    letters = [Letter(2, payload) for payload in payloads]
    assert await store.post([*letters[:10], Letter(1, b"other")]) == [Posted.SENT] * 11
    # Letters of one turn of the loop may be sent together, and do not overtake each other.
    for outcome in await asyncio.gather(*(store.post([letter]) for letter in letters[10:])):
        assert outcome == [Posted.SENT]
    assert await two.has(*payloads)
    assert await one.has(b"other")
    assert await store.post([]) == []


async def test_a_letter_arrives_once_and_moves_no_revision(store: Store) -> None:
    mail = await opened(store, ONE)
    before = await store.revision()
    await store.post([Letter(1, b"first", ONE.incarnation)])
    assert await mail.has(b"first")
    await store.post([Letter(1, b"")])
    assert await mail.has(b"first", b"")
    assert mail.deliveries == 2
    assert await store.revision() == before


async def test_a_letter_goes_only_under_the_present_epoch(store: Store) -> None:
    mail = await opened(store, ONE)
    (first,) = await store.claim([A], 1, TERM_MS)
    assert first is not None
    sent = Letter(1, b"in force", under=(A, first.epoch))
    assert await store.post([sent]) == [Posted.SENT]
    await store.release([first])
    assert await store.post([sent]) == [Posted.SENT], "nobody has claimed it since"
    (second,) = await store.claim([A], 2, TERM_MS)
    assert second is not None
    posted = await store.post(
        [
            replace(sent, payload=b"stale"),
            Letter(1, b"free"),
            Letter(1, b"ahead", under=(A, second.epoch + 1)),
            Letter(1, b"new", under=(A, second.epoch)),
            Letter(1, b"never claimed", under=(Lease(LeaseKind.GROUP, 1), 0)),
            Letter(1, b"no such lease", under=(Lease(LeaseKind.GROUP, 99), 1)),
        ]
    )
    fenced = Posted.FENCED
    assert posted == [fenced, Posted.SENT, fenced, Posted.SENT, fenced, fenced]
    assert await mail.has(b"in force", b"in force", b"free", b"new")


async def test_whoever_is_not_registered_gets_nothing(store: Store, clock: StoreClock) -> None:
    mail = await opened(store, ONE)
    assert await store.post([Letter(2, b"nobody"), Letter(1, b"a")]) == [Posted.UNDELIVERABLE, Posted.SENT]
    clock.advance(TERM_MS)
    assert await store.post([Letter(1, b"too late")]) == [Posted.UNDELIVERABLE]
    await store.register_node(ONE)
    assert await store.post([Letter(1, b"b")]) == [Posted.SENT]
    await store.remove_node(1, ONE.incarnation)
    assert await store.post([Letter(1, b"gone")]) == [Posted.UNDELIVERABLE]
    await store.register_node(ONE)
    await store.post([Letter(1, b"c")])
    await until(lambda: b"c" in mail.got, "the last letter")
    assert set(mail.got) <= {b"a", b"b", b"c"}, "what nobody had taken yet may be lost with the registration"


async def test_what_is_for_another_incarnation_does_not_arrive(store: Store) -> None:
    old = await opened(store, ONE)
    await store.remove_node(1, ONE.incarnation)
    reborn = replace(ONE, incarnation=UUID(int=11))
    new = await opened(store, reborn)
    posted = await store.post(
        [Letter(1, b"late", ONE.incarnation), Letter(1, b"a", reborn.incarnation), Letter(1, b"b")]
    )
    assert posted == [Posted.UNDELIVERABLE, Posted.SENT, Posted.SENT]
    assert await new.has(b"a", b"b")
    store.close_mailbox(1, ONE.incarnation)  # not the open mailbox
    await store.post([Letter(1, b"c")])
    assert await new.has(b"a", b"b", b"c")
    assert old.got == []


async def test_a_mailbox_of_an_incarnation_that_is_not_registered_gets_nothing(store: Store) -> None:
    two = await opened(store, TWO)
    await store.register_node(ONE)
    mail = Mail()
    store.open_mailbox(1, UUID(int=11), mail)
    assert await store.post([Letter(1, b"to who is registered"), Letter(2, b"a")]) == [Posted.SENT] * 2
    assert await two.has(b"a")
    await store.post([Letter(2, b"b")])
    assert await two.has(b"a", b"b")
    assert mail.got == []


def test_an_epoch_that_is_being_raised_is_not_known_to_be_the_present_one() -> None:
    table = LeaseTable()
    assert not table.holds(A, 0)
    table.end_claim(table.begin_claim([A], 1, 0), 1, {A: 1}, TERM_MS, 0)
    assert table.holds(A, 1)
    taken = table.begin_claim([A], 1, 0)
    assert not table.holds(A, 1)
    table.end_claim(taken, 1, {A: 2}, TERM_MS, 0)
    assert (table.holds(A, 1), table.holds(A, 2)) == (False, True)


async def test_nothing_arrives_in_a_mailbox_that_is_closed(store: Store) -> None:
    one, two = await opened(store, ONE), await opened(store, TWO)
    posting = asyncio.ensure_future(store.post([Letter(1, b"unread"), Letter(2, b"a")]))
    await turns(1)
    store.close_mailbox(1, ONE.incarnation)
    await posting
    assert await store.post([Letter(1, b"unread"), Letter(2, b"b")]) == [Posted.SENT] * 2
    assert await two.has(b"a", b"b")
    assert one.got == []
    store.close_mailbox(1, ONE.incarnation)


async def test_letters_that_nobody_takes_do_not_pile_up(store: Store) -> None:
    two = await opened(store, TWO)
    await store.register_node(ONE)  # without a mailbox, as if it were paused
    for _ in range(3):
        await store.post([Letter(1, b"unread")] * LETTERS_KEPT_MAX)
    assert await store.post([Letter(2, b"a")]) == [Posted.SENT], "nobody else is kept from anything"
    assert await two.has(b"a")
    one = await opened(store, ONE)
    async with asyncio.timeout(DEADLINE_S):
        while await store.post([Letter(1, b"read")]) != [Posted.SENT]:
            pass
    await until(lambda: b"read" in one.got, "a letter once there is room again")
    assert len(one.got) <= LETTERS_KEPT_MAX + 1


async def test_a_letter_has_a_bound(store: Store) -> None:
    mail = await opened(store, ONE)
    with pytest.raises(ValueError, match="1048577 bytes; allowed are 1048576"):
        Letter(1, bytes(LETTER_BYTES_MAX + 1))
    largest = bytes(LETTER_BYTES_MAX)
    assert await store.post([Letter(1, largest)]) == [Posted.SENT]
    assert await mail.has(largest)


async def test_a_store_that_is_closed_sends_and_delivers_nothing(store: Store, backend: Backend) -> None:
    mail = await opened(store, ONE)
    await store.close()
    with pytest.raises(StoreClosed):
        await store.post([Letter(1, b"closed")])
    with pytest.raises(StoreClosed):
        store.open_mailbox(1, ONE.incarnation, mail)
    store.close_mailbox(1, ONE.incarnation)
    reopened = backend.store()
    await reopened.open()
    two = await opened(reopened, TWO)
    await reopened.post([Letter(1, b"nobody looks"), Letter(2, b"a")])
    assert await two.has(b"a")
    assert mail.got == []
    await reopened.close()
