"""What a measure is, and what it finds: points, each a figure's value at a size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from tests.bench import processes
from tests.bench.peers.servers import Kind, Options, Running

DRIVER_BOUND: Final = 0.9
"""Of one core: a driver that had more than that may be what bounds the rate."""


_COLD_S: Final = 5.0
_WARM_UP_S: Final = 2.0
_MEASURED_S: Final = 2.5

NOTHING_SYNCED: Final = "not measured: same as with the defaults, since hardly anything is written."
IN_PROCESS: Final = "not measured: as one broker, whose only process it shares."
NO_GROUPS: Final = "a member that syncs after its leader is refused (INVALID_REQUEST)."
NO_CONSUMER_GROUPS: Final = "the ConsumerGroupHeartbeat of a member that joins stays unanswered."


@dataclass(frozen=True, slots=True)
class Scale:
    """How much a run does: `quick` shows in minutes that all of it works, and its figures say little; `cold`
    is what servers do in their first seconds."""

    quick: bool
    cold: bool = False

    @property
    def name(self) -> str:
        return "quick" if self.quick else "cold" if self.cold else "full"

    def sizes(self, quick: Sequence[int], full: Sequence[int], cold: Sequence[int] = ()) -> list[int]:
        return list(quick if self.quick else cold if self.cold else full)

    def times(self, *, cold: bool) -> dict[str, float]:
        """How long a load lasts before it is measured, and then. What comes first on a server that was just
        started meets a virtual machine that has compiled nothing yet: that is not what its users meet."""
        if self.quick:
            return {"warm_up_s": 1.0, "seconds": 1.0}
        if self.cold:
            return {"warm_up_s": 0.0, "seconds": _MEASURED_S}
        return {"warm_up_s": _COLD_S if cold else _WARM_UP_S, "seconds": _MEASURED_S}


@dataclass(frozen=True, slots=True)
class Point:
    """A value of the figure `key`, at the size `at` where it is a curve.

    `driver` is the share of a core that the driver had meanwhile, where the value is one of speed.
    """

    key: str
    value: float
    at: int | None = None
    driver: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted of muster, one broker, beside Apache Kafka in the same run: its value at least `times`
    as good as that of the kind `beside`. At the sizes `at`, or at all."""

    times: float
    beside: str = "kafka"
    at: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Quantity:
    """A line of the table, or several if it is a curve over `axis`."""

    key: str
    title: str
    unit: str
    better: Literal["more", "less"]
    axis: str = ""
    goals: tuple[Goal, ...] = ()
    chart: bool = True
    slope: bool = False
    """Whether the table says how fast it grows with the size."""


@dataclass(frozen=True, slots=True)
class Measure:
    """`run(kind, scale)` starts a server of the kind, and returns what it found there."""

    name: str
    title: str
    words: str
    """How it is measured, for the page."""
    quantities: tuple[Quantity, ...]
    run: Callable[[Kind, Scale], list[Point]]
    rounds: int = 3
    """Of a full run; the quick one has one."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Kinds that are left out, with the reason."""
    cold: bool = False
    """Whether it is for servers too that were just started."""


def over_sizes(
    kind: Kind,
    options: Options,
    scale: Scale,
    sizes: Sequence[int],
    measured: Callable[[Running, int, Mapping[str, float]], list[Point]],
    before: Callable[[Running], object] = lambda running: None,
) -> list[Point]:
    """What is measured at each size, on one server and after `before`, or with `scale.cold` on a new server
    each and without. `measured` gets the server, the size, and how long the load lasts (`Scale.times`)."""
    found: list[Point] = []
    if scale.cold:
        for size in sizes:
            with kind.start(options) as running:
                found += measured(running, size, scale.times(cold=True))
        return found
    with kind.start(options) as running:
        before(running)
        for size in sizes:
            found += measured(running, size, scale.times(cold=not found))
    return found


def drive(function: Callable[..., Any], running: Running, **arguments: Any) -> list[Point]:
    """The points that `function(**arguments)` returns as JSON, called in a process of its own with the
    server's address."""
    return [Point(**each) for each in processes.load(function, server=running.as_json(), **arguments)]
