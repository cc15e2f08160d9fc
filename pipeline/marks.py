"""What an exactly-once writer records in the cluster, and the rules it follows. Pure.

There are two kinds of notes, each the metadata of an offset of the topic's partition 0, in its own group:

* a *mark* for each task number of a batch: what the task wrote last. It is committed in the same transaction
  as the records, so both exist or neither does;
* the *ledger* of the query: which batch was finished last, and which attempt may write now.

A repeated batch need not be divided into the same tasks. The batch is committed exactly once if every task
with a mark gets the rows that the mark describes, and no mark describes rows of a task that does not exist
this time. The tasks check the former, the driver the latter, at the end.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any, Final, Self, TypeVar

from muster.pipeline.errors import PipelineError
from muster.pipeline.rows import Record

_NONE: Final = -1
_DIGEST_BYTES: Final = 16
_LENGTHS: Final = struct.Struct(">iqq")
_LENGTH: Final = struct.Struct(">q")

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Names:
    """The transactional ids of a query, each with a group of the same name, and the ledger's group."""

    prefix: str

    @property
    def ledger(self) -> str:
        return f"{self.prefix}-query"

    def task(self, number: int) -> str:
        return f"{self.prefix}-task-{number}"

    def number_of(self, transactional_id: str) -> int | None:
        """The number of the task with this id; None if the id is not the query's."""
        found = re.fullmatch(rf"{re.escape(self.prefix)}-task-(0|[1-9][0-9]*)", transactional_id)
        return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True)
class Part:
    """A task of a micro-batch. `query` is the id in the checkpoint, a UUID."""

    query: str
    batch: int
    task: int

    def __str__(self) -> str:
        return f"batch {self.batch}, task {self.task}"


