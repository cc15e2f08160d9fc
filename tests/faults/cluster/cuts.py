"""Cuts in the network between two hosts, one way or both ways: packets are lost silently."""

from __future__ import annotations

from typing import Final

from tests.faults.cluster.netns import SWITCH, Network, address, run

CLIENTS: Final = SWITCH
"""The clients' place, as a host to cut off."""


class Cuts:
    """The cuts in one network; several may exist at once."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def one_way(self, sender: int, receiver: int) -> None:
        """Nothing from `sender` arrives at `receiver` any more."""
        self._rule(receiver, "--append", "INPUT", "--source", address(sender), "--jump", "DROP")

    def both_ways(self, one: int, other: int) -> None:
        self.one_way(one, other)
        self.one_way(other, one)

    def mend(self) -> None:
        """Mend all cuts. TCP retransmits what was lost as soon as its timers fire."""
        for host in (*self._network.hosts, SWITCH):
            self._rule(host, "--flush", "INPUT")

    def _rule(self, host: int, *rule: str) -> None:
        run(*self._network.inside(host), "iptables", "--wait", *rule)
