"""`rebalances` as a stream: however the journal is split into batches, and however often the job ends, the
tables are those of the whole journal at once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from muster.coordinator.journal.entries import Entry as JournalEntry
from muster.coordinator.journal.explain import explain_all
from muster.coordinator.journal.explain.facts import flag, lag
from muster.coordinator.journal.explain.findings import LOOK_AHEAD_MS
from muster.pipeline.errors import PipelineError
from muster.pipeline.journal import tables
from muster.pipeline.journal.entries import Told, read, told_to
from muster.pipeline.journal.folders import Span, spans, to_merge
from muster.pipeline.journal.pieces import Group, Piece, Shard, is_opener
from tests.journal.explain.writing import WEB_2, Life
from tests.pipeline.generator import PATIENT_MS, SEED, driven, finished, generate
from tests.pipeline.jobs import Job
from tests.pipeline.replays import Replay, Row, batches, stretched
from tests.pipeline.test_journal import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES: Final = (*tables.SILVER, *tables.GOLD)
DAY_MS: Final = 24 * 3_600_000


@pytest.fixture(scope="module")
def journal() -> list[Row]:
    return asyncio.run(generate(groups=3, steps=12, seed=SEED)).rows()


# --- pieces ---------------------------------------------------------------------------------------------


def said(entries: Sequence[JournalEntry]) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = {}
    for each in explain_all(entries):
        facts = explained(each)
        if facts["outcome"] == "under way" or facts["diagnosis"] == "poll-deadline-missed":
            # Its certainty, and what hangs, depend on the end of the journal, of all groups.
            for name in ("diagnosis", "certainty", "member_id"):
                del facts[name]
        found[each.group, each.started_ms, each.cause] = facts
    return found


def exploded(piece: Piece) -> list[JournalEntry]:
    """An entry that stands for several appears that many times."""
    return [each.entry for each in piece.entries for _ in range(each.times)]


def live_starts(piece: Piece) -> set[int]:
    return {e.entry.at_ms for e in piece.entries if is_opener(e) and e.offset >= piece.live_offset}


@pytest.mark.parametrize("size", [1, 7, 500, sys.maxsize])
@pytest.mark.parametrize(("times", "apart_ms"), [(1, 0), (20, 0), (60, 3 * DAY_MS)])
def test_the_last_piece_with_a_rebalance_says_of_it_what_the_journal_says(
    journal: list[Row], times: int, apart_ms: int, size: int
) -> None:
    """Compared in the words of `explain`. In a stretched journal, everything earlier goes out of sight
    between two rebalances; with the groups apart, entries have no common order of time."""
    rows = stretched(journal, times, apart_ms)
    replay, found = Replay(), {}
    for batch in batches(rows, size):
        for _, piece in replay.take(batch):
            starts = live_starts(piece)
            for key, facts in said(exploded(piece)).items():
                if key[1] in starts:
                    found[key] = facts
    assert found == said([JournalEntry.from_json(value) for _, value, _, _ in rows])


def test_commits_refused_long_after_a_rebalance_are_all_counted() -> None:
    """One entry that stands for all of them is remembered."""
    life = Life().at(0).add("member_added", WEB_2, trigger="member joined")
    life.rebalanced(WEB_2, "member joined")
    for number in range(1, 6):
        life.at(number * LOOK_AHEAD_MS).add(
            "commit_refused", WEB_2, committed_generation_id=life.generation - 1
        )
    rows: list[Row] = [(b"billing", each.to_json(), 3, offset) for offset, each in enumerate(life.entries)]
    replay, counted = Replay(), []
    for batch in batches(rows, 1):
        for _, piece in replay.take(batch):
            counted += [facts["commits_refused"] for facts in said(exploded(piece)).values()]
    kept = Group.from_json(replay.groups[3, "billing"], "billing").entries
    assert [each.times for each in kept if each.entry.type == "commit_refused"] == [4, 1]
    assert counted[-1] == 5


@pytest.mark.parametrize("sampled_ms", [None, LOOK_AHEAD_MS + 60_000])
def test_a_move_long_after_a_member_left_is_remembered_with_what_came_before_it(
    sampled_ms: int | None,
) -> None:
    """How long the connection of one that left is known to have been open depends on them."""
    facts = {"silent_ms": 1_200, "connected": True, "heartbeat_interval_ms": 3_000}
    life = Life().at(0).add("member_removed", WEB_2, trigger="member left", **facts)
    life.rebalanced(WEB_2, "member left")
    if sampled_ms is not None:
        life.at(sampled_ms - 60_000).add("lag_at_commit", total=0)
        life.at(sampled_ms).add("lag_at_commit", total=0)
    life.at(2 * LOOK_AHEAD_MS).shard_event("shard_loaded", from_broker=1)
    for number in range(4, 9):
        life.at(number * LOOK_AHEAD_MS).add("heartbeat_late", WEB_2)
    rows: list[Row] = [
        (each.group and each.group.encode(), each.to_json(), 3, offset)
        for offset, each in enumerate(life.entries)
    ]
    replay, found = Replay(), []
    for batch in batches(rows, 1):
        for _, piece in replay.take(batch):
            found = [(each.diagnosis, each.evidence) for each in explain_all(exploded(piece))]
    assert found == [(each.diagnosis, each.evidence) for each in explain_all(life.entries)]
    assert found[0][0] == ("clean-shutdown" if sampled_ms is None else "poll-deadline-missed")


def told(offset: int, at_ms: int, type: str, **more: Any) -> Row:
    value = {"group": "billing", "at_ms": at_ms, "type": type, **more}
    return b"billing", json.dumps(value).encode(), 3, offset


def a_rebalance(first: int, at_ms: int) -> list[Row]:
    return [
        told(first, at_ms, "state_changed", from_state="Stable", to_state="PreparingRebalance"),
        told(
            first + 1,
            at_ms + 5,
            "state_changed",
            from_state="PreparingRebalance",
            to_state="CompletingRebalance",
        ),
        told(first + 2, at_ms + 9, "state_changed", from_state="CompletingRebalance", to_state="Stable"),
        told(first + 3, at_ms + 9, "rebalance_completed", members=2, lag=10),
    ]


def test_what_is_kept_of_a_group_does_not_grow() -> None:
    """Months after its last rebalance, with a lag sample every five minutes, late heartbeats, refused commits
    and a broker that comes and goes; and after hundreds of rebalances."""
    replay = Replay()
    rows = a_rebalance(0, 1)
    for number in range(30_000):
        at_ms = 300_000 * (number + 1)
        what: tuple[str, dict[str, Any]] = (
            ("lag_at_commit", {"total": number * 7919 % 1000}),
            ("lag_at_commit", {"total": 10}),
            ("heartbeat_late", {}),
            ("commit_refused", {"committed_generation_id": 3}),
            ("shard_loaded", {"group": None}),
        )[number % 5]
        rows.append(told(4 + number, at_ms, what[0], **what[1]))
    for batch in batches(rows, 1_000):
        for _ in replay.take(batch):
            pass
    assert replay.largest < 1_500  # up to a batch more before it is cut
    kept = Group.from_json(replay.groups[3, "billing"], "billing")
    assert len(kept.entries) < 60
    refused = [each for each in kept.entries if each.entry.type == "commit_refused"]
    assert sum(each.times for each in refused) == 6_000
    for number in range(300):
        for batch in batches(a_rebalance(40_000 + 4 * number, 10**10 + number * LOOK_AHEAD_MS), 4):
            for _ in replay.take(batch):
                pass
    assert len(Group.from_json(replay.groups[3, "billing"], "billing").entries) < 60
    assert all(len(text) < 100_000 for text in replay.shards.values())


def back(entries: Sequence[Told], before: int | None, silent: bool) -> tuple[int, int | None]:
    """Highest lag, and the offset at which it was back at `before`, as `explain.cost` computes them."""
    peak = -1
    for each in entries:
        behind = lag(each.entry)
        if behind is None:
            continue
        peak = max(peak, behind)
        is_near = before is not None and behind - before <= max(peak - before, 0) // 10
        is_back = is_near or (flag(each.entry, "recovered") and not silent)
        if each.entry.type == "lag_at_commit" and is_back:
            return peak, each.offset
    return peak, None


def test_what_was_long_ago_is_kept_where_nothing_newer_says_it() -> None:
    """Leader, assignor, assignment and number of members, with the state changes of their rebalance."""
    rows = a_rebalance(0, 1)
    rows[2:2] = [
        told(2, 6, "protocol_chosen", protocol="range"),
        told(3, 6, "leader_changed", member=WEB_2.to_json()),
        told(4, 7, "assigned", partitions=4),
    ]
    rows = [(key, value, shard, offset) for offset, (key, value, shard, _) in enumerate(rows)]
    for number in range(1, 4):
        rows += a_rebalance(20 * number, number * DAY_MS)[:-1]
    replay = Replay()
    for batch in batches(rows, 3):
        for _ in replay.take(batch):
            pass
    kept = Group.from_json(replay.groups[3, "billing"], "billing")
    assert kept.live_offset == 60
    # Nothing is left of the second rebalance, and of the third only what separates it from the last.
    assert [each.offset for each in kept.entries] == [0, 1, 2, 3, 4, 5, 6, 40, 41, 42, 60, 61, 62]


def test_lags_that_are_not_kept_say_nothing() -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        replay, rows = Replay(), a_rebalance(0, 1)
        height = chance.choice((5, 50, 500))
        for number in range(chance.randint(1, 80)):
            sample = {"total": chance.randint(0, height), "recovered": chance.random() < 0.05}
            rows.append(told(4 + number, LOOK_AHEAD_MS + 300_000 * number, "lag_at_commit", **sample))
        # All of this is long ago.
        rows.append(told(99, DAY_MS, "heartbeat_late"))
        for batch in batches(rows, chance.randint(1, 20)):
            for _ in replay.take(batch):
                pass
        kept = Group.from_json(replay.groups[3, "billing"], "billing").entries
        whole = [each for piece in Replay().take(rows) for each in piece[1].entries]
        for before in (None, 0, 1, 3, height // 2, height):
            for silent in (False, True):
                assert back(kept, before, silent) == back(whole, before, silent), (seed, before, silent)


def test_a_journal_that_begins_anew_is_refused() -> None:
    replay = Replay()
    list(replay.take(a_rebalance(10, 1)))
    with pytest.raises(PipelineError, match="offset 3 of one of its partitions comes after 13"):
        list(replay.take(a_rebalance(3, 1)))


def test_what_happens_to_a_shard_reaches_groups_that_rebalance_at_once() -> None:
    replay = Replay()
    list(replay.take(a_rebalance(0, 1)[:2]))
    loaded = told(5, 100, "shard_loaded", group=None)
    ((_, piece),) = replay.take([loaded])
    last = piece.entries[-1].entry
    assert (last.group, last.at_ms, last.type) == ("billing", 100, "shard_loaded")
    assert not list(replay.take([told(6, 101, "shard_unloaded", group=None)])), (
        "nothing is under way any more"
    )
    ((_, piece),) = replay.take([told(7, 102, "heartbeat_late")])
    assert [each.offset for each in piece.entries] == [0, 1, 5, 6, 7]


def test_what_is_remembered_is_read_back() -> None:
    """Also from the first checkpoints' format, with the facts of the value beside it."""
    value = '{"type": "shard_loaded", "at_ms": 2, "group": "\\ud800é"}'
    one = read(1, value)
    assert one is not None
    assert one.entry.group == "?é", "text that the state can hold"
    assert Shard.from_json(Shard([one], ["g"], 1).to_json()) == Shard([one], ["g"], 1)
    known = Group((told_to("g", one),), 1, 2, 3)
    assert Group.from_json(known.to_json(), "g") == known
    before = [1, 2, "shard_loaded", "", "", "", False, False, -1, False, -2, 1, value]
    assert Group.from_json(json.dumps([[before], 1, 2, 3]), "g") == known


