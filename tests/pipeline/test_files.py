"""Batches that are moved into place by a rename, on a store that renames by copying file by file, as object
stores do: a job that is killed meanwhile leaves part of a batch there, and continues from what is complete.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.pipeline.files import Files
from muster.pipeline.ingest import write_batch
from muster.pipeline.journal import command, folders
from muster.pipeline.journal.folders import Folders, Span

PARTS = ("part-0", "part-1", "part-2")


class Killed(Exception):
    pass


class Copying(Files):
    """Folders of this machine; with `copies`, a rename copies that many files, and then the job is killed."""

    copies: int | None = None

    def __init__(self, *_: object) -> None:
        pass

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def names(self, folder: str) -> list[str]:
        return [each.name for each in Path(folder).iterdir()] if self.exists(folder) else []

    def move(self, source: str, target: str) -> None:
        Path(target).mkdir(parents=True)
        for each in sorted(Path(source).iterdir())[: self.copies]:
            shutil.copy(each, target)
        if self.copies is not None:
            raise Killed
        shutil.rmtree(source)

    def remove(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)


class Rows:
    """A DataFrame that is written as several files."""

    def __init__(self, *_: object) -> None:
        self.write = SimpleNamespace(mode=self._mode)

    def _mode(self, mode: str) -> Rows:
        assert mode == "overwrite"
        return self

    def partitionBy(self, *_: str) -> Rows:
        return self

    def parquet(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)
        Path(path).mkdir(parents=True)
        for name in ("_SUCCESS", *PARTS):
            Path(path, name).touch()


def parts(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.glob("part-*"))


@pytest.mark.parametrize("copies", [0, 1, 2, 4])
def test_a_batch_of_ingest(tmp_path: Path, copies: int) -> None:
    rows: Any = Rows()
    killed = Copying()
    killed.copies = copies
    with pytest.raises(Killed):
        write_batch(rows, 0, killed, str(tmp_path))
    assert len(parts(tmp_path / "batch_id=0")) == max(copies - 1, 0)
    write_batch(rows, 0, Copying(), str(tmp_path))
    assert parts(tmp_path / "batch_id=0") == list(PARTS)
    # A complete batch is not written again, even if a task that came too late left something aside.
    (tmp_path / "_unfinished" / "batch_id=0" / "_temporary").mkdir(parents=True)
    write_batch(None, 0, Copying(), str(tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize("copies", [0, 1, 2, 4])
def test_folders_of_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: int) -> None:
    monkeypatch.setattr(folders, "Files", Copying)
    monkeypatch.setattr(Folders, "_read", Rows)
    table: Any = Folders(None, str(tmp_path), "")  # type: ignore[arg-type]
    for batch in (0, 1):
        monkeypatch.setattr(Copying, "copies", copies)
        with pytest.raises(Killed):
            table.add(batch, Rows())
        assert not table.has(batch)
        monkeypatch.setattr(Copying, "copies", None)
        table.add(batch, Rows())
        assert table.has(batch)
        assert parts(tmp_path / f"batches={batch}-{batch}") == list(PARTS)
    monkeypatch.setattr(Copying, "copies", copies)
    with pytest.raises(Killed):
        table.tidy(1, lambda rows: rows)
    assert table.spans() == [Span(0, 0), Span(1, 1)], "what was merged counts until the merged one is whole"
    monkeypatch.setattr(Copying, "copies", None)
    table.tidy(1, lambda rows: rows)
    assert table.spans() == [Span(0, 1)]
    assert parts(tmp_path / "batches=0-1") == list(PARTS)
    (tmp_path / "_unfinished" / "batches=0-1" / "_temporary").mkdir(parents=True)
    assert table.has(0), "a task that came too late leaves nothing that counts"


def test_what_is_left_of_merging_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "Files", Copying)
    aside = tmp_path / "_unfinished"
    for name in ("batches=0-1", "batches=2-2", "_unfinished/batches=0-0", "_unfinished/batches=3-3"):
        (tmp_path / name).mkdir(parents=True)
    table: Any = Folders(None, str(tmp_path), "")  # type: ignore[arg-type]
    table.tidy(2, lambda rows: rows)
    assert [each.name for each in aside.iterdir()] == ["batches=3-3"], "that one is being written"
    assert table.spans() == [Span(0, 1), Span(2, 2)]


def test_the_events_of_a_job_that_was_killed_as_it_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "Files", Copying)
    monkeypatch.setattr(Folders, "_read", lambda _, there: there)
    for name in ("batches=0-1", "batches=0-0", "batches=1-1", "batches=2-2"):
        (tmp_path / name).mkdir()
    read: Any = command.events(None, str(tmp_path))  # type: ignore[arg-type]
    assert read == [Span(0, 1), Span(2, 2)], "no row is there twice"
