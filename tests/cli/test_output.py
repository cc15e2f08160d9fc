"""The output of commands."""

from __future__ import annotations

from muster.coordinator.commands.output import table


def test_one_long_name_does_not_widen_every_row() -> None:
    long = "x" * 10_000
    shown = table(("GROUP", "STATE"), [("billing", "Stable"), (long, "Empty")]).splitlines()
    assert shown == [f"{'GROUP':100}  STATE", f"{'billing':100}  Stable", f"{long}  Empty"]
