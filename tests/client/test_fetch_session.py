"""Fetch sessions: what is sent, and when a session begins anew (KIP-227)."""

from __future__ import annotations

import uuid

from muster.client.fetch.session import Asked, FetchSession
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode

A, B, C = (TopicPartition("t", index) for index in range(3))


def at(offset: int, topic_id: uuid.UUID | None = None) -> Asked:
    return Asked(offset, 0, -1, 1000, topic_id)


def opened(wanted: dict[TopicPartition, Asked], *, by_id: bool = False) -> FetchSession:
    session = FetchSession()
    session.plan(wanted, by_id=by_id)
    session.answered(0, 77)
    return session


def test_the_first_fetch_names_all_and_asks_for_a_session() -> None:
    plan = FetchSession().plan({A: at(0), B: at(5)}, by_id=False)
    assert (plan.session_id, plan.session_epoch) == (0, 0)
    assert plan.send == {A: at(0), B: at(5)}
    assert plan.forget == {}


def test_from_then_on_only_what_changed_is_sent() -> None:
    session = opened({A: at(0), B: at(5)})
    plan = session.plan({A: at(3), C: at(1)}, by_id=False)
    assert (plan.session_id, plan.session_epoch) == (77, 1)
    assert plan.send == {A: at(3), C: at(1)}
    assert plan.forget == {B: None}
    session.answered(0, 77)
    plan = session.plan({A: at(3), C: at(1)}, by_id=False)
    assert (plan.session_epoch, plan.send, plan.forget) == (2, {}, {})


def test_a_broker_that_keeps_none_is_told_all_each_time() -> None:
    session = FetchSession()
    for _ in range(3):
        plan = session.plan({A: at(0)}, by_id=False)
        assert (plan.session_id, plan.session_epoch, plan.send) == (0, 0, {A: at(0)})
        session.answered(0, 0)


def test_a_broker_may_end_it_at_any_time() -> None:
    session = opened({A: at(0)})
    session.plan({A: at(0)}, by_id=False)
    session.answered(0, 0)
    assert session.plan({A: at(0)}, by_id=False).send == {A: at(0)}


def test_one_that_was_evicted_begins_anew_as_a_new_one() -> None:
    session = opened({A: at(0)})
    session.plan({A: at(0)}, by_id=False)
    session.answered(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
    plan = session.plan({A: at(0)}, by_id=False)
    assert (plan.session_id, plan.session_epoch, plan.send) == (0, 0, {A: at(0)})


def test_after_a_failure_the_old_one_is_closed_by_the_fetch_that_opens_the_next() -> None:
    for fail in (
        lambda session: session.failed(),
        lambda session: session.answered(ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0),
        lambda session: session.answered(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 0),
    ):
        session = opened({A: at(0), B: at(0)})
        session.plan({A: at(1), B: at(0)}, by_id=False)
        fail(session)
        plan = session.plan({A: at(1), B: at(0)}, by_id=False)
        assert (plan.session_id, plan.session_epoch) == (77, 0)
        assert plan.send == {A: at(1), B: at(0)}
        session.answered(0, 78)
        assert session.plan({A: at(1), B: at(0)}, by_id=False).session_epoch == 1


def test_names_and_ids_do_not_mix() -> None:
    topic_id = uuid.uuid4()
    session = opened({A: at(0, topic_id)}, by_id=True)
    plan = session.plan({A: at(0, topic_id), TopicPartition("u", 0): at(0)}, by_id=False)
    assert plan.session_epoch == 0
    assert (plan.session_id, len(plan.send)) == (77, 2)


def test_a_topic_that_was_created_again_is_forgotten_under_its_old_id() -> None:
    old, new = uuid.uuid4(), uuid.uuid4()
    session = opened({A: at(9, old)}, by_id=True)
    plan = session.plan({A: at(0, new)}, by_id=True)
    assert plan.send == {A: at(0, new)}
    assert plan.forget == {A: old}


def test_epochs_wrap_to_one() -> None:
    session = opened({A: at(0)})
    session._epoch = 2**31 - 1
    assert session.plan({A: at(0)}, by_id=False).session_epoch == 2**31 - 1
    session.answered(0, 77)
    assert session.plan({A: at(0)}, by_id=False).session_epoch == 1