def test_records_go_through_as_they_came_and_rows_beside_them() -> None:
    """Through Spark's own test harness for stateful functions. Values that are no entries still go to
    bronze."""
    import pandas as pd
    from pyspark.sql.streaming.tws_tester import TwsTester

    from muster.pipeline.journal.streaming import Cutter

    tester = TwsTester(Cutter())
    found = []
    for batch in batches(a_rebalance(0, 1), 2):
        came = [{"shard": 3, "offset": offset, "key": key, "value": value} for key, value, _, offset in batch]
        came += [{**came[0], "offset": offset, "value": value} for offset, value in ((90, b"?"), (91, None))]
        found.append(tester.testInPandas(3, pd.DataFrame(came)))
    assert [list(each[each.rebalance.isna()].offset) for each in found] == [[0, 1, 90, 91], [2, 3, 90, 91]]
    begun, over = (json.loads(each.rebalance.dropna().item()) for each in found)
    assert (begun["rebalance_id"], begun["outcome"], begun["end_offset"]) == ("3-0", "under way", 1)
    assert (over["rebalance_id"], over["outcome"], over["members"], over["lag"]) == (
        "3-0",
        "completed",
        2,
        10,
    )


# --- folders --------------------------------------------------------------------------------------------


def test_folders_stay_few_and_no_batch_is_in_two() -> None:
    there: list[Span] = []
    moved = 0
    for batch in range(1_000):
        there.append(Span(batch, batch))
        merged = to_merge(there)
        if merged:
            moved += sum(each.size for each in merged)
            there = [*there[: -len(merged)], Span(merged[0].first, merged[-1].last)]
        assert sum(each.size for each in there) == batch + 1
        assert len(there) <= 11
    assert moved <= 11 * 1_000


