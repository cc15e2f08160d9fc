"""What a shard host runs: a state machine of some kind of coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from muster.coordinator.base.step import Step
from muster.coordinator.cluster.coordinators import CoordinatorKind
from muster.protocol.errors import ErrorCode

M = TypeVar("M", bound="Machine")


class Machine(Protocol):
    """A shard of some kind of coordinator: synchronous and pure.

    Its life: `apply` what the store has, `loaded`, then operations, `advance` whenever `next_deadline` has
    come, and at the end `unload`. Each call with a `Step` is one step, whose rows the machine has applied to
    itself when it returns.
    """

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply a row of the store. Raises DecodeError for one that is damaged."""

    def contents(self) -> Mapping[str, int]:
        """How much it keeps, for the journal: `{"groups": 3}`. Empty when there is nothing."""

    def loaded(self, step: Step) -> None:
        """Every row of the store has been applied."""

    def next_deadline(self) -> int | None:
        """When `advance` has something to do, in epoch milliseconds."""

    def deadline_bound(self) -> int | None:
        """A time before which `next_deadline` does not lie, at less cost; None when there is none."""

    def advance(self, step: Step) -> None:
        """Do what is due."""

    def job_done(self, job: Any, outcome: Any, step: Step) -> None:
        """What came of one of a step's jobs: what it returned, or None if it failed."""

    def unheard(self, responses: Sequence[object], step: Step) -> None:
        """Clients were not given these responses: the store took too long."""

    def unload(self, step: Step) -> None:
        """Another broker takes over: requests that are parked are to be answered."""


Operation = Callable[[Any, Any, Step], object]
"""A request to a machine, as `Shard.join` is. It raises KafkaError before it has changed anything, or answers
its ticket in this step or a later one."""
Notice = Callable[[M, Step], None]
"""Something a machine is told that nobody waits for."""


class Traits(NamedTuple):
    """What the host has to know of an operation."""

    reads: bool = False
    """It never writes, and goes on while the store is full."""
    returns: bool = False
    """It returns its answer, and does nothing else but tell events and begin jobs; it keeps no reference to
    its step, which is used again."""
    also_writes: bool = False
    """Of one that returns its answer: now and then it writes too, or answers others. Its answer then waits as
    those of other operations do."""
    while_loading: Any = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    """What it is answered while the shard is being loaded: a response, or the code of a refusal."""


NO_TRAITS = Traits()


class MachineKind(NamedTuple):
    """What is to be known of a kind of machine before there is one."""

    coordinator: CoordinatorKind
    """How its shards are found."""
    make: Callable[[int], Any]
    """Makes the machine of a shard, from the shard's number."""
    operations: Mapping[Operation, Traits]
    """What is special about its operations."""
