"""Cuts in the network between two hosts, one way or both ways: packets are lost without a word."""

from __future__ import annotations

from typing import Final

from tests.faults.cluster.netns import SWITCH, Network, address, run

CLIENTS: Final = SWITCH
"""Where the clients are, as a place to cut off."""


class Cuts:
    """What is cut in one network; several cuts may stand at once."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def one_way(self, sender: int, receiver: int) -> None:
        """Nothing of `sender`'s arrives at `receiver` any more."""
        self._rule(receiver, "--append", "INPUT", "--source", address(sender), "--jump", "DROP")

    def both_ways(self, one: int, other: int) -> None:
        self.one_way(one, other)
        self.one_way(other, one)

    def mend(self) -> None:
        """All of them. What was lost is sent again by TCP, as soon as its timers say."""
        for host in (*self._network.hosts, SWITCH):
            self._rule(host, "--flush", "INPUT")

    def _rule(self, host: int, *rule: str) -> None:
        run(*self._network.inside(host), "iptables", "--wait", *rule)