def test_merged_folders_take_the_place_of_those_that_are_not_removed_yet() -> None:
    names = ["_unfinished", "batches=0-1", "batches=0-0", "batches=1-1", "batches=2-2", "part-0.parquet"]
    assert spans(names) == ([Span(0, 1), Span(2, 2)], [Span(0, 0), Span(1, 1)])


# --- on Spark -------------------------------------------------------------------------------------------


def written(spark: SparkSession, rows: Sequence[Row], folder: Path, number: int) -> None:
    """Write a file of the journal; the stream takes one per batch, by age."""
    aside = folder.with_name("aside")
    spark.createDataFrame(rows, tables.BRONZE.ddl).coalesce(1).write.parquet(str(aside))
    (part,) = aside.glob("part-*.parquet")
    folder.mkdir(exist_ok=True)
    os.utime(part, (1_000_000 + number, 1_000_000 + number))
    part.rename(folder / f"{number}.parquet")
    shutil.rmtree(aside)


def run(spark: SparkSession, source: Path, to: Path) -> None:
    from muster.pipeline.journal.streaming import stream

    events = spark.readStream.schema(tables.BRONZE.ddl).option("maxFilesPerTrigger", 1).parquet(str(source))
    query = stream(events, str(to)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(180), "the stream did not end"
    finally:
        query.stop()


def unnoted(to: Path, batch: int) -> None:
    """As if the job had been killed before Spark noted the batch."""
    commits = to / "_checkpoints/journal/commits"
    for name in (str(batch), f".{batch}.crc"):
        (commits / name).unlink()


def same(ours: dict[str, DataFrame], theirs: dict[str, DataFrame]) -> None:
    for table in TABLES:
        one, other = (
            sorted(repr(row) for row in each[table.name].select(*table.names).collect())
            for each in (ours, theirs)
        )
        assert one == other, table.name


def test_the_stream_makes_the_tables_of_the_whole_journal(
    spark: SparkSession, journal: list[Row], tmp_path: Path
) -> None:
    """With a journal stretched to twenty times its length, and its groups days apart. Of three batches, the
    second was killed between its records and its rows, and the third before Spark noted it. The lake's name
    looks like a pattern of names, which Spark takes for reading."""
    from muster.pipeline.files import literal
    from muster.pipeline.journal.build import build
    from muster.pipeline.journal.streaming import publish

    journal = stretched(journal, 20, 3 * DAY_MS)
    source, lake = tmp_path / "source", tmp_path / "lake [1]"
    for number, part in enumerate((journal[:7], journal[7:250])):
        written(spark, part, source, number)
    run(spark, source, lake)
    unnoted(lake, 1)
    shutil.rmtree(lake / "silver/_rebalances/batches=1-1")
    written(spark, journal[250:], source, 2)
    run(spark, source, lake)
    unnoted(lake, 2)
    run(spark, source, lake)

    events = literal(str(lake / "bronze/events"))
    bronze = spark.read.parquet(events).select(*tables.BRONZE.names)
    assert sorted((row.partition, row.offset, bytes(row.value)) for row in bronze.collect()) == sorted(
        (partition, offset, value) for _, value, partition, offset in journal
    )
    whole = build(spark.createDataFrame(journal, tables.BRONZE.ddl), str(tmp_path / "whole"))
    same(publish(spark, str(lake)), whole)
    assert len(list((lake / "bronze/events").glob("batches=*"))) < 3, "folders are merged"
    assert spark.read.parquet(events).count() == len(journal)


def test_records_without_the_checkpoint_they_were_written_with(spark: SparkSession, tmp_path: Path) -> None:
    from muster.pipeline.journal.job import refuse_halves

    refuse_halves(spark, str(tmp_path))
    (tmp_path / "bronze/events/batches=0-0").mkdir(parents=True)
    with pytest.raises(PipelineError, match=r"but not its checkpoint .* give --to another folder"):
        refuse_halves(spark, str(tmp_path))
    commits = tmp_path / "_checkpoints/journal/commits"
    commits.mkdir(parents=True)
    (commits / "0").touch()
    (commits.parent / "metadata").touch()
    refuse_halves(spark, str(tmp_path))
    (tmp_path / "bronze/events/batches=0-0").rmdir()
    with pytest.raises(PipelineError, match="but not the records it is about"):
        refuse_halves(spark, str(tmp_path))


async def test_a_job_that_is_killed_and_one_that_is_ended(spark: SparkSession, tmp_path: Path) -> None:
    """One is killed in the middle of a batch, one ends in order; a third processes everything that came
    meanwhile."""
    from muster.pipeline.journal.build import build
    from muster.pipeline.journal.job import Job as Once
    from muster.pipeline.journal.job import keep_up

    seed = random.randrange(2**31)
    print(f"seed {seed}")
    lake = tmp_path / "lake"
    # Their members are silent while Spark starts, however long that takes.
    async with driven(3, seed, session_ms=PATIENT_MS) as (cluster, groups, _):
        for group in groups:
            await group.start(3)
        with Job(cluster, lake, "--every=1s", "--batch-records=40", command=("rebalances",)) as job:
            job.told(r"^batch 0: ")
            job.kill()
        for group in groups:
            await group.start(1)
        with Job(cluster, lake, "--every=1s", command=("rebalances",)) as job:
            until_s = time.monotonic() + 600
            while not (lake / "gold/failover_impact/_SUCCESS").exists():
                assert time.monotonic() < until_s, f"no tables were made: {job.err}"
                assert job.runs, f"it ended: {job.ended()} {job.err}"
                await asyncio.sleep(0.05)
            job.signal(signal.SIGTERM)
            code, _ = await asyncio.to_thread(job.ended)
            assert code == 128 + signal.SIGTERM, job.err
        for group in groups:
            await group.close(group.members[-1])
        records = await finished(cluster, groups)
        # In the main thread, for its signals; the brokers have their own.
        found = keep_up(spark, Once(cluster.bootstrap, str(lake), batch_records=50))
    assert found is not None
    bronze = spark.read.parquet(str(lake / "bronze/events")).select(*tables.BRONZE.names)
    offsets = [(row.partition, row.offset) for row in bronze.collect()]
    assert len(offsets) == len(set(offsets))
    assert set(offsets) >= {(each.partition, each.offset) for each in records}
    assert found["rebalances"].count() >= 15
    same(found, build(bronze, str(tmp_path / "whole")))
