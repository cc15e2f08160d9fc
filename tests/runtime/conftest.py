from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.runtime.support import Bench


@pytest.fixture(params=[False, True], ids=["call", "call_at_once"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Runs every test that uses it both with `call` and with its fast twin."""
    bench = await Bench(at_once=request.param).start()
    yield bench
    await bench.close()
