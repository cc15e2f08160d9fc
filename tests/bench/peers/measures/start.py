"""How long it takes from the call of a server's process to a group that is Stable."""

from __future__ import annotations

from typing import Final

from tests.bench import load
from tests.bench.peers.driver import first_stable
from tests.bench.peers.measure import NOTHING_SYNCED, Goal, Measure, Point, Quantity, Scale
from tests.bench.peers.servers import Kind, Options

_SECONDS_MAX: Final = 120.0


def _run(kind: Kind, scale: Scale) -> list[Point]:
    with kind.start(Options(ready=False)) as running:
        stable_s = load.run(first_stable(running.as_json(), "peers", _SECONDS_MAX))
        return [Point("seconds", stable_s - running.launched_s)]


MEASURE: Final = Measure(
    "start",
    "Start",
    "From the call of the server's process, on an empty folder, to the first group of one member being "
    "Stable, without an initial rebalance delay. A client started beforehand tries every 5 ms. One-time "
    "preparation (formatting Kafka's folder, a database with its schema, the bytecode that pip compiles as "
    "it installs) is not counted.",
    (Quantity("seconds", "start to the first group Stable", "s", "less", goals=(Goal(18.0),), chart=False),),
    _run,
    rounds=5,
    cannot={"kafka-flush": NOTHING_SYNCED},
    cold=True,
)
