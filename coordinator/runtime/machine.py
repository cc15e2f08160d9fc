"""The state machine that a shard host runs, of some kind of coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from muster.coordinator.base.step import Step
from muster.coordinator.cluster.coordinators import CoordinatorKind
from muster.protocol.errors import ErrorCode

M = TypeVar("M", bound="Machine")


class Machine(Protocol):
    """A shard of some kind of coordinator: synchronous and pure.

    Life cycle: `apply` what the store holds, `loaded`, then operations, `advance` whenever `next_deadline`
    has come, and `unload` at the end. Each call with a `Step` is one step; when it returns, the machine has
    applied the step's rows to itself.
    """

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply a row of the store. Raises DecodeError if it is damaged."""

    def contents(self) -> Mapping[str, int]:
        """How much it holds, for the journal: `{"groups": 3}`. Empty when it holds nothing."""

    def loaded(self, step: Step) -> None:
        """Every row of the store has been applied."""

    def next_deadline(self) -> int | None:
        """When `advance` has something to do, in epoch milliseconds."""

    def deadline_bound(self) -> int | None:
        """A lower bound of `next_deadline` that costs less; None when there is none."""

    def advance(self, step: Step) -> None:
        """Do what is due."""

    def job_done(self, job: Any, outcome: Any, step: Step) -> None:
        """One of a step's jobs is done; `outcome` is what it returned, or None if it failed."""

    def unheard(self, responses: Sequence[object], step: Step) -> None:
        """Clients did not get these responses: the store took too long."""

    def unload(self, step: Step) -> None:
        """Another broker takes over: answer the parked requests."""


Operation = Callable[[Any, Any, Step], object]
"""A request to a machine, such as `Shard.join`. It raises KafkaError before it has changed anything, or
answers its ticket in this step or a later one."""
Notice = Callable[[M, Step], None]
"""A notification to a machine that nobody waits for."""


class Traits(NamedTuple):
    """What the host must know about an operation."""

    reads: bool = False
    """It never writes, and keeps working while the store is full."""
    returns: bool = False
    """It returns its answer, and otherwise only emits events and begins jobs; it keeps no reference to its
    step, which is reused."""
    also_writes: bool = False
    """It returns its answer, but sometimes also writes or answers others. Its answer then waits like those of
    other operations."""
    allows_for_full: bool = False
    """It is stepped while the store is full, too, and then writes nothing: see `Step.full`."""
    while_loading: Any = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    """Its answer while the shard is being loaded: a response, or the code of a refusal."""


NO_TRAITS = Traits()


class MachineKind(NamedTuple):
    """Describes a kind of machine."""

    coordinator: CoordinatorKind
    """How its shards are found."""
    make: Callable[[int], Any]
    """Makes the machine of a shard, from the shard's number."""
    operations: Mapping[Operation, Traits]
    """The traits of its operations; without an entry, `NO_TRAITS`."""
