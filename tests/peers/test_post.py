"""Questions between brokers: answered, refused, lost, late or given up."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from io import StringIO
from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.base import log
from muster.coordinator.base.clock import ManualClock
from muster.coordinator.peers import post as post_module
from muster.coordinator.peers.frame import Frame, Kind, decode_frame
from muster.coordinator.storage.store import LETTER_BYTES_MAX, Lease, LeaseKind, Letter, StoreError
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.messages.transactions import WriteTxnMarkersResponse
from tests.peers.support import EVERYONE, MARKERS, TIMEOUT_MS, LetterStore, Peer, markers, results
from tests.support.facts import turns, until

A = Lease(LeaseKind.GROUP, 0)


async def refused(asking: asyncio.Future[Any]) -> KafkaError:
    with pytest.raises(KafkaError) as refusal:
        await asking
    return refusal.value


@pytest.fixture
def logged() -> StringIO:
    stream = StringIO()
    log.configure("info", "json", stream)
    return stream


# --- answers --------------------------------------------------------------------------------------


async def test_a_question_is_answered_by_the_node_it_is_put_to(peers: list[Peer]) -> None:
    one, two, three = peers
    assert await one.ask(2, 7, 8) == results(7, 8)
    assert await three.ask(2, 9) == results(9)
    assert two.served == [(MARKERS, 2, markers(7, 8)), (MARKERS, 2, markers(9))]
    assert one.served == three.served == []
    assert all(peer.at_rest() for peer in peers)


async def test_a_version_is_asked_for(peers: list[Peer]) -> None:
    one, two, _ = peers
    assert await one.post.ask(2, MARKERS, markers(7), timeout_ms=TIMEOUT_MS, version=1) == results(7)
    assert [version for _, version, _ in two.served] == [1]


async def test_many_questions_at_once_each_get_their_own_answer(
    peers: list[Peer], store: LetterStore
) -> None:
    asking = [peers[n % 2].ask(3 - n % 2, n) for n in range(400)]
    assert await asyncio.gather(*asking) == [results(n) for n in range(400)]
    assert all(peer.at_rest() for peer in peers)


async def test_what_a_node_asks_itself_needs_no_letter(peers: list[Peer], store: LetterStore) -> None:
    one = peers[0]
    assert await one.ask(1, 7) == results(7)
    assert one.served == [(MARKERS, 2, markers(7))]
    one.failing = KafkaError(ErrorCode.INVALID_TXN_STATE, "said so")
    assert (await refused(asyncio.ensure_future(one.ask(1, 7)))).code is ErrorCode.INVALID_TXN_STATE
    assert store.letters == []


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("node_id", [1, 2])
async def test_what_the_handler_raises_is_raised_where_it_was_asked(
    peers: list[Peer], node_id: int, logged: StringIO
) -> None:
    one, asked = peers[0], peers[node_id - 1]
    asked.failing = KafkaError(ErrorCode.PRODUCER_FENCED, "a newer epoch is at work: ü")
    error = await refused(asyncio.ensure_future(one.ask(node_id, 7)))
    assert (error.code, error.why) == (ErrorCode.PRODUCER_FENCED, "a newer epoch is at work: ü")
    assert logged.getvalue() == ""
    asked.failing = ZeroDivisionError("a bug")
    error = await refused(asyncio.ensure_future(one.ask(node_id, 7)))
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert error.why == f"node {node_id} failed to answer WRITE_TXN_MARKERS"
    assert "a bug" in logged.getvalue()


async def test_an_answer_that_cannot_be_encoded_is_refused(
    peers: list[Peer], monkeypatch: pytest.MonkeyPatch, logged: StringIO
) -> None:
    one, two, _ = peers
    for bad, code in (
        (WriteTxnMarkersResponse(markers=[results(2**70).markers[0]]), ErrorCode.UNKNOWN_SERVER_ERROR),
        (results(*range(200_000)), ErrorCode.MESSAGE_TOO_LARGE),
    ):

        async def serve(*_: object, answer: WriteTxnMarkersResponse = bad) -> WriteTxnMarkersResponse:
            return answer

        monkeypatch.setattr(two.post, "_serve", serve)
        assert (await refused(asyncio.ensure_future(one.ask(2, 7)))).code is code


async def test_an_unknown_api_and_an_unknown_version_are_refused(
    peers: list[Peer], store: LetterStore, clock: ManualClock
) -> None:
    """As a newer broker would ask, which then learns that this is unsupported."""
    one, two, _ = peers
    for api_key, version in ((12_345, 0), (int(MARKERS), 3)):
        asking = asyncio.ensure_future(one.ask(2, 7))
        store.losing = True
        await until(lambda: store.letters, "the question")
        store.losing = False
        question = decode_frame(store.letters.pop().payload)
        newer = question._replace(api_key=api_key, version=version)
        # The asker keeps what it asked, and an answer must repeat it.
        (ticket,) = one.post._asked
        asked = one.post._asked[ticket]
        one.post._asked[ticket] = asked._replace(api_key=api_key, version=version)  # type: ignore[arg-type]
        await store.post([Letter(2, newer.encoded())])
        assert (await refused(asking)).code is ErrorCode.UNSUPPORTED_VERSION
        store.letters.clear()
    assert two.served == []


async def test_a_question_that_is_too_large_is_not_sent(peers: list[Peer], store: LetterStore) -> None:
    one = peers[0]
    large = markers(*range(20), topic="t" * 32_000)
    assert await one.post.ask(2, MARKERS, large, timeout_ms=TIMEOUT_MS) == results(*range(20))
    store.letters.clear()
    larger = markers(*range(40), topic="t" * 32_000)
    asking = asyncio.ensure_future(one.post.ask(2, MARKERS, larger, timeout_ms=TIMEOUT_MS))
    error = await refused(asking)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE
    assert f"allowed are {LETTER_BYTES_MAX}" in error.why
    assert store.letters == []
    assert one.at_rest()


async def test_a_question_goes_only_under_the_present_epoch(peers: list[Peer], store: LetterStore) -> None:
    one, two, _ = peers
    (first,) = await store.claim([A], 1, 1_000_000)
    assert first is not None
    asked = {"request": markers(7), "timeout_ms": TIMEOUT_MS, "under": (A, first.epoch)}
    assert await one.post.ask(2, MARKERS, **asked) == results(7)  # type: ignore[arg-type]
    await store.release([first])
    await store.claim([A], 2, 1_000_000)
    asking = asyncio.ensure_future(one.post.ask(2, MARKERS, **asked))  # type: ignore[arg-type]
    assert (await refused(asking)).code is ErrorCode.NOT_COORDINATOR
    assert len(two.served) == 1


async def test_a_node_that_is_not_there_and_a_store_that_fails(
    peers: list[Peer], store: LetterStore, logged: StringIO
) -> None:
    one = peers[0]
    error = await refused(asyncio.ensure_future(one.ask(4, 7)))
    assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "node 4" in error.why
    store.failing = StoreError("the disk is gone")
    error = await refused(asyncio.ensure_future(one.ask(2, 7)))
    assert (error.code, error.why) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "the disk is gone")
    store.failing = ZeroDivisionError("a bug")
    error = await refused(asyncio.ensure_future(one.ask(2, 7)))
    assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "a bug" in logged.getvalue()
    store.failing = None
    assert await one.ask(2, 7) == results(7)


# --- no answer, or a late one ---------------------------------------------------------------------


@pytest.mark.parametrize("node_id", [1, 2])
async def test_a_question_times_out_and_its_late_answer_is_nobodys(
    peers: list[Peer], clock: ManualClock, node_id: int, logged: StringIO
) -> None:
    one, asked = peers[0], peers[node_id - 1]
    asked.may_answer.clear()
    asking = asyncio.ensure_future(one.ask(node_id, 7))
    await until(lambda: asked.served, "the question")
    assert set(one.post.under_way(EVERYONE)) >= {f"node {node_id} has not answered WRITE_TXN_MARKERS yet"}
    assert set(asked.post.under_way(EVERYONE)) >= {"1 questions of node 1 are still being answered"}
    assert not any("has not answered" in what for what in one.post.under_way({3}))
    clock.advance(TIMEOUT_MS - 1)
    await turns()
    assert not asking.done()
    clock.advance(1)
    error = await refused(asking)
    assert error.code is ErrorCode.REQUEST_TIMED_OUT
    assert error.why == f"no answer from node {node_id} within 5000 ms"
    assert one.at_rest() is (node_id == 2)
    asked.may_answer.set()
    await until(asked.at_rest, "the late answer")
    assert await one.ask(node_id, 8) == results(8)
    assert logged.getvalue() == ""


async def test_a_question_that_the_store_holds_up_times_out(
    peers: list[Peer], store: LetterStore, clock: ManualClock
) -> None:
    one, two, _ = peers
    store.open_gate.clear()
    asking = asyncio.ensure_future(one.ask(2, 7))
    await turns()
    clock.advance(TIMEOUT_MS)
    assert (await refused(asking)).code is ErrorCode.REQUEST_TIMED_OUT
    store.open_gate.set()
    await until(lambda: two.served, "the question, which arrives all the same")
    await until(two.at_rest, "the answer, which nobody waits for")


async def test_whoever_asked_and_is_cancelled_leaves_nothing_behind(peers: list[Peer]) -> None:
    one, two, _ = peers
    two.may_answer.clear()
    asking = [asyncio.ensure_future(one.ask(2, n)) for n in range(3)]
    await until(lambda: len(two.served) == 3, "the questions")
    asking[1].cancel()
    await turns(1)
    assert asking[1].cancelled()
    two.may_answer.set()
    assert await asking[0] == results(0)
    assert await asking[2] == results(2)
    await until(two.at_rest, "the answers")
    assert one.at_rest()


async def test_a_lost_letter_costs_a_timeout(
    peers: list[Peer], store: LetterStore, clock: ManualClock
) -> None:
    one, two, _ = peers
    store.losing = True
    asking = asyncio.ensure_future(one.ask(2, 7))
    await until(lambda: store.letters, "the question")
    store.losing = False
    assert await one.ask(2, 8) == results(8)
    clock.advance(TIMEOUT_MS)
    assert (await refused(asking)).code is ErrorCode.REQUEST_TIMED_OUT
    assert [request for _, _, request in two.served] == [markers(8)]


# --- paused, killed, stopped ----------------------------------------------------------------------


async def test_a_paused_node_answers_when_it_goes_on(peers: list[Peer], clock: ManualClock) -> None:
    one, two, _ = peers
    two.pause()
    asking = asyncio.ensure_future(one.ask(2, 7))
    await turns()
    assert two.served == []
    two.resume()
    assert await asking == results(7)


async def test_a_paused_asker_finds_its_answer_or_its_timeout_when_it_goes_on(
    peers: list[Peer], clock: ManualClock
) -> None:
    one, two, _ = peers
    two.may_answer.clear()
    answered = asyncio.ensure_future(one.ask(2, 7))
    await until(lambda: two.served, "the question")
    one.pause()
    two.may_answer.set()
    await until(two.at_rest, "the answer")
    await turns()
    assert not answered.done()
    one.resume()
    assert await answered == results(7)
    two.may_answer.clear()
    late = asyncio.ensure_future(one.ask(2, 8))
    await until(lambda: len(two.served) == 2, "the question")
    one.pause()
    clock.advance(TIMEOUT_MS)
    await turns()
    assert not late.done()
    one.resume()
    assert (await refused(late)).code is ErrorCode.REQUEST_TIMED_OUT
    two.may_answer.set()
    await until(two.at_rest, "the late answer")


async def test_what_a_paused_node_asks_under_a_lost_lease_is_not_sent(
    peers: list[Peer], store: LetterStore
) -> None:
    """It is paused between its decision and the letter."""
    one, two, _ = peers
    (grant,) = await store.claim([A], 1, 1_000_000)
    assert grant is not None
    one.pause()
    asking = asyncio.ensure_future(
        one.post.ask(2, MARKERS, markers(7), timeout_ms=TIMEOUT_MS, under=(A, grant.epoch))
    )
    await turns()
    await store.release([grant])
    await store.claim([A], 3, 1_000_000)
    one.resume()
    assert (await refused(asking)).code is ErrorCode.NOT_COORDINATOR
    assert two.served == []


async def test_a_killed_node_receives_and_answers_nothing(
    peers: list[Peer], store: LetterStore, clock: ManualClock
) -> None:
    one, two, three = peers
    two.may_answer.clear()
    unanswered = asyncio.ensure_future(one.ask(2, 7))
    unasked = asyncio.ensure_future(two.ask(3, 8))
    three.may_answer.clear()
    await until(lambda: two.served and three.served, "the questions")
    two.kill()
    with pytest.raises(asyncio.CancelledError):
        await unasked
    two.may_answer.set()
    three.may_answer.set()
    later = asyncio.ensure_future(one.ask(2, 9))
    await turns()
    assert len(two.served) == 1
    clock.advance(TIMEOUT_MS)
    for asking in (unanswered, later):
        assert (await refused(asking)).code is ErrorCode.REQUEST_TIMED_OUT
    assert await one.ask(3, 10) == results(10)
    # A new node takes its id and receives nothing meant for the old one.
    await store.remove_node(2, two.incarnation)
    again = await Peer(2, store, clock).start()
    assert await one.ask(2, 11) == results(11)
    assert [request for _, _, request in again.served] == [markers(11)]
    await again.post.close()


async def test_an_answer_is_for_the_incarnation_that_asked(
    peers: list[Peer], store: LetterStore, clock: ManualClock
) -> None:
    """A new node with the same id starts its tickets over."""
    one, two, _ = peers
    two.may_answer.clear()
    unanswered = asyncio.ensure_future(one.ask(2, 7))
    await until(lambda: two.served, "the question")
    one.kill()
    await store.remove_node(1, one.incarnation)
    again = await Peer(1, store, clock).start()
    asking = asyncio.ensure_future(again.ask(2, 8))
    await until(lambda: len(two.served) == 2, "the other question")
    two.may_answer.set()
    assert await asking == results(8)
    assert unanswered.cancelled()
    await again.post.close()


async def test_a_node_that_is_killed_while_paused_finds_no_letters(peers: list[Peer]) -> None:
    one, two, _ = peers
    two.pause()
    asking = asyncio.ensure_future(one.ask(2, 7))
    await turns()
    two.kill()
    two.store.resume()
    await turns()
    assert two.served == []
    asking.cancel()


async def test_a_store_that_is_detached_delivers_nothing_more(peers: list[Peer], store: LetterStore) -> None:
    two = peers[1]
    got: list[bytes] = []
    two.store.open_mailbox(2, two.incarnation, got.extend)
    await store.post([Letter(2, b"a")])
    await until(lambda: got == [b"a"], "a letter")
    two.pause()
    await store.post([Letter(2, b"held")])
    await turns()
    two.store.detach()
    two.resume()
    await store.post([Letter(2, b"late")])
    await turns()
    assert got == [b"a"]


async def test_closing_ends_what_is_under_way(peers: list[Peer]) -> None:
    one, two, _ = peers
    for peer in (one, two):
        peer.may_answer.clear()
    asking = [asyncio.ensure_future(one.ask(2, 7)), asyncio.ensure_future(one.ask(1, 8))]
    await until(lambda: one.served and two.served, "the questions")
    await one.post.close()
    assert one.at_rest()
    for each in asking:
        assert (await refused(each)).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await refused(asyncio.ensure_future(one.ask(2, 9)))).why == "this broker is stopping"
    two.may_answer.set()
    await until(two.at_rest, "the answer, which nobody takes")
    assert len(two.served) == 1
    await one.post.close()


async def test_answers_that_are_ready_are_sent_before_the_end(peers: list[Peer], store: LetterStore) -> None:
    one, two, _ = peers
    asking = asyncio.ensure_future(one.ask(2, 7))
    await until(lambda: two.served, "the question")
    store.open_gate.clear()
    await until(lambda: "answers to other brokers are still being sent" in set(two.post.under_way(EVERYONE)))
    closing = asyncio.ensure_future(two.post.close())
    await turns()
    assert not closing.done()
    store.open_gate.set()
    await closing
    assert await asking == results(7)


# --- bounds ---------------------------------------------------------------------------------------


async def test_questions_that_wait_have_a_bound(
    peers: list[Peer], store: LetterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_module, "ASKED_MAX", 3)
    one, two, _ = peers
    two.may_answer.clear()
    asking = [asyncio.ensure_future(one.ask(2, n)) for n in range(4)]
    error = await refused(asking.pop())
    assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "3 questions to brokers wait" in error.why
    two.may_answer.set()
    assert await asyncio.gather(*asking) == [results(n) for n in range(3)]
    assert await one.ask(2, 4) == results(4)


async def test_questions_that_are_being_answered_have_a_bound(
    peers: list[Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_module, "SERVED_MAX", 3)
    one, two, _ = peers
    two.may_answer.clear()
    asking = [asyncio.ensure_future(one.ask(2, n)) for n in range(4)]
    error = await refused(asking.pop())
    assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert error.why == "node 2 is answering 3 questions already"
    two.may_answer.set()
    assert await asyncio.gather(*asking) == [results(n) for n in range(3)]


async def test_what_a_node_asks_itself_is_bounded_where_it_comes_from(
    peers: list[Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_module, "SERVED_MAX", 1)
    monkeypatch.setattr(post_module, "ASKED_MAX", 1)
    one, two, _ = peers
    one.may_answer.clear()
    here = [asyncio.ensure_future(one.ask(1, n)) for n in range(4)]
    await until(lambda: len(one.served) == 4, "the questions")
    assert "4 questions of node 1 are still being answered" in one.post.under_way(EVERYONE)
    there = asyncio.ensure_future(two.ask(1, 5))
    await until(lambda: len(one.served) == 5, "the question of another")
    assert await one.ask(2, 6) == results(6)
    one.may_answer.set()
    assert await asyncio.gather(*here, there) == [results(n) for n in (0, 1, 2, 3, 5)]
    assert list(one.post.under_way(EVERYONE)) == []


async def test_answers_that_wait_for_the_store_have_a_bound(
    peers: list[Peer],
    store: LetterStore,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    logged: StringIO,
) -> None:
    monkeypatch.setattr(post_module, "ANSWERS_MAX", 2)
    one, two, _ = peers
    two.may_answer.clear()
    asking = [asyncio.ensure_future(one.ask(2, n)) for n in range(4)]
    await until(lambda: len(two.served) == 4, "the questions")
    two.may_answer.set()
    await turns()
    clock.advance(TIMEOUT_MS)
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert outcomes[:2] == [results(0), results(1)]
    assert [error.code for error in outcomes[2:] if isinstance(error, KafkaError)] == [
        ErrorCode.REQUEST_TIMED_OUT
    ] * 2
    assert "dropped an answer" in logged.getvalue()


async def test_answers_that_the_store_does_not_take_are_lost(
    peers: list[Peer], store: LetterStore, clock: ManualClock, logged: StringIO
) -> None:
    one, two, _ = peers
    two.may_answer.clear()
    asking = asyncio.ensure_future(one.ask(2, 7))
    await until(lambda: two.served, "the question")
    store.failing = StoreError("the disk is gone")
    two.may_answer.set()
    await until(two.at_rest, "the attempt")
    assert "the disk is gone" in logged.getvalue()
    clock.advance(TIMEOUT_MS)
    assert (await refused(asking)).code is ErrorCode.REQUEST_TIMED_OUT
    store.failing = None
    assert await one.ask(2, 8) == results(8)


# --- damage ---------------------------------------------------------------------------------------


def _damages(payload: bytes) -> dict[str, bytes]:
    return {
        "nothing": b"",
        "cut in the head": payload[:20],
        "cut in the message": payload[:-1],
        "longer": payload + b"\0",
        "of another layout": b"\x02" + payload[1:],
        "of another kind": payload[:1] + b"\x09" + payload[2:],
    }


@pytest.mark.parametrize("damage", list(_damages(b"x" * 30)))
async def test_a_damaged_letter_is_logged_and_dropped(
    peers: list[Peer], store: LetterStore, clock: ManualClock, logged: StringIO, damage: str
) -> None:
    one, two, _ = peers
    store.losing = True
    asking = asyncio.ensure_future(one.ask(2, 7))
    await until(lambda: store.letters, "the question")
    store.losing = False
    question = store.letters[0].payload
    frame = decode_frame(question)
    answer = Frame(Kind.ANSWER, 2, two.incarnation, frame.ticket, MARKERS, 2, b"\x01\x00").encoded()
    await store.post([Letter(2, _damages(question)[damage]), Letter(1, _damages(answer)[damage])])
    await turns()
    assert two.served == []
    assert not asking.done()
    lines = [line for line in logged.getvalue().splitlines() if "dropped a damaged letter" in line]
    assert len(lines) == 2
    assert await one.ask(2, 8) == results(8), "what comes after it is not touched"
    clock.advance(TIMEOUT_MS)
    assert (await refused(asking)).code is ErrorCode.REQUEST_TIMED_OUT


async def test_an_answer_to_something_else_is_dropped(
    peers: list[Peer], store: LetterStore, logged: StringIO
) -> None:
    one, two, three = peers
    two.may_answer.clear()
    asking = asyncio.ensure_future(one.ask(2, 7))
    await until(lambda: two.served, "the question")
    frame = decode_frame(store.letters[0].payload)
    right = Frame(Kind.ANSWER, 2, two.incarnation, frame.ticket, MARKERS, 2, b"\x01\x00")
    wrong = [
        right._replace(node_id=3, incarnation=three.incarnation),
        right._replace(api_key=12),
        right._replace(version=1),
        right._replace(kind=Kind.REFUSAL, body=b"\0"),
        right._replace(kind=Kind.REFUSAL, body=b"\0\x07\xff"),
    ]
    await store.post([Letter(1, each.encoded()) for each in wrong])
    await turns()
    assert not asking.done()
    assert logged.getvalue().count("dropped a damaged letter") == len(wrong)
    two.may_answer.set()
    assert await asking == results(7)


async def test_damage_is_not_logged_without_end(
    peers: list[Peer], store: LetterStore, clock: ManualClock, logged: StringIO
) -> None:
    await store.post([Letter(1, b"rubbish")] * 500)
    await turns()
    assert 1 <= logged.getvalue().count("dropped a damaged letter") <= 10
    clock.advance(60_000)
    await store.post([Letter(1, b"rubbish")])
    await turns()
    assert logged.getvalue().count("dropped a damaged letter") == 11


def test_any_bytes_are_a_frame_or_a_decode_error() -> None:
    rng = random.Random(7)
    frame = Frame(Kind.QUESTION, 5, UUID(int=7), 99, 27, 2, b"body")
    assert decode_frame(frame.encoded()) == frame
    for _ in range(3_000):
        payload = bytearray(frame.encoded())
        for _ in range(rng.randrange(4)):
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        with suppress(DecodeError):
            decode_frame(bytes(payload[: rng.randrange(len(payload) + 1)]))
