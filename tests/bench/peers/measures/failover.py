"""From kill -9 of a broker to every group of it heartbeating at another."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from tests.bench import bench_failover, processes
from tests.bench.peers.measure import Measure, Point, Quantity, Scale
from tests.bench.peers.servers import KINDS, Kind, Options


def _run(kind: Kind, scale: Scale) -> list[Point]:
    found: list[Point] = []
    for groups in scale.sizes((20,), (100, 1_000)):
        with kind.start(Options()) as running, processes.signal() as ready:
            ports = dict(enumerate(running.ports, 1))
            following = processes.start_load(
                bench_failover.follow, ports=ports, groups=groups, prefix="peers", ready=str(ready)
            )
            processes.wait_for(ready, following)
            killed_s = time.monotonic()
            os.kill(running.pids[bench_failover.VICTIM - 1], signal.SIGKILL)
            said = processes.finish_load(following)
        found += [
            Point("median_s", said["median_s"] - killed_s, groups),
            Point("last_s", said["last_s"] - killed_s, groups),
            Point("commit_s", said["commit_s"] - killed_s, groups),
            Point("rebalanced", said["rebalanced"], groups),
            Point("lost", said["lost"], groups),
        ]
    return found


MEASURE: Final = Measure(
    "failover",
    "Failover",
    "The process of a broker is killed. All these groups were on it, each with a member that heartbeats and "
    "commits every 3 s, looks its coordinator up again as Java's client does, and tries again after up to a "
    "second. muster's lease term and Kafka's broker.session.timeout.ms are at their defaults, 3 s and 9 s.",
    (
        Quantity("median_s", "half of the groups heartbeat again", "s", "less", axis="groups", chart=False),
        Quantity("last_s", "every group heartbeats again", "s", "less", axis="groups"),
        Quantity("commit_s", "every group has committed again", "s", "less", axis="groups", chart=False),
        Quantity("rebalanced", "groups that rebalanced", "", "less", axis="groups", chart=False),
        Quantity("lost", "groups that lost a commit", "", "less", axis="groups", chart=False),
    ),
    _run,
    cannot={
        name: "one process: there is no other to fail over to."
        for name in KINDS
        if name not in {"muster-postgres", "kafka-3"}
    },
)
