"""Work on a partition that ends with its assignment. A consumer that hands records to tasks must know, when a
partition is revoked, which tasks still work on it. Tasks started in the partition's scope get a grace period
when it is revoked, and are cancelled at once when it is lost, since another member works on it by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, TypeVar

from muster.client.errors import Closed
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition

T = TypeVar("T")


class AssignmentScope:
    """The tasks of one partition while it is assigned; `consumer.scope(partition)` returns it. The consumer's
    next reading call raises what a task has raised, or its end (`close`, `drain`, leaving its block), if none
    comes. What cannot be raised, since something else is, is logged as an error.
    """

    def __init__(self, partition: TopicPartition, on_failure: Callable[[BaseException], None]) -> None:
        self.partition = partition
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = False

    def __repr__(self) -> str:
        state = "ended" if self._ended else "open"
        return f"<AssignmentScope {self.partition} {state}, {len(self._tasks)} tasks>"

    @property
    def ended(self) -> bool:
        """Whether the partition is no longer assigned to this consumer."""
        return self._ended

    @property
    def tasks(self) -> frozenset[asyncio.Task[Any]]:
        """The running tasks."""
        return frozenset(self._tasks)

    def create_task(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a task for the partition. Raises Closed if it is no longer assigned to this consumer."""
        if self._ended:
            work.close()
            raise Closed(f"{self.partition} is no longer assigned to this consumer")
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        """Cancel the running tasks, once, and refuse new ones."""
        if self._ended:
            return  # Another cancellation would cut off how they clean up.
        self._ended = True
        for task in self._tasks:
            task.cancel("the partition is no longer assigned")

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._on_failure(failure)


class Scopes:
    """The scopes of the assigned partitions."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._scopes: dict[TopicPartition, AssignmentScope] = {}
        self._dropped: dict[asyncio.Task[Any], float] = {}
        """Running tasks of lost and dropped scopes, cancelled at this time, but perhaps still cleaning up."""

    def of(self, partition: TopicPartition) -> AssignmentScope:
        """The scope of an assigned partition."""
        scope = self._scopes.get(partition)
        if scope is None:
            scope = self._scopes[partition] = AssignmentScope(partition, self._on_failure)
        return scope

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether the task runs in one of the scopes, or in a dropped one that `unwind` waits for."""
        return task in self._dropped or any(task in scope.tasks for scope in self._scopes.values())

    def lose(self, partitions: Collection[TopicPartition]) -> None:
        """`drop` these partitions, and refuse new tasks until the next `drop` or `end`."""
        self.drop(partitions)
        for partition in partitions:
            self.of(partition).cancel()

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """End the scopes of these partitions: cancel their tasks at once, and leave it to `unwind` to wait
        for them."""
        for scope in self._known(partitions):
            scope.cancel()
            for task in scope.tasks:
                self._dropped[task] = task.get_loop().time()
                task.add_done_callback(self._ended)
            del self._scopes[scope.partition]

    async def wait(self, partitions: Iterable[TopicPartition], timeout_s: float) -> bool:
        """Wait for the tasks of these partitions without cancelling them. Returns whether all have
        finished."""
        if tasks := _tasks(self._known(partitions)):
            await asyncio.wait(tasks, timeout=max(0.0, timeout_s))
        return all(task.done() for task in tasks)

    async def end(
        self, partitions: Collection[TopicPartition], grace_s: float, *, unwind_s: float = 1.0
    ) -> None:
        """End the scopes of these partitions: wait for their tasks, cancel those not done in time, and
        `unwind` for up to the longer of the two times. Cancelling this call cancels the tasks."""
        try:
            await self.wait(partitions, grace_s)
        finally:
            self.drop(partitions)
        await self.unwind(max(unwind_s, grace_s))

    async def unwind(self, timeout_s: float = 1.0) -> None:
        """Wait for the tasks of lost and dropped scopes to end. One that has not within `timeout_s` of the
        last cancellation is abandoned: the group does not wait forever, nor longer if calls are cut off."""
        tasks = self._dropped.keys() - {asyncio.current_task()}
        if tasks:
            until = max(self._dropped[task] for task in tasks) + timeout_s
            await asyncio.wait(tasks, timeout=max(0.0, until - deadline(0)))
        for task in tasks:
            self._dropped.pop(task, None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._dropped.pop(task, None)

    def _known(self, partitions: Iterable[TopicPartition]) -> list[AssignmentScope]:
        return [scope for partition in partitions if (scope := self._scopes.get(partition)) is not None]


def _tasks(scopes: Iterable[AssignmentScope]) -> set[asyncio.Task[Any]]:
    return {task for scope in scopes for task in scope.tasks}
