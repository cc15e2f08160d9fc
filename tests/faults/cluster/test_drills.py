"""Everything that can go wrong with a cluster, as often as `--rounds` says."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.faults.cluster.drill import campaign, plan
from tests.faults.cluster.faults import FAULTS, SETS_CLOCKS
from tests.faults.cluster.history import Commit, GroupHistory
from tests.faults.cluster.setting import Kind
from tests.faults.cluster.stock import StockMember


def test_nothing_acknowledged_is_lost_and_nobody_rebalances_whatever_fails(
    request: pytest.FixtureRequest, seed: int, tmp_path: Path
) -> None:
    rounds = request.config.getoption("--rounds")
    with request.getfixturevalue("capsys").disabled():
        print(f"\nmake faults SEED={seed} ROUNDS={rounds}", flush=True)
        figures = campaign(seed, rounds, tmp_path, lambda said: print(said, flush=True))
        print(figures, flush=True)
    assert figures.rounds == rounds * len(FAULTS)


def test_a_stock_member_stands_still_when_it_says_nothing_about_its_commit(tmp_path: Path) -> None:
    log = tmp_path / "member.log"
    log.write_text("a heartbeat\n")
    member = StockMember("a", Kind(cooperative=False, static=False), GroupHistory("g"), "127.0.0.1:1", log)
    long_ago = time.time() - 60
    os.utime(log, (long_ago, long_ago))
    assert not member.stands_still()  # nothing is in flight
    member._on_its_way = {0: Commit(5, time.monotonic() - 60)}
    assert member.stands_still()
    os.utime(log)
    assert not member.stands_still()  # it logs something


def test_a_seed_repeats_its_plan() -> None:
    names = sorted(FAULTS)
    planned = plan(random.Random(7), 3, names)
    assert planned == plan(random.Random(7), 3, names) != plan(random.Random(8), 3, names)
    others = [name for name in names if name not in SETS_CLOCKS]
    settled = planned[: 3 * len(others)]
    for begin in range(0, len(settled), len(others)):
        assert sorted(settled[begin : begin + len(others)]) == others
    assert sorted(planned[len(settled) :]) == sorted([*SETS_CLOCKS] * 3)  # in a separate lab
