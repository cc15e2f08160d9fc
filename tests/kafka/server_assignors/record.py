"""`python -m tests.kafka.server_assignors.record`: record what Kafka's server-side assignors do with some
groups, for the test that runs without Java (tests/group/consumer/test_recorded.py)."""

from __future__ import annotations

from muster.coordinator.group.consumer.assignors import ASSIGNORS, Spec
from tests.group.consumer.test_recorded import RECORDED
from tests.kafka.server_assignors.cases import chain, group
from tests.kafka.server_assignors.java import JavaServerAssignors
from tests.support.server_assignor_lines import spec_lines, target_text

GROUPS = {"uniform": 50, "range": 8}
SIZE_MAX = 250
"""Size limit of a case: members and partitions together."""


def main() -> None:
    lines: list[str] = []
    with JavaServerAssignors() as java:
        for name, wanted in GROUPS.items():
            found = 0
            for seed in range(1, 10_000):
                spec = group(seed, ASSIGNORS[name])
                if _moves(name, spec) and found < wanted:
                    lines += _told(java, name, spec)
                    found += 1
        lines += _told(java, "uniform", chain(10, 50, False))
    RECORDED.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _moves(name: str, spec: Spec) -> bool:
    """Whether the case is worth recording: something has to move, and it is not large."""
    size = len(spec.members) * (1 + len(spec.partitions) // 2) + sum(spec.partitions.values())
    had = sum(bool(each.assigned) for each in spec.members.values())
    return 10 < size < SIZE_MAX and len(spec.members) > 2 and had > 1


def _told(java: JavaServerAssignors, name: str, spec: Spec) -> list[str]:
    targets = java.assign(name, spec).targets
    return [*spec_lines(name, spec), *(f"{each}\t{target_text(target)}" for each, target in targets.items())]


if __name__ == "__main__":
    main()
