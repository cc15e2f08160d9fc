"""`python -m tests.interop.assignors.record`: record what Kafka's assignors do with some small groups, for
the tests that run without Java (tests/client/assignors/test_recorded.py)."""

from __future__ import annotations

from dataclasses import replace

from tests.client.assignors.test_recorded import RECORDED
from tests.interop.assignors.comparison import Verdict, aligned, play
from tests.interop.assignors.java import JavaAssignors
from tests.interop.assignors.test_same_as_kafka import ALL, SHAPES
from tests.support.assignor_lines import group_lines, owned_text

GROUPS = 3
ROUNDS = 3


def main() -> None:
    lines = []
    with JavaAssignors() as java:
        for name in ALL:
            for shape in SHAPES.values():
                small = aligned(replace(shape, members_max=6, topics_max=4, partitions_max=8))
                for seed in range(GROUPS):
                    for number, compared in enumerate(play(java, name, small, seed)):
                        group = compared.group
                        if 0 < number <= ROUNDS and compared.verdict in (Verdict.SAME, Verdict.OTHER):
                            lines += group_lines(group.members, group.topics)
                            lines.append(f"assign\t{name}")
                            lines += (f"{each}\t{owned_text(had)}" for each, had in compared.theirs.items())
    RECORDED.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
