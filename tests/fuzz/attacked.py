"""Runs the broker under attack in a process of its own and its attackers in others, and cleans up after
them."""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from muster.protocol.messages.group_admin import DeleteGroupsRequest, ListGroupsRequest
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.messages.topics import DeleteTopicsRequest
from tests.fuzz.bystanders import Patient
from tests.fuzz.run import Failed
from tests.support.asked import Asked, Gone

Attack = Callable[..., None]
"""`attack(*arguments, report)`: what a process does to the broker. The last thing it sends is its result."""

SETTLED_S: Final = 120.0
"""Longer than a vanished member can keep a join parked."""

_DELETED_AT_ONCE: Final = 1_000


@asynccontextmanager
async def broker(repeat: str) -> AsyncIterator[Asked]:
    """A broker that runs until the end of the block and must exit cleanly after it. Any failure is raised as
    Failed, with `repeat`, which says how to reproduce it, and the end of the broker's log."""
    with tempfile.TemporaryDirectory(prefix="muster-fuzz-") as directory:
        command = (sys.executable, "-m", "tests.fuzz.served", str(Path(directory) / "data"))
        served = Asked(command, Path(directory) / "log")
        try:
            async with served:
                yield served
                if (code := await served.stop()) != 0:
                    raise Failed(f"the broker ended with {code}")
        except (AssertionError, OSError, EOFError, TimeoutError, Gone) as error:
            why = f"{repeat}: {type(error).__name__}: {error}\nthe broker's log:\n{served.log_end()}"
            raise Failed(why) from error
        if complaints := served.complaints():
            raise Failed(f"{repeat}: the broker logged\n" + "\n".join(complaints)[:4_000])


async def settled(served: Asked, fact: Callable[[dict[str, Any]], bool], before: object = None) -> Any:
    """Return the facts once `fact` is true of them. Raises Failed if that takes longer than SETTLED_S."""
    good, now = await served.until(fact, SETTLED_S)
    if not good:
        raise Failed(f"left behind: {now}, before: {before}")
    return now


async def from_processes(attack: Attack, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Run `attack(*share, report)` in a process for each share and return what each reported. Separate
    processes slow the bystanders only through the broker."""
    async with attackers(attack, shares) as reports:
        return [await asyncio.to_thread(report.recv) for report in reports]


@asynccontextmanager
async def attackers(attack: Attack, shares: Sequence[tuple[Any, ...]]) -> AsyncIterator[list[Connection]]:
    """The same while the block runs, which can exchange messages with the processes."""
    context = multiprocessing.get_context("spawn")
    workers = []
    try:
        for share in shares:
            ours, theirs = context.Pipe()
            worker = context.Process(target=attack, args=(*share, theirs))
            worker.start()
            theirs.close()
            workers.append((worker, ours))
        yield [ours for _, ours in workers]
    except BaseException:
        for worker, _ in workers:
            worker.kill()
        raise
    finally:
        for worker, ours in workers:
            await asyncio.to_thread(worker.join)
            ours.close()


def attackers_cpu_s() -> float:
    """User and system time of all processes of `attackers` that have ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def tidy(port: int, *, topics: Collection[str] = (), groups: Collection[str] = ()) -> None:
    """Delete all topics except `topics` and all groups without members except `groups`: what a client asked
    for is not a leak."""
    async with await Patient.connect(port) as wire:
        known = await wire.call(MetadataRequest(topics=None), 8)
        names = [each.name for each in known.topics if not each.is_internal and each.name not in topics]
        for at in range(0, len(names), _DELETED_AT_ONCE):
            request = DeleteTopicsRequest(topic_names=names[at : at + _DELETED_AT_ONCE], timeout_ms=30_000)
            deleted = await wire.call(request, 3)
            assert all(each.error_code == 0 for each in deleted.responses), deleted
        listed = await wire.call(ListGroupsRequest(), 3)
        names = [each.group_id for each in listed.groups if each.group_id not in groups]
        for at in range(0, len(names), _DELETED_AT_ONCE):
            await wire.call(DeleteGroupsRequest(groups_names=names[at : at + _DELETED_AT_ONCE]), 1)
