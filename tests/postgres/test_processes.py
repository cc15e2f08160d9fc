"""Brokers as separate processes over one database, as a user starts, watches and loses them."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from muster.coordinator.storage.postgres.schema import SCHEMA_VERSION
from muster.coordinator.testing import Cluster
from tests.cli.running import Ended, run, started
from tests.support import leases
from tests.support.postgres import PASSWORD, Postgres
from tests.support.served import Served

TERM_MS: Final = 6_000
"""Twice the default: a machine that stalls for a second or two costs no broker its leases."""
DEADLINE_S: Final = 120.0
NOBODY: Final = "127.0.0.1:9"
ALL: Final = 150
"""Number of shards: groups, transactions and data."""


def serve(folder: Path, store: str, node_id: int, *options: str) -> Served:
    """A broker, not started yet."""
    return Served(
        None,
        *("--store", store, "--node-id", str(node_id), "--lease-term-ms", str(TERM_MS), *options),
        log=folder / f"log-{node_id}",
    )


@contextmanager
def three(folder: Path, store: str) -> Iterator[list[Served]]:
    with ExitStack() as running:
        yield [running.enter_context(serve(folder, store, node_id)) for node_id in (1, 2, 3)]


def until(fact: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < deadline, f"timed out after {DEADLINE_S} s waiting for {what}"


def shards(broker: Served) -> dict[int, int]:
    """Number of loaded shards of each broker, as this broker reports it."""
    told = run(broker.bootstrap, "cluster", "describe", "--output", "json").json["brokers"]
    kinds = ("group_shards", "transaction_shards", "data_shards")
    return {each["node_id"]: sum(each[kind] for kind in kinds) - each["loading"] for each in told}


def group(broker: Served, group_id: str) -> dict[str, object]:
    (facts,) = run(broker.bootstrap, "groups", "describe", group_id, "--output", "json").json
    return dict(facts)


def test_a_database_is_made_ready_once(postgres: Postgres) -> None:
    store = postgres.empty_database()
    name = store.rpartition("/")[2]
    where = f"127.0.0.1:{postgres.port}/{name}"
    ended = run(NOBODY, "store", "migrate", "--store", store)
    assert ended == (0, f"{where}: created the tables, version {SCHEMA_VERSION}\n", "")
    ended = run(NOBODY, "store", "migrate", "--store", store)
    assert ended == (0, f"{where}: the tables already have version {SCHEMA_VERSION}\n", "")


def test_two_make_it_ready_at_once(postgres: Postgres) -> None:
    store = postgres.empty_database()
    ended: list[Ended] = []
    both = [
        threading.Thread(target=lambda: ended.append(run(NOBODY, "store", "migrate", "--store", store)))
        for _ in range(2)
    ]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert [(each.code, each.err) for each in ended] == [(0, "")] * 2
    assert sorted(each.out.partition(": ")[2] for each in ended) in (
        [
            f"created the tables, version {SCHEMA_VERSION}\n",
            f"the tables already have version {SCHEMA_VERSION}\n",
        ],
        [f"created the tables, version {SCHEMA_VERSION}\n"] * 2,
    )


def refused(*arguments: str) -> str:
    """The one-line error of a command that failed; it contains no password."""
    ended = run(NOBODY, *arguments)
    assert (ended.code, ended.out) == (1, ""), ended
    assert ended.err.count("\n") == 1, ended
    for secret in (PASSWORD, "sesame", "geheim"):
        assert secret not in ended.err
    return ended.err


@pytest.mark.parametrize("command", [("store", "migrate"), ("serve", "--port", "0")])
def test_a_database_that_lets_nobody_in_is_one_line(postgres: Postgres, command: tuple[str, ...]) -> None:
    right = postgres.empty_database()
    where = f"127.0.0.1:{postgres.port}/"
    wrong = re.sub(r"//muster:[^@]*@", "//muster:geheim@", right)
    said = refused(*command, "--store", wrong)
    assert where in said
    assert "password authentication failed" in said
    said = refused(*command, "--store", right.rpartition("/")[0] + "/nosuch")
    assert where in said
    assert '"nosuch" does not exist' in said


def test_brokers_want_the_tables_of_their_own_version(postgres: Postgres, store: str) -> None:
    said = refused("serve", "--port", "0", "--store", postgres.empty_database())
    assert "muster store migrate" in said
    name = store.rpartition("/")[2]
    postgres.execute("UPDATE muster.schema_version SET version = version + 1", database=name)
    said = refused("serve", "--port", "0", "--store", store)
    assert "newer" in said
    said = refused("store", "migrate", "--store", store)
    assert "newer" in said


def test_a_killed_broker_s_groups_go_on_and_it_comes_back(tmp_path: Path, store: str) -> None:
    with three(tmp_path, store) as brokers:
        first = brokers[0]
        assert re.fullmatch(
            rf"muster ready on {first.bootstrap} \(postgresql, 127\.0\.0\.1:\d+/\w+, 50 shards, \d+ ms\)",
            first.ready_line,
        )
        for node_id, broker in enumerate(brokers, 1):
            assert run(broker.bootstrap, "cluster", "ready").out == f"broker {node_id} is ready\n"
        until(lambda: sum(shards(first).values()) == ALL and all(shards(first).values()), "a share for each")
        everyone = ",".join(broker.bootstrap for broker in brokers)
        assert run(everyone, "topics", "create", "t", "--partitions", "3").code == 0
        member = started(everyone, "consume", "t", "--group", "g", "--from-beginning", "--timeout", "60")
        try:
            assert member.stderr is not None
            assert member.stderr.readline() == b"muster consume: group g assigned t-0 t-1 t-2\n"
            before = group(first, "g")
            coordinator = before["coordinator"]["node_id"]  # type: ignore[index]
            others = [broker for node_id, broker in enumerate(brokers, 1) if node_id != coordinator]
            brokers[coordinator - 1].kill()
            assert run(everyone, "produce", "t", "--timeout", "60", stdin=b"after the kill\n").code == 0
            assert member.stdout is not None
            assert member.stdout.readline() == b"after the kill\n"
            until(lambda: shards(others[0]).keys() == {1, 2, 3} - {coordinator}, "a death noticed")
            until(lambda: sum(shards(others[0]).values()) == ALL, "everything taken over")
            after = group(others[0], "g")
            assert after["members"] == before["members"]
            assert after["coordinator"] != before["coordinator"]
            brokers[coordinator - 1].start()
            until(
                lambda: sum(shards(others[0]).values()) == ALL and all(shards(others[0]).values()),
                "its shards given back",
            )
            assert len(shards(others[0])) == 3
            back = group(others[1], "g")
            del back["offsets"], before["offsets"]  # has changed since
            assert back == before
        finally:
            member.send_signal(signal.SIGTERM)
            _, said = member.communicate(timeout=DEADLINE_S)
        assert said == b""  # Assigned once: nothing caused a rebalance.
        assert [broker.stop() for broker in brokers] == [0, 0, 0]


def test_a_node_id_in_use_is_refused(tmp_path: Path, store: str) -> None:
    with serve(tmp_path, store, 5) as running:
        (tmp_path / "late").mkdir()
        with pytest.raises(RuntimeError) as refused:
            serve(tmp_path / "late", store, 5).start()
        assert "muster serve ended with 1" in str(refused.value)
        assert f"node id 5 is in use by the broker at {running.bootstrap}" in str(refused.value)
        assert str(refused.value).endswith("; every broker needs a --node-id of its own\n")
        assert run(running.bootstrap, "cluster", "ready").code == 0


def test_a_broker_that_is_started_at_once_after_kill_9_waits_for_its_registration_to_run_out(
    tmp_path: Path, store: str
) -> None:
    with serve(tmp_path, store, 5) as broker:
        broker.kill()
        broker.start()
        assert run(broker.bootstrap, "cluster", "ready").out == "broker 5 is ready\n"


def test_a_broker_that_was_replaced_while_it_stood_still_ends_and_says_so(tmp_path: Path, store: str) -> None:
    with serve(tmp_path, store, 5) as stopped:
        os.kill(stopped.process.pid, signal.SIGSTOP)
        (tmp_path / "next").mkdir()
        with serve(tmp_path / "next", store, 5) as successor:
            os.kill(stopped.process.pid, signal.SIGCONT)
            assert stopped.process.wait(DEADLINE_S) == 1
            *_, last = (tmp_path / "log-5").read_text().splitlines()
            assert last.startswith(
                f"muster serve: node id 5 is in use by the broker at {successor.bootstrap}"
            )
            until(lambda: shards(successor) == {5: ALL}, "everything taken over")


def test_the_database_away_and_back(tmp_path: Path, postgres: Postgres, store: str) -> None:
    with serve(tmp_path, store, 1) as broker:
        assert run(broker.bootstrap, "produce", "t", stdin=b"before\n").code == 0
        postgres.stop()
        try:
            ended = run(broker.bootstrap, "cluster", "ready", "--timeout", "20")
            assert (ended.code, ended.out) == (1, "")
            assert ended.err.count("\n") == 1
            assert refused("serve", "--port", "0", "--node-id", "2", "--store", store)
        finally:
            postgres.start()
        until(lambda: run(broker.bootstrap, "cluster", "ready").code == 0, "readiness")
        assert run(broker.bootstrap, "produce", "t", "--timeout", "60", stdin=b"after\n").code == 0
        ended = run(broker.bootstrap, "consume", "t", "--from-beginning", "--until-end", "--timeout", "60")
        assert (ended.code, ended.out) == (0, "before\nafter\n")
        assert broker.stop() == 0


@pytest.mark.parametrize("why", ["too few connections", "a right revoked"])
def test_shards_of_a_broker_that_cannot_claim_are_taken_over_until_it_can(
    tmp_path: Path, postgres: Postgres, store: str, why: str
) -> None:
    name = store.rpartition("/")[2]

    def execute(statement: str) -> None:
        postgres.execute(statement, database=name)

    role = f"second_{name}"
    execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    execute(f"GRANT USAGE ON SCHEMA muster TO {role}")
    execute(f"GRANT ALL ON ALL TABLES IN SCHEMA muster TO {role}")
    execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA muster TO {role}")
    log = tmp_path / "log-2"
    with (
        serve(tmp_path, store, 1) as first,
        serve(tmp_path, store.replace("//muster:", f"//{role}:"), 2) as second,
    ):
        both = [first, second]

        def shared() -> bool:
            told = shards(first)
            return sum(told.values()) == ALL and len(told) == 2 and all(told.values())

        until(shared, "a share for each")
        assert run(first.bootstrap, "topics", "create", "t", "--partitions", "6").code == 0
        if why == "too few connections":
            # Too few to register, read and claim: which of them fails is a race.
            execute(f"ALTER ROLE {role} CONNECTION LIMIT 2")
        else:
            execute(f"REVOKE UPDATE ON muster.leases FROM {role}")
        postgres.stop()
        try:
            until(lambda: "leases not renewed in time" in log.read_text(), "the end of all leases")
        finally:
            postgres.start()
        until(lambda: shards(first).get(1) == ALL, "the share of the one that cannot claim taken over")
        until(lambda: run(second.bootstrap, "cluster", "ready").code == 1, "the end of readiness")
        assert run(first.bootstrap, "cluster", "ready").code == 0
        assert run(first.bootstrap, "produce", "t", "--timeout", "60", stdin=b"1\n2\n3\n").code == 0
        if why == "too few connections":
            execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")
        else:
            aside = "leaves them to the other brokers"
            until(lambda: aside in run(second.bootstrap, "cluster", "ready").err, "its reason")
            assert shards(first).keys() == {1, 2}
            execute(f"GRANT UPDATE ON muster.leases TO {role}")
        until(shared, "its share given back")
        until(lambda: run(second.bootstrap, "cluster", "ready").code == 0, "readiness")
        ended = run(first.bootstrap, "consume", "t", "--from-beginning", "--until-end", "--timeout", "60")
        assert (ended.code, sorted(ended.out.split())) == (0, ["1", "2", "3"])
        assert [broker.stop() for broker in both] == [0, 0]


def test_brokers_that_are_advertised_at_one_address_are_warned_of(tmp_path: Path, store: str) -> None:
    address = ("--advertised", "kafka.example:9092")
    with serve(tmp_path, store, 1, *address) as first, serve(tmp_path, store, 2, *address) as second:
        assert (first.stop(), second.stop()) == (0, 0)
    said = "two brokers advertise the same address"
    assert said not in (tmp_path / "log-1").read_text()
    (warning,) = [line for line in (tmp_path / "log-2").read_text().splitlines() if said in line]
    facts = json.loads(warning)
    assert (facts["level"], facts["address"], facts["other"]) == ("warning", "kafka.example:9092", 1)


def test_several_brokers_in_one_process(tmp_path: Path, store: str) -> None:
    with serve(tmp_path, store, 1, "--brokers", "2") as broker, serve(tmp_path, store, 3) as other:
        until(lambda: sum(shards(other).values()) == ALL and len(shards(other)) == 3, "three brokers")
        assert run(other.bootstrap, "cluster", "drain", "2", "--timeout", "60").code == 0
        assert shards(broker)[2] == 0
        assert broker.stop() == 0
        until(lambda: shards(other) == {3: ALL}, "everything handed over")


def test_a_cluster_for_tests_may_use_a_database_too(store: str) -> None:
    with Cluster(2, store=store, lease_term_ms=leases.TERM_MS, shutdown_grace_ms=25_000) as cluster:
        cluster.create_topic("t", 2)
        assert run(cluster.bootstrap, "produce", "t", stdin=b"x\n").code == 0
        cluster.stop(0)
        cluster.restart(0)
    with Cluster(1, store=store, lease_term_ms=leases.TERM_MS) as cluster:
        ended = run(cluster.bootstrap, "consume", "t", "--from-beginning", "--until-end")
        assert (ended.code, ended.out) == (0, "x\n")


def test_what_is_logged_has_no_password(tmp_path: Path, postgres: Postgres, store: str) -> None:
    with serve(tmp_path, store, 1, "--log-level", "debug") as broker:
        run(broker.bootstrap, "produce", "t", stdin=b"x\n")
        postgres.restart()
        until(lambda: run(broker.bootstrap, "cluster", "ready").code == 0, "readiness")
        assert broker.stop() == 0
    logged = (tmp_path / "log-1").read_text()
    assert all(json.loads(line) for line in logged.splitlines())
    assert "sesame" not in logged


def test_the_password_may_come_from_elsewhere(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = re.sub(r"//muster:[^@]*@", "//muster@", store)
    assert "password" in refused("store", "migrate", "--store", without)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert run(NOBODY, "store", "migrate", "--store", without).code == 0
    with serve(tmp_path, without, 1) as broker:
        assert run(broker.bootstrap, "produce", "t", stdin=b"x\n").code == 0
        assert broker.stop() == 0
