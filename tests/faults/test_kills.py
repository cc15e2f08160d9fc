"""kill -9 in the middle of commits, produces and transactions, as often as `--kills` says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import kills
from tests.faults.kills import Figures, TooFewInFlight, campaign
from tests.support.each import each


def test_nothing_acknowledged_is_lost_however_often_it_is_killed(
    request: pytest.FixtureRequest, seed: int, tmp_path: Path
) -> None:
    count = request.config.getoption("--kills")
    with request.getfixturevalue("capsys").disabled():
        print(f"\nmake faults SEED={seed} KILLS={count}", flush=True)
        figures = campaign(seed, count, tmp_path, lambda said: print(said, flush=True))
        print(figures, flush=True)
    assert figures.kills == count


@each("commits_from, transactions_from", [(3, 0), (0, 3)])
def test_kills_that_meet_no_commits_or_no_transactions_prove_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits_from: int, transactions_from: int
) -> None:
    def round(house: kills.House, seed: str, figures: Figures) -> str:
        figures.kills += 1
        figures.kills_with_commits_open += figures.kills > commits_from
        figures.kills_with_transactions_open += figures.kills > transactions_from
        return "idle"

    monkeypatch.setattr(kills.House, "round", round)
    assert campaign(1, 15, tmp_path / f"enough {commits_from}", lambda said: None).kills == 15
    with pytest.raises(TooFewInFlight, match=r"14 kills in .* 11 (of them|kills) with"):
        campaign(1, 14, tmp_path / f"too few {commits_from}", lambda said: None)
