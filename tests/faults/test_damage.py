"""Files damaged while the broker is down: no acknowledged data is lost silently, and nothing that is still
there is withheld."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.offsets import OffsetFetchRequest
from tests.faults.batches import Violation, read
from tests.faults.clients import end_offset, fetch, read_log
from tests.faults.lived import Lived
from tests.faults.load import SMALL_TOPIC, Pipe

CUT = "log truncated after its last complete batch"
DAMAGED = "log damaged: records from end_offset on were set aside"


@pytest.fixture
def lived(grown: Lived, tmp_path: Path) -> Iterator[Lived]:
    """A directory of a killed broker."""
    lived = grown.copied(tmp_path / "data", tmp_path / "log")
    try:
        yield lived
    finally:
        lived.end()


def harm(path: Path, position: int, contents: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(contents)


def batch_positions(path: Path) -> list[int]:
    positions, at, data = [], 0, path.read_bytes()
    while at < len(data):
        positions.append(at)
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return positions


@pytest.mark.parametrize(
    "tail",
    [
        lambda data: bytes(16_384),
        lambda data: b"garbage \x02" * 999,
        lambda data: data[: len(data) // 2 + 7][-300:],
        lambda data: data[:100],
    ],
    ids=["zeroed pages", "garbage", "part of a batch", "the beginning of an old batch"],
)
async def test_a_torn_tail_is_cut_and_said(lived: Lived, tail: Callable[[bytes], bytes]) -> None:
    folder = lived.folder(SMALL_TOPIC, 0)
    last = lived.segments(SMALL_TOPIC, 0)[-1]
    size = last.stat().st_size
    with last.open("ab") as file:
        file.write(tail(lived.segments(SMALL_TOPIC, 0)[0].read_bytes()))
    lived.served.start()
    await lived.settle()
    (said,) = await lived.logged(CUT)
    assert said["folder"] == str(folder)
    assert said["at"] == f"{last.name}, byte {size}"
    assert not lived.lines(DAMAGED)
    await lived.load()
    lived.served.start()
    await lived.settle()


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
async def test_indexes_that_are_harmed_or_missing_cost_nothing(lived: Lived, stopped: bool) -> None:
    folder = lived.folder(SMALL_TOPIC, 0)
    if stopped:
        await lived.stop_in_order()
    derived = sorted([*folder.glob("*.index"), *folder.glob("*.snapshot")])
    assert len(derived) >= 2
    for number, path in enumerate(derived):
        if number % 2:
            path.unlink()
        else:
            harm(path, path.stat().st_size // 2, b"\xde\xad\xbe\xef")
    lived.served.start()
    await lived.settle()


async def test_a_batch_that_rotted_where_the_log_is_scanned_is_said_and_the_rest_kept(
    lived: Lived,
) -> None:
    folder = lived.folder(SMALL_TOPIC, 0)
    for derived in folder.glob("*.index"):
        derived.unlink()
    path, *behind = lived.segments(SMALL_TOPIC, 0)
    position = batch_positions(path)[1]
    rest = path.stat().st_size - position
    harm(path, position + 70, b"\xff\xff")
    lived.served.start()
    async with await Pipe.connect(lived.served.port) as wire:
        found = await read_log(wire, SMALL_TOPIC, 0, 0)
        assert found[-1].next_offset == await end_offset(wire, SMALL_TOPIC, 0)
    (said,) = await lived.logged(DAMAGED)
    assert said["at"] == f"{path.name}, byte {position}"
    assert said["end_offset"] == found[-1].next_offset
    kept, *others = said["kept_in"]
    assert (folder / kept).stat().st_size == rest
    assert len(others) == len(behind)
    with pytest.raises(Violation, match=r"acknowledged records are lost|a hole"):
        await lived.settle()


async def test_a_batch_that_rotted_in_a_closed_segment_is_found_by_its_reader_and_named(lived: Lived) -> None:
    """As with Kafka, whose brokers serve what the file holds and whose consumers check it. They ask for the
    same batch again and again, and then the broker checks too."""
    await lived.stop_in_order()
    path = lived.segments(SMALL_TOPIC, 0)[0]
    places = batch_positions(path)[1:3]
    offsets = [int.from_bytes(path.read_bytes()[position : position + 8], "big") for position in places]
    for position in places:
        harm(path, position + 70, b"\xff\xff")
    lived.served.start()
    async with await Pipe.connect(lived.served.port) as wire:
        for offset in (0, *offsets, *offsets, 0, *offsets):
            part = await fetch(wire, SMALL_TOPIC, 0, offset)
            assert part.error_code == ErrorCode.NONE
            with pytest.raises(Violation, match="not what its checksum says"):
                read(part.records, "small-0")
    assert lived.served.stop() == 0
    said = lived.lines("log is damaged")
    assert [each["offset"] for each in said] == offsets, "each place once"
    for each, position in zip(said, places, strict=True):
        assert each["partition"] == f"{SMALL_TOPIC}-0"
        assert each["why"] == (
            f"{lived.folder(SMALL_TOPIC, 0)}: the checksum does not match at {path.name}, byte {position}"
        )


async def test_a_length_that_rotted_in_a_closed_segment_is_an_error_with_a_place(
    lived: Lived,
) -> None:
    folder = lived.folder(SMALL_TOPIC, 0)
    await lived.stop_in_order()
    path = lived.segments(SMALL_TOPIC, 0)[0]
    position = batch_positions(path)[1]
    offset = int.from_bytes(path.read_bytes()[position : position + 8], "big")
    harm(path, position + 8, (-12).to_bytes(4, "big", signed=True))
    lived.served.start()
    async with await Pipe.connect(lived.served.port) as wire:
        before = await fetch(wire, SMALL_TOPIC, 0, 0, bytes_max=position)
        assert read(before.records, "small-0")[-1].next_offset == offset
        for _ in range(3):
            assert (await fetch(wire, SMALL_TOPIC, 0, offset)).error_code == ErrorCode.CORRUPT_MESSAGE
        behind = int(lived.segments(SMALL_TOPIC, 0)[1].stem)
        assert await read_log(wire, SMALL_TOPIC, 0, behind), "what is behind the segment can be read"
        assert await read_log(wire, SMALL_TOPIC, 1, 0)
    (said,) = await lived.logged("log is damaged")
    assert said["offset"] == offset
    assert said["why"].startswith(f"{SMALL_TOPIC}-0 in {folder}: {path.name} is damaged")
    assert said["why"].endswith(f"byte {position}")


async def test_a_segment_that_is_gone_is_named(lived: Lived) -> None:
    folder = lived.folder(SMALL_TOPIC, 0)
    await lived.stop_in_order()
    _, gone, behind, *_ = lived.segments(SMALL_TOPIC, 0)
    gone.unlink()
    lived.served.start()
    async with await Pipe.connect(lived.served.port) as wire:
        assert await read_log(wire, SMALL_TOPIC, 0, int(behind.stem))
    (said,) = await lived.logged("records missing: a segment file is gone")
    assert (said["first"], said["last"]) == (int(gone.stem), int(behind.stem) - 1)
    assert said["folder"] == str(folder)


async def test_a_closed_segment_that_was_cut_short_is_said_and_what_follows_is_kept(lived: Lived) -> None:
    folder = lived.folder(SMALL_TOPIC, 0)
    await lived.stop_in_order()
    _, short, *behind = lived.segments(SMALL_TOPIC, 0)
    with short.open("r+b") as file:
        file.truncate(short.stat().st_size - 5)
    lived.served.start()
    async with await Pipe.connect(lived.served.port) as wire:
        found = await read_log(wire, SMALL_TOPIC, 0, 0)
    (said,) = await lived.logged(DAMAGED)
    assert said["at"].startswith(f"{short.name}, byte ")
    assert said["end_offset"] == found[-1].next_offset < int(behind[0].stem)
    assert [(folder / name).exists() for name in said["kept_in"]] == [True] * (1 + len(behind))


async def test_an_end_that_is_gone_is_named(lived: Lived) -> None:
    await lived.stop_in_order()
    last = lived.segments(SMALL_TOPIC, 0)[-1]
    last.unlink()
    lived.served.start()
    async with await Pipe.connect(lived.served.port) as wire:
        assert await end_offset(wire, SMALL_TOPIC, 0) == int(last.stem)
    (said,) = await lived.logged("records missing: the log ended at known_end before")
    assert said["known_end"] > said["end_offset"] == int(last.stem)


# --- the store --------------------------------------------------------------------------------------------


async def test_a_write_ahead_log_that_rotted_keeps_it_from_starting(lived: Lived) -> None:
    path = lived.served.data / "store.sqlite-wal"
    sound = path.read_bytes()
    harm(path, 32 + 4_120 + 24 + 100, b"\xff\xfe\xfd")
    for _ in range(2):
        said = lived.refusal()
        assert said.startswith(
            f"muster serve: {path} is damaged at byte {32 + 4_120}; everything committed after"
        )
        assert "backup" in said
        assert "\n" not in said
    path.write_bytes(sound)
    lived.served.start()
    await lived.settle()


@pytest.mark.parametrize("contents", [b"", None, b"no database at all\n" * 1000])
async def test_a_store_that_is_gone_or_no_database_keeps_it_from_starting(
    lived: Lived, contents: bytes | None
) -> None:
    await lived.stop_in_order()
    path = lived.served.data / "store.sqlite"
    sound = path.read_bytes()
    path.unlink()
    if contents is not None:
        path.write_bytes(contents)
    said = lived.refusal()
    assert str(path) in said
    assert "restore the data directory from a backup" in said if contents else "restore the file" in said
    assert "\n" not in said
    path.write_bytes(sound)
    lived.served.start()
    await lived.settle()


async def test_a_commit_that_rotted_in_the_store_is_not_given_out(lived: Lived) -> None:
    await lived.stop_in_order()
    path = lived.served.data / "store.sqlite"
    contents = path.read_bytes()
    metadata = lived.clients.simple[0].commits.metadata(lived.clients.simple[0].commits.acknowledged).encode()
    assert metadata in contents
    path.write_bytes(contents.replace(metadata, metadata[:-1] + b"?"))
    lived.served.start()
    async with await Pipe.connect(lived.served.port) as wire:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        while code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            asked = OffsetFetchRequest(group_id="simple-0", topics=None)
            code = (await wire.call(asked, 5)).error_code
        assert code == ErrorCode.NOT_COORDINATOR
    await lived.says(f"reading {path}: record")
    await lived.says("restore the data directory from a backup")
