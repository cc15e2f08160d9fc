"""muster's explanation of a rebalance matches what the script did, for every client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.causes.all_cases import CASES
from tests.causes.cases import Case
from tests.causes.judging import judge

pytestmark = pytest.mark.interop

_PLAYED = [
    pytest.param(case, client, id=f"{case.name}-{client}") for case in CASES for client in case.clients
]


@pytest.mark.parametrize(("case", "client"), _PLAYED)
def test_it_says_what_happened(case: Case, client: str, tmp_path: Path) -> None:
    judged = judge(case, client, tmp_path)
    assert not judged.wrong, "\n".join([*judged.wrong, str(judged.said), judged.timeline])
