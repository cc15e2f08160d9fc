"""Members have the same name in every view of a group."""

from __future__ import annotations

from muster.coordinator.journal.entries import Member
from muster.coordinator.journal.explain import Tracks, about, explain
from muster.coordinator.journal.explain.facts import present
from muster.coordinator.journal.explain.names import names_in
from muster.coordinator.journal.names import Names
from tests.journal.explain.writing import WEB_1, Life, member

UUID = "2f4c1f9a-6f39-4b7e-9b0e-1c2d3e005299"
OF_RDKAFKA = Member(f"rdkafka-{UUID}", "rdkafka", "10.0.0.7")
OTHER = Member("rdkafka-6f39aaaa-6f39-4b7e-9b0e-1c2d3e77ab01", "rdkafka", "10.0.0.8")


def test_one_that_is_alone_with_its_client_id_goes_by_that() -> None:
    assert Names([OF_RDKAFKA, WEB_1]).short(OF_RDKAFKA) == "rdkafka"


def test_several_of_one_client_id_have_the_end_of_their_member_ids() -> None:
    names = Names([OF_RDKAFKA, OTHER])
    assert names.by_id([OF_RDKAFKA.id, OTHER.id]) == {
        OF_RDKAFKA.id: "rdkafka/005299",
        OTHER.id: "rdkafka/77ab01",
    }


def test_a_client_id_alone_means_the_member_that_has_it_now() -> None:
    names = Names([OF_RDKAFKA, OTHER], present={OTHER.id})
    assert (names.short(OF_RDKAFKA), names.short(OTHER)) == ("rdkafka/005299", "rdkafka")
    assert Names([OF_RDKAFKA], present=()).short(OF_RDKAFKA) == "rdkafka"


def test_a_static_member_goes_by_its_instance_under_whatever_member_id() -> None:
    before = Member(f"web-a-{UUID}", "app", "10.0.0.7", "web-a")
    after = before._replace(id=OTHER.id, host="10.0.0.8")
    names = Names([before, after, Member("app-1", "app", "10.0.0.9")], present={after.id, "app-1"})
    assert [names.short(each) for each in (before.id, after.id, "app-1")] == ["web-a", "web-a", "app"]
    twin = Member("web-a-1", "web-a", "10.0.0.9")
    assert Names([before, twin]).short(twin) == "web-a/eb-a-1", "the instance has that name"


def test_without_a_client_id() -> None:
    assert Names([]).short(Member(f"-{UUID}", "", "10.0.0.7")) == "member/005299"
    assert Names([]).short(Member("m1", "", "10.0.0.7")) == "m1"
    assert Names([]).short(None) == Names([]).short("") == "nobody"


def test_an_id_of_which_nothing_else_is_known_begins_with_its_client_id() -> None:
    assert Names([WEB_1]).short(OF_RDKAFKA.id) == "rdkafka"
    assert Names([OTHER]).short(OF_RDKAFKA.id) == "rdkafka/005299"
    names = Names([OTHER], present={OTHER.id, OF_RDKAFKA.id})
    assert (names.short(OTHER), names.short(OF_RDKAFKA.id)) == ("rdkafka/77ab01", "rdkafka/005299")


def test_who_may_be_meant_by_a_name() -> None:
    static = Member(f"web-a-{UUID}", "app", "10.0.0.7", "web-a")
    names = Names([OF_RDKAFKA, OTHER, static])
    for name in (static.id, "web-a", "app"):
        assert names.meant(name) == [static]
    assert names.meant("rdkafka/005299") == [OF_RDKAFKA]
    assert names.meant("rdkafka") == [OF_RDKAFKA, OTHER]
    assert names.meant("nobody") == []
    alone = Names([OF_RDKAFKA, OTHER], present={OTHER.id})
    assert alone.meant("rdkafka") == alone.meant("rdkafka/77ab01") == [OTHER]


def test_a_journal_tells_who_is_there() -> None:
    one, other = member("app", tail="111111"), member("app", tail="222222")
    life = Life().at(0).add("member_added", one).add("member_added", other)
    assert names_in(life.entries).short(one) == "app/111111"
    life.add("member_removed", one, trigger="member left")
    names = names_in(life.entries)
    assert (names.short(one), names.short(other)) == ("app/111111", "app")


def test_a_static_member_keeps_its_name_where_an_entry_does_not_say_its_instance() -> None:
    static = member("app", instance="pod-a")
    life = Life().at(0).add("member_added", static).add("commit_refused", static._replace(instance=None))
    assert names_in(life.entries).short(static.id) == "pod-a"
    life.add("assigned", owned={static.id: 1})
    assert [each.name for each in Tracks(life.entries).members] == ["pod-a"]


def test_who_is_there_may_be_known_better_than_from_the_entries() -> None:
    """Entries of the last hour do not mention a member that has been there for days."""
    one, other = member("app", tail="111111"), member("app", tail="222222")
    life = Life().at(0).add("heartbeat_late", one, late_ms=16_000)
    assert "app at" in about(life.entries)[0][1]
    names = names_in(life.entries, [one, other])
    assert names.short(one) == "app/111111"
    life.at(1_000).add("member_added", WEB_1, trigger="member joined").rebalanced(WEB_1, "member joined")
    life.add("heartbeat_late", one, late_ms=16_000)
    found = explain(life.entries, names=names_in(life.entries, [one, other, WEB_1]))
    assert found is not None
    assert "heartbeats of app/111111 were late" in " ".join(found.since)
    assert present(life.entries, [other.id]) == {one.id, other.id, WEB_1.id}
