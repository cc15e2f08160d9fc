"""Sentences about entries: nothing is said where there is nothing to say."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.journal.explain import describe
from muster.coordinator.journal.names import Names
from tests.journal.explain.writing import T0, WEB_1, WEB_2, Life, member


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"after_ms": 0}, "all members have their assignment"),
        ({}, "all members have their assignment"),
        ({"after_ms": 130}, "all members have their assignment, 0.1 s after the leader sent it"),
        ({"after_ms": 7}, "all members have their assignment, 7 ms after the leader sent it"),
    ],
)
def test_how_long_a_sync_took_is_said_when_it_took_time(data: dict[str, int], said: str) -> None:
    (entry,) = Life().add("all_synced", WEB_1, **data).entries
    assert describe(entry) == said


def test_an_instance_id_is_said_where_there_is_one() -> None:
    static = member("web-1", "10.0.0.6", instance="till-7")
    names = Names([WEB_2, static])
    assert names.long(WEB_2) == "web-2 (host 10.0.0.7)"
    assert names.long(static) == "till-7 (host 10.0.0.6, instance till-7)"


def test_what_a_member_was_called_before_comes_last() -> None:
    life = Life().add("member_id_issued", WEB_2, expires_ms=T0 + 5_000, former_member_id=WEB_1.id)
    (entry,) = life.entries
    assert (
        describe(entry, Names([WEB_1, WEB_2]))
        == "web-2 at 10.0.0.7 got a member id, which expires in 5.0 s; formerly web-1"
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"protocols_before": ["range"], "owned_changed": True}, "the partitions it owns"),
        ({"protocols_before": ["range"], "user_data_changed": True}, "its assignor's data"),
        ({"protocols_before": []}, "how is not known; its assignors are range"),
    ],
)
def test_what_a_member_gave_up_or_got_is_not_told_apart(data: dict[str, Any], said: str) -> None:
    (entry,) = Life().add("metadata_changed", WEB_1, protocols_after=["range"], **data).entries
    assert describe(entry) == f"metadata of web-1 at 10.0.0.6 changed: {said}"