class Digest:
    """An order-independent digest of a task's rows: their number, and the sum of their hashes."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def through(self, records: Iterator[R]) -> Iterator[R]:
        """Yield the same records, adding each to the digest."""
        for record in records:
            self.add(record)
            yield record

    def add(self, record: Record) -> None:
        key, value, partition = record.key, record.value, record.partition
        told = blake2b(
            _LENGTHS.pack(
                _NONE if partition is None else partition,
                _NONE if key is None else len(key),
                _NONE if value is None else len(value),
            ),
            digest_size=_DIGEST_BYTES,
        )
        told.update(key or b"")
        told.update(value or b"")
        for name, content in record.headers:
            for each in (name.encode(), content):
                told.update(_LENGTH.pack(_NONE if each is None else len(each)))
                told.update(each or b"")
        self.rows += 1
        self._sum += int.from_bytes(told.digest(), "big")

    @property
    def text(self) -> str:
        return f"{self._sum % 2 ** (8 * _DIGEST_BYTES):0{2 * _DIGEST_BYTES}x}"


@dataclass(frozen=True, slots=True)
class Mark:
    """What a task committed last."""

    query: str
    batch: int
    rows: int
    digest: str

    @classmethod
    def of(cls, part: Part, digest: Digest) -> Self:
        return cls(part.query, part.batch, digest.rows, digest.text)

    @property
    def text(self) -> str:
        """As metadata of an offset."""
        return _json(asdict(self))

    @classmethod
    def read(cls, text: str, group_id: str) -> Self:
        """Raises PipelineError if the text is not a mark."""
        given = _fields(text, group_id, {"query": str, "batch": int, "rows": int, "digest": str})
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Ledger:
    """How far a query has got. Not part of a transaction: the driver writes it between the tasks of one batch
    and those of the next."""

    query: str = ""
    """The query whose batch was finished last; "": none was."""
    finished: int = _NONE
    attempt: str = ""
    """The attempt at a batch that may write; "": the last one was finished."""
    tasks: int = 0
    """A number above every task's in the batch finished last or, after an attempt was cut off, in any
    attempt."""
    cut_off: bool = False
    """Whether an attempt was cut off before this one."""

    @property
    def text(self) -> str:
        """As metadata of an offset."""
        return _json(asdict(self))

    @classmethod
    def read(cls, text: str, group_id: str) -> Self:
        """Raises PipelineError if the text is not a ledger."""
        kinds = {"query": str, "finished": int, "attempt": str, "tasks": int, "cut_off": bool}
        return cls(**_fields(text, group_id, kinds))

    def begun(self, attempt: str) -> Ledger:
        """The ledger with a new attempt, which supersedes all others."""
        return replace(self, attempt=attempt, cut_off=bool(self.attempt))

    def with_tasks(self, tasks: int) -> Ledger:
        return replace(self, tasks=max(tasks, self.tasks))

    def check(self, names: Names, part: Part, attempt: str) -> None:
        """Raise PipelineError unless this attempt at this part may write now."""
        self._check_attempt(names, attempt)
        if self.query:
            _check_query(names, self.query, part.query)
        if self.finished > part.batch:
            raise PipelineError(_ahead(names, part.batch, self.finished))
        if self.finished < part.batch - 1:
            known = "none" if self.finished == _NONE else f"batch {self.finished}"
            raise PipelineError(
                f"batch {part.batch}: the last one that {names.prefix} is known to have finished is {known}"
                f" (group {names.ledger}), so nobody can tell whether the topic already holds this one. The"
                " checkpoint was begun without transactionalIdPrefix, or the query stood still for longer"
                " than brokers keep offsets (offsets.retention.minutes), or the topic was created anew. Start"
                " with a new checkpoint and prefix, after what is there"
            )

    def surplus(self, batch: int, tasks: int) -> range:
        """The tasks that an earlier attempt at this batch may have had, beyond the current ones."""
        return range(tasks, self.tasks) if self.cut_off or self.finished == batch else range(0)

    def done(self, names: Names, query: str, batch: int, tasks: int, attempt: str) -> Ledger:
        """The ledger after all tasks are done. Raises PipelineError if another attempt has taken over."""
        self._check_attempt(names, attempt)
        return Ledger(query=query, finished=batch, tasks=tasks)

    def _check_attempt(self, names: Names, attempt: str) -> None:
        if self.attempt != attempt:
            raise PipelineError(
                f"another attempt at a batch of {names.prefix} has begun since this one, which writes nothing"
                " more: the query was started again, or another query has the same transactionalIdPrefix"
            )


def is_written(names: Names, part: Part, mark: Mark | None) -> bool:
    """Whether this part is already committed, according to its task's last mark. Raises PipelineError for a
    mark of another query or a later batch."""
    if mark is None:
        return False
    _check_query(names, mark.query, part.query)
    if mark.batch > part.batch:
        raise PipelineError(_ahead(names, part.batch, mark.batch))
    return mark.batch == part.batch


def check_repeated(part: Part, mark: Mark, now: Digest) -> None:
    """Raise PipelineError unless a committed part has the same rows again."""
    if (now.rows, now.text) == (mark.rows, mark.digest):
        return
    found = f"{mark.rows:,} then, {now.rows:,} now" if mark.rows != now.rows else f"{now.rows:,}, but others"
    raise PipelineError(f"{part}: {_not_the_same(f'its rows are not those that it committed ({found})')}")


def check_surplus(part_of: Mapping[int, Mark | None], query: str, batch: int) -> None:
    """Raise PipelineError if a task that no longer exists has committed rows of this batch."""
    for task, mark in sorted(part_of.items()):
        if mark is not None and (mark.query, mark.batch) == (query, batch) and mark.rows:
            what = (
                f"an earlier attempt had a task {task}, which committed {mark.rows:,} rows; now there is none"
            )
            raise PipelineError(f"batch {batch}: {_not_the_same(what)}")


def forgotten(names: Names) -> str:
    """What to say if there is no ledger although tasks have begun, which is after the first ledger."""
    return (
        f"{names.prefix} has transactional ids, but group {names.ledger} holds nothing: brokers forget it"
        " after offsets.retention.minutes, or it was deleted, or option topic named another one before. So"
        " nobody can tell what the topic already holds. Start with a new checkpoint and prefix, after what is"
        " there"
    )


def _not_the_same(what: str) -> str:
    return (
        f"{what}. The batch is not repeated as it was, so some of its records may be there twice, or missing,"
        " and nothing more is written. A batch must come out the same each time: no rand() or uuid(), the"
        " same files or offsets, and the same settings of partitions (spark.sql.shuffle.partitions,"
        " spark.default.parallelism, minPartitions). If those were changed, set them back and start again"
    )


def _check_query(names: Names, theirs: str, ours: str) -> None:
    if theirs != ours:
        raise PipelineError(
            f"option transactionalIdPrefix: {names.prefix} belongs to query {theirs}, this is {ours}. Each"
            " query takes a prefix of its own, and so does one that begins anew with another checkpoint"
        )


def _ahead(names: Names, batch: int, found: int) -> str:
    return (
        f"batch {batch}: {names.prefix} has written batch {found} already, so the checkpoint is older than"
        " what is in the topic: was it restored, or copied? Nothing is written"
    )


def _json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _fields(text: str, group_id: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if isinstance(given, dict) and all(type(given.get(name)) is kind for name, kind in kinds.items()):
        return {name: given[name] for name in kinds}
    raise PipelineError(
        f"group {group_id}: its offset is not what the writer left there: someone else commits to it. Take"
        " another transactionalIdPrefix"
    )
