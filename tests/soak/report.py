"""A human-readable report of a soak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.soak.verdict import after_warm_up, fit

if TYPE_CHECKING:
    from tests.soak.run import Outcome

_SHOWN = (
    ("MiB", "resident_bytes", 2.0**20),
    ("objects", "objects", 1.0),
    ("tasks", "tasks", 1.0),
    ("files", "files", 1.0),
    ("threads", "threads", 1.0),
)


def report(outcome: Outcome) -> str:
    """The work done, the lines through the samples, and the verdict."""
    lines = [f"{outcome.seconds / 3600:.2f} hours; done meanwhile:"]
    lines += [f"  {count:>12,} {what}" for what, count in sorted(outcome.counts.items())]
    lines += _figures(outcome)
    lines += [str(each) for each in outcome.judged]
    lines.append("all is well" if outcome.good else "FAILED")
    return "\n".join(lines)


def _figures(outcome: Outcome) -> list[str]:
    samples = after_warm_up(outcome.samples)
    if len(samples) < 3:
        return [f"{len(outcome.samples)} samples: too few for a line"]
    last = outcome.samples[-1]["server"]
    lines = [
        f"{last['requests']:,} requests on {last['accepted']:,} connections since the server started",
        f"{len(samples)} samples after warming up:",
        f"  {'':16}{'first':>12}{'mean':>12}{'last':>12}{'highest':>12}{'an hour':>12}",
    ]
    for side in ("server", "client"):
        for unit, name, scale in _SHOWN:
            values = [sample[side][name] / scale for sample in samples]
            line = fit([(sample["at_s"], value) for sample, value in zip(samples, values, strict=True)])
            lines.append(
                f"  {side + ' ' + unit:16}{values[0]:12,.1f}{line.mean:12,.1f}{values[-1]:12,.1f}"
                f"{max(values):12,.1f}{line.per_hour:+12,.2f}"
            )
    for side in ("server", "client"):
        median = sorted(sample[side]["lag"]["median_ms"] for sample in samples)[len(samples) // 2]
        p99 = sorted(sample[side]["lag"]["p99_ms"] for sample in samples)[len(samples) // 2]
        worst = max(sample[side]["lag"]["worst_ms"] for sample in samples)
        lines.append(f"  lag of the {side}'s loop: median {median} ms, p99 {p99} ms, worst {worst} ms")
    return lines
