from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.runtime.support import Bench


@pytest.fixture(params=[False, True], ids=["call", "call_at_once"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Every test that uses it is played by `call` and by its fast twin."""
    bench = await Bench(at_once=request.param).start()
    yield bench
    await bench.close()
