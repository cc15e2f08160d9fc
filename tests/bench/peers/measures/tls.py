"""Heartbeats and Fetch once more, over TLS."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.bench.peers.measure import Measure, Point, Quantity, Scale, drive
from tests.bench.peers.measures import heartbeats, records
from tests.bench.peers.servers import KINDS, Kind, Options

_DELAY_MS: Final = 500
_BATCH_BYTES: Final = 100_000
_TOPIC: Final = records.TOPIC.format(_BATCH_BYTES)
_HEARTBEAT: Final = "heartbeat_"
_ONE_BESIDE_ONE: Final = "not measured: TLS costs a broker the same, whatever is behind it."


def _run(kind: Kind, scale: Scale) -> list[Point]:
    found: list[Point] = []
    options = Options(initial_delay_ms=_DELAY_MS, topics={_TOPIC: records.PARTITIONS}, tls=True)
    with kind.start(options) as running:
        for members in scale.sizes((100,), (100, 1_000)):
            times = scale.times(cold=not found)
            beaten = drive(heartbeats.beat, running, members=members, **times)
            found += [replace(point, key=_HEARTBEAT + point.key) for point in beaten]
        times = scale.times(cold=False)
        found += drive(records.move, running, batch_bytes=_BATCH_BYTES, fetching=True, **times)
    return found


MEASURE: Final = Measure(
    "tls",
    "Over TLS",
    "Heartbeats, and Fetch of up to 1 MB, as above, at a listener with TLS 1.3 and a certificate of the "
    "curve P-256 (`security.protocol=SSL`). The driver decrypts as much as the server encrypts.",
    (
        Quantity("heartbeat_rate", "heartbeats a second", "/s", "more", axis="members", chart=False),
        Quantity(
            "heartbeat_a_cpu_second", "heartbeats a CPU second", "/s", "more", axis="members", chart=False
        ),
        Quantity("heartbeat_cpu_us", "CPU of a heartbeat", "us", "less", axis="members", chart=False),
        Quantity(
            "heartbeat_p99_ms",
            "99th percentile of a heartbeat",
            "ms",
            "less",
            axis="members",
            chart=False,
        ),
        Quantity("fetch_rate", "Fetch", "MB/s", "more", axis="bytes a batch", chart=False),
        Quantity(
            "fetch_cpu_ms", "CPU of a MB through Fetch", "ms", "less", axis="bytes a batch", chart=False
        ),
    ),
    _run,
    cannot={name: _ONE_BESIDE_ONE for name in KINDS if name not in ("muster", "kafka", "kafka-3")},
)
